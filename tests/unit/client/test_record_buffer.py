"""Records that were read and not handed out: polls, iterations, and all that changes what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pylogd.client.core.consumer.record_buffer import BufferedRecords, RecordBuffer
from pylogd.client.core.model import TopicPartition
from pylogd.wire.records import Record

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def some(partition: TopicPartition, first: int, count: int, *, end: int | None = None) -> BufferedRecords:
    records = [Record(*partition, n, 0, None, None) for n in range(first, first + count)]
    return BufferedRecords(partition, records, first, end or first + count, accepted=True)


def filled(*records: BufferedRecords, paused: set[TopicPartition] | None = None) -> RecordBuffer:
    buffer = RecordBuffer(set() if paused is None else paused)
    buffer.put(list(records))
    return buffer


def iteration(buffer: RecordBuffer) -> Iterator[Record]:
    """An iteration as the faces make it, up to where it needs other records."""
    while (records := buffer.open_next()) is not None:
        yield from records


def offsets(records: Iterator[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def test_an_iteration_leaves_the_rest_to_the_next_one_and_to_a_poll() -> None:
    buffer = filled(some(T0, 5, 4), some(T1, 0, 2), some(T0, 9, 1))
    assert buffer.positions() == {T0: 5, T1: 0}
    assert offsets(islice(iteration(buffer), 2)) == [(0, 5), (0, 6)]
    assert buffer.positions() == {T0: 7, T1: 0}
    assert offsets(islice(iteration(buffer), 1)) == [(0, 7)]
    assert buffer.take(2) == [(T0, [Record("t", 0, 8, 0, None, None)]), (T1, [Record("t", 1, 0, 0, None, None)])]
    assert buffer.positions() == {T0: 9, T1: 1}
    assert offsets(iteration(buffer)) == [(1, 1), (0, 9)]
    assert not buffer.ready and buffer.positions() == {}


def test_iterations_may_take_turns() -> None:
    buffer = filled(some(T0, 0, 3), some(T1, 0, 3))
    one, two = iteration(buffer), iteration(buffer)
    seen = [next(one), next(two), next(one), next(two), next(one), next(two)]
    assert offsets(iter(seen)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_position_moves_past_what_nobody_gets() -> None:
    buffer = filled(some(T0, 0, 2, end=7), some(T1, 0, 1))
    records = iteration(buffer)
    next(records)
    assert buffer.positions() == {T0: 1, T1: 0}
    next(records)
    assert buffer.positions() == {T1: 0}, "the reader's own position holds, which is 7"
    buffer = filled(some(T0, 0, 2))
    [found] = buffer._waiting
    buffer.accept(found, [])
    assert not buffer.ready and buffer.positions() == {}


def test_what_is_processed() -> None:
    buffer = filled(some(T0, 5, 2), some(T1, 0, 2))
    assert buffer.unprocessed(polled=True) == {}
    records = iteration(buffer)
    next(records)
    assert buffer.unprocessed(polled=False) == {T0: 5}
    next(records)
    assert buffer.unprocessed(polled=False) == {T0: 6}
    next(records)
    assert buffer.unprocessed(polled=False) == {T1: 0}
    buffer.processed()
    assert buffer.unprocessed(polled=True) == {} and buffer.positions() == {T1: 1}
    assert buffer.take(9)
    assert buffer.unprocessed(polled=False) == {}
    assert buffer.unprocessed(polled=True) == {T1: 1}
    buffer.note_handed_out({T0: 7})
    assert buffer.unprocessed(polled=True) == {T0: 7, T1: 1}


def test_a_dropped_partition_ends_in_an_iteration_too() -> None:
    buffer = filled(some(T0, 0, 9), some(T1, 0, 2), some(T0, 9, 9))
    records = iteration(buffer)
    next(records)
    buffer.drop(T0)
    assert buffer.unprocessed(polled=True) == {}
    assert offsets(records) == [(1, 0), (1, 1)]
    buffer.put([some(T0, 50, 1), some(T1, 2, 1)])
    buffer.clear()
    assert offsets(records) == [] and buffer.positions() == {}


def test_a_paused_partition_waits_in_an_iteration_too() -> None:
    paused: set[TopicPartition] = set()
    buffer = filled(some(T0, 0, 3), some(T1, 0, 2), paused=paused)
    records = iteration(buffer)
    next(records)
    paused.add(T0)
    buffer.pause(T0)
    assert buffer.unprocessed(polled=False) == {T0: 0}
    assert buffer.positions() == {T0: 1, T1: 0}
    assert offsets(records) == [(1, 0), (1, 1)]
    assert not buffer.ready and buffer.take(9) == []
    paused.clear()
    assert buffer.ready
    assert offsets(iteration(buffer)) == [(0, 1), (0, 2)]


def test_an_interrupted_iteration_waits_until_all_else_is_done() -> None:
    buffer = filled(some(T0, 0, 3))
    next(iteration(buffer))
    buffer.interrupt()
    assert buffer.open_next() is None and buffer.positions() == {T0: 1}
    assert buffer.unprocessed(polled=False) == {T0: 0}
    buffer.processed()
    assert offsets(iteration(buffer)) == [(0, 1), (0, 2)]


def test_records_that_are_not_accepted_are_not_handed_out() -> None:
    buffer = RecordBuffer(set())
    buffer.put([BufferedRecords(T0, [Record(*T0, 4, 0, None, None)], 4, 5)])
    assert buffer.ready and buffer.take(1) == [] and buffer.open_next() is None
    [found] = buffer.unaccepted
    buffer.accept(found, found.records)
    assert len(buffer.take(1)) == 1 and not buffer.unaccepted


def test_counts() -> None:
    counts: list[tuple[TopicPartition, int]] = []
    buffer = filled(some(T0, 0, 4), some(T1, 0, 3))
    buffer.on_handed_out = lambda partition, count: counts.append((partition, count))
    records = iteration(buffer)
    next(records)
    assert buffer.unreported() == {T0: 1}
    buffer.report()
    next(records)
    assert (counts, buffer.unreported()) == ([(T0, 1)], {T0: 1})
    buffer.take(3)
    assert counts == [(T0, 1), (T0, 1), (T1, 1), (T0, 2)] and buffer.unreported() == {}
    next(iteration(buffer))
    buffer.drop(T1)
    assert counts[4:] == [(T1, 1)]
