"""Keep fetched records until the application gets them, from a `poll` or one by one from an iteration.

Strategy: records wait here in the order of their partitions. An iteration gets a list iterator over the records that
wait first. The list iterator itself knows how many records it has returned, so that neither a position nor a counter is
updated for each record: the position of a partition is computed when somebody asks for it.

Rules: the position of a partition is the offset after the last record that was handed out. An iteration that ends, for
whatever reason, leaves the other records here for the next `poll` or iteration. Records of a partition that is paused
wait; those of a partition that is moved or no longer read are dropped. An iteration that has an iterator notices all of
this with its next record, because its iterator is exhausted then. The records that were handed out last are remembered
until they count as processed. An exception from outside (Ctrl-C) in any of the methods loses no records. No I/O, no
clock. One thread at a time, except that another thread may ask for positions and counts, or call `clear`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from operator import length_hint

from pylogd.client.core.model import TopicPartition
from pylogd.wire.records import Record

#: Records of one partition, in order.
Chunk = tuple[TopicPartition, list[Record]]


class BufferedRecords:
    """Records of one partition in order, and an iterator that hands them out.

    start: the position before the first record.
    end: the position after the last record. Records that nobody gets may be in front of it.
    accepted: whether the records may be handed out: interceptors have seen them, and with `auto_commit="before"` they
    are committed.
    counted: the number of records that were reported to `RecordBuffer.on_handed_out`.
    """

    __slots__ = ("accepted", "counted", "end", "iterator", "partition", "records", "start")

    def __init__(
        self, partition: TopicPartition, records: list[Record], start: int, end: int, *, accepted: bool = False
    ) -> None:
        """Nothing was handed out yet."""
        self.partition = partition
        self.records = records
        self.iterator = iter(records)
        self.start = start
        self.end = end
        self.accepted = accepted
        self.counted = 0

    @property
    def left(self) -> int:
        """The number of records that were not handed out."""
        return length_hint(self.iterator)

    @property
    def count(self) -> int:
        """The number of records that were handed out."""
        return len(self.records) - length_hint(self.iterator)

    @property
    def position(self) -> int:
        """The offset after the last record that was handed out."""
        return self._position(self.count)

    @property
    def current(self) -> Record | None:
        """The record that was handed out last."""
        count = self.count
        return self.records[count - 1] if count else None

    def split(self, count: int) -> tuple[BufferedRecords, BufferedRecords]:
        """Return the first `count` records and the others."""
        at = self._position(count)
        first = BufferedRecords(self.partition, self.records[:count], self.start, at, accepted=self.accepted)
        return first, BufferedRecords(self.partition, self.records[count:], at, self.end, accepted=self.accepted)

    def exhaust(self) -> None:
        """End an iteration that has the iterator."""
        deque(self.iterator, 0)

    def _position(self, count: int) -> int:
        if count == len(self.records):
            return self.end
        return self.records[count - 1].offset + 1 if count else self.start


class RecordBuffer:
    """The records of all partitions that are not handed out yet, and those that are not processed yet."""

    def __init__(self, paused: Container[TopicPartition]) -> None:
        """It is empty. `paused` are the partitions whose records wait."""
        self._paused = paused
        self._waiting: deque[BufferedRecords] = deque()
        self._present: BufferedRecords | None = None  # the waiting records over which an iteration runs
        self._in_hand: dict[TopicPartition, int] = {}  # the first offset of the records that were handed out last
        self._iterated = False  # whether an iteration, not a `poll`, has handed them out
        self._interrupted = False
        #: called with the number of records of a partition that were handed out
        self.on_handed_out: Callable[[TopicPartition, int], object] = _ignore

    # Records that were read

    def put(self, records: list[BufferedRecords]) -> None:
        """Add records behind all others."""
        self._waiting.extend(records)

    @property
    def ready(self) -> bool:
        """Whether records wait to be handed out, apart from those of paused partitions."""
        return any(each.left and each.partition not in self._paused for each in self._waiting)

    @property
    def unaccepted(self) -> list[BufferedRecords]:
        """The records that were added and not accepted yet."""
        return [each for each in self._waiting if not each.accepted]

    def accept(self, found: BufferedRecords, records: list[Record]) -> None:
        """Let records, or their replacements, be handed out. The position moves past all of them in any case."""
        found.records, found.iterator, found.accepted = records, iter(records), True
        if not records:
            self._waiting.remove(found)

    def drop(self, partition: TopicPartition) -> None:
        """Drop the records of a partition: its position was changed, or it is no longer read."""
        self._in_hand.pop(partition, None)
        if self._present is not None and self._present.partition == partition:
            self._leave_present()
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each.partition != partition)

    def clear(self) -> None:
        """Drop all records. An iteration gets no more of them."""
        self._in_hand.clear()
        self._leave_present()
        self._waiting.clear()

    # Handing out

    def take(self, limit: int) -> list[Chunk]:
        """Hand out up to `limit` records at once. Records that were handed out before count as processed."""
        self.processed()
        before = self._waiting
        try:
            return self._take(limit)
        except BaseException:  # Ctrl-C: these records are lost to the application
            self._waiting = before
            raise

    def _take(self, limit: int) -> list[Chunk]:
        taken: list[BufferedRecords] = []
        waiting: deque[BufferedRecords] = deque()
        for found in self._waiting:
            if limit <= 0 or not self._may_go(found):
                waiting.append(found)
                continue
            chosen = found
            if len(found.records) > limit:
                chosen, rest = found.split(limit)
                waiting.append(rest)
            limit -= len(chosen.records)
            taken.append(chosen)
        for found in reversed(taken):
            self._in_hand[found.partition] = found.records[0].offset
            self.on_handed_out(found.partition, len(found.records))
        self._waiting = waiting
        return [(found.partition, found.records) for found in taken]

    def open_next(self) -> Iterator[Record] | None:
        """Return an iterator that hands out records of one partition one by one; call this again when it is exhausted.

        Return None if no records wait, or after `interrupt`.
        """
        if self._interrupted:
            return None
        present = self._present
        if present is not None:
            if present.left:
                return present.iterator
            self.cut()
        for found in self._waiting:
            if self._may_go(found) and found.left:
                self._in_hand.clear()
                self._present, self._iterated = found, True
                return found.iterator
        return None

    def cut(self) -> None:
        """Exhaust the iterator of an iteration; the other records wait for the next iterator."""
        present = self._present
        if present is None:
            return
        current = present.current
        if current is not None:
            self._in_hand[present.partition] = current.offset
        if present in self._waiting:  # false if a signal has interrupted an earlier call here
            at = self._waiting.index(present)
            if present.left:
                self._waiting[at] = present.split(present.count)[1]
            else:
                del self._waiting[at]
        self._leave_present()

    def pause(self, partition: TopicPartition) -> None:
        """Stop an iteration from handing out records of a paused partition."""
        if self._present is not None and self._present.partition == partition:
            self.cut()

    def interrupt(self) -> None:
        """Have the iteration do the work of a `poll` before it hands out another record."""
        self.cut()
        self._interrupted = True

    def _may_go(self, found: BufferedRecords) -> bool:
        return found.accepted and found.partition not in self._paused

    def _leave_present(self) -> None:
        self.report()
        present, self._present = self._present, None
        if present is not None:
            present.exhaust()

    # What is processed

    def processed(self) -> None:
        """Count all handed-out records as processed. An interrupted iteration may continue."""
        self.cut()
        self._in_hand.clear()
        self._iterated = self._interrupted = False

    def note_handed_out(self, begins: Mapping[TopicPartition, int]) -> None:
        """Record that records were handed out in another form; `begins` has the first offset of each partition."""
        self._in_hand.update(begins)

    def unprocessed(self, *, polled: bool) -> dict[TopicPartition, int]:
        """Return the first offset of the last records that may not be processed, by partition.

        In an iteration this is the current record.
        polled: whether to include the records of the last `poll`.
        """
        present = self._present
        if present is not None:
            current = present.current
            return {} if current is None else {present.partition: current.offset}
        return dict(self._in_hand) if polled or self._iterated else {}

    # Positions and counts

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record handed out, for each partition with records that wait."""
        return {each.partition: each.position for each in reversed(list(self._waiting)) if each.left}

    def report(self) -> None:
        """Report to `on_handed_out` the records that an iteration has returned so far."""
        present = self._present
        if present is not None and present.count > present.counted:
            counted, present.counted = present.counted, present.count
            self.on_handed_out(present.partition, present.counted - counted)

    def unreported(self) -> dict[TopicPartition, int]:
        """Return the number of records that were not reported to `on_handed_out` yet."""
        present = self._present
        return {} if present is None else {present.partition: present.count - present.counted}


def _ignore(_: TopicPartition, __: int) -> None:
    """Do nothing: nobody counts records."""
