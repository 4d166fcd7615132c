"""pylogd's blocking client against a real broker, or Apache Kafka: writing, reading, administration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    Admin,
    Cluster,
    Consumer,
    DeliveryFailed,
    KafkaError,
    NewTopic,
    Producer,
    Record,
    TopicPartition,
)
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pylogd.local.broker import free_ports
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
def test_written_records_are_read_unchanged(cluster: Cluster, admin: Admin, topic: str, codec: str) -> None:
    admin.create_topic(topic, 3)
    with Producer(cluster, compression=codec) as producer:
        sent = [
            (
                producer.send(
                    topic, b"value %d" % n, b"key %d" % (n % 50), timestamp=T + n, headers=[("n", b"%d" % n)]
                ),
                n,
            )
            for n in range(5_000)
        ]
    consumer = Consumer(cluster)
    consumer.assign(consumer.partitions(topic))
    found = {(r.partition, r.offset): r for r in read(consumer, 5_000)}
    assert len(found) == 5_000
    for delivery, n in sent:
        record = found[delivery.partition, delivery.offset]
        assert record == Record(
            topic,
            delivery.partition,
            delivery.offset,
            T + n,
            b"key %d" % (n % 50),
            b"value %d" % n,
            (("n", b"%d" % n),),
        )


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


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_delivers(cluster: Cluster, admin: Admin, topic: str, acks: object) -> None:
    admin.create_topic(topic, 1)
    with Producer(cluster, acks=acks) as producer:
        delivery = producer.send(topic, b"v")
    assert delivery.offset == (-1 if acks == 0 else 0)
    consumer = Consumer(cluster)
    consumer.assign([(topic, 0)])
    assert [r.value for r in read(consumer, 1)] == [b"v"]


def test_positions_and_offset_lookups(cluster: Cluster, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    with Producer(cluster, batch_records=10) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n, timestamp=T + n * 1000)
    topic_partition = TopicPartition(topic, 0)
    consumer = Consumer(cluster, fetch_max_wait_ms=50)
    assert consumer.beginning_offsets([topic_partition]) == {topic_partition: 0}
    assert consumer.end_offsets([topic_partition]) == {topic_partition: 100}
    assert consumer.offsets_for_times({topic_partition: T + 41_500})[topic_partition] == (42, T + 42_000, 0)
    assert consumer.offsets_for_times({topic_partition: T + 10**9}) == {topic_partition: None}
    consumer.assign({topic_partition: 37})
    assert [r.offset for r in read(consumer, 63)] == list(range(37, 100))
    assert consumer.poll() == []
    consumer.seek_to_beginning()
    assert read(consumer, 1)[0].offset == 0

    assert admin.delete_records({topic_partition: 25}) == {topic_partition: 25}
    assert admin.offsets({topic_partition: EARLIEST})[topic_partition].offset == 25
    assert admin.offsets({topic_partition: LATEST})[topic_partition].offset == 100
    assert admin.offsets({topic_partition: MAX_TIMESTAMP})[topic_partition][:2] == (99, T + 99_000)
    consumer.seek(topic_partition, 3)
    assert read(consumer, 1)[0].offset == 25, "deleted records are skipped: auto_offset_reset is earliest"


def test_an_append_answers_a_waiting_poll(cluster: Cluster, admin: Admin, topic: str, broker: Address) -> None:
    admin.create_topic(topic, 1)
    consumer = Consumer(cluster, fetch_max_wait_ms=2 * 1000 * SECONDS)  # far longer than the test may take
    consumer.assign([(topic, 0)])
    assert consumer.poll() == []  # the request is under way
    with Producer(broker.address) as producer:
        producer.send(topic, b"now")
    assert [r.value for r in read(consumer, 1)] == [b"now"]


def test_admin_creates_lists_and_deletes_topics(admin: Admin, new_topic: object) -> None:
    first, second = new_topic(), new_topic()  # type: ignore[operator]
    outcome = admin.create_topics([NewTopic(first, 2, configs={"retention.ms": "1000"}), NewTopic("bad name")])
    assert outcome[first] is None
    error = outcome["bad name"]
    assert error is not None and error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic(first)
    admin.create_topic(second, validate_only=True)
    names = [topic.name for topic in admin.list_topics()]
    assert first in names and second not in names
    admin.create_partitions(first, 5)
    assert len(admin.describe_topic(first).partitions) == 5
    admin.delete_topic(first)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.delete_topic(first)


def test_admin_alters_and_resets_topic_settings(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, configs={"retention.ms": "1000"})

    def overridden() -> dict[str, str | None]:
        return {e.name: e.value for e in admin.describe_configs("topic", topic) if e.source == "topic"}

    assert overridden() == {"retention.ms": "1000"}
    admin.alter_configs("topic", topic, {"retention.ms": None, "segment.bytes": "1048576"})
    assert overridden() == {"segment.bytes": "1048576"}
    admin.alter_configs("topic", topic, {"segment.bytes": "2097152"}, validate_only=True)
    assert overridden() == {"segment.bytes": "1048576"}
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.alter_configs("topic", topic, {"segment.bytes": "few"})
    (entry,) = admin.describe_configs("topic", topic, ["cleanup.policy"], documentation=True)
    assert (entry.value, entry.source) == ("delete", "default")
    node = admin.describe_cluster().brokers[0].node_id
    assert admin.describe_configs("broker", str(node))


def test_admin_describes_the_cluster(admin: Admin, broker: Address, topic: str) -> None:
    admin.create_topic(topic, 2)
    described = admin.describe_cluster()
    assert f"{described.brokers[0].host}:{described.brokers[0].port}" == broker.address
    (directory, *_) = admin.describe_log_dirs()
    assert directory.error is None
    assert directory.sizes[TopicPartition(topic, 1)] == 0


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
