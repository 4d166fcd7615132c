"""Everything that a dashboard shows, made to happen: clients of many kinds on a cluster, slowly, until `close`.

Orders are produced and read by groups that keep up, lag, and use the newer protocol; one topic is compacted; clients
have quotas, one of which is exceeded; clients push their own metrics; requests fail and connections are refused; a
consumer reads what the page cache no longer has. `disturb` stops a broker until its partitions have other leaders.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from pylogd.base.errors import PylogdError
from pylogd.client.core.admin.access_operations import DEFAULT_ENTITY, QuotaEntity
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.alerts.drill import NODES, MonitoredCluster
from tests.rawclient import RawClient

ORDERS, CLICKS, PRICES = "orders", "clicks", "prices"
_PARTITIONS: Final = 6
_CLIENT_METRICS: Final = 16  # the type of a resource
_SECONDS: Final = 60.0
#: Frames of a length that no request has: the broker closes the connection.
_NO_REQUEST: Final = b"\xff" * 8


class Load:
    """The clients of a cluster, one thread for each."""

    def __init__(self, cluster: MonitoredCluster) -> None:
        self._cluster = cluster
        self._servers = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 5000}
        self._ended = threading.Event()
        self._make_topics()
        self._set_quotas()
        self._subscribe()
        groups: list[tuple[str, dict[str, object], float]] = [
            ("billing", {}, 0.0), ("reports", {}, 2.0), ("search", {"group.protocol": "consumer"}, 0.0),
        ]  # fmt: skip
        works = [self._shop, self._loader, self._price_list, self._mistakes, self._old_readers]
        works += [lambda group=group: self._read(*group) for group in groups]  # type: ignore[misc]
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all clients."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_SECONDS)

    def disturb(self) -> None:
        """Stop the last broker until its session has expired and others lead its partitions, then let it go on."""
        *others, node = NODES
        self._cluster.pause(node)
        try:
            self._cluster.wait_for_leaders(ORDERS, others)
            self._cluster.wait_for_brokers(others)
        finally:
            self._cluster.resume(node)
        self._cluster.wait_for_isr(ORDERS, len(NODES))

    # -- before

    def _make_topics(self) -> None:
        often = {"internal.segment.bytes": "262144", "flush.messages": "100"}
        compacted = {
            "cleanup.policy": "compact", "internal.segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.3",
        }  # fmt: skip
        for name, configs in ((ORDERS, often), (CLICKS, {}), (PRICES, compacted)):
            self._cluster.ask(
                lambda admin, name=name, configs=configs: admin.create_topic(name, _PARTITIONS, len(NODES), configs)  # type: ignore[misc]
            )
            self._cluster.wait_for_isr(name, len(NODES))

    def _set_quotas(self) -> None:
        quotas = (
            (QuotaEntity(client_id="loader"), {"producer_byte_rate": 20_000.0}),
            (QuotaEntity(client_id="reports"), {"consumer_byte_rate": 1_000_000.0}),
            (QuotaEntity(user="ANONYMOUS"), {"request_percentage": 150.0, "controller_mutation_rate": 50.0}),
            (QuotaEntity(ip=DEFAULT_ENTITY), {"connection_creation_rate": 100.0}),
        )
        for entity, limits in quotas:
            self._cluster.ask(lambda admin, e=entity, limits=limits: admin.alter_client_quotas(e, limits))  # type: ignore[misc]

    def _subscribe(self) -> None:
        settings = {"metrics": "org.apache.kafka.producer.", "interval.ms": "1000"}
        change = [AlterableConfig(name, 0, value) for name, value in settings.items()]
        with RawClient(self._cluster.address(1)) as client:
            request = IncrementalAlterConfigsRequest([AlterConfigsResource(_CLIENT_METRICS, "producers", change)])
            assert client.request(request, 1).responses[0].error_code == 0

    # -- clients, each in a thread

    def _produce(self, client_id: str, topic: str, value: bytes, pause: float, keys: int = 0) -> None:
        producer = Producer({**self._servers, "client.id": client_id, "linger.ms": 20, "enable.metrics.push": True})
        number = 0
        while not self._ended.wait(pause):
            for _ in range(20):
                number += 1
                with suppress(BufferError):
                    producer.produce(topic, value, b"%d" % (number % keys) if keys else None)
            producer.poll(0)
        producer.purge()

    def _shop(self) -> None:
        self._produce("shop", ORDERS, os.urandom(300), 0.1)

    def _loader(self) -> None:
        self._produce("loader", CLICKS, os.urandom(1000), 0.2)

    def _price_list(self) -> None:
        self._produce("prices", PRICES, os.urandom(500), 0.1, keys=50)

    def _read(self, group: str, options: dict[str, object], pause: float) -> None:
        """Be a member of a group, and pause after each batch."""
        own = {"group.id": group, "client.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**self._servers, **own, **options})
        consumer.subscribe([ORDERS])
        while not self._ended.is_set():
            found = consumer.consume(100, 0.2)
            if any(not message.error() for message in found):
                with suppress(KafkaException):
                    consumer.commit(asynchronous=False)
            self._ended.wait(pause)
        consumer.close()

    def _mistakes(self) -> None:
        """Ask for what is not there, and send what is no request."""
        while not self._ended.wait(1.0):
            with suppress(PylogdError, OSError):
                self._cluster.ask(lambda admin: admin.delete_topic("not-there"))
            host, _, port = self._cluster.address(1).rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), 5.0) as connection:
                connection.sendall(_NO_REQUEST)
                connection.recv(1)

    def _old_readers(self) -> None:
        """Read orders from the beginning again and again, after the page cache has dropped them."""
        while not self._ended.wait(2.0):
            self._forget_pages()
            consumer = Consumer({**self._servers, "group.id": "old", "client.id": "old", "enable.auto.commit": False})
            consumer.assign([TopicPartition(ORDERS, partition, 0) for partition in range(_PARTITIONS)])
            end = time.monotonic() + 3.0
            while time.monotonic() < end and not self._ended.is_set():
                consumer.consume(1000, 0.2)
            consumer.close()

    def _forget_pages(self) -> None:
        """Have the kernel drop the pages of all segments of orders."""
        for node in NODES:
            for directory in self._cluster.directories(node):
                for segment in directory.glob(f"{ORDERS}-*/*.log"):
                    with suppress(OSError), segment.open("rb") as file:
                        os.fsync(file.fileno())
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
