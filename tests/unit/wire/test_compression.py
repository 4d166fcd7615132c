"""The compression codecs: round trips, bounded output, damaged input."""

from __future__ import annotations

import gzip
import struct

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard

from pylogd.wire.compression import CompressionType, compress, decompress
from pylogd.wire.exceptions import InvalidRecordBatch

CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
TEXT = b"".join(b"line %d of some text that squeezes well\n" % n for n in range(5000))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 300], ids=["empty", "byte", "text", "bytes"])
def test_round_trip(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


def test_no_compression_copies_the_data() -> None:
    assert compress(CompressionType.NONE, memoryview(b"abc")) == b"abc"


def test_other_libraries_read_our_output() -> None:
    assert gzip.decompress(compress(CompressionType.GZIP, TEXT)) == TEXT
    assert lz4.frame.decompress(compress(CompressionType.LZ4, TEXT)) == TEXT
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(CompressionType.ZSTD, TEXT)) == TEXT


def test_we_read_the_output_of_other_libraries() -> None:
    assert decompress(CompressionType.GZIP, gzip.compress(TEXT)) == TEXT
    assert decompress(CompressionType.LZ4, lz4.frame.compress(TEXT, block_linked=True)) == TEXT
    assert decompress(CompressionType.ZSTD, zstandard.ZstdCompressor().compress(TEXT)) == TEXT
    assert decompress(CompressionType.SNAPPY, snappy.compress(TEXT)) == TEXT, "raw, as librdkafka sends it"


def test_lz4_blocks_are_independent() -> None:
    """The Java client refuses frames whose blocks depend on each other."""
    block_independence = 0x20
    assert compress(CompressionType.LZ4, TEXT)[4] & block_independence


def test_snappy_is_written_in_xerial_blocks() -> None:
    data = compress(CompressionType.SNAPPY, TEXT)
    assert data[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (size,) = struct.unpack_from(">i", data, 16)
    assert snappy.uncompress(data[20 : 20 + size]) == TEXT[: 32 * 1024]


@pytest.mark.parametrize("codec", CODECS)
def test_output_is_bounded(codec: CompressionType) -> None:
    bomb = compress(codec, bytes(3_000_000))
    assert len(decompress(codec, bomb, 3_000_000)) == 3_000_000
    with pytest.raises(InvalidRecordBatch, match="more"):
        decompress(codec, bomb, 2_999_999)
    with pytest.raises(InvalidRecordBatch, match="more"):
        decompress(codec, bomb, 1000)


def test_a_raw_snappy_block_with_a_false_size_takes_no_memory() -> None:
    with pytest.raises(InvalidRecordBatch, match="more"):
        decompress(CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0fabc")
    with pytest.raises(InvalidRecordBatch, match="corrupt"):
        decompress(CompressionType.SNAPPY, b"\x10abc")


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_raises_invalid_record_batch(codec: CompressionType) -> None:
    whole = compress(codec, TEXT)
    for bad in (whole[:-3], whole[: len(whole) // 2], b"not compressed at all", b"\x82SNAPPY\x00" + whole[8:24]):
        with pytest.raises(InvalidRecordBatch):
            decompress(codec, bad)


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
def test_a_xerial_block_of_impossible_size(size: int) -> None:
    head = compress(CompressionType.SNAPPY, b"")
    with pytest.raises(InvalidRecordBatch, match="block"):
        decompress(CompressionType.SNAPPY, head + struct.pack(">i", size))
    with pytest.raises(InvalidRecordBatch, match="cut off"):
        decompress(CompressionType.SNAPPY, head + b"\0\0")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(InvalidRecordBatch, match=f"codec {codec}"):
        decompress(codec, b"")


def test_names() -> None:
    assert CompressionType.named("ZStd") is CompressionType.ZSTD
    with pytest.raises(ValueError, match="gzip, snappy, lz4, zstd"):
        CompressionType.named("rar")


def test_cramjam_has_the_error_text_that_growing_relies_on() -> None:
    """The output buffer grows when cramjam raises an error with this text."""
    with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
        cramjam.zstd.decompress_into(cramjam.zstd.compress(bytes(100)), bytearray(10))
