"""The producers that write to a broker while it is killed, and a record of every message that it acknowledged.

The contents of a message are a function of its writer, partition and number, so that what is read back can be compared
byte for byte. Idempotent writers use librdkafka and stay alive through every kill; they send again what was in flight.
The plain writer uses pylogd's own client; it does not send a batch again whose response was lost, so such a batch may
be in the log or not.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka

from pylogd.base.errors import PylogdError
from pylogd.client.blocking.producer import Producer

TOPIC = "crash"
PARTITIONS = 2
KEYS = 40
_MAX_IN_FLIGHT = 400
_BURST = 25
_PAUSE_SECONDS = 0.004


def message(writer: str, partition: int, number: int) -> bytes:
    """Return the value of a message: its writer, partition and number, then up to 600 bytes derived from these."""
    name = b"%s/%d/%d/" % (writer.encode(), partition, number)
    seed = hashlib.blake2b(name).digest()
    return name + (seed * 10)[: int.from_bytes(seed[:2], "big") % 600]


def key_of(writer: str, number: int) -> bytes:
    """Return the key of a message. There are few different keys, so that compaction removes most messages."""
    return b"%s/%d" % (writer.encode(), number % KEYS)


class Writer:
    """A producer in a thread. `acknowledged`: for each partition, the offsets of acknowledged messages by number."""

    idempotent = True

    def __init__(self, name: str, address: Callable[[], str]) -> None:
        self.name = name
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.failed: list[str] = []
        self._address = address
        self._next = [0] * PARTITIONS
        self._running = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Start or continue to write."""
        self._running.set()

    def pause(self) -> None:
        """Send no new messages; those in flight are still delivered."""
        self._running.clear()

    def finish(self) -> None:
        """Deliver the messages in flight and end the thread."""
        self._over = True
        self._running.set()
        self._thread.join(120)

    def _run(self) -> None:
        while not self._over:
            if self._running.is_set():
                self._burst()
                time.sleep(_PAUSE_SECONDS)
            else:
                self._idle()
        self._end()

    def _take(self) -> tuple[int, int, bytes]:
        """Return the next message: partition, number, value."""
        partition = sum(self._next) // 7 % PARTITIONS
        number = self._next[partition]
        self._next[partition] += 1
        return partition, number, message(self.name, partition, number)

    def _burst(self) -> None:
        raise NotImplementedError

    def _idle(self) -> None:
        self._running.wait(0.01)

    def _end(self) -> None:
        pass


class IdempotentWriter(Writer):
    """librdkafka with idempotence: an acknowledged message is stored exactly once, any other at most once."""

    def __init__(self, name: str, address: Callable[[], str]) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address(),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.size": 16_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "message.timeout.ms": 900_000,
                "socket.timeout.ms": 5_000,
                "log_level": 0,
            }
        )
        super().__init__(name, address)

    def _burst(self) -> None:
        producer = self._producer
        if len(producer) < _MAX_IN_FLIGHT:
            for _ in range(_BURST):
                partition, number, value = self._take()
                told = self._reporter(partition, number)
                producer.produce(TOPIC, value, key_of(self.name, number), partition=partition, on_delivery=told)
        producer.poll(0)

    def _reporter(self, partition: int, number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, delivered: Any) -> None:
            if error is None:
                self.acknowledged[partition][number] = delivered.offset()
            else:
                self.failed.append(f"{self.name}/{partition}/{number}: {error}")

        return report

    def _idle(self) -> None:
        self._producer.poll(0.01)

    def _end(self) -> None:
        self._producer.flush(120)


class PlainWriter(Writer):
    """pylogd's client, acks=all, one request at a time, no retries; it connects anew after each failure."""

    idempotent = False

    def __init__(self, name: str, address: Callable[[], str]) -> None:
        self._producer: Producer | None = None
        super().__init__(name, address)

    def _burst(self) -> None:
        try:
            if self._producer is None:
                self._producer = Producer(
                    self._address(), acks="all", max_in_flight=1, retry=False, request_timeout=2, delivery_timeout=2
                )
            taken = [self._take() for _ in range(_BURST)]
            sent = [
                (p, n, self._producer.send(TOPIC, value, key=key_of(self.name, n), partition=p))
                for p, n, value in taken
            ]
            for partition, number, delivery in sent:
                self.acknowledged[partition][number] = delivery.result(2)
        except (PylogdError, OSError):
            self._leave()
            time.sleep(0.02)

    def _leave(self) -> None:
        if self._producer is not None:
            self._producer.abandon()
            self._producer = None

    def _end(self) -> None:
        self._leave()
