"""Encode and decode record batches, format version 2 (Kafka documentation, "Record Batch" and "Record").

A batch has the same bytes on the wire and on the disk. The broker decodes records only for compaction and time stamps.

Strategy: decoding takes runs of similar records at once (`record_runs`), and others field by field (`record_fields`).
Encoding takes varints from a table and joins all parts once. The compiled module `_speedups` replaces both, if it
could be loaded (`base.compiled`).

Rules: every length is checked against the bytes that exist before it is used. Malformed input raises
InvalidRecordBatch and nothing else. Must not know: files, sockets, clocks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

from pylogd.base.compiled import load
from pylogd.wire import record_fields, record_runs
from pylogd.wire.compression import MAX_DECOMPRESSED, CompressionType, compress, decompress
from pylogd.wire.crc import append_zeros
from pylogd.wire.crc import crc32c as _crc32c
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.record_fields import decode_deltas, decode_headers, decode_key_and_value
from pylogd.wire.record_runs import NULL, BatchFields, Run, encode_run

speedups = load("pylogd.wire._speedups")

#: base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, base and max time stamp,
#: producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_OVERHEAD = 12  # the bytes at the start of a batch that its length field does not count
CRC_START = 21  # the CRC covers all bytes from here on
MAGIC = 2

#: bits of the attributes
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

_PREFIX = struct.Struct(">qiib")  # the fields up to and including the magic
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")  # the fields of the header that the CRC covers
_WORTHWHILE = 4  # the least length of a run: shorter ones take longer to find than they save
_ONE_BY_ONE = 16  # the number of records that are decoded one by one after a short run
_MIN_RECORD = 7  # length, attributes, two deltas, two lengths, number of headers: at least a byte each
_CONTROL_KEY = struct.Struct(">hh")

Buffer = bytes | bytearray | memoryview
Header = record_fields.Header
varint = record_runs.varint


class BatchHeader(NamedTuple):
    """The header of a batch: the 61 bytes before the records."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch with its header, in bytes."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record, with which a reader continues."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec's number, as in `CompressionType`. The number may be unknown."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp`, the time of the append, is the time stamp of all records."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains control records such as transaction markers, which consumers do not get."""
        return bool(self.attributes & CONTROL)


class Record(NamedTuple):
    """A record that was read. `timestamp` is in milliseconds since 1970, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(NamedTuple):
    """A record to be written. `timestamp` is in milliseconds since 1970."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[Header] = ()


class ControlType(IntEnum):
    """The type of a control record."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer.

    value: the CRC of the bytes before the buffer.
    """
    return int(_crc32c(data, value))


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position`. The batch may be incomplete. Raises InvalidRecordBatch."""
    try:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
    except struct.error:
        if len(data) - position >= _PREFIX.size and (magic := data[position + _PREFIX.size - 1]) != MAGIC:
            raise InvalidRecordBatch(f"a batch has magic {magic}; only {MAGIC} is supported") from None
        raise InvalidRecordBatch(f"{len(data) - position} bytes are too few for a batch header") from None
    if header.magic != MAGIC:
        raise InvalidRecordBatch(f"a batch has magic {header.magic}; only {MAGIC} is supported")
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
        raise InvalidRecordBatch(f"the batch length {header.batch_length} is less than the size of the header")
    return header


def iter_batches(data: Buffer, *, allow_partial: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and a view of each batch in `data`, without checking CRCs. Raises InvalidRecordBatch.

    allow_partial: whether an incomplete last batch, with which a fetch may end, is ignored.
    """
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        left = size - position
        if allow_partial and left < HEADER_SIZE and _is_cut_header(view, position):
            return
        header = parse_header(view, position)
        if header.batch_length + LENGTH_OVERHEAD > left:
            if allow_partial:
                return
            raise InvalidRecordBatch(f"a batch of {header.size} bytes ends after {left}")
        end = position + header.batch_length + LENGTH_OVERHEAD
        yield header, view[position:end]
        position = end


def _is_cut_header(view: memoryview, position: int) -> bool:
    """Return whether the rest may be the start of a batch of this format, rather than of an older one."""
    at = position + _PREFIX.size - 1
    return at >= len(view) or view[at] == MAGIC


def batch_crc_ok(batch: Buffer, header: BatchHeader | None = None) -> bool:
    """Return whether the CRC of a whole batch is right.

    header: the batch's header, if it is decoded already.
    """
    crc = header.crc if header is not None else _CRC.unpack_from(batch, CRC_START - _CRC.size)[0]
    return crc32c(memoryview(batch)[CRC_START:]) == crc


def decode_batch(
    batch: Buffer,
    header: BatchHeader | None = None,
    *,
    topic: str = "",
    partition: int = -1,
    check_crc: bool = True,
    max_decompressed: int = MAX_DECOMPRESSED,
) -> list[Record]:
    """Decode the records of a whole batch. Raises InvalidRecordBatch.

    header: the batch's header, if it is decoded already.
    topic, partition: the topic and partition that the records get.
    max_decompressed: the largest allowed size of the decompressed records, in bytes.

    The records of control batches are returned too.
    """
    if header is None:
        header = parse_header(batch)
    if len(batch) != header.size:
        raise InvalidRecordBatch(f"a batch has {len(batch)} bytes instead of {header.size}")
    if check_crc and not batch_crc_ok(batch, header):
        raise InvalidRecordBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
    data = payload_of(batch, header, max_decompressed)
    stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    count, base, base_time = header.record_count, header.base_offset, header.base_timestamp
    records: list[Record]
    if speedups is not None:
        records = speedups.decode_records(data, count, base, base_time, topic, partition, Record, stamp)
    else:
        records = decode_records(bytes(data), count, base, base_time, topic=topic, partition=partition, timestamp=stamp)
    if records and records[-1][2] > header.last_offset:
        raise InvalidRecordBatch(f"the offset {records[-1][2]} is greater than the batch's last, {header.last_offset}")
    return records


def payload_of(batch: Buffer, header: BatchHeader, max_decompressed: int = MAX_DECOMPRESSED) -> Buffer:
    """Return the encoded records of a whole batch: decompressed bytes, or a view if they are not compressed."""
    payload = memoryview(batch)[HEADER_SIZE:]
    return decompress(header.compression, payload, max_decompressed) if header.compression else payload


_Fields = tuple[str, int, int, int, bytes | None, bytes | None, tuple[Header, ...]]
#: Makes a Record in a third of the time of NamedTuple's constructor, which is Python code.
_new_record: Callable[[_Fields], Record] = partial(tuple.__new__, Record)


def decode_records(
    data: bytes,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    *,
    topic: str = "",
    partition: int = -1,
    timestamp: int | None = None,
) -> list[Record]:
    """Decode the `count` records that fill `data`, decompressed and without header. Raises InvalidRecordBatch.

    timestamp: the time stamp of all records, None if each has its own.
    """
    if not 0 <= count <= len(data) // _MIN_RECORD:
        raise InvalidRecordBatch(f"{count} records do not fit in {len(data)} bytes")
    records: list[Record] = []
    run = Run(data, BatchFields(topic, partition, base_offset, base_timestamp, timestamp), records, _make_records)
    next_run = 0 if count >= _WORTHWHILE else count
    try:
        while (done := len(records)) < count:
            if done < next_run:
                records.append(_decode_record(run, data))
                continue
            run.decode(count - done)
            if len(records) < done + _WORTHWHILE:
                next_run = len(records) + _ONE_BY_ONE
    except IndexError:
        raise InvalidRecordBatch("a record extends past the end of its batch") from None
    if run.position != len(data):
        raise InvalidRecordBatch(f"{len(data) - run.position} bytes follow the last record of a batch")
    return records


def _make_records(fields: Iterable[Any]) -> Iterable[Record]:
    return map(_new_record, fields)


def _decode_record(run: Run, data: bytes) -> Record:
    """Decode the next record in the general way. May raise IndexError."""
    topic, partition, base_offset, base_timestamp, timestamp = run.fields
    end, stamp, delta, position = decode_deltas(data, run.position)
    if delta & 1 or delta >> 1 <= run.last_delta:
        raise InvalidRecordBatch("the offsets in a batch don't ascend")
    key, value, position = decode_key_and_value(data, position)
    headers, position = decode_headers(data, position) if data[position] else ((), position + 1)
    if position != end:
        raise InvalidRecordBatch(f"a record should end at byte {end}, but its fields end at {position}")
    run.position, run.last_delta = end, delta >> 1
    if timestamp is None:
        timestamp = base_timestamp + (stamp >> 1 if not stamp & 1 else -(stamp >> 1) - 1)
    return _new_record((topic, partition, base_offset + run.last_delta, timestamp, key, value, headers))


def control_type(record: Record) -> int:
    """Return the type of a control record, as in `ControlType`. Newer brokers may write other types."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise InvalidRecordBatch("a control record has no type")
    return int(_CONTROL_KEY.unpack_from(record.key)[1])


class BatchOptions(TypedDict, total=False):
    """The fields of a batch besides its records; `make_batch` has the defaults.

    compression: a codec of `CompressionType`.
    level: the codec's level, None for the default.
    attributes: bits in addition to the codec's.
    """

    compression: int
    level: int | None
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int


def encode_batch(
    records: Sequence[tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]],
    **options: Unpack[BatchOptions],
) -> bytes:
    """Encode a batch of records: NewRecord, or tuples with its fields in order.

    The records have consecutive offsets from `base_offset` on.
    """
    if not records:
        raise ValueError("a batch must have at least one record")
    base_timestamp = records[0][2]
    max_timestamp = max([record[2] for record in records])
    return make_batch(encode_records(records, base_timestamp), len(records), base_timestamp, max_timestamp, **options)


def make_batch(
    encoded: Buffer,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    compression: int = CompressionType.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytes:
    """Make a batch of `count` records that `encode_records` has encoded. Other arguments: see `BatchOptions`."""
    payload = compress(compression, encoded, level) if compression else encoded
    covered = _COVERED.pack(
        attributes | compression, count - 1, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence,
        count,
    )  # fmt: skip
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_PREFIX.pack(base_offset, length, leader_epoch, MAGIC), _CRC.pack(crc), covered, payload))


def with_producer(
    batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool | None = None
) -> bytes:
    """Return a copy of a batch as another producer sends it: with its id, epoch and base sequence.

    transactional: whether the copy is part of a transaction; None: the same as the batch.

    The fields that brokers add to a batch (offset, leader epoch, log append time, delete horizon) are removed. The
    records are not read for the new CRC, so a copy of damaged records fails its CRC too.
    """
    view = memoryview(batch)
    _, length, _, _, crc, attributes, last, first_ms, most_ms, _, _, _, count = HEADER.unpack_from(view)
    attributes &= ~(LOG_APPEND_TIME | DELETE_HORIZON)
    if transactional is not None:
        attributes = attributes & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
    covered = _COVERED.pack(
        attributes, last, first_ms, most_ms, producer_id, producer_epoch, base_sequence, count
    )  # fmt: skip
    difference = _crc32c(view[CRC_START:HEADER_SIZE]) ^ _crc32c(covered)
    crc ^= _append_zeros(difference, len(view) - HEADER_SIZE)
    prefix = _PREFIX.pack(0, length, NO_LEADER_EPOCH, MAGIC)
    return b"".join((prefix, _CRC.pack(crc), covered, view[HEADER_SIZE:]))


def _append_zeros(value: int, size: int) -> int:
    if speedups is None:
        return append_zeros(value, size)
    found: int = speedups.append_zeros(value, size)
    return found


def encode_records(
    records: Sequence[tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]], base_timestamp: int
) -> bytes:
    """Encode the records of a batch, without header and compression."""
    if speedups is not None:
        encoded: bytes = speedups.encode_records(records, base_timestamp)
        return encoded
    return encode_run(records, base_timestamp, encode_headers)


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Return headers as they stand in a record; `encode_records` takes these bytes in place of the headers."""
    if speedups is not None:
        encoded: bytes = speedups.encode_headers(headers)
        return encoded
    parts = [varint(len(headers))]
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape")
        parts += (varint(len(key)), key)
        parts += (NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def record_size_bound(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """Return an upper bound of the size of a record in a batch, in bytes, before compression."""
    # There are up to 5 bytes for each of three lengths and the offset delta, 10 for the time stamp delta, 1 for the
    # attributes.
    size = 31 + len(key or b"") + len(value or b"")
    return size + sum([10 + 4 * len(name) + len(item or b"") for name, item in headers])
