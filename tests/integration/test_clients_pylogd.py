"""pylogd's blocking client beside librdkafka, and while its broker is away.

The contract suite has what all faces promise, on pylogd and on Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from pylogd.base.ports import free_ports
from pylogd.client import (
    Admin,
    Cluster,
    Consumer,
    DeliveryFailed,
    Producer,
    Record,
)
from tests.integration.conftest import Address, StartBroker

T = 1_700_000_000_000
SECONDS = 180


@pytest.fixture
def cluster(broker: Address) -> Iterator[Cluster]:
    with Cluster(broker.address) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records arrived"
        records += consumer.poll(1)
    return records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_pylogd_writes(
    broker: Address, cluster: Cluster, admin: Admin, topic: str, codec: str
) -> None:
    admin.create_topic(topic, 1)
    with Producer(cluster, compression=codec) as producer:
        for n in range(1_000):
            producer.send(topic, b"value %d" % n, b"key", timestamp=T + n, headers=[("h", None), ("n", b"%d" % n)])
    reader = ConfluentConsumer({"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False})
    reader.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < 1_000:
        assert time.monotonic() < deadline, f"{len(found)} messages came"
        found += reader.consume(1_000 - len(found), 1)
    reader.close()
    assert [(m.key(), m.value(), m.timestamp()[1], m.headers()) for m in found] == [
        (b"key", b"value %d" % n, T + n, [("h", None), ("n", b"%d" % n)]) for n in range(1_000)
    ]


def test_an_append_answers_a_waiting_poll(cluster: Cluster, admin: Admin, topic: str, broker: Address) -> None:
    admin.create_topic(topic, 1)
    consumer = Consumer(cluster, fetch_max_wait_ms=2 * 1000 * SECONDS)  # far longer than the test may take
    consumer.assign([(topic, 0)])
    assert consumer.poll() == []  # the request is under way
    with Producer(broker.address) as producer:
        producer.send(topic, b"now")
    assert [r.value for r in read(consumer, 1)] == [b"now"]


def test_producer_and_consumer_continue_after_a_restart_of_the_broker(start_broker: StartBroker) -> None:
    (port,) = free_ports(1)
    first = start_broker(port=port)
    where = first.address
    with Cluster(where) as cluster, Producer(cluster) as producer, Consumer(cluster) as consumer:
        Admin(cluster).create_topic("t", 1)
        producer.send("t", b"before").result()
        consumer.assign([("t", 0)])
        assert [r.value for r in read(consumer, 1)] == [b"before"]
        assert first.stop() == 0
        producer.send("t", b"while it is away")
        start_broker(port=port)
        producer.flush()
        assert [r.value for r in read(consumer, 1)] == [b"while it is away"]


def test_records_fail_when_the_broker_does_not_come_back(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Cluster(broker.address) as cluster:
        Admin(cluster).create_topic("t", 1)
        producer = Producer(cluster, delivery_timeout=1)
        producer.send("t", b"v").result()
        broker.stop()
        producer.send("t", b"lost", partition=0)
        with pytest.raises(DeliveryFailed, match="1 records were not delivered"):
            producer.flush()
