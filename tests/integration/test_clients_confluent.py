"""Unmodified confluent-kafka (librdkafka) against a broker, reading by `assign`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.integration.conftest import Address, StartBroker

SECONDS = 120.0
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


#: Silences librdkafka, which writes to standard error when a test stops the broker.
QUIET = {"log_level": 0}


def make_admin(address: str) -> AdminClient:
    """An administrator."""
    settings: dict[str, Any] = {"bootstrap.servers": address} | QUIET
    return AdminClient(settings)


def make_producer(address: str, **settings: Any) -> Producer:
    """Make a producer. Settings are written with underscores for librdkafka's dots."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": address} | QUIET | named)


def send(producer: Producer, topic: str, values: list[bytes], **more: Any) -> list[Message]:
    """Produce values, and return the delivered messages in order of delivery."""
    delivered: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        delivered.append(message)

    for value in values:
        producer.produce(topic, value, on_delivery=report, **more)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    return delivered


def read(address: str, topic: str, count: int, partition: int = 0, offset: int = OFFSET_BEGINNING) -> list[Message]:
    """Read exactly `count` messages of a partition."""
    consumer = make_consumer(address)
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return take(consumer, count)
    finally:
        consumer.close()


def make_consumer(address: str, **settings: Any) -> Consumer:
    """Make a consumer for `assign`. It has a group id only because librdkafka requires one."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    fixed = {"bootstrap.servers": address, "group.id": "by-assign", "enable.auto.commit": False}
    return Consumer(fixed | QUIET | {"auto.offset.reset": "error"} | named)


def take(consumer: Consumer, count: int) -> list[Message]:
    """Poll until `count` messages have arrived."""
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages arrived"
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def create(address: str, topic: str, partitions: int = 1, **configs: str) -> AdminClient:
    """Create a topic, and return the admin client that did it."""
    admin = make_admin(address)
    config = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(SECONDS)
    return admin


def code_of(future: Any) -> int:
    """Return the error code with which a future of the admin client fails."""
    with pytest.raises(KafkaException) as caught:
        future.result(SECONDS)
    return int(caught.value.args[0].code())


@pytest.mark.parametrize("codec", CODECS)
def test_produced_messages_are_consumed_unchanged(broker: Address, topic: str, codec: str) -> None:
    create(broker.address, topic)
    producer = make_producer(broker.address, compression_type=codec, linger_ms=20)
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"\x00\x01"),
        ("trace", b"again"),
        ("empty", b""),
        ("null", None),
    ]
    first_time = 1_700_000_000_000
    delivered = []
    for number in range(500):
        producer.produce(
            topic,
            key=f"key-{number % 7}".encode() if number % 5 else None,
            value=f"value {number} ".encode() * 20 if number % 11 else None,
            headers=headers if number % 3 else None,
            timestamp=first_time + number,
            on_delivery=lambda error, message: delivered.append((error, message.offset())),
        )
    assert producer.flush(SECONDS) == 0
    assert delivered == [(None, offset) for offset in range(500)]

    for number, message in enumerate(read(broker.address, topic, 500)):
        assert message.offset() == number
        assert message.key() == (f"key-{number % 7}".encode() if number % 5 else None)
        assert message.value() == (f"value {number} ".encode() * 20 if number % 11 else None)
        assert message.headers() == (headers if number % 3 else None)
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, first_time + number)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_delivers(broker: Address, topic: str, acks: str) -> None:
    create(broker.address, topic)
    send(make_producer(broker.address, acks=acks), topic, [b"a", b"b", b"c"])
    assert [message.value() for message in read(broker.address, topic, 3)] == [b"a", b"b", b"c"]


def test_producing_creates_a_missing_topic(broker: Address, topic: str) -> None:
    [message] = send(make_producer(broker.address), topic, [b"first"])
    assert (message.partition(), message.offset()) == (0, 0)
    assert topic in make_admin(broker.address).list_topics(timeout=SECONDS).topics


def test_watermarks_and_offsets_for_times(broker: Address, topic: str) -> None:
    create(broker.address, topic)
    producer = make_producer(broker.address, batch_num_messages=5)
    for number in range(50):
        producer.produce(topic, b"x", timestamp=1_600_000_000_000 + 10 * number)
    assert producer.flush(SECONDS) == 0
    consumer = make_consumer(broker.address)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 50)

    def at(timestamp: int) -> int:
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], SECONDS)
        assert found.error is None
        return int(found.offset)

    assert at(0) == 0
    assert at(1_600_000_000_000) == 0
    assert at(1_600_000_000_001) == 1
    assert at(1_600_000_000_330) == 33
    assert at(1_600_000_000_490) == 49
    assert at(1_600_000_000_491) == OFFSET_END
    consumer.close()


def test_seek_backwards_and_forwards(broker: Address, topic: str) -> None:
    create(broker.address, topic)
    values = [str(number).encode() for number in range(100)]
    send(make_producer(broker.address), topic, values)
    consumer = make_consumer(broker.address)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in take(consumer, 100)] == values
    for offset in (10, 99, 0, 55):
        consumer.seek(TopicPartition(topic, 0, offset))
        assert [message.offset() for message in take(consumer, 1)] == [offset]
    consumer.close()


def test_an_offset_out_of_range_is_an_error_or_a_reset(broker: Address, topic: str) -> None:
    create(broker.address, topic)
    send(make_producer(broker.address), topic, [b"only"])
    consumer = make_consumer(broker.address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0, 1000)])
    assert take(consumer, 1)[0].value() == b"only"
    consumer.close()


def test_messages_of_nearly_the_limit_are_accepted(broker: Address, topic: str) -> None:
    create(broker.address, topic)
    values = [bytes([65 + number]) * 900_000 for number in range(6)]
    send(make_producer(broker.address), topic, values)
    assert [message.value() for message in read(broker.address, topic, 6)] == values


def test_a_message_over_the_limit_is_refused(broker: Address, topic: str) -> None:
    create(broker.address, topic, max_message_bytes="10000")
    producer = make_producer(broker.address, message_max_bytes=1_000_000)
    with pytest.raises(KafkaException) as caught:
        send(producer, topic, [b"x" * 20_000])
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    send(producer, topic, [b"x" * 5_000])
    assert len(read(broker.address, topic, 1)[0].value() or b"") == 5_000


def test_all_of_many_partitions_are_written_and_read(broker: Address, topic: str) -> None:
    create(broker.address, topic, partitions=60)
    producer = make_producer(broker.address, linger_ms=20)
    for number in range(3000):
        producer.produce(topic, str(number).encode(), key=f"k{number % 200}".encode())
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    consumer = make_consumer(broker.address)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(60)])
    by_key: dict[bytes, list[int]] = {}
    for message in take(consumer, 3000):
        by_key.setdefault(message.key() or b"", []).append(int(message.value() or b""))
    consumer.close()
    assert by_key == {f"k{key}".encode(): list(range(key, 3000, 200)) for key in range(200)}


def test_an_idempotent_producer_writes_each_message_once(broker: Address, topic: str) -> None:
    create(broker.address, topic, partitions=3)
    producer = make_producer(broker.address, enable_idempotence=True, batch_num_messages=10)
    for number in range(3000):
        producer.produce(topic, str(number).encode(), partition=number % 3)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    for partition in range(3):
        values = [int(message.value() or b"") for message in read(broker.address, topic, 1000, partition)]
        assert values == list(range(partition, 3000, 3))


def test_requests_in_flight_keep_their_order(broker: Address, topic: str) -> None:
    create(broker.address, topic)
    producer = make_producer(broker.address, batch_num_messages=1, max_in_flight=1000, acks=1)
    values = [str(number).encode() for number in range(5000)]
    delivered = send(producer, topic, values)
    assert [message.offset() for message in delivered] == list(range(5000))
    assert [message.value() for message in read(broker.address, topic, 5000)] == values


def test_an_append_answers_a_waiting_fetch(broker: Address, topic: str) -> None:
    """The fetch may wait for five minutes and the consumer for two: the append has to answer it."""
    create(broker.address, topic)
    consumer = make_consumer(broker.address, fetch_wait_max_ms=300_000, socket_timeout_ms=300_000)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert consumer.poll(1.0) is None
    send(make_producer(broker.address), topic, [b"wake"])
    assert take(consumer, 1)[0].value() == b"wake"
    consumer.close()


def test_log_append_time_replaces_the_producer_s_time_stamp(broker: Address, topic: str) -> None:
    create(broker.address, topic, message_timestamp_type="LogAppendTime")
    send(make_producer(broker.address), topic, [b"x"], timestamp=1_000)
    kind, timestamp = read(broker.address, topic, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert timestamp > 1_600_000_000_000


def test_admin_client_creates_lists_and_deletes_topics(broker: Address, new_topic: Callable[[], str]) -> None:
    first, second = new_topic(), new_topic()
    admin = create(broker.address, first, partitions=4)
    [described] = admin.list_topics(first, timeout=SECONDS).topics.values()
    assert sorted(described.partitions) == [0, 1, 2, 3]
    assert code_of(admin.create_topics([NewTopic(first, 1, 1)])[first]) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code_of(admin.create_topics([NewTopic("no/slash", 1, 1)])["no/slash"]) == KafkaError.TOPIC_EXCEPTION
    assert code_of(admin.create_topics([NewTopic(second, 0, 1)])[second]) == KafkaError.INVALID_PARTITIONS
    assert code_of(admin.create_topics([NewTopic(second, 1, 3)])[second]) == KafkaError.INVALID_REPLICATION_FACTOR
    wrong = NewTopic(second, 1, 1, config={"retention.ms": "soon"})
    assert code_of(admin.create_topics([wrong])[second]) == KafkaError.INVALID_CONFIG
    admin.create_topics([NewTopic(second, 1, 1)], validate_only=True)[second].result(SECONDS)
    assert second not in admin.list_topics(timeout=SECONDS).topics
    admin.delete_topics([first])[first].result(SECONDS)
    assert first not in admin.list_topics(timeout=SECONDS).topics
    assert code_of(admin.delete_topics([first])[first]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_deleted_and_created_again_is_empty(broker: Address, topic: str) -> None:
    admin = create(broker.address, topic)
    send(make_producer(broker.address), topic, [b"old"] * 10)
    admin.delete_topics([topic])[topic].result(SECONDS)
    create(broker.address, topic)
    send(make_producer(broker.address), topic, [b"new"])
    assert [message.value() for message in read(broker.address, topic, 1)] == [b"new"]


def test_admin_client_adds_partitions(broker: Address, topic: str) -> None:
    admin = create(broker.address, topic)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    assert len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 3
    assert code_of(admin.create_partitions([NewPartitions(topic, 2)])[topic]) == KafkaError.INVALID_PARTITIONS
    send(make_producer(broker.address), topic, [b"there"], partition=2)
    assert read(broker.address, topic, 1, partition=2)[0].value() == b"there"


def test_admin_client_describes_and_alters_topic_configs(broker: Address, topic: str) -> None:
    admin = create(broker.address, topic, retention_ms="3600000")
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def described() -> dict[str, Any]:
        entries: dict[str, Any] = admin.describe_configs([resource])[resource].result(SECONDS)
        return entries

    before = described()
    assert before["retention.ms"].value == "3600000"
    assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert before["segment.bytes"].value == "1073741824"
    assert before["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
    assert before["cleanup.policy"].value == "delete"

    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(SECONDS)
    after = described()
    assert after["retention.ms"].value == "604800000"
    assert after["max.message.bytes"].value == "2000000"
    assert set((after["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}

    wrong = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)],
    )
    assert code_of(admin.incremental_alter_configs([wrong])[wrong]) == KafkaError.INVALID_CONFIG


def test_admin_client_describes_broker_configs_and_the_cluster(broker: Address) -> None:
    admin = make_admin(broker.address)
    cluster = admin.describe_cluster().result(SECONDS)
    [node] = cluster.nodes
    assert f"{node.host}:{node.port}" == broker.address
    assert cluster.controller.id == node.id
    assert cluster.cluster_id
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    assert entries["num.partitions"].value == "1"
    assert "log.retention.hours" in entries


def test_admin_client_deletes_records_and_lists_offsets(broker: Address, topic: str) -> None:
    admin = create(broker.address, topic)
    producer = make_producer(broker.address)
    for number in range(100):
        producer.produce(topic, str(number).encode(), timestamp=1_700_000_000_000 + (number * 7) % 100)
    assert producer.flush(SECONDS) == 0
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({partition: spec})[partition].result(SECONDS).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 100
    assert (offset(OffsetSpec.max_timestamp()) * 7) % 100 == 99
    cut = TopicPartition(topic, 0, 40)
    assert admin.delete_records([cut])[cut].result(SECONDS).low_watermark == 40
    assert offset(OffsetSpec.earliest()) == 40
    assert [message.offset() for message in read(broker.address, topic, 60)] == list(range(40, 100))


def test_records_and_topics_survive_a_stop_and_a_crash(start_broker: StartBroker, topic: str) -> None:
    first = start_broker()
    create(first.address, topic, partitions=2, retention_ms="7200000")
    send(make_producer(first.address), topic, [b"before the stop"] * 100, partition=1)
    assert first.stop() == 0

    second = start_broker()
    send(make_producer(second.address), topic, [b"before the crash"] * 100, partition=1)
    second.kill()

    third = start_broker()
    values = [message.value() for message in read(third.address, topic, 200, partition=1)]
    assert values == [b"before the stop"] * 100 + [b"before the crash"] * 100
    [message] = send(make_producer(third.address), topic, [b"after"], partition=1)
    assert message.offset() == 200
    admin = make_admin(third.address)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(SECONDS)["retention.ms"].value == "7200000"
