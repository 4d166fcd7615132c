"""The workload during faults: idempotent producers of librdkafka and pylogd, and consumers that record what they read.

The value of a message is `producer:sequence`. A producer writes to one partition, in order, and records the offsets of
acknowledged messages.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

from pylogd.base.errors import PylogdError
from pylogd.client import Producer

#: Messages a second of one producer: enough to have some during every fault, few enough for a small machine.
RATE = 100.0
#: What librdkafka reports, since 2.10, when metadata of a broker that is cut off from the others lacks the leader of a
#: partition: it forgets the partition's leader epoch (`rd_kafka_toppar_forget_leader`), so it takes over the old one of
#: that metadata, and asks the former leader about an epoch that began later. The answer is -1, as of Apache Kafka.
EPOCH_FORGOTTEN = "No epoch found less or equal to"
#: Less than a segment, so that what is buffered during a long fault fits into it.
BATCH_BYTES = 100_000


class Worker(threading.Thread):
    """A thread that can be stopped. `failure` is the exception that ended it, or None."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure = ""
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.failure = f"{self.name}: {error!r}"

    def work(self) -> None:
        """Work until `stopping` is set."""
        raise NotImplementedError


class ConfluentWriter(Worker):
    """librdkafka's idempotent producer. `acked`: offset by sequence."""

    def __init__(self, bootstrap: str, topic: str, number: int, partition: int) -> None:
        super().__init__(f"librdkafka producer {number}")
        self.number, self.partition, self.topic = number, partition, topic
        self.acked: dict[int, int | None] = {}
        self.refused: list[str] = []
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5,
                "batch.size": BATCH_BYTES,
                "message.timeout.ms": 600_000, "request.timeout.ms": 5000, "socket.timeout.ms": 6000,
                "topic.metadata.refresh.interval.ms": 2000, "reconnect.backoff.max.ms": 1000, "log_level": 0,
            }
        )  # fmt: skip

    def work(self) -> None:
        sequence = 0
        while not self.stopping.is_set():
            with contextlib.suppress(BufferError):
                self._producer.produce(
                    self.topic, f"{self.number}:{sequence}".encode(), partition=self.partition,
                    on_delivery=partial(self._delivered, sequence),
                )  # fmt: skip
                sequence += 1
            self._producer.poll(1 / RATE)
        left = self._producer.flush(300)
        if left:
            raise RuntimeError(f"{left} messages were not acknowledged long after everything had healed")

    def _delivered(self, sequence: int, error: Any, message: Any) -> None:
        if error is None:
            self.acked[sequence] = message.offset()
        else:
            self.refused.append(f"{sequence}: {error}")


class PylogdWriter(Worker):
    """pylogd's own idempotent producer."""

    def __init__(self, bootstrap: str, topic: str, number: int, partition: int) -> None:
        super().__init__(f"pylogd producer {number}")
        self.number, self.partition, self.topic, self.bootstrap = number, partition, topic, bootstrap
        self.acked: dict[int, int | None] = {}
        self.refused: list[str] = []

    def work(self) -> None:
        pending: list[tuple[int, Any]] = []
        sequence = 0
        with Producer(self.bootstrap, delivery_timeout=600.0, request_timeout=5.0, batch_bytes=BATCH_BYTES) as producer:
            while not self.stopping.is_set():
                value = f"{self.number}:{sequence}".encode()
                pending.append((sequence, producer.send(self.topic, value=value, partition=self.partition)))
                sequence += 1
                time.sleep(1 / RATE)
            producer.flush(300.0)
            for number, delivery in pending:
                try:
                    offset = delivery.result(0.0)
                    self.acked[number] = None if offset < 0 else offset  # unknown if the response came too late
                except PylogdError as error:
                    self.refused.append(f"{number}: {error}")


class Reader(Worker):
    """A consumer of all partitions, from their start. `seen`: by partition, (offset, value) in order."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, number: int, rack: str = "") -> None:
        super().__init__(f"consumer {number}")
        self.seen: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(partitions)}
        self.errors: Counter[str] = Counter()
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap, "group.id": f"chaos-{number}", "enable.auto.commit": False,
            "auto.offset.reset": "error", "socket.timeout.ms": 6000, "topic.metadata.refresh.interval.ms": 2000,
            "reconnect.backoff.max.ms": 1000, "client.rack": rack, "log_level": 0, "check.crcs": True,
        }  # fmt: skip
        self._consumer = Consumer(self._settings)
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def work(self) -> None:
        while not self.stopping.is_set():
            self.read(0.2)
        self._consumer.close()

    def read(self, seconds: float) -> None:
        """Take a message if one arrives within `seconds`."""
        message = self._consumer.poll(seconds)
        if message is None:
            return
        error = message.error()
        if error is not None:
            self._failed(error, message.partition())
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        self.seen[partition].append((offset, value))

    def _failed(self, error: KafkaError, partition: int | None) -> None:
        self.errors[f"{error.name()} in {partition}"] += 1
        if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return
        if partition is None or EPOCH_FORGOTTEN not in error.str():
            raise KafkaException(error)  # the log was truncated below its position
        self._consumer.assign([TopicPartition(self._topic, index, self.next_offset(index)) for index in self.seen])

    def next_offset(self, partition: int) -> int:
        """Return the offset after the last message that was read of a partition."""
        seen = self.seen[partition]
        return seen[-1][0] + 1 if seen else 0

    def reads_anew(self, offsets: Mapping[int, int], seconds: float = 30.0) -> dict[int, bool]:
        """Return, for each partition, whether a new consumer can read at this offset, to find the cause of a stop."""
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(self._topic, index, offset) for index, offset in offsets.items()])
        found = dict.fromkeys(offsets, False)
        deadline = time.monotonic() + seconds
        while not all(found.values()) and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None and (partition := message.partition()) is not None:
                found[partition] = True
        consumer.close()
        return found
