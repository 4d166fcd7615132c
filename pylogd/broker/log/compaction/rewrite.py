"""Remove records from one record batch.

The records are read as columns: keys are decoded, values are not. Records that are kept are cut out of the batch as
bytes and joined again. That is possible since their offsets and time stamps are relative to the header, and the header
keeps base offset, last offset delta and sequence. Only a batch that gets a delete horizon has the time stamps of its
records rewritten, because the horizon is stored in place of the base time stamp.

Rules: a batch covers the same offsets afterwards and keeps its codec. A batch without records keeps producer id, epoch
and sequence, and its largest time stamp only if it has a producer id.

Source: Kafka documentation, "Log Compaction"; KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pylogd.broker.log.errors import CorruptRecord
from pylogd.wire.compression import MAX_DECOMPRESSED, compress, decompress
from pylogd.wire.record_fields import decode_unsigned
from pylogd.wire.records import (
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    crc32c,
    varint,
)

_NULL = 1  # the varint of -1, as a byte
_COMPRESSION = 0x07


class RecordColumns(NamedTuple):
    """The records of one batch as columns.

    data: the decompressed records.
    starts: the position in `data` at which each record starts, followed by the length of `data`.
    offset_deltas: the offset of each record less the base offset.
    keys: the key of each record; None for null.
    tombstones: for each record, whether its value is null.
    """

    data: bytes
    starts: list[int]
    offset_deltas: list[int]
    keys: list[bytes | None]
    tombstones: list[bool]


def read_columns(batch: Buffer, header: BatchHeader, max_decompressed: int = MAX_DECOMPRESSED) -> RecordColumns:
    """Read the records of one whole batch, whose decompressed size may be at most `max_decompressed` bytes.

    Raises CorruptRecord or another ProtocolError if the records contradict the header.
    """
    payload = memoryview(batch)[HEADER_SIZE:]
    data = decompress(header.compression, payload, max_decompressed) if header.compression else bytes(payload)
    try:
        columns = _read_columns(data, header.record_count)
    except IndexError:
        raise CorruptRecord("a record exceeds the end of its batch") from None
    end, deltas = columns.starts[-1], columns.offset_deltas
    if end != len(data):
        raise CorruptRecord(f"the records of a batch take {end} bytes, and the batch has {len(data)}")
    if deltas and deltas[-1] > header.last_offset_delta:
        raise CorruptRecord(
            f"a record has offset delta {deltas[-1]}, the last of its batch is {header.last_offset_delta}"
        )
    return columns


def _read_columns(data: bytes, count: int) -> RecordColumns:
    """Read `count` records. Short varints are decoded in place: a compaction spends most of its time here."""
    columns = RecordColumns(data, [], [], [], [])
    _, starts, deltas, keys, tombstones = columns
    position, last = 0, -1
    for _ in range(count):
        starts.append(position)
        n = data[position]
        if n < 128:
            position += 2  # skip the length and the attributes
        elif (m := data[position + 1]) < 128:
            n += (m << 7) - 128
            position += 3
        else:
            n, position = decode_unsigned(data, position)
            position += 1
        end = position + (n >> 1) - 1
        while data[position] > 127:  # skip the time stamp
            position += 1
        delta = data[position + 1]
        if delta < 128:
            position += 2
        else:
            delta, position = decode_unsigned(data, position + 1)
        if delta <= last or delta & 1 or n & 1:
            raise CorruptRecord("the offsets of the records in a batch do not ascend")
        last = delta
        deltas.append(delta >> 1)
        n = data[position]
        position += 1
        if n == _NULL:
            keys.append(None)
        else:
            if n > 127:
                n, position = decode_unsigned(data, position - 1)
            if n & 1:
                raise CorruptRecord("a record has a key of negative length")
            start, position = position, position + (n >> 1)
            keys.append(data[start:position])
        tombstones.append(data[position] == _NULL)
        if position >= end:
            raise CorruptRecord("the fields of a record exceed its length")
        position = end
    starts.append(position)
    return columns


def keep_records(header: BatchHeader, columns: RecordColumns, kept: Sequence[int], horizon_ms: int | None) -> bytes:
    """Return the batch with only the records at the indexes `kept`, at least one.

    horizon_ms: the delete horizon to set, in milliseconds since 1970; None to leave the time stamps as they are.
    """
    data, starts = columns.data, columns.starts
    records = [data[starts[at] : starts[at + 1]] for at in kept]
    stamps = [_timestamp_delta(record) + header.base_timestamp for record in records]
    if horizon_ms is not None:
        pairs = zip(records, stamps, strict=True)
        records = [_with_timestamp_delta(record, stamp - horizon_ms) for record, stamp in pairs]
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    if not header.attributes & LOG_APPEND_TIME:
        header = header._replace(max_timestamp=max(stamps))
    payload = b"".join(records)
    if header.compression:
        payload = compress(header.compression, payload)
    return _encode(header._replace(record_count=len(records)), payload)


def drop_records(header: BatchHeader) -> bytes:
    """Return the batch without records. It still has its producer's last sequence, or marks a segment's end."""
    stamp = header.max_timestamp if header.producer_id >= 0 else NO_TIMESTAMP
    return _encode(
        header._replace(
            attributes=header.attributes & ~(_COMPRESSION | DELETE_HORIZON),
            base_timestamp=stamp,
            max_timestamp=stamp,
            record_count=0,
        ),
        b"",
    )


def delete_horizon(header: BatchHeader) -> int | None:
    """Return when the tombstones of a batch may be removed, in milliseconds since 1970; None if no time is set yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def _encode(header: BatchHeader, payload: bytes) -> bytes:
    """Return header and payload as a batch, with its length and CRC updated."""
    header = header._replace(batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(payload))
    covered = HEADER.pack(*header)[CRC_START:]
    return HEADER.pack(*header._replace(crc=crc32c(payload, crc32c(covered)))) + payload


def _timestamp_delta(record: bytes) -> int:
    _, position = decode_unsigned(record, 0)
    value, _ = decode_unsigned(record, position + 1)
    return value >> 1 if not value & 1 else -(value >> 1) - 1


def _with_timestamp_delta(record: bytes, delta: int) -> bytes:
    """Return the encoded record with another time stamp delta."""
    _, attributes = decode_unsigned(record, 0)
    _, rest = decode_unsigned(record, attributes + 1)
    body = record[attributes : attributes + 1] + varint(delta) + record[rest:]
    return varint(len(body)) + body
