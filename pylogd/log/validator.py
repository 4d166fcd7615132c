"""What a batch must be before it is appended, and the one place that says so.

Strategy: the CRC and the header are always checked. A client's records are walked over by a compiled loop (`inspect`)
if they are not compressed; compressed ones must begin as their codec's frames do, and are only walked over where the
log has to know what is inside: compaction needs keys, `message.timestamp.before.max.ms` every time stamp, and a header
whose largest time stamp can't be right the true one. `check_batches` is the general path, for any number of batches of
any origin. The log has a fast path for the one plain batch of a client; a property test holds that both accept and
refuse the same.

Rules: a batch whose largest time stamp is not its records' gets the right one, as in Kafka: several clients don't set
it (Sarama), or set the last one's. A replica takes what its leader has: only what its own log relies on is checked.
What takes long is not done where `may_inspect` is False: `InspectionNeeded` says that `inspect` has to be run in a
thread first.

Known limit: offsets and time stamps inside compressed batches that are not walked over are believed.

Source: Kafka documentation, "Record Batch", and its LogValidator; KIP-32 and KIP-937 (time stamps), KIP-98
(producers), KIP-467 (which records are at fault).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pylogd.log.config import NO_LIMIT, LogConfig, TimestampType
from pylogd.log.errors import (
    CorruptRecord,
    InspectionNeeded,
    InvalidAppend,
    InvalidRecord,
    InvalidTimestamp,
    KeylessRecords,
    OffsetsOutOfOrder,
    RecordTooLarge,
    TransactionNotOpen,
    UnsupportedCompressionType,
    UnsupportedMessageFormat,
)
from pylogd.wire.compression import MAX_DECOMPRESSED, CompressionType
from pylogd.wire.exceptions import InvalidRecordBatch, TooLarge
from pylogd.wire.records import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    crc32c,
)
from pylogd.wire.validation import INLINE_BYTES, Inspection, batch_is_valid, frame_is_valid, inspect_batch

MAX_CODEC = 4
_MAGIC_AT = 16
#: Times max.message.bytes that the records of a batch may take where they are looked at, so that it can't take long.
_MOST_EXPANSION = 16
#: Bytes of a compressed batch, and of its records decompressed, up to which a look takes less than a millisecond.
_INLINE_COMPRESSED = 1 << 13
_INLINE_DECOMPRESSED = min(1 << 16, INLINE_BYTES)
#: Bits of the attributes that a client may set; that of an append's time has an error of its own.
_CLIENT_BITS = COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


class AppendOrigin(Enum):
    """Who made the batches, and so what is believed and who gives the offsets."""

    CLIENT = "client"  # nothing is believed; this log gives the offsets
    COORDINATOR = "coordinator"  # the broker itself: its records are right; this log gives the offsets
    REPLICATION = "replication"  # a leader's log: offsets, epochs and sizes were settled there


Checked = tuple[BatchHeader, memoryview]
#: What was found in batches, or why they can't be read, by the places of the batches.
Inspections = Mapping[int, Inspection | InvalidAppend]


def check_batches(
    records: memoryview,
    origin: AppendOrigin,
    config: LogConfig,
    now_ms: int,
    end: int,
    inspections: Inspections | None = None,
    may_inspect: bool = True,
) -> list[Checked]:
    """Each batch with its header, or the error that refuses them all.

    end: the log's end offset. inspections: what `inspect` found in these records. Raises InspectionNeeded where they
    are needed, would take long, and `may_inspect` is False.
    """
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
            if origin is AppendOrigin.CLIENT:
                found = inspections.get(position) if inspections is not None else None
                if found is None and needs_inspection(header, config):
                    if may_inspect:
                        found = _inspect(header, batch, config, now_ms)
                    else:
                        found = _inspect_soon(header, batch, config, now_ms, len(records))
                header, batch = check_records(header, batch, config, now_ms, found)
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
    if header.attributes & ~_CLIENT_BITS:
        raise InvalidRecord(f"attributes {header.attributes & 0xFFFF:#06x} with bits that a producer may not set")
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a client can't mark its time stamps as those of the append")
    if header.base_offset:
        raise InvalidRecord(f"a batch to append starts at offset {header.base_offset}, and should start at 0")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.record_count} records, the last of them at offset {header.last_offset_delta}")
    if header.is_control and origin is AppendOrigin.CLIENT:
        raise InvalidRecord("a control batch: clients may not write these")
    if origin is AppendOrigin.CLIENT:
        check_transaction(header)
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidRecord(f"a batch of producer {header.producer_id}: there is no such producer id")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0) and not header.is_control:
        raise InvalidRecord(
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )


def check_transaction(header: BatchHeader) -> None:
    """What holds for a client's transactional batch: none is taken, since there are no transactions on this broker."""
    if header.is_transactional:
        raise TransactionNotOpen(f"a transactional batch of producer {header.producer_id}, which has no transaction")


def needs_inspection(header: BatchHeader, config: LogConfig) -> bool:
    """Whether the records of a client's batch have to be walked over before it may be appended to such a log."""
    if config.compacts or config.limits_age:
        return True
    if header.max_timestamp < header.base_timestamp and config.message_timestamp_type is TimestampType.CREATE_TIME:
        return True
    return config.validate_compressed if header.compression else config.validate_records


def inspect(records: memoryview, config: LogConfig, now_ms: int) -> Inspections:
    """Walk over the records of those batches that `check_batches` would have to; what it needs to know of them.

    May take long; touches nothing but the records, so it can run in any thread. Ends at the first header that is wrong.
    """
    found: dict[int, Inspection | InvalidAppend] = {}
    position = 0
    while position < len(records):
        try:
            header = read_header(records, position)
            check_structure(header)
        except InvalidAppend:
            break
        end = position + header.batch_length + LENGTH_OVERHEAD
        if needs_inspection(header, config):
            found[position] = _inspect(header, records[position:end], config, now_ms)
        position = end
    return found


def wants_inspection(records: memoryview, config: LogConfig) -> bool:
    """Whether `inspect` would find anything to do, by the headers alone."""
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            if needs_inspection(header, config):
                return True
            position += header.batch_length + LENGTH_OVERHEAD
    except InvalidAppend:
        pass  # the append will say why
    return False


def _inspect_soon(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, total: int
) -> Inspection | InvalidAppend:
    """`_inspect` of a batch that takes no longer than the reactor can spare. Raises InspectionNeeded for another.

    total: bytes of all batches that are appended with it.
    """
    if total > (_INLINE_COMPRESSED if header.compression else INLINE_BYTES) or (
        header.compression and total > len(batch)
    ):
        raise InspectionNeeded(f"a batch of {len(batch)} bytes has to be looked into")
    found = _inspect(header, batch, config, now_ms, _INLINE_DECOMPRESSED)
    if isinstance(found, RecordTooLarge):
        raise InspectionNeeded(f"a batch of {len(batch)} bytes takes many more to be looked into")
    return found


def _inspect(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, most: int = MAX_DECOMPRESSED
) -> Inspection | InvalidAppend:
    """What a walk over the records shows, which take at most so many bytes decompressed."""
    if header.compression and not frame_is_valid(batch):
        return _other_codec(header)
    most = min(config.max_message_bytes * _MOST_EXPANSION, most)
    try:
        return inspect_batch(batch, header, most, *_time_bounds(config, now_ms))
    except TooLarge as error:
        return RecordTooLarge(str(error))
    except InvalidRecordBatch as error:
        return InvalidRecord(f"records that can't be read: {error}")


def check_records(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, found: Inspection | InvalidAppend | None
) -> Checked:
    """What holds for the records of a client's batch. The batch is another one if its largest time stamp was wrong.

    found: what a walk over them has shown; None where none was needed.
    """
    if isinstance(found, InvalidAppend):
        raise found
    if found is None:
        is_valid = batch_is_valid if config.validate_records else frame_is_valid
        if not is_valid(batch, -NO_LIMIT):
            raise _other_codec(header)
        check_timestamps(header, config, now_ms)
        return header, batch
    if found.problem is not None:
        place = max(min(found.valid, header.record_count - 1), 0)
        raise InvalidRecord(
            f"record {place} of {header.record_count} {found.problem}", [place], f"The record {found.problem}."
        )
    if config.compacts and found.keyless:
        raise KeylessRecords(
            f"{found.keyless} of {header.record_count} records are without a key, which a compacted topic can't take; "
            f"the first is record {found.keyless_indexes[0]} of its batch",
            found.keyless_indexes,
            "A record of a compacted topic needs a key.",
        )
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header, batch
    if found.mistimed:
        earliest, latest = _time_bounds(config, now_ms)
        raise InvalidTimestamp(
            f"{found.mistimed} of {header.record_count} records have a time stamp outside {earliest} to {latest}, "
            f"which the topic allows; the first is record {found.mistimed_indexes[0]} of its batch",
            found.mistimed_indexes,
            "The time stamp is outside of what the topic allows.",
        )
    if found.max_timestamp != header.max_timestamp:
        return _patched(batch, header._replace(max_timestamp=found.max_timestamp))
    return header, batch


def check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """The client's time stamps by the header, where they are kept: not too old, not too far ahead."""
    earliest, latest = _time_bounds(config, now_ms)
    for stamp in (header.base_timestamp, header.max_timestamp):
        if stamp >= 0 and not earliest <= stamp <= latest:
            raise InvalidTimestamp(f"time stamp {stamp} is outside {earliest} to {latest}, which the topic allows")


def _time_bounds(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The least and the largest time stamp that the log takes, in milliseconds since 1970."""
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return -NO_LIMIT, NO_LIMIT
    latest = min(now_ms + config.message_timestamp_after_max_ms, NO_LIMIT)
    return max(now_ms - config.message_timestamp_before_max_ms, -NO_LIMIT), latest


def _other_codec(header: BatchHeader) -> InvalidRecord:
    if not header.compression:
        return InvalidRecord(f"{header.record_count} records in {header.batch_length + LENGTH_OVERHEAD} bytes")
    name = CompressionType(header.compression).name.lower()
    return InvalidRecord(f"the batch says that it is compressed with {name}, and its records are not")


def with_log_append_time(batch: memoryview, now_ms: int) -> Checked:
    """The batch with the broker's time stamp: the attribute's bit, the largest time stamp and the CRC are rewritten."""
    header = BatchHeader._make(HEADER.unpack_from(batch))
    return _patched(batch, header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms))


def _patched(batch: memoryview, header: BatchHeader) -> Checked:
    """A copy of the batch with another header, and the CRC that it then has."""
    copy = bytearray(batch)
    HEADER.pack_into(copy, 0, *header)
    header = header._replace(crc=crc32c(memoryview(copy)[CRC_START:]))
    HEADER.pack_into(copy, 0, *header)
    return header, memoryview(copy)
