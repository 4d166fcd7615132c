"""One batch of a compacted log: which of its records stay, and the batch that they make.

Strategy: records are walked over by their lengths; keys are looked at, values are not. What stays is cut out of the
batch as the bytes it was, for offsets and time stamps in a batch are relative to its header, and the header keeps base
offset, last offset delta and sequence. A batch of which all stays is handed back as it is. Only a batch that gets a
delete horizon has its records' time stamps rewritten, since the horizon takes the place of the base time stamp.

Rules: a batch is never larger in offsets than it was, nor moved; a codec is kept; an empty batch keeps producer, epoch
and sequence, and its largest time stamp only if it has a producer.
Must not know: files, the log.
Source: Kafka documentation, "Log Compaction"; KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pylogd.log.errors import CorruptRecord
from pylogd.wire.compression import MAX_DECOMPRESSED, compress, decompress
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
_MAX_SHIFT = 63
_COMPRESSION = 0x07


class Walked(NamedTuple):
    """The records of a batch as columns. `starts` has one entry more: the end. `dead` says whose value is null."""

    data: bytes
    starts: list[int]
    deltas: list[int]
    keys: list[bytes | None]
    dead: list[bool]


def walk(batch: Buffer, header: BatchHeader, most: int = MAX_DECOMPRESSED) -> Walked:
    """The records of one whole batch, which take at most so many bytes decompressed.

    `CorruptRecord` or a `ProtocolError` if they are not what the header says.
    """
    payload = memoryview(batch)[HEADER_SIZE:]
    data = decompress(header.compression, payload, most) if header.compression else bytes(payload)
    starts: list[int] = []
    deltas: list[int] = []
    keys: list[bytes | None] = []
    dead: list[bool] = []
    position, last = 0, -1
    try:
        for _ in range(header.record_count):
            starts.append(position)
            n = data[position]
            if n < 128:
                position += 2  # and the attributes
            elif (m := data[position + 1]) < 128:
                n += (m << 7) - 128
                position += 3
            else:
                n, position = _varint(data, position)
                position += 1
            end = position + (n >> 1) - 1
            while data[position] > 127:  # the time stamp
                position += 1
            delta = data[position + 1]
            if delta < 128:
                position += 2
            else:
                delta, position = _varint(data, position + 1)
            if delta <= last or delta & 1 or n & 1:
                raise CorruptRecord("offsets in a batch don't ascend")
            last = delta
            deltas.append(delta >> 1)
            n = data[position]
            position += 1
            if n == _NULL:
                keys.append(None)
            else:
                if n > 127:
                    n, position = _varint(data, position - 1)
                if n & 1:
                    raise CorruptRecord("a key of negative length")
                start, position = position, position + (n >> 1)
                keys.append(data[start:position])
            dead.append(data[position] == _NULL)
            if position >= end:
                raise CorruptRecord("a record's fields go over its end")
            position = end
    except IndexError:
        raise CorruptRecord("a record goes over the end of its batch") from None
    if position != len(data):
        raise CorruptRecord(f"records of {position} bytes in a batch of {len(data)}")
    if deltas and deltas[-1] > header.last_offset_delta:
        raise CorruptRecord(f"a record at delta {deltas[-1]}, behind the batch's last")
    starts.append(position)
    return Walked(data, starts, deltas, keys, dead)


def rebuild(header: BatchHeader, walked: Walked, kept: Sequence[int], horizon_ms: int | None) -> bytes:
    """The batch with only the records at the places in `kept`, at least one. `horizon_ms` is its new delete horizon."""
    data, starts = walked.data, walked.starts
    spans = [data[starts[at] : starts[at + 1]] for at in kept]
    stamps = [_timestamp_delta(span) + header.base_timestamp for span in spans]
    if horizon_ms is not None:
        spans = [_with_timestamp_delta(span, stamp - horizon_ms) for span, stamp in zip(spans, stamps, strict=True)]
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    if not header.attributes & LOG_APPEND_TIME:
        header = header._replace(max_timestamp=max(stamps))
    payload = b"".join(spans)
    if header.compression:
        payload = compress(header.compression, payload)
    return _sealed(header._replace(record_count=len(spans)), payload)


def emptied(header: BatchHeader) -> bytes:
    """The batch without any record: what is left to remember a producer's sequence, or the end of a segment, by."""
    stamp = header.max_timestamp if header.producer_id >= 0 else NO_TIMESTAMP
    return _sealed(
        header._replace(
            attributes=header.attributes & ~(_COMPRESSION | DELETE_HORIZON),
            base_timestamp=stamp,
            max_timestamp=stamp,
            record_count=0,
        ),
        b"",
    )


def delete_horizon(header: BatchHeader) -> int | None:
    """When the delete markers of the batch may go, in milliseconds since 1970; `None` if that is not yet said."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def _sealed(header: BatchHeader, payload: bytes) -> bytes:
    """Header and payload with the length and the CRC that they have."""
    header = header._replace(batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(payload))
    covered = HEADER.pack(*header)[CRC_START:]
    return HEADER.pack(*header._replace(crc=crc32c(payload, crc32c(covered)))) + payload


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A base-128 number, before zig-zag is undone, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise CorruptRecord("a varint of more than ten bytes")


def _timestamp_delta(record: bytes) -> int:
    _, position = _varint(record, 0)
    value, _ = _varint(record, position + 1)
    return value >> 1 if not value & 1 else -(value >> 1) - 1


def _with_timestamp_delta(record: bytes, delta: int) -> bytes:
    """The record's bytes with another time stamp."""
    _, attributes = _varint(record, 0)
    _, rest = _varint(record, attributes + 1)
    body = record[attributes : attributes + 1] + varint(delta) + record[rest:]
    return varint(len(body)) + body
