"""Count the messages of a topic from its record batches, as they were fetched.

Strategy: the compiled `wire._speedups.count_stamps` walks the records of a batch, parses the stamps and groups them by
window and producer; Python then counts each group in one step. Rows that it leaves out (with several or unusual stamps)
are counted one by one. Without the compiled function, and for batches with rows that are counted already,
`count_plainly` counts all rows: the results are the same (`tests/property/test_audit_batches.py`).

Rows without stamps are those of clients that are not audited. They are counted by their own time stamps.

Rules: batches of aborted transactions and control batches are not passed in. A batch that can't be read is not counted
at all. Must not know: who fetched the batches.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyroaring import BitMap64

from pylogd.client.core.audit import HEADER
from pylogd.services.audit.counting import AHEAD_MS, Counted, Origin, Skip, Tally, WindowRows
from pylogd.wire import records
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import BatchHeader, Buffer, decode_records, payload_of

#: Encoded batches with their headers.
Batches = Sequence[tuple[BatchHeader, memoryview]]

_NAME: Final = HEADER.encode()
_INT64: Final = 1 << 63


class Progress(NamedTuple):
    """The progress of counting batches.

    reached: the offset after the last counted batch.
    batches: the number of counted batches.
    damage: the reason why the next batch can't be counted, or None.
    """

    reached: int
    batches: int
    damage: InvalidRecordBatch | None = None


def count_batches(
    counted: Counted, partition: int, batches: Batches, position: int, width: int, now_ms: int, skip: Skip,
    most_bytes: int,
) -> Progress:  # fmt: skip
    """Add the rows of batches from the offset `position` on, until about `most_bytes` of records are counted.

    Rows of a window below its offset in `skip` are left out.
    width: the length of a window in milliseconds.
    now_ms: the present time, to recognize impossible stamps.
    """
    count = count_plainly if records.speedups is None else _count_compiled
    size = 0
    for at, (header, batch) in enumerate(batches):
        try:
            payload = payload_of(batch, header)
            count(counted, partition, header, payload, position, width, now_ms, skip)
        except InvalidRecordBatch as error:
            return Progress(position, at, error)
        position = max(position, header.next_offset)
        size += len(payload)
        if size >= most_bytes:
            return Progress(position, at + 1)
    return Progress(position, len(batches))


def count_plainly(
    counted: Counted, partition: int, header: BatchHeader, payload: Buffer, position: int, width: int, now_ms: int,
    skip: Skip,
) -> None:  # fmt: skip
    """Count the records of a batch one by one. Raises InvalidRecordBatch."""
    appended = header.is_log_append_time
    rows = decode_records(
        bytes(payload), header.record_count, header.base_offset, 0 if appended else header.base_timestamp
    )
    _check_deltas(header, rows[-1].offset - header.base_offset if rows else -1)
    if any(not -_INT64 <= row.timestamp < _INT64 for row in rows):
        raise InvalidRecordBatch("a time stamp of more than 64 bits")
    rows = [row for row in rows if row.offset >= position]
    stamped = [(row.offset, row.headers) for row in rows if any(name == HEADER for name, _ in row.headers)]
    counted.count(partition, stamped, width, now_ms, skip)
    if len(stamped) == len(rows):
        return
    counted.restamped |= appended
    stamped_offsets = {offset for offset, _ in stamped}
    for row in rows:
        if row.offset in stamped_offsets:
            continue
        time = header.max_timestamp if appended else row.timestamp
        if not 0 <= time <= now_ms + AHEAD_MS:
            counted.invalid += 1
            continue
        start = time - time % width
        if row.offset >= _counted_until(skip, start, partition):
            window = counted.windows.setdefault(start, WindowRows())
            window.note(partition, row.offset)
            window.unstamped += 1


def _count_compiled(
    counted: Counted, partition: int, header: BatchHeader, payload: Buffer, position: int, width: int, now_ms: int,
    skip: Skip,
) -> None:  # fmt: skip
    """Count the records of a batch. Raises InvalidRecordBatch."""
    assert records.speedups is not None
    appended = header.is_log_append_time
    groups, odd, unstamped, impossible, last_delta = records.speedups.count_stamps(
        payload, header.record_count, max(0, position - header.base_offset), header.base_offset,
        0 if appended else header.base_timestamp, header.max_timestamp if appended else None, _NAME, width,
        now_ms + AHEAD_MS,
    )  # fmt: skip
    _check_deltas(header, last_delta)
    if skip and any(group[4] < _counted_until(skip, group[0], partition) for group in groups):
        count_plainly(counted, partition, header, payload, position, width, now_ms, skip)
        return
    counted.invalid += impossible
    counted.restamped |= bool(unstamped) and appended
    if odd:
        rows = [(offset, [(HEADER, value) for value in values]) for offset, values in odd]
        counted.count(partition, rows, width, now_ms, skip)
    for start, producer, server, count, least, most, first, numbers in groups:
        window = counted.windows.get(start)
        if window is None:
            window = counted.windows[start] = WindowRows()
        window.note(partition, least)
        window.note(partition, most)
        if producer is None:
            window.unstamped += count
            continue
        origin = Origin((producer,), 0, server)
        tally = window.tallies.get(origin)
        if tally is None:
            tally = window.tallies[origin] = Tally()
        tally.rows += count
        if numbers is None:
            tally.numbers.add_range(first, first + count)
        else:
            tally.numbers |= BitMap64(array("Q", numbers))


def _check_deltas(header: BatchHeader, last_delta: int) -> None:
    """Check that the offsets of records agree with their batch. Raises InvalidRecordBatch."""
    if last_delta > header.last_offset_delta:
        raise InvalidRecordBatch(f"offset delta {last_delta} lies behind the last, {header.last_offset_delta}")
    if header.last_offset >= _INT64:
        raise InvalidRecordBatch(f"an offset of {header.last_offset}")


def _counted_until(skip: Skip, start: int, partition: int) -> int:
    """Return the offset below which rows of a window are counted already."""
    return skip[start].get(partition, 0) if start in skip else 0
