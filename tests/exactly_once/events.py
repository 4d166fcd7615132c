"""Write events in transactions, some of which are aborted, and compute what a query should make of them.

Rules: what is right is computed from the topics, as a consumer of committed records reads them, not from what the
writer believes to have written: after a kill it may not know.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from pylogd.base.errors import PylogdError
from pylogd.client import Consumer, Producer, TopicPartition
from pylogd.wire.records import NewRecord, Record

PARTITIONS = 2
START_MS = 1_700_000_000_000
STEP_MS = 40  # between the time stamps of two events
WINDOW_MS = 60_000
LATE_SECONDS = 240  # 6,000 events: much more than the partitions of a micro-batch can be apart
KEYS = 20
SET = 250  # events of a transaction in one partition
#: Time stamps from here on only move the watermark.
SENTINEL_MS = START_MS + 365 * 86_400_000
_READ_SECONDS = 120.0


class CountFault(Exception):
    """Counts that are not those of the events, or not once."""


class Writer(threading.Thread):
    """Writes events to the partitions of several topics in turn, up to an allowed number, until it is stopped.

    Each transaction has a set for every partition. One in six is aborted; one in ten stays open for a while.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str], seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._servers = bootstrap
        self._partitions = [TopicPartition(topic, index) for index in range(PARTITIONS) for topic in topics]
        self._rng = random.Random(f"{seed} events")
        self._allowed = self._written = 0
        self._stopped = False
        self._changed = threading.Condition()

    @property
    def per_transaction(self) -> int:
        """The number of events in a transaction."""
        return SET * len(self._partitions)

    def allow(self, events: int) -> None:
        """Allow to go on until so many events were written."""
        with self._changed:
            self._allowed = max(self._allowed, events)
            self._changed.notify()

    def stop(self) -> None:
        """End after the present transaction."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        while not self._stopped:
            try:
                with Producer(self._servers, transactional_id="events", compression="zstd") as producer:
                    while self._may_write():
                        self._transaction(producer)
            except PylogdError:  # a broker was killed: another producer ends the transaction, one way or the other
                time.sleep(0.2)

    def _may_write(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._written < self._allowed)
            return not self._stopped

    def _transaction(self, producer: Producer) -> None:
        first, self._written = self._written, self._written + self.per_transaction
        chance = self._rng.random()
        producer.begin_transaction()
        for at, partition in enumerate(self._partitions):
            some = [
                self._event(number) for number in range(first + at, first + self.per_transaction, len(self._partitions))
            ]
            producer.send_set(partition.topic, some, partition=partition.partition)
        if chance < 0.1:
            producer.flush()
            time.sleep(1.0)
        if chance > 5 / 6:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def _event(self, number: int) -> NewRecord:
        return NewRecord(b"key %d" % self._rng.randrange(KEYS), b"%d" % number, START_MS + number * STEP_MS)


def write_sentinels(bootstrap: str, topics: Sequence[str], days: int) -> None:
    """Write an event to every partition with a time stamp that makes all windows before `SENTINEL_MS` final."""
    stamp = SENTINEL_MS + days * 86_400_000
    with Producer(bootstrap, transactional_id="events") as producer, producer.transaction():
        for topic in topics:
            for index in range(PARTITIONS):
                producer.send(topic, b"sentinel", b"sentinel", partition=index, timestamp=stamp)


def committed_records(bootstrap: str, *topics: str) -> Iterator[Record]:
    """Read what is committed in topics, from the beginning to the present end."""
    with Consumer(bootstrap, isolation="committed", auto_offset_reset="earliest") as consumer:
        partitions = [partition for topic in topics for partition in consumer.partitions(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(consumer.beginning_offsets(partitions))
        deadline = time.monotonic() + _READ_SECONDS
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            yield from consumer.poll(1.0)
            if time.monotonic() > deadline:
                raise CountFault(f"not all of {topics} could be read within {_READ_SECONDS:.0f} s")


def window_of(record: Record) -> str:
    """Return the key of the count that an event belongs to."""
    return f"{record.timestamp // WINDOW_MS * WINDOW_MS}/{record.topic}/{(record.key or b'').decode()}"


def expected_counts(bootstrap: str, topics: Sequence[str]) -> Counter[str]:
    """Count the committed events of topics by window, topic and key."""
    return Counter(window_of(each) for each in committed_records(bootstrap, *topics) if each.timestamp < SENTINEL_MS)


def written_counts(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """Return the counts that a query has committed, in the order of each partition."""
    found = [((each.key or b"").decode(), int(each.value or b"0")) for each in committed_records(bootstrap, topic)]
    return [(key, count) for key, count in found if int(key.partition("/")[0]) < SENTINEL_MS]


def check(wanted: Counter[str], found: Sequence[tuple[str, int]]) -> int:
    """Compare what a query has written with what it should have: each count once, and right.

    Returns the number of counts. Raises CountFault.
    """
    times = Counter(key for key, _ in found)
    faults = [f"{key} was written {count} times" for key, count in times.items() if count > 1]
    faults += [f"{key}: {count}, not {wanted[key]}" for key, count in found if count != wanted[key]]
    faults += [f"{key}: {count} is missing" for key, count in wanted.items() if key not in times]
    if faults:
        raise CountFault(f"{len(faults)} of {len(wanted)} counts are wrong: {'; '.join(faults[:5])}")
    return len(found)
