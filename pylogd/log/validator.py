"""What a batch must be before it is appended, and the one place that says so.

Strategy: headers and the CRC are looked at, records are not: they are the client's. The exception is a log that is
compacted by key, whose records must have one. `check_batches` is the general path, for any number of batches of any
origin. The log has a fast path for the one plain batch of a client; a property
test holds that both accept and refuse the same.

Known limits, since records stay opaque: offsets inside a batch are believed when count and last delta agree, and time
stamps are judged by the batch's first and largest.

Source: Kafka documentation, "Record Batch"; KIP-32 and KIP-937 (time stamps), KIP-98 (producers).
"""

from __future__ import annotations

from enum import Enum

from pylogd.errors import ProtocolError
from pylogd.log.config import LogConfig, TimestampType
from pylogd.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    KeylessRecords,
    OffsetsOutOfOrder,
    RecordTooLarge,
    UnsupportedCompressionType,
    UnsupportedMessageFormat,
)
from pylogd.log.rewrite import walk
from pylogd.wire.records import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    crc32c,
)

MAX_CODEC = 4
_MAGIC_AT = 16
#: Times max.message.bytes that the records of a batch may take where they are looked at, so that it can't take long.
_MOST_EXPANSION = 16


class AppendOrigin(Enum):
    """Who made the batches, and so what is believed and who gives the offsets."""

    CLIENT = "client"  # nothing is believed; this log gives the offsets
    COORDINATOR = "coordinator"  # the broker itself: may write control batches; this log gives the offsets
    REPLICATION = "replication"  # a leader's log: offsets, epochs and sizes were settled there


Checked = tuple[BatchHeader, memoryview]


def check_batches(records: memoryview, origin: AppendOrigin, config: LogConfig, now_ms: int, end: int) -> list[Checked]:
    """Each batch with its header, or the error that refuses them all. `end` is the log's end offset."""
    if not len(records):
        raise InvalidRecord("there is no record batch in the records")
    checked = []
    position = 0
    while position < len(records):
        header = read_header(records, position)
        size = header.batch_length + LENGTH_OVERHEAD
        batch = records[position : position + size]
        if origin is not AppendOrigin.REPLICATION and size > config.max_message_bytes:
            raise RecordTooLarge(f"a batch of {size} bytes is over max.message.bytes, {config.max_message_bytes}")
        if crc32c(batch[CRC_START:]) != header.crc:
            raise CorruptRecord(f"the batch at byte {position} fails its CRC")
        check_structure(header)
        if origin is AppendOrigin.REPLICATION:
            if header.base_offset < end:
                raise OffsetsOutOfOrder(f"a batch at offset {header.base_offset}, where {end} or more is expected")
            end = header.base_offset + header.last_offset_delta + 1
        else:
            check_client_header(header, origin)
            check_timestamps(header, config, now_ms)
            if config.compacts and not header.is_control:
                check_keys(header, batch, config.max_message_bytes * _MOST_EXPANSION)
        checked.append((header, batch))
        position += size
    return checked


def check_epochs(headers: list[BatchHeader], latest: int, leader_epoch: int) -> None:
    """What holds for a leader's batches: epochs don't go back, from the log's `latest` on, nor beyond the leader's."""
    for header in headers:
        if not latest <= header.leader_epoch <= leader_epoch:
            raise OffsetsOutOfOrder(
                f"a batch of leader epoch {header.leader_epoch} at offset {header.base_offset}, where the log is in "
                f"epoch {latest} and its leader in {leader_epoch}"
            )
        latest = header.leader_epoch


def read_header(records: memoryview, position: int) -> BatchHeader:
    """The header at `position`, of a format and length that can be."""
    left = len(records) - position
    if left > _MAGIC_AT and (magic := records[position + _MAGIC_AT]) != MAGIC:
        raise UnsupportedMessageFormat(f"a batch of data format {magic}: only version {MAGIC} is written here")
    if left < HEADER_SIZE:
        raise CorruptRecord(f"{left} bytes at byte {position} are too few for a batch")
    header = BatchHeader._make(HEADER.unpack_from(records, position))
    size = header.batch_length + LENGTH_OVERHEAD
    if not HEADER_SIZE <= size <= left:
        raise CorruptRecord(f"a batch at byte {position} says that it has {size} bytes; {left} are there")
    return header


def check_structure(header: BatchHeader) -> None:
    """What holds for a batch of any origin."""
    if header.attributes & COMPRESSION_MASK > MAX_CODEC:
        raise UnsupportedCompressionType(f"no codec has the number {header.attributes & COMPRESSION_MASK}")
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise InvalidRecord(f"offset {header.base_offset} with a last delta of {header.last_offset_delta}")


def check_client_header(header: BatchHeader, origin: AppendOrigin) -> None:
    """What holds for a batch that gets its offsets here."""
    if header.base_offset:
        raise InvalidRecord(f"a batch to append starts at offset {header.base_offset}, and should start at 0")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.record_count} records, the last of them at offset {header.last_offset_delta}")
    if header.is_control and origin is AppendOrigin.CLIENT:
        raise InvalidRecord("a control batch: clients may not write these")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0) and not header.is_control:
        raise InvalidRecord(
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )


def check_keys(header: BatchHeader, batch: memoryview, most: int) -> None:
    """What holds for a batch of a compacted log: each record has a key, and the cleaner will be able to read it.

    `most`: bytes that its records may take, decompressed.
    """
    try:
        walked = walk(batch, header, most)
    except (CorruptRecord, ProtocolError) as error:
        raise InvalidRecord(f"records that can't be read: {error}") from error
    if walked.deltas != list(range(header.record_count)):
        raise InvalidRecord("the offsets in a batch are not consecutive")
    keyless = [at for at, key in enumerate(walked.keys) if key is None]
    if keyless:
        raise KeylessRecords(
            f"{len(keyless)} of {header.record_count} records are without a key, which a compacted topic can't take; "
            f"the first is record {keyless[0]} of its batch",
            keyless,
        )


def check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """The client's time stamps, where they are kept: not too old, not too far ahead, and the client's own."""
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a client can't mark its time stamps as those of the append")
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for stamp in (header.base_timestamp, header.max_timestamp):
        if stamp >= 0 and not earliest <= stamp <= latest:
            raise InvalidTimestamp(f"time stamp {stamp} is outside {earliest} to {latest}, which the topic allows")


def with_log_append_time(batch: memoryview, now_ms: int) -> tuple[BatchHeader, memoryview]:
    """The batch with the broker's time stamp: the attribute's bit, the largest time stamp and the CRC are rewritten."""
    copy = bytearray(batch)
    header = BatchHeader._make(HEADER.unpack_from(copy))
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)
    HEADER.pack_into(copy, 0, *header)
    header = header._replace(crc=crc32c(memoryview(copy)[CRC_START:]))
    HEADER.pack_into(copy, 0, *header)
    return header, memoryview(copy)
