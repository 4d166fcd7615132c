"""Unmodified kafka-python against a broker, reading by `assign`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from tests.integration.conftest import Address

SECONDS = 120.0


@pytest.fixture
def admin(broker: Address) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as client:
        yield client


@pytest.fixture
def create(admin: KafkaAdminClient) -> Callable[..., None]:
    def create(topic: str, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = {"num_partitions": partitions, "replication_factor": 1, "configs": named}
        admin.create_topics({topic: new}, wait_for_metadata=True)

    return create


def send(address: str, topic: str, values: list[bytes], **settings: Any) -> list[int]:
    """Produce to partition 0, and return the offsets."""
    with closing(KafkaProducer(bootstrap_servers=address, **settings)) as producer:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(SECONDS)
        return [future.get(SECONDS).offset for future in futures]


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    """Poll until `count` records have arrived."""
    records: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records arrived"
        for batch in consumer.poll(timeout_ms=1000).values():
            records += batch
    return records


def read(address: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Read `count` records of a partition from its beginning."""
    with closing(KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return take(consumer, count)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_consumed_unchanged(
    broker: Address, create: Callable[..., None], topic: str, codec: str | None
) -> None:
    create(topic)
    headers = [("trace", b"\x00\x01"), ("empty", b"")]
    first_time = 1_700_000_000_000
    with closing(KafkaProducer(bootstrap_servers=broker.address, compression_type=codec, linger_ms=20)) as producer:
        futures = [
            producer.send(
                topic,
                key=f"key-{number % 7}".encode() if number % 5 or not number % 11 else None,
                value=f"value {number} ".encode() * 20 if number % 11 else None,
                headers=headers if number % 3 else None,
                timestamp_ms=first_time + number,
            )
            for number in range(300)
        ]
        producer.flush(SECONDS)
    assert [future.get(SECONDS).offset for future in futures] == list(range(300))
    for number, record in enumerate(read(broker.address, topic, 300)):
        assert record.offset == number
        assert record.key == (f"key-{number % 7}".encode() if number % 5 or not number % 11 else None)
        assert record.value == (f"value {number} ".encode() * 20 if number % 11 else None)
        assert list(record.headers) == (headers if number % 3 else [])
        assert record.timestamp == first_time + number


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_delivers(broker: Address, create: Callable[..., None], topic: str, acks: int | str) -> None:
    create(topic)
    idempotent = {} if acks == "all" else {"enable_idempotence": False}
    send(broker.address, topic, [b"a", b"b", b"c"], acks=acks, **idempotent)
    assert [record.value for record in read(broker.address, topic, 3)] == [b"a", b"b", b"c"]


def test_offsets_by_time_and_seek(broker: Address, create: Callable[..., None], topic: str) -> None:
    create(topic)
    with closing(KafkaProducer(bootstrap_servers=broker.address)) as producer:
        for number in range(40):
            producer.send(topic, str(number).encode(), timestamp_ms=1_600_000_000_000 + 10 * number)
        producer.flush(SECONDS)
    topic_partition = TopicPartition(topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=broker.address)) as consumer:
        consumer.assign([topic_partition])
        assert consumer.beginning_offsets([topic_partition]) == {topic_partition: 0}
        assert consumer.end_offsets([topic_partition]) == {topic_partition: 40}
        found = consumer.offsets_for_times({topic_partition: 1_600_000_000_111})[topic_partition]
        assert (found.offset, found.timestamp) == (12, 1_600_000_000_120)
        assert consumer.offsets_for_times({topic_partition: 1_700_000_000_000}) == {topic_partition: None}
        for offset in (25, 0, 39):
            consumer.seek(topic_partition, offset)
            assert take(consumer, 1)[0].offset == offset
        consumer.seek_to_end(topic_partition)
        assert consumer.position(topic_partition) == 40


def test_large_messages_are_accepted_up_to_the_limit(broker: Address, create: Callable[..., None], topic: str) -> None:
    create(topic)
    values = [bytes([65 + number]) * 900_000 for number in range(5)]
    assert send(broker.address, topic, values) == list(range(5))
    assert [record.value for record in read(broker.address, topic, 5)] == values
    with pytest.raises(MessageSizeTooLargeError):
        send(broker.address, topic, [b"x" * 3_000_000], max_request_size=8_000_000)


def test_one_fetch_reads_many_partitions(broker: Address, create: Callable[..., None], topic: str) -> None:
    create(topic, 40)
    with closing(KafkaProducer(bootstrap_servers=broker.address, linger_ms=20)) as producer:
        for number in range(2000):
            producer.send(topic, str(number).encode(), partition=number % 40)
        producer.flush(SECONDS)
    with closing(KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")) as consumer:
        assert consumer.partitions_for_topic(topic) == set(range(40))
        consumer.assign([TopicPartition(topic, partition) for partition in range(40)])
        found: dict[int, list[int]] = {}
        for record in take(consumer, 2000):
            found.setdefault(record.partition, []).append(int(record.value))
    assert found == {partition: list(range(partition, 2000, 40)) for partition in range(40)}


def test_requests_in_flight_keep_their_order(broker: Address, create: Callable[..., None], topic: str) -> None:
    create(topic)
    values = [str(number).encode() for number in range(1000)]
    pipelined = {"batch_size": 1, "max_in_flight_requests_per_connection": 100, "enable_idempotence": False}
    assert send(broker.address, topic, values, **pipelined) == list(range(1000))
    assert [record.value for record in read(broker.address, topic, 1000)] == values


def test_an_idempotent_producer_writes_records_once(broker: Address, create: Callable[..., None], topic: str) -> None:
    create(topic)
    values = [str(number).encode() for number in range(1000)]
    assert send(broker.address, topic, values, enable_idempotence=True, batch_size=200) == list(range(1000))
    assert [record.value for record in read(broker.address, topic, 1000)] == values


def test_admin_client_changes_topics(
    broker: Address, admin: KafkaAdminClient, create: Callable[..., None], topic: str
) -> None:
    create(topic, 2)
    with pytest.raises(TopicAlreadyExistsError):
        create(topic)
    assert topic in admin.list_topics()
    [described] = admin.describe_topics([topic])
    assert len(described["partitions"]) == 2
    admin.create_partitions({topic: 5})
    [described] = admin.describe_topics([topic])
    assert len(described["partitions"]) == 5

    send(broker.address, topic, [b"x"] * 30)
    topic_partition = TopicPartition(topic, 0)
    admin.delete_records({topic_partition: 12})
    with closing(KafkaConsumer(bootstrap_servers=broker.address)) as consumer:
        assert consumer.beginning_offsets([topic_partition]) == {topic_partition: 12}
    assert [record.offset for record in read(broker.address, topic, 18)] == list(range(12, 30))

    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_admin_client_describes_and_alters_configs(
    broker: Address, admin: KafkaAdminClient, create: Callable[..., None], topic: str
) -> None:
    create(topic, retention_ms="3600000")

    def described() -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found: dict[str, Any] = admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return found

    before = described()
    assert before["retention.ms"]["value"] == "3600000"
    assert before["retention.bytes"]["config_source"] == "DEFAULT_CONFIG"
    assert before["retention.bytes"]["value"] == "-1"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.bytes": "1000000"})])
    after = described()
    assert after["retention.bytes"]["value"] == "1000000"
    assert after["retention.ms"]["value"] == "3600000"
    wrong = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.bytes": "many"})
    assert "InvalidConfigurationError" in admin.alter_configs([wrong])["topic"][topic]
    assert described() == after


def test_admin_client_describes_the_cluster_and_log_directories(
    broker: Address, admin: KafkaAdminClient, create: Callable[..., None], topic: str
) -> None:
    create(topic)
    send(broker.address, topic, [b"x" * 1000] * 10)
    cluster = admin.describe_cluster()
    assert len(cluster["brokers"]) == 1
    [node] = admin.describe_log_dirs({topic: [0]})
    [directory] = node["log_dirs"]
    assert directory["error_code"] == 0
    assert [found["name"] for found in directory["topics"]] == [topic]
    assert directory["topics"][0]["partitions"][0]["partition_size"] > 10_000
