"""The time until a committed transaction is visible to a consumer that waits for it, one transaction at a time.

Three brokers, three replicas. Three producers (librdkafka), each with another broker as the coordinator of its
transactional id, write one message of 1,000 bytes to each of three partitions, each led by another broker: nine ways.
One consumer (librdkafka, `read_committed`) waits at all three brokers, with long fetches (5 s). The time runs from the
call of `commit_transaction` to the moment when the consumer has the message. Between two transactions is a pause, so
that no append of a later one wakes who should have been woken before.

The clients are connected all the time and warm. A turn is a few rounds of the nine ways in random order, and gives one
median for the ways whose partition is led by the coordinator, and one for the others.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.harness import interval
from pylogd.broker.replica.internal_topic import partition_of

TOPIC: Final = "visible"
PARTITIONS: Final = 3
_INTERNAL: Final = "__transaction_state"
_SECONDS: Final = 60.0  # for a step of a client
_PAUSE: Final = 0.05
_SIZE: Final = 1000
#: The rows of the table.
SAME, OTHER = "the partition's leader is the coordinator", "the partition's leader is another broker"


@dataclass(slots=True)
class Samples:
    """What one turn of a broker found, in milliseconds: by row from the call to the consumer, and of the call alone."""

    visible: dict[str, list[float]] = field(default_factory=lambda: {SAME: [], OTHER: []})
    call: dict[str, list[float]] = field(default_factory=lambda: {SAME: [], OTHER: []})


class Clients:
    """The producers and the consumer of one cluster."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address = address
        self._seen: dict[bytes, float] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._begin_producer(f"{prefix}-first")  # which creates the internal topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": address, "group.id": f"{prefix}-group", "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5000, "enable.auto.commit": False, "auto.offset.reset": "latest",
            }
        )  # fmt: skip
        self._leaders = self._leaders_of(TOPIC)
        self._producers = self._one_for_each_broker(prefix)
        self._consumer.assign([TopicPartition(TOPIC, index, OFFSET_END) for index in self._leaders])
        self._thread = threading.Thread(target=self._read, name="bench-visible", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._thread.join(_SECONDS)
        self._consumer.close()
        self._producers.clear()  # librdkafka would report that it has lost the brokers

    def _begin_producer(self, name: str) -> Producer:
        producer = Producer({"bootstrap.servers": self._address, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(_SECONDS)
        return producer

    def _leaders_of(self, topic: str) -> dict[int, int]:
        partitions = self._consumer.list_topics(topic, _SECONDS).topics[topic].partitions
        return {index: one.leader for index, one in sorted(partitions.items())}

    def _one_for_each_broker(self, prefix: str) -> dict[int, Producer]:
        """Return a producer for each broker that leads a partition, whose transactions that broker coordinates."""
        stored = self._leaders_of(_INTERNAL)
        found: dict[int, Producer] = {}
        number = 0
        while set(found) != set(self._leaders.values()):
            name = f"{prefix}-{number}"
            broker = stored[partition_of(name, len(stored))]
            if broker not in found and broker in self._leaders.values():
                found[broker] = self._begin_producer(name)
            number += 1
        return found

    def _read(self) -> None:
        while not self._ended:
            message = self._consumer.poll(0.5)
            now = time.perf_counter()
            if message is not None and message.error() is None:
                with self._changed:
                    self._seen[message.value() or b""] = now
                    self._changed.notify()

    def warm(self) -> None:
        """Have the consumer read: it may not have found the end of each log yet."""
        for index in self._leaders:
            deadline = time.monotonic() + _SECONDS
            while not self._one(next(iter(self._producers.values())), index, 1.0):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the consumer of partition {index} sees nothing")

    def turn(self, rounds: int) -> Samples:
        """Measure each way so many times."""
        samples = Samples()
        for _ in range(rounds):
            ways = [(broker, index) for broker in self._producers for index in self._leaders]
            random.shuffle(ways)
            for broker, index in ways:
                time.sleep(_PAUSE)
                found = self._one(self._producers[broker], index, _SECONDS)
                if found is None:
                    raise RuntimeError(f"a transaction on partition {index} is not visible after {_SECONDS:g} s")
                row = SAME if self._leaders[index] == broker else OTHER
                samples.visible[row].append(round(found[0], 3))
                samples.call[row].append(round(found[1], 3))
        return samples

    def _one(self, producer: Producer, index: int, patience: float) -> tuple[float, float] | None:
        """Do a transaction; return the milliseconds until it is visible, and of the call. None if it isn't in time."""
        value = random.randbytes(_SIZE)
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=index)
        producer.flush(_SECONDS)
        began = time.perf_counter()
        producer.commit_transaction(_SECONDS)
        called = time.perf_counter() - began
        with self._changed:
            if not self._changed.wait_for(lambda: value in self._seen, patience):
                return None
            return 1000 * (self._seen.pop(value) - began), 1000 * called


# -- the report

Turns = dict[str, list[Samples]]


def read(found: Mapping[str, Any]) -> Turns:
    """Return the turns by broker, as `written` wrote them."""
    return {peer: [Samples(**one) for one in turns] for peer, turns in found.items()}


def written(turns: Turns) -> dict[str, Any]:
    """Return what a JSON file has of them."""
    return {peer: [asdict(one) for one in found] for peer, found in turns.items()}


def section(turns: Turns, pylogd: str, kafka: str) -> list[str]:
    """Return the page's lines about them."""
    lines = [
        "", "## From commit to visible", "",
        "Three brokers, three replicas, one transaction of one message at a time, and a `read_committed` consumer that "
        "waits (`bench/transactions_visible.py`): milliseconds from the call of `commit_transaction` until the "
        "consumer has the message, and those of the call alone. Each cell is pylogd : Apache Kafka, over all turns; a "
        "ratio is the median over pairs, of the turns' medians, with its 95 % confidence interval: below 1 pylogd is "
        "faster. Asked for: no slower than Kafka.", "",
    ]  # fmt: skip
    if not all(turns.get(peer) for peer in (pylogd, kafka)):
        return [*lines, "Not measured yet."]
    lines += [
        "| | visible p50, ms | ratio | | p99, ms | longest, ms | call p50, ms |",
        "| --- | --: | --- | --- | --: | --: | --: |",
    ]
    for row in (SAME, OTHER):
        found = {peer: [one.visible[row] for one in turns[peer]] for peer in (pylogd, kafka)}
        medians = zip(*([statistics.median(one) for one in found[peer]] for peer in (pylogd, kafka)), strict=False)
        ratios = [mine / theirs for mine, theirs in medians]
        every = [[value for one in found[peer] for value in one] for peer in (pylogd, kafka)]
        calls = [[value for one in turns[peer] for value in one.call[row]] for peer in (pylogd, kafka)]
        verdict = "met" if statistics.median(ratios) <= 1 else "**missed**"
        cells = [
            row, _both([statistics.median(one) for one in every]), interval(ratios), verdict,
            _both([_high(one) for one in every]), _both([max(one) for one in every]),
            _both([statistics.median(one) for one in calls]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    pairs = min(len(turns[peer]) for peer in (pylogd, kafka))
    count = sum(len(values) for one in turns[pylogd] for values in one.visible.values())
    return [*lines, "", f"{pairs} pairs, {count} transactions with each."]


def _both(values: Sequence[float]) -> str:
    return " : ".join(f"{value:,.1f}" for value in values)


def _high(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(len(values) * 99 // 100, len(values) - 1)]
