"""Find records of a batch by their time stamps, without making objects of them.

Strategy: the compiled loop in `_speedups` walks over the records, 5 to 10 ns each, and lets other threads run
meanwhile. The function in Python gives the same results more slowly; it is used where the loop could not be compiled. A
property test compares both, and both with `decode_batch`.

Rules: malformed records raise InvalidRecordBatch. Compressed records are decompressed as a whole: call this in a
thread then.
"""

from __future__ import annotations

import threading

from pylogd.wire import records
from pylogd.wire.compression import decompress_buffer
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER_SIZE, BatchHeader, Buffer

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_MAX_SHIFT = 63
_MIN_RECORD = 7
#: One batch at a time is decompressed here, since it may take `compression.MAX_DECOMPRESSED` bytes.
_one_at_a_time = threading.Lock()


def find_timestamp(batch: Buffer, header: BatchHeader, timestamp: int, from_offset: int) -> tuple[int, int] | None:
    """Return (time stamp, offset) of the first record from `from_offset` on with at least `timestamp`, or None."""
    if header.is_log_append_time and header.max_timestamp < timestamp:
        return None
    return _search(batch, header, timestamp, from_offset, False)


def largest_timestamp(batch: Buffer, header: BatchHeader, from_offset: int) -> tuple[int, int] | None:
    """Return (time stamp, offset) of the first record with the largest time stamp, from `from_offset` on."""
    return _search(batch, header, _LEAST, from_offset, True)


def _search(
    batch: Buffer, header: BatchHeader, timestamp: int, from_offset: int, largest: bool
) -> tuple[int, int] | None:
    payload = memoryview(batch)[HEADER_SIZE:]
    base = header.base_timestamp
    if header.is_log_append_time:
        timestamp = _LEAST  # all records have the same time stamp: return the first one
        largest = False
    delta = max(from_offset - header.base_offset, 0)
    if header.compression:
        with _one_at_a_time:
            data = decompress_buffer(header.compression, payload)
            found = _walk(data, header.record_count, base, timestamp, delta, largest)
            del data
    else:
        found = _walk(payload, header.record_count, base, timestamp, delta, largest)
    if found is None:
        return None
    stamp = header.max_timestamp if header.is_log_append_time else found[0]
    return stamp, header.base_offset + found[1]


def _walk(data: Buffer, count: int, base: int, least: int, from_delta: int, largest: bool) -> tuple[int, int] | None:
    if records.speedups is not None:
        found: tuple[int, int] | None = records.speedups.search_timestamps(
            data, count, base, least, from_delta, largest
        )
        return found
    return search_timestamps(bytes(data), count, base, least, from_delta, largest)


def search_timestamps(
    data: bytes, count: int, base: int, least: int, from_delta: int, largest: bool
) -> tuple[int, int] | None:
    """Return (time stamp, offset delta) of the first record from `from_delta` on with a time stamp of at least `least`.

    With `largest`, return those of the record with the largest time stamp instead.
    base: the batch's base time stamp.
    """
    if not 0 <= count <= len(data) // _MIN_RECORD:
        raise InvalidRecordBatch("a batch has an impossible number of records")
    position, size, best = 0, len(data), None
    for _ in range(count):
        length, position = _varint(data, position, size)
        end = position + (length >> 1)
        if length & 1 or length < 2 or end > size:
            raise InvalidRecordBatch("a record extends past the end of its batch")
        stamp, position = _varint(data, position + 1, end)
        delta, position = _varint(data, position, end)
        time = base + ((stamp >> 1) ^ -(stamp & 1))
        if delta & 1 or not _LEAST <= time <= _MOST:
            raise InvalidRecordBatch("a record has an impossible offset or time stamp")
        position = end
        if delta >> 1 < from_delta or time < least:
            continue
        if not largest:
            return time, delta >> 1
        if best is None or time > best[0]:
            best = time, delta >> 1
    return best


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the varint at `position`, still zig-zag encoded, and the position after it."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value >> 64:
                break
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise InvalidRecordBatch("a record has a number that is too long or cut off")
