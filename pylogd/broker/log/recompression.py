"""Recompress batches of producers if a topic's `compression.type` names another codec than theirs.

Strategy: the bytes of the records inside a batch do not change, only their codec. So offsets, time stamps, and the
fields of idempotent and transactional producers in the header remain valid. As in Kafka, a batch that already has the
topic's codec is stored as received, whatever its level.

Rules: `recompress` may take long, and is called in threads only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import InvalidRecord
from pylogd.wire.compression import CompressionType, compress
from pylogd.wire.records import COMPRESSION_MASK, CRC_START, HEADER, LENGTH_OVERHEAD, BatchHeader, Buffer, crc32c
from pylogd.wire.validation import Inspection, record_larger_than

#: In Kafka this level of LZ4 means the fast compressor; other levels mean the compressor with a high ratio, whose
#: highest level is 12.
_LZ4_FAST: Final = 9
_LZ4_HIGHEST: Final = 12
_LZ4_LOWEST_HIGH: Final = 3  # the library uses the fast compressor for lower levels


class Recompressed(NamedTuple):
    """A batch that was inspected and has no malformed record, and the same batch in the log's codec."""

    found: Inspection
    batch: memoryview


def changes_codec(header: BatchHeader, config: LogConfig) -> bool:
    """Return whether a client's batch with this header is stored with another codec."""
    codec = config.codec
    return codec is not None and header.attributes & COMPRESSION_MASK != codec


def recompress(header: BatchHeader, records: Buffer, config: LogConfig) -> memoryview:
    """Return a batch with this header and these decompressed records in the log's codec, with an updated CRC.

    May take long.
    """
    codec = config.codec
    assert codec is not None
    payload = compress(codec, records, level_of(codec, config))
    batch = bytearray(HEADER.size + len(payload))
    batch[HEADER.size :] = payload
    header = header._replace(
        attributes=header.attributes & ~COMPRESSION_MASK | codec, batch_length=len(batch) - LENGTH_OVERHEAD
    )
    HEADER.pack_into(batch, 0, *header)
    HEADER.pack_into(batch, 0, *header._replace(crc=crc32c(memoryview(batch)[CRC_START:])))
    return memoryview(batch)


def level_of(codec: int, config: LogConfig) -> int | None:
    """Return the level at which a log's batches are compressed with a codec; None for the codec's default."""
    if codec == CompressionType.GZIP:
        return config.compression_gzip_level if config.compression_gzip_level >= 0 else None
    if codec == CompressionType.ZSTD:
        return config.compression_zstd_level
    if codec == CompressionType.LZ4 and config.compression_lz4_level != _LZ4_FAST:
        return min(max(config.compression_lz4_level, _LZ4_LOWEST_HIGH), _LZ4_HIGHEST)
    return None


def check_record_sizes(header: BatchHeader, records: Buffer, config: LogConfig) -> None:
    """Raise InvalidRecord if a compressed batch has a record larger than `max.decompressed.message.bytes`.

    records: the decompressed records of the batch.
    """
    most = config.max_decompressed_message_bytes
    if header.compression and len(records) > most:
        index = record_larger_than(records, header.record_count, most)
        if index is not None:
            text = f"is larger than max.decompressed.message.bytes, {most}, when it is decompressed"
            raise InvalidRecord(
                f"record {index} of {header.record_count} {text}", [index], f"The record {text}."
            )  # fmt: skip
