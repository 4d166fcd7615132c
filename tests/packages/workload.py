"""A load that notices loss, duplicates, disorder and pauses: two producers, transactions, and a group of consumers.

Every record has the name of its producer and a number. Producers are idempotent and wait for all in-sync replicas, so
at the end each acknowledged record has to be there once, in the order of its producer and partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from pylogd.client import Consumer as OwnConsumer
from pylogd.client import Producer as OwnProducer
from pylogd.client.blocking.producer import Delivery

TOPIC: Final = "upgraded"
COMMITTED: Final = "committed"
GROUP: Final = "readers"
PARTITIONS: Final = 6
_PER_TRANSACTION: Final = 5
_PERIOD_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 120.0
#: After so long without a record everything has been read.
_QUIET_SECONDS: Final = 10.0


@dataclass
class Acknowledged:
    """What a producer was told: the number of each record that is safe, and when the answers came."""

    name: str
    numbers: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: The longest time without an acknowledgement, in seconds.
    pause: float = 0.0
    _last: float = 0.0

    def add(self, *numbers: int) -> None:
        now = time.monotonic()
        if self._last:
            self.pause = max(self.pause, now - self._last)
        self._last = now
        self.numbers += numbers


class Load:
    """Threads that produce and consume until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping, self._read = threading.Event(), threading.Event()
        self.librdkafka, self.own = Acknowledged("librdkafka"), Acknowledged("pylogd")
        self.transactions = Acknowledged("transactions")
        self.consumed: set[tuple[str, int]] = set()
        self.consumer_errors: list[str] = []
        self._producers = [threading.Thread(target=run) for run in (self._produce, self._produce_own, self._transact)]
        self._consumers = [threading.Thread(target=self._consume) for _ in range(2)]

    def start(self) -> None:
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def stop(self) -> None:
        """End the threads: producers with their last acknowledgements, then consumers once they have read them all."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.not_consumed() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._read.set()
        for thread in self._consumers:
            thread.join()

    def not_consumed(self) -> set[tuple[str, int]]:
        """Return what was acknowledged and did not reach the group yet."""
        return {(told.name, number) for told in (self.librdkafka, self.own) for number in told.numbers} - self.consumed

    def _numbers(self) -> Iterator[int]:
        number = 0
        while not self._stopping.wait(_PERIOD_SECONDS):
            yield number
            number += 1

    def _produce(self) -> None:
        told = self.librdkafka
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5})

        def answered(error: object, message: Any) -> None:
            if error is None:
                told.add(int(message.value().split()[1]))
            else:
                told.errors.append(str(error))

        for number in self._numbers():
            producer.produce(TOPIC, value=f"librdkafka {number}", partition=number % PARTITIONS, on_delivery=answered)
            producer.poll(0)
        producer.flush(120)

    def _produce_own(self) -> None:
        told = self.own

        def answered(number: int, delivery: Delivery) -> None:
            if (error := delivery.error) is None:
                told.add(number)
            else:
                told.errors.append(repr(error))

        with OwnProducer(self._bootstrap) as producer:
            for number in self._numbers():
                producer.send(
                    TOPIC,
                    f"pylogd {number}".encode(),
                    partition=number % PARTITIONS,
                    on_delivery=partial(answered, number),
                )

    def _transact(self) -> None:
        told = self.transactions
        producer = Producer({
            "bootstrap.servers": self._bootstrap, "transactional.id": "upgrade", "transaction.timeout.ms": 60_000,
        })  # fmt: skip
        producer.init_transactions(120)
        for first in self._numbers():
            numbers = range(first * _PER_TRANSACTION, (first + 1) * _PER_TRANSACTION)
            try:
                producer.begin_transaction()
                for number in numbers:
                    producer.produce(COMMITTED, value=f"transactions {number}", partition=0)
                producer.commit_transaction(120)
                told.add(*numbers)
            except KafkaException as error:
                told.errors.append(str(error))
                producer.abort_transaction(120)

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        while not self._read.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self.consumer_errors.append(str(error))
                continue
            name, number = (message.value() or b"").decode().split()
            self.consumed.add((name, int(number)))
        consumer.close()


@contextmanager
def loaded(bootstrap: str) -> Iterator[Load]:
    """Run the load inside `with`."""
    load = Load(bootstrap)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def verify(bootstrap: str, load: Load) -> list[str]:
    """Read everything, committed transactions only. Return what is wrong."""
    faults = []
    there: dict[str, dict[int, list[int]]] = {}
    with OwnConsumer(bootstrap, auto_offset_reset="earliest", isolation="committed") as consumer:
        consumer.assign([(TOPIC, index) for index in range(PARTITIONS)] + [(COMMITTED, 0)])
        while records := consumer.poll(_QUIET_SECONDS):
            for record in records:
                name, number = (record.value or b"").decode().split()
                there.setdefault(name, {}).setdefault(record.partition, []).append(int(number))
    for told in (load.librdkafka, load.own, load.transactions):
        found = there.get(told.name, {})
        numbers = [number for partition in found.values() for number in partition]
        missing = set(told.numbers) - set(numbers)
        twice = len(numbers) - len(set(numbers))
        disorder = sum(partition != sorted(partition) for partition in found.values())
        for what, count in (("lost", len(missing)), ("twice", twice), ("partitions out of order", disorder)):
            if count:
                faults.append(f"{told.name}: {count} {what}")
        if missing:
            faults.append(f"{told.name}: lost are the numbers {sorted(missing)[:20]}")
        faults += [f"{told.name}: {error}" for error in told.errors[:3]]
    if left := load.not_consumed():
        faults.append(f"{len(left)} not consumed by the group")
    return faults
