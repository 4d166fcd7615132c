"""The four codecs of record batches: gzip, snappy, lz4 and zstd, by cramjam.

Strategy: output goes into a buffer of a guessed size that grows up to a limit, so that a few bytes which promise a
gigabyte cost no more than the limit. Snappy is written in snappy-java's ("xerial") blocks, as the Java client does, and
read both so and raw. LZ4 frames are written with independent blocks, because the Java client reads no others.

Rules: whatever is wrong with compressed bytes is an `InvalidRecordBatch`. This module knows nothing of batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from pylogd.wire.exceptions import InvalidRecordBatch, TooLarge

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED = 128 * 1024 * 1024  # bytes of one batch's records, by default

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_BLOCK = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

_FIRST_GUESS = 64 * 1024
_GROWTH = 4
_NO_ROOM = "failed to write whole buffer"  # how cramjam says that the output did not fit


class CompressionType(IntEnum):
    """A codec's number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> CompressionType:
        """The codec of a name as settings and options have it. `ValueError` says which there are."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(f"unknown compression {name!r}: one of {known}") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` under `codec`. `level` is the codec's own; `None` is what Kafka's clients have by default."""
    return _COMPRESSORS[codec](data, level)


def decompress(codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED) -> bytes:
    """What `data` held, refused as soon as it goes over `max_size` bytes."""
    if codec == CompressionType.SNAPPY:
        return _snappy_decompress(data, max_size)
    module = _MODULES.get(codec)
    if module is None:
        raise InvalidRecordBatch(f"unknown compression codec {codec}")
    return _decompress_bounded(module.decompress_into, CompressionType(codec), data, max_size)


def _decompress_bounded(
    into: Callable[[Buffer, bytearray], int], codec: CompressionType, data: Buffer, max_size: int
) -> bytes:
    room = min(max(_FIRST_GUESS, _GROWTH * len(data)), max_size)
    while True:
        output = bytearray(room)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise InvalidRecordBatch(f"corrupt {codec.name.lower()}: {error}") from None
            if room >= max_size:
                raise TooLarge(f"{codec.name.lower()} holds more than {max_size} bytes") from None
            room = min(room * _GROWTH, max_size)
        else:
            return bytes(memoryview(output)[:size])


def _snappy_decompress(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(view, max_size)
    position = _XERIAL_HEADER.size
    blocks: list[bytes] = []
    while position < len(view):
        if len(view) - position < _BLOCK_SIZE.size:
            raise InvalidRecordBatch("corrupt snappy: a block's length is cut off")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= len(view) - position:
            raise InvalidRecordBatch(f"corrupt snappy: a block of {size} bytes")
        block = _snappy_block(view[position : position + size], max_size)
        max_size -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _snappy_block(data: memoryview, max_size: int) -> bytes:
    """A raw block, which opens with its size; a lie about it is found by the decoder."""
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_size:
            raise TooLarge(f"snappy holds more than {max_size} bytes")
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, output)
    except cramjam.DecompressionError as error:
        raise InvalidRecordBatch(f"corrupt snappy: {error}") from None
    return bytes(output)


def _gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, 6 if level is None else level))


def _snappy(data: Buffer, _level: int | None) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: Buffer, level: int | None) -> bytes:
    frame = cramjam.lz4.Compressor(1 if level is None else level, content_checksum=False, block_linked=False)
    frame.compress(bytes(data))  # it takes nothing else; no copy is made of bytes
    return bytes(frame.finish())


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def _none(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


_COMPRESSORS: dict[int, Callable[[Buffer, int | None], bytes]] = {
    CompressionType.NONE: _none,
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _snappy,
    CompressionType.LZ4: _lz4,
    CompressionType.ZSTD: _zstd,
}
_MODULES: dict[int, Any] = {
    CompressionType.GZIP: cramjam.gzip,
    CompressionType.LZ4: cramjam.lz4,
    CompressionType.ZSTD: cramjam.zstd,
}
