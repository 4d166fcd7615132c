"""Check batches before they are appended. Only this module decides which batches are valid.

The CRC and the header are always checked. The records of a client are inspected by a compiled loop (`inspect`) if they
are not compressed. Compressed records must start like a frame of their codec. They are inspected only if the log has to
know their contents: compaction needs keys, `message.timestamp.before.max.ms` needs all time stamps, a wrong largest
time stamp in the header has to be corrected, and another codec than the log's has to be replaced. `check_batches` is
the general path, for any number of batches of any origin. The log has a fast path for single batches of clients; a
property test proves that both accept and refuse the same batches.

Rules: a wrong largest time stamp in a header is corrected, as in Kafka: some clients (Sarama) do not set it, or set it
to that of the last record. A replica accepts what its leader has, and checks only what its own log relies on. Where
`may_inspect` is False, inspections that would take long are not made; InspectionNeeded says that `inspect` has to be
called in a thread first.

Known limit: offsets and time stamps inside compressed batches that are not inspected are not checked.

Source: Kafka documentation, "Record Batch", and its LogValidator; KIP-32 and KIP-937 (time stamps), KIP-98
(producers), KIP-467 (errors of single records).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum

from pylogd.broker.log.config import NO_LIMIT, LogConfig, TimestampType
from pylogd.broker.log.errors import (
    CorruptRecord,
    InspectionNeeded,
    InvalidAppend,
    InvalidRecord,
    InvalidTimestamp,
    KeylessRecords,
    OffsetsOutOfOrder,
    RecordTooLarge,
    UnsupportedCompressionType,
)
from pylogd.broker.log.recompression import Recompressed, changes_codec, check_record_sizes, recompress
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
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    crc32c,
    payload_of,
)
from pylogd.wire.validation import INLINE_BYTES, Inspection, batch_is_valid, frame_is_valid, inspect_records

MAX_CODEC = 4
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_MAGIC_AT = 16
_LEAST_LENGTH = 14  # the least length of a message of the first format, without offset and length
#: The decompressed records of an inspected batch may be this many times larger than max.message.bytes. This bounds the
#: time of an inspection.
_MAX_EXPANSION = 16
#: The sizes of a compressed batch and of its decompressed records up to which an inspection takes less than 1 ms.
_INLINE_COMPRESSED = 1 << 13
_INLINE_DECOMPRESSED = min(1 << 16, INLINE_BYTES)
#: The bits of the attributes that a client may set. LOG_APPEND_TIME is refused too, with its own error.
_CLIENT_BITS = COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


class AppendOrigin(Enum):
    """The origin of batches. It determines the checks, and who assigns the offsets."""

    CLIENT = "client"  # everything is checked; this log assigns the offsets
    COORDINATOR = "coordinator"  # the broker itself: its records are valid; this log assigns the offsets
    REPLICATION = "replication"  # a leader's log, which has checked them and assigned the offsets


Checked = tuple[BatchHeader, memoryview]
#: The results of inspecting batches, or the errors of batches that can't be read, by the positions of the batches.
Inspected = Inspection | Recompressed | InvalidAppend
Inspections = Mapping[int, Inspected]


def check_batches(
    records: memoryview,
    origin: AppendOrigin,
    config: LogConfig,
    now_ms: int,
    end: int,
    inspections: Inspections | None = None,
    may_inspect: bool = True,
) -> list[Checked]:
    """Check batches, and return each with its header. Raises InvalidAppend for all if one is not valid.

    end: the log end offset.
    inspections: the result of `inspect` for these records.
    may_inspect: whether to make inspections that take long; otherwise InspectionNeeded is raised.
    """
    check_count(records, origin)
    checked = []
    position = 0
    while position < len(records):
        header = read_header(records, position)
        size = header.batch_length + LENGTH_OVERHEAD
        batch = records[position : position + size]
        if origin is not AppendOrigin.REPLICATION and size > config.max_message_bytes:
            raise RecordTooLarge(f"a batch has {size} bytes, more than max.message.bytes, {config.max_message_bytes}")
        if crc32c(batch[CRC_START:]) != header.crc:
            raise CorruptRecord(f"the batch at byte {position} fails its CRC")
        check_structure(header)
        if origin is AppendOrigin.REPLICATION:
            if header.base_offset < end:
                raise OffsetsOutOfOrder(f"a batch starts at offset {header.base_offset}, expected {end} or more")
            end = header.base_offset + header.last_offset_delta + 1
        else:
            check_client_header(header, origin)
            if origin is AppendOrigin.CLIENT:
                found = inspections.get(position) if inspections is not None else None
                if (found is None and needs_inspection(header, config)) or _is_outdated(found, header, config):
                    if may_inspect:
                        found = _inspect(header, batch, config, now_ms)
                    else:
                        found = _inspect_soon(header, batch, config, now_ms, len(records))
                header, batch = check_records(header, batch, config, now_ms, found)
        checked.append((header, batch))
        position += size
    return checked


def check_count(records: memoryview, origin: AppendOrigin) -> None:
    """Check that there is a batch, and that a client has sent only one, in the present format. Raises InvalidAppend.

    Several batches could only be appended or recognized as a duplicate together, but a client that sends again may have
    grouped them differently. As in Kafka this comes before all other checks.
    """
    if origin is not AppendOrigin.CLIENT:
        if not len(records):
            raise InvalidRecord("there is no record batch")
        return
    size = _size_at(records, 0)
    if size is None:
        raise InvalidRecord("a Produce request needs one record batch for each partition; there is no complete one")
    if records[_MAGIC_AT] != MAGIC:
        raise InvalidRecord(f"a batch has format version (magic) {records[_MAGIC_AT]}; only {MAGIC} is supported")
    if size < len(records) and _size_at(records, size) is not None:
        raise InvalidRecord("a Produce request may have only one record batch for each partition; there are more")


def _size_at(records: memoryview, position: int) -> int | None:
    """Return the size of the batch at `position`, of any format; None if it is not complete. Raises CorruptRecord."""
    left = len(records) - position
    if left < LENGTH_OVERHEAD:
        return None
    (length,) = _LENGTH.unpack_from(records, position + _LENGTH_AT)
    if length < _LEAST_LENGTH:
        raise CorruptRecord(f"the batch at byte {position} has length {length}; the least is {_LEAST_LENGTH}")
    if left <= _MAGIC_AT:
        return None
    if (magic := records[position + _MAGIC_AT]) > MAGIC:
        raise CorruptRecord(f"the batch at byte {position} has format version (magic) {magic}, which does not exist")
    size: int = length + LENGTH_OVERHEAD
    return size if size <= left else None


def check_epochs(headers: list[BatchHeader], latest: int, leader_epoch: int) -> None:
    """Check that the epochs of a leader's batches ascend, from the log's `latest` up to the leader's epoch.

    Raises OffsetsOutOfOrder.
    """
    for header in headers:
        if not latest <= header.leader_epoch <= leader_epoch:
            raise OffsetsOutOfOrder(
                f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch}, "
                f"expected {latest} to {leader_epoch}"
            )
        latest = header.leader_epoch


def read_header(records: memoryview, position: int) -> BatchHeader:
    """Return the header of the batch at `position`. Raises InvalidAppend if its format or length is not valid."""
    left = len(records) - position
    if left > _MAGIC_AT and (magic := records[position + _MAGIC_AT]) != MAGIC:
        raise CorruptRecord(f"a batch has format version (magic) {magic}; only {MAGIC} is supported")
    if left < HEADER_SIZE:
        raise CorruptRecord(f"the {left} bytes from byte {position} on are too few for a batch")
    header = BatchHeader._make(HEADER.unpack_from(records, position))
    size = header.batch_length + LENGTH_OVERHEAD
    if not HEADER_SIZE <= size <= left:
        raise CorruptRecord(f"the batch at byte {position} should have {size} bytes, but only {left} are left")
    return header


def check_structure(header: BatchHeader) -> None:
    """Check what must be valid in a header of any origin. Raises InvalidAppend."""
    if header.attributes & COMPRESSION_MASK > MAX_CODEC:
        raise UnsupportedCompressionType(f"unknown compression codec {header.attributes & COMPRESSION_MASK}")
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise InvalidRecord(f"invalid base offset {header.base_offset} or last delta {header.last_offset_delta}")


def check_client_header(header: BatchHeader, origin: AppendOrigin) -> None:
    """Check the header of a batch to which this log assigns offsets. Raises InvalidAppend."""
    if header.attributes & ~_CLIENT_BITS:
        raise InvalidRecord(f"attributes {header.attributes & 0xFFFF:#06x} have bits that a producer may not set")
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a client may not set the log append time attribute")
    if header.base_offset:
        raise InvalidRecord(f"a batch has base offset {header.base_offset}, expected 0")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.record_count} records do not fit last offset delta {header.last_offset_delta}")
    if header.is_control and origin is AppendOrigin.CLIENT:
        raise InvalidRecord("clients may not write control batches")
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidRecord(f"invalid producer id {header.producer_id}")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch has no producer id")
    unnumbered = origin is AppendOrigin.COORDINATOR and header.base_sequence == NO_SEQUENCE and header.is_transactional
    if header.producer_id >= 0 and (header.producer_epoch < 0 or (header.base_sequence < 0 and not unnumbered)):
        raise InvalidRecord(
            f"invalid epoch {header.producer_epoch} or sequence {header.base_sequence} of producer {header.producer_id}"
        )


def needs_inspection(header: BatchHeader, config: LogConfig) -> bool:
    """Return whether the records of a client's batch must be inspected before they are appended to a log."""
    if config.compacts or config.limits_age or changes_codec(header, config):
        return True
    if header.max_timestamp < header.base_timestamp and config.message_timestamp_type is TimestampType.CREATE_TIME:
        return True
    return config.inspects_compressed if header.compression else config.validate_records


def _is_outdated(found: Inspected | None, header: BatchHeader, config: LogConfig) -> bool:
    """Return whether the log's codec has changed since a batch was inspected."""
    if found is None or isinstance(found, InvalidAppend) or not changes_codec(header, config):
        return False
    if isinstance(found, Recompressed):
        return changes_codec(read_header(found.batch, 0), config)
    return found.problem is None


def inspect(records: memoryview, config: LogConfig, now_ms: int) -> Inspections:
    """Inspect the records of all batches that need it, for `check_batches`; ends at the first invalid header.

    May take long. Uses nothing but its arguments, so it may be called in any thread.
    """
    found: dict[int, Inspected] = {}
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
    """Return whether any of the batches needs inspection. Only their headers are read."""
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            if needs_inspection(header, config):
                return True
            position += header.batch_length + LENGTH_OVERHEAD
    except InvalidAppend:
        pass  # the append raises it
    return False


def _inspect_soon(header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, total: int) -> Inspected:
    """Inspect a batch if that is quick enough for the reactor's thread. Raises InspectionNeeded if not.

    total: the size of all batches of the append.
    """
    if changes_codec(header, config):
        raise InspectionNeeded(f"a batch of {len(batch)} bytes has to be compressed anew")
    if total > (_INLINE_COMPRESSED if header.compression else INLINE_BYTES) or (
        header.compression and total > len(batch)
    ):
        raise InspectionNeeded(f"a batch of {len(batch)} bytes has to be inspected")
    found = _inspect(header, batch, config, now_ms, _INLINE_DECOMPRESSED)
    if isinstance(found, RecordTooLarge):
        raise InspectionNeeded(f"a batch of {len(batch)} bytes is too large to inspect when it is decompressed")
    return found


def _inspect(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, most: int = MAX_DECOMPRESSED
) -> Inspected:
    """Inspect the records of a batch. Their decompressed size may be at most `most` bytes."""
    if header.compression and not frame_is_valid(batch):
        return _other_codec(header)
    most = min(config.max_message_bytes * _MAX_EXPANSION, most)
    try:
        records = payload_of(batch, header, most)
    except TooLarge as error:
        return RecordTooLarge(str(error))
    except InvalidRecordBatch as error:
        return InvalidRecord(f"the records can't be decoded: {error}")
    found = inspect_records(records, header.record_count, header.base_timestamp, *_time_bounds(config, now_ms))
    if found.problem is not None:
        return found
    try:
        check_record_sizes(header, records, config)
    except InvalidRecord as error:
        return error
    if changes_codec(header, config):
        if config.message_timestamp_type is TimestampType.CREATE_TIME:
            header = header._replace(max_timestamp=found.max_timestamp)
        return Recompressed(found, recompress(header, records, config))
    return found


def check_records(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, found: Inspected | None
) -> Checked:
    """Check the records of a client's batch. Return the batch, with its largest time stamp corrected if need be.

    found: the result of inspecting the records; None if they need no inspection.

    Raises InvalidAppend.
    """
    if isinstance(found, InvalidAppend):
        raise found
    replacement = None
    if isinstance(found, Recompressed):
        found, replacement = found
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
    if config.message_timestamp_type is not TimestampType.LOG_APPEND_TIME and found.mistimed:
        earliest, latest = _time_bounds(config, now_ms)
        raise InvalidTimestamp(
            f"{found.mistimed} of {header.record_count} records have a time stamp outside {earliest} to {latest}, "
            f"which the topic allows; the first is record {found.mistimed_indexes[0]} of its batch",
            found.mistimed_indexes,
            "The time stamp is outside of what the topic allows.",
        )
    if replacement is not None and changes_codec(header, config):
        return _replaced(replacement, config)
    if config.message_timestamp_type is TimestampType.CREATE_TIME and found.max_timestamp != header.max_timestamp:
        return _patched(batch, header._replace(max_timestamp=found.max_timestamp))
    return header, batch


def _replaced(batch: memoryview, config: LogConfig) -> Checked:
    """Return a recompressed batch, which may be larger than before. Raises RecordTooLarge."""
    if len(batch) > config.max_message_bytes:
        raise RecordTooLarge(
            f"a batch has {len(batch)} bytes with compression.type {config.compression_type}, more than "
            f"max.message.bytes, {config.max_message_bytes}"
        )
    return read_header(batch, 0), batch


def check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Check that the time stamps in a client's header are not too old or too far in the future.

    Raises InvalidTimestamp.
    """
    earliest, latest = _time_bounds(config, now_ms)
    for stamp in (header.base_timestamp, header.max_timestamp):
        if stamp >= 0 and not earliest <= stamp <= latest:
            raise InvalidTimestamp(f"time stamp {stamp} is outside {earliest} to {latest}, which the topic allows")


def _time_bounds(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """Return the earliest and the latest time stamp that the log accepts, in milliseconds since 1970."""
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return -NO_LIMIT, NO_LIMIT
    latest = min(now_ms + config.message_timestamp_after_max_ms, NO_LIMIT)
    return max(now_ms - config.message_timestamp_before_max_ms, -NO_LIMIT), latest


def _other_codec(header: BatchHeader) -> InvalidRecord:
    """Return the error for records that do not have the codec that the header names."""
    if not header.compression:
        return InvalidRecord(f"{header.record_count} records do not fit {header.batch_length + LENGTH_OVERHEAD} bytes")
    name = CompressionType(header.compression).name.lower()
    return InvalidRecord(f"the records are not compressed with {name}, as the header says")


def with_log_append_time(batch: memoryview, now_ms: int) -> Checked:
    """Return a copy of a batch with the broker's time stamp, the attribute for it, and an updated CRC."""
    header = BatchHeader._make(HEADER.unpack_from(batch))
    return _patched(batch, header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms))


def _patched(batch: memoryview, header: BatchHeader) -> Checked:
    """Return a copy of a batch with another header and an updated CRC."""
    copy = bytearray(batch)
    HEADER.pack_into(copy, 0, *header)
    header = header._replace(crc=crc32c(memoryview(copy)[CRC_START:]))
    HEADER.pack_into(copy, 0, *header)
    return header, memoryview(copy)
