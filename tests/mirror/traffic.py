"""What is written to the sources of a mirror, and what a reader at the targets sees of it, and when.

A value is `sequence:time`, with a sequence of its own for each partition and the time in nanoseconds of this machine's
monotonic clock. So a reader knows whether a record is missing, repeated or out of order, and how late it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from pylogd.client import Producer
from tests.chaos.workload import Worker

#: A partition by the name of its topic at the target.
Partition = tuple[str, int]
_ROUND_SECONDS = 0.05


class Writer(Worker):
    """Writes a record to every partition, over and over. `sent`: how many each partition has got."""

    def __init__(self, bootstrap: str, partitions: Iterable[Partition]) -> None:
        super().__init__(f"writer at {bootstrap}")
        self._servers = bootstrap
        self.partitions = list(partitions)
        self.sent = 0

    def work(self) -> None:
        with Producer(self._servers, linger_ms=5) as producer:
            while not self.stopping.is_set():
                for topic, partition in self.partitions:
                    producer.send(topic, b"%d:%d" % (self.sent, time.monotonic_ns()), partition=partition)
                self.sent += 1
                time.sleep(_ROUND_SECONDS)


@dataclass(slots=True)
class Seen:
    """What a reader has seen of one partition. late: when each record came, and how long after it was sent."""

    next: int = 0
    late: list[tuple[float, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Watcher(Worker):
    """Reads partitions of a target as they come, committed records only, with librdkafka."""

    def __init__(self, bootstrap: str, partitions: Iterable[Partition]) -> None:
        super().__init__(f"reader at {bootstrap}")
        self._servers = bootstrap
        self.seen: dict[Partition, Seen] = {partition: Seen() for partition in partitions}

    def work(self) -> None:
        reader = Consumer({
            "bootstrap.servers": self._servers, "group.id": "watcher", "isolation.level": "read_committed",
            "enable.auto.commit": False, "fetch.wait.max.ms": 50, "log_level": 0,
            "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2000,
        })  # fmt: skip
        reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in self.seen])
        try:
            while not self.stopping.is_set():
                for message in reader.consume(1000, 0.2):
                    error = message.error()
                    if error is None:
                        self._take((message.topic() or "", message.partition() or 0), message.value() or b"")
                    elif error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                        self.seen[next(iter(self.seen))].faults.append(str(error))
        finally:
            reader.close()

    def _take(self, partition: Partition, value: bytes) -> None:
        sequence, _, sent = value.partition(b":")
        seen, now = self.seen[partition], time.monotonic()
        if int(sequence) != seen.next:
            seen.faults.append(f"{partition}: record {int(sequence)} came, and {seen.next} was expected")
        seen.next = int(sequence) + 1
        seen.late.append((now, now - int(sent) / 1e9))

    def latest(self, partition: Partition, begin: float, end: float) -> float:
        """Return the longest time from send to arrival among the records that arrived in a period."""
        return max((late for at, late in self.seen[partition].late if begin <= at <= end), default=0.0)
