"""Compress and decompress records with gzip, snappy, lz4 and zstd, by cramjam.

Strategy: decompression writes to a buffer of an estimated size, which grows up to a limit, so a few bytes that claim to
hold a gigabyte cost no more than the limit. Snappy is written as a stream of snappy-java's ("xerial") blocks, like the
Java client does; raw snappy is read too. LZ4 frames have independent blocks, because the Java client reads no other
blocks.

To add a codec, give it a number in `CompressionType` and an entry in `CODECS`.

Rules: invalid compressed bytes raise InvalidRecordBatch. Must not know: record batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import cramjam

from pylogd.wire.exceptions import InvalidRecordBatch, TooLarge

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED = 128 * 1024 * 1024  # the default limit on the decompressed records of a batch, in bytes

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_BLOCK = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

_FIRST_GUESS = 64 * 1024
_GROWTH = 4
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's message if the output does not fit


class CompressionType(IntEnum):
    """A codec, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> CompressionType:
        """Return the codec with a name from a setting or option. Raises ValueError, which lists the names."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(f"unknown compression {name!r}: use one of {known}") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`. `level` is specific to the codec; None is the default of Kafka's clients."""
    return CODECS[codec].compress(data, level)


def decompress(codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED) -> bytes:
    """Decompress `data`. Raises TooLarge if the result has more than `max_size` bytes, and InvalidRecordBatch."""
    return bytes(decompress_buffer(codec, data, max_size))


def decompress_buffer(codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED) -> bytes | bytearray:
    """Return the same as `decompress`, without the last copy."""
    known = CODECS.get(codec)
    if known is None:
        raise InvalidRecordBatch(f"unknown compression codec {codec}")
    return known.decompress(data, max_size)


def _decompress_bounded(into: Callable[[Buffer, bytearray], int], name: str, data: Buffer, max_size: int) -> bytearray:
    capacity = min(max(_FIRST_GUESS, _GROWTH * len(data)), max_size)
    while True:
        output = bytearray(capacity)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise InvalidRecordBatch(f"corrupt {name} data: {error}") from None
            if capacity >= max_size:
                raise TooLarge(f"{name} data decompresses to more than {max_size} bytes") from None
            capacity = min(capacity * _GROWTH, max_size)
        else:
            del output[size:]
            return output


def _snappy_decompress(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _snappy_block(view, max_size)
    position = _XERIAL_HEADER.size
    blocks: list[bytes] = []
    while position < len(view):
        if len(view) - position < _BLOCK_SIZE.size:
            raise InvalidRecordBatch("corrupt snappy data: the length of a block is cut off")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= len(view) - position:
            raise InvalidRecordBatch(f"corrupt snappy data: a block claims {size} of {len(view) - position} bytes")
        block = _snappy_block(view[position : position + size], max_size)
        max_size -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _snappy_block(data: memoryview, max_size: int) -> bytes:
    """Decompress a raw block. It begins with its decompressed size, which the decoder verifies."""
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_size:
            raise TooLarge(f"snappy data decompresses to more than {max_size} bytes")
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, output)
    except cramjam.DecompressionError as error:
        raise InvalidRecordBatch(f"corrupt snappy data: {error}") from None
    return bytes(output)


def _begins_snappy(data: bytes) -> bool:
    """Return whether data begin as a xerial stream, or as a raw block: with a size of at most 5 bytes."""
    return data == XERIAL_MAGIC or min(data[:5]) < 128


def _gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, 6 if level is None else level))


def _snappy(data: Buffer, _level: int | None) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER.pack(XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: Buffer, level: int | None) -> bytes:
    frame = cramjam.lz4.Compressor(1 if level is None else level, content_checksum=False, block_linked=False)
    frame.compress(bytes(data))  # cramjam needs bytes here; `bytes(data)` does not copy bytes
    return bytes(frame.finish())


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def _none(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


def _not_compressed(_data: Buffer, _max_size: int) -> bytes:
    raise InvalidRecordBatch(f"unknown compression codec {CompressionType.NONE}")


class Codec(NamedTuple):
    """How records are compressed.

    compress: takes the data and a level; None is the default of Kafka's clients.
    decompress: takes the data and the largest size of the result.
    begins: takes the first bytes of compressed data, 5 to 8. Returns whether the codec may have written them.
    """

    compress: Callable[[Buffer, int | None], bytes]
    decompress: Callable[[Buffer, int], bytes | bytearray]
    begins: Callable[[bytes], bool]


def _codec(name: str, module: Any, compress: Callable[[Buffer, int | None], bytes], magic: bytes) -> Codec:
    """Return a codec of cramjam whose data begin with a magic number."""
    return Codec(
        compress, partial(_decompress_bounded, module.decompress_into, name), lambda data: data[: len(magic)] == magic
    )


#: The codecs by their numbers.
CODECS: Final[Mapping[int, Codec]] = {
    CompressionType.NONE: Codec(_none, _not_compressed, lambda _: True),
    CompressionType.GZIP: _codec("gzip", cramjam.gzip, _gzip, b"\x1f\x8b\x08"),
    CompressionType.SNAPPY: Codec(_snappy, _snappy_decompress, _begins_snappy),
    CompressionType.LZ4: _codec("lz4", cramjam.lz4, _lz4, b"\x04\x22\x4d\x18"),
    CompressionType.ZSTD: _codec("zstd", cramjam.zstd, _zstd, b"\x28\xb5\x2f\xfd"),
}
