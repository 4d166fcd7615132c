"""The load of one label: a producer that writes to all of its partitions in turn, a consumer of all, a comparison.

A value is `name:sequence`. Everything that was acknowledged, with its offset, has to be read there, once, in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from pylogd.base.errors import PylogdError
from pylogd.client import Producer
from pylogd.client.blocking.producer import Delivery
from tests.chaos.workload import Worker
from tests.fleet.cluster import Place

#: The consumer's: it gives a silent broker up after as long as the whole fail-over may take.
_CLIENT: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 6000, "topic.metadata.refresh.interval.ms": 2000, "reconnect.backoff.max.ms": 1000,
    "log_level": 0,
}  # fmt: skip
_LINGER_MS: Final = 50.0
_FLUSH_SECONDS: Final = 120.0
_READ_SECONDS: Final = 120.0


class LabelWriter(Worker):
    """pylogd's idempotent producer, acks=all. `acked`: by partition, the values by offset.

    unplaced: what was acknowledged by an answer without an offset. late: for each acknowledgement when it came, and
    how long after the record was sent. (librdkafka would put one partition in each request, with five in flight: where
    an acknowledgement takes a second, as on a busy machine, that is fewer than 1,000 partitions have.)
    """

    def __init__(self, bootstrap: str, name: str, places: Iterable[Place], interval: float) -> None:
        """interval: seconds in which each partition gets a record."""
        super().__init__(f"producer of {name}")
        self._name = name
        self._places = list(places)
        self._pause = interval / len(self._places)
        self._servers = bootstrap
        self.acked: dict[Place, dict[int, bytes]] = {place: {} for place in self._places}
        self.late: list[tuple[float, float]] = []
        self.unplaced: list[tuple[Place, bytes]] = []
        self.refused: list[str] = []

    def work(self) -> None:
        """Write until it is told to stop, then until everything is acknowledged."""
        sequence, due = 0, time.monotonic()
        with Producer(
            self._servers, acks="all", linger_ms=_LINGER_MS, request_timeout=5.0, delivery_timeout=300.0
        ) as producer:
            while not self.stopping.is_set():
                topic, partition = place = self._places[sequence % len(self._places)]
                value = b"%s:%d" % (self._name.encode(), sequence)
                delivered = partial(self._delivered, place, value, time.monotonic())
                producer.send(topic, value, partition=partition, on_delivery=delivered)
                sequence += 1
                due = max(due + self._pause, time.monotonic() - 1.0)
                self.stopping.wait(max(0.0, due - time.monotonic()))
            producer.flush(_FLUSH_SECONDS)

    def _delivered(self, place: Place, value: bytes, sent: float, delivery: Delivery) -> None:
        try:
            offset = delivery.result(0)
        except PylogdError as error:
            self.refused.append(f"{value!r} in {place}: {error}")
            return
        now = time.monotonic()
        if offset >= 0:
            self.acked[place][offset] = value
        else:  # the answer came too late to have it
            self.unplaced.append((place, value))
        self.late.append((now, now - sent))

    def latest(self, begin: float, end: float) -> float:
        """Return the longest time from a record's `send` to its acknowledgement, of those that came in a period."""
        return max((late for at, late in list(self.late) if begin <= at <= end), default=0.0)


class LabelReader(Worker):
    """A consumer of all partitions of a label, from their start. `seen`: by partition, (offset, value) in order."""

    def __init__(self, bootstrap: str, name: str, places: Iterable[Place]) -> None:
        super().__init__(f"consumer of {name}")
        self.seen: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in places}
        self._consumer = Consumer({
            **_CLIENT, "bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False,
            "auto.offset.reset": "error", "check.crcs": True,
        })  # fmt: skip
        self._consumer.assign([TopicPartition(topic, index, 0) for topic, index in self.seen])

    def work(self) -> None:
        """Read until it is told to stop."""
        while not self.stopping.is_set():
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    place = message.topic() or "", message.partition() or 0
                    self.seen[place].append((message.offset() or 0, message.value() or b""))
        self._consumer.close()

    def has_read(self, place: Place, offset: int) -> bool:
        """Return whether it has read a partition up to an offset, that record included."""
        seen = self.seen[place]
        return bool(seen) and seen[-1][0] >= offset


class LabelLoad:
    """Producer and consumer of one label. probes: what others wrote, as `LabelWriter.acked` has it."""

    def __init__(self, bootstrap: str, label: str, places: Iterable[Place], interval: float) -> None:
        places = list(places)
        self.label = label
        self.writer = LabelWriter(bootstrap, label, places, interval)
        self.reader = LabelReader(bootstrap, label, places)
        self.probes: dict[Place, dict[int, bytes]] = {place: {} for place in places}

    def start(self) -> None:
        """Begin both."""
        self.writer.start()
        self.reader.start()

    def acknowledged(self) -> int:
        """Return how many records were acknowledged."""
        return sum(map(len, (*self.writer.acked.values(), *self.probes.values(), self.writer.unplaced)))

    def finish(self) -> list[str]:
        """Stop both, and return what is wrong: with them, or with what was read."""
        self.writer.stopping.set()
        self.writer.join(_FLUSH_SECONDS + 10)
        acked = {place: {**self.writer.acked[place], **self.probes[place]} for place in self.probes}
        deadline = time.monotonic() + _READ_SECONDS
        while time.monotonic() < deadline and not self.reader.failure:
            if all(self.reader.has_read(place, max(found)) for place, found in acked.items() if found):
                break
            time.sleep(0.1)
        self.reader.stopping.set()
        self.reader.join(30)
        faults = [worker.failure for worker in (self.writer, self.reader) if worker.failure]
        faults += [f"{self.label}: refused: {text}" for text in self.writer.refused[:3]]
        return faults + [
            fault for place, found in acked.items() for fault in compare(place, found, self.reader.seen[place])
        ]


def compare(place: Place, acked: Mapping[int, bytes], seen: list[tuple[int, bytes]]) -> list[str]:
    """Return what is wrong with what was read of a partition, at most one text of each kind.

    Acknowledged records are at their offsets; nothing is there twice; one producer's records are in order.
    """
    faults = []
    read = dict(seen)
    lost = sorted(offset for offset, value in acked.items() if offset >= 0 and read.get(offset) != value)
    if lost:
        faults.append(f"{place}: {len(lost)} acknowledged records are lost, the first at offset {lost[0]}")
    values = set(read.values())
    unread = [value for offset, value in acked.items() if offset < 0 and value not in values]
    if unread:
        faults.append(f"{place}: {len(unread)} acknowledged records are lost, such as {unread[0]!r}")
    if [offset for offset, _ in seen] != list(range(len(seen))):
        faults.append(f"{place}: offsets were read with gaps, repeated or out of order")
    written = [value for _, value in seen if not value.startswith(b"probe")]
    sequences = [int(value.rpartition(b":")[2]) for value in written]
    if sequences != sorted(set(sequences)):
        faults.append(f"{place}: records are there twice or out of order")
    return faults
