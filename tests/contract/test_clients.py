"""What all faces of the client promise, on a real broker: one suite, run on each.

PYLOGD_TEST_BOOTSTRAP=HOST:PORT turns it to another broker, such as Apache Kafka: the same has to hold there.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import (
    BatchResult,
    Closed,
    ConsumerInterceptor,
    DeliveryFailed,
    DeserializationFailed,
    KafkaError,
    NewRecord,
    NewTopic,
    ProducerInterceptor,
    ProducerRecord,
    Record,
    RecordMetadata,
    RequestTimedOut,
    SerializationFailed,
    TopicPartition,
    UnknownTopic,
)
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pylogd.client.core.errors import CommitFailed
from pylogd.client.core.model import OffsetAndMetadata, OffsetSpec
from pylogd.errors import ErrorCode
from pylogd.local.broker import BrokerProcess
from tests.faces import FACES, Face, poll_until

T = 1_700_000_000_000
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if elsewhere := os.environ.get("PYLOGD_TEST_BOOTSTRAP"):
        yield elsewhere
        return
    folder: Path = tmp_path_factory.mktemp("broker")
    broker = BrokerProcess(
        folder / "data", folder / "log", {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    )
    yield broker.address
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, address: str) -> Iterator[Face]:
    face = FACES[request.param](address)
    yield face
    face.close()


@pytest.fixture
def admin(face: Face) -> Any:
    return face.admin()


def name(kind: str) -> str:
    return f"{kind}-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def topic(admin: Any) -> str:
    """A new topic of two partitions."""
    made = name("topic")
    admin.create_topic(made, 2)
    assert eventually(lambda: len(admin.describe_topic(made).partitions) == 2)
    return made


def fill(face: Face, topic: str, count: int, partitions: int = 2, **options: Any) -> None:
    """Records whose values are their numbers, with time stamps T, T + 1, ..., in turns to each partition."""
    producer = face.producer(**options)
    for n in range(count):
        producer.send(topic, b"%d" % n, partition=n % partitions, timestamp=T + n)
    producer.flush()


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def keys(records: list[Record]) -> list[Any]:
    return [record.key for record in records]


def values(records: list[Record]) -> list[Any]:
    return [record.value for record in records]


def places(topic: str, count: int = 2) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def eventually(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it holds within so many seconds: a cluster of several processes knows of a new topic a little later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return True
        except UnknownTopic:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


# The producer


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_there_and_back(face: Face, topic: str, codec: str) -> None:
    producer = face.producer(compression=codec)
    sent = [
        producer.send(topic, b"v%d" % n, b"k%d" % (n % 7), timestamp=T + n, headers=[("n", b"%d" % n), ("null", None)])
        for n in range(500)
    ]
    producer.flush()
    consumer = face.consumer()
    consumer.assign(places(topic))
    found = {(r.partition, r.offset): r for r in poll_until([consumer], lambda records: len(records) >= 500)}
    assert len(found) == 500
    for n, delivery in enumerate(sent):
        assert found[delivery.partition, delivery.offset] == Record(
            topic, delivery.partition, delivery.offset, T + n, b"k%d" % (n % 7), b"v%d" % n,
            (("n", b"%d" % n), ("null", None)),
        )  # fmt: skip


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(face: Face, topic: str, acks: Any) -> None:
    assert face.producer().send(topic, b"first", partition=1).result() == 0  # now the partition has its leader
    producer = face.producer(acks=acks)
    delivery = producer.send(topic, b"x", partition=1)
    producer.flush()
    assert delivery.result() == (-1 if acks == 0 else 1)
    consumer = face.consumer()
    consumer.assign({(topic, 1): 1})
    assert [r.value for r in poll_until([consumer], bool)] == [b"x"]


def test_order_is_kept_and_nothing_doubled(face: Face, topic: str) -> None:
    producer = face.producer(idempotence=True, batch_records=10, linger_ms=0)
    for n in range(1000):
        producer.send(topic, b"%d" % n, partition=0)
    producer.flush()
    consumer = face.consumer()
    consumer.assign(places(topic, 1))
    assert numbers(poll_until([consumer], lambda records: len(records) >= 1000)) == list(range(1000))


def test_a_set_is_written_whole(face: Face, topic: str) -> None:
    producer = face.producer()
    delivery = producer.send_set(topic, [(b"k", b"a"), NewRecord(None, b"b", T), (None, None)], partition=1)
    assert delivery.result() == 0
    consumer = face.consumer()
    consumer.assign([(topic, 1)])
    assert [(r.key, r.value) for r in poll_until([consumer], bool)] == [(b"k", b"a"), (None, b"b"), (None, None)]


def test_results_are_told(face: Face, topic: str) -> None:
    batches: list[BatchResult] = []
    done: list[Any] = []
    producer = face.producer(on_batch=batches.append)
    for n in range(3):
        producer.send(topic, b"x", partition=0, on_delivery=done.append, timestamp=T + n)
    producer.flush()
    assert [delivery.offset for delivery in done] == [0, 1, 2]
    assert sum(batch.records for batch in batches) == 3
    assert {batch.partition for batch in batches} == {TopicPartition(topic, 0)}


def test_what_the_broker_refuses(face: Face, admin: Any) -> None:
    small = name("small")
    admin.create_topic(small, 1, configs={"max.message.bytes": "1000"})
    assert eventually(lambda: bool(admin.describe_topic(small).partitions))
    producer = face.producer()
    delivery = producer.send(small, b"x" * 5000, partition=0)
    with pytest.raises(KafkaError) as refused:
        delivery.result()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert delivery.error is refused.value
    producer.send(small, b"y" * 5000, partition=0)
    with pytest.raises(DeliveryFailed, match="2 records"):
        producer.flush()
    assert producer.send(small, b"fits", partition=0).result() == 0
    producer.flush()


def test_a_producer_makes_topics_and_ends(face: Face) -> None:
    fresh = name("fresh")
    producer = face.producer()
    delivery = producer.send(fresh, b"x")
    producer.close()
    assert delivery.offset == 0
    with pytest.raises(Closed):
        producer.send(fresh, b"x")


# The consumer


def test_positions(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    consumer = face.consumer()
    assert consumer.partitions(topic) == [first, second]
    consumer.assign({first: 40})
    assert numbers(poll_until([consumer], bool))[:2] == [80, 82]
    assert consumer.position(first) == 50
    consumer.seek(first, 10)
    assert numbers(consumer.poll(30, max_records=3)) == [20, 22, 24]
    assert consumer.position(first) == 13
    consumer.assign([first, second])
    assert consumer.assignment == [first, second]
    assert consumer.position(first) == 13
    consumer.seek_to_end()
    assert consumer.poll(0.05) == []
    consumer.seek_to_beginning(second)
    assert numbers(poll_until([consumer], lambda records: len(records) >= 50)) == list(range(1, 100, 2))
    assert consumer.beginning_offsets([first]) == {first: 0}
    assert consumer.end_offsets([first, second]) == {first: 50, second: 50}
    consumer.assign([second])
    with pytest.raises(ValueError, match="not assigned"):
        consumer.position(first)
    with pytest.raises(ValueError, match="not assigned"):
        consumer.seek(("nowhere", 0), 0)


def test_offsets_for_times(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    found = face.consumer().offsets_for_times({first: T + 41, second: T + 1000})
    assert found[first] is not None
    assert found[first][:2] == (21, T + 42)
    assert found[second] is None


def test_pausing(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    consumer = face.consumer(max_poll_records=10)
    consumer.assign([first, second])
    consumer.pause(first)
    assert consumer.paused == [first]
    records = poll_until([consumer], lambda records: len(records) >= 50)
    assert consumer.poll(0.2) == []
    assert {record.partition for record in records} == {1}
    consumer.resume(first)
    assert numbers(poll_until([consumer], lambda records: len(records) >= 50)) == list(range(0, 100, 2))


def test_where_to_begin(face: Face, topic: str) -> None:
    fill(face, topic, 10)
    latest = face.consumer(auto_offset_reset="latest")
    latest.assign(places(topic))
    assert latest.position((topic, 0)) == 5
    fill(face, topic, 2)
    assert sorted(numbers(poll_until([latest], lambda records: len(records) >= 2))) == [0, 1]
    nowhere = face.consumer(auto_offset_reset="none")
    with pytest.raises(KafkaError) as raised:
        nowhere.assign(places(topic))
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    nowhere.assign({(topic, 0): 999})
    with pytest.raises(KafkaError) as raised:
        poll_until([nowhere], bool)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    earliest = face.consumer()
    earliest.assign({(topic, 0): 999})
    assert numbers(poll_until([earliest], bool))[0] == 0


def test_polls_end(face: Face, topic: str) -> None:
    consumer = face.consumer()
    consumer.assign(places(topic))
    assert consumer.poll(0.05) == []
    consumer.wakeup()
    assert consumer.poll(60) == []
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll(1)


def test_iteration(face: Face, topic: str) -> None:
    fill(face, topic, 300)
    consumer = face.consumer(max_poll_records=7)
    consumer.assign([(topic, 0)])
    assert numbers(face.take(consumer, 150)) == list(range(0, 300, 2))


def test_columns_there_and_back(face: Face, topic: str) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = pa.record_batch(
        {"key": [b"k", None], "value": [b"a", b"b"], "timestamp": pa.array([T, T + 1], pa.timestamp("ms", "UTC"))}
    )
    deliveries = face.producer().send_columns(topic, rows, partition=1)
    assert [delivery.partition for delivery in deliveries] == [1, 1]
    consumer = face.consumer()
    consumer.assign({(topic, 1): 0})
    found: list[Any] = []
    while sum(len(each) for each in found) < 2:
        found += [columns for _, columns in consumer.poll_columns(1.0)]
    table = pa.Table.from_batches(found)
    assert table["key"].to_pylist() == [b"k", None]
    assert table["value"].to_pylist() == [b"a", b"b"]
    assert table["offset"].to_pylist() == [0, 1]
    assert consumer.position((topic, 1)) == 2
    assert consumer.metrics().partitions[topic, 1].records_consumed_total == 2


# Serializers, interceptors, statistics, logs


def test_serializers(face: Face, topic: str) -> None:
    producer = face.producer(key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode())
    producer.send(topic, {"n": 1}, "key", partition=0, timestamp=T)
    producer.send(topic, None, "key", partition=0, timestamp=T)
    producer.send_set(topic, [("a", [1]), (None, [2])], partition=0)
    producer.flush()
    with pytest.raises(SerializationFailed, match=f"topic '{topic}': can't serialize the value") as refused:
        producer.send(topic, object(), partition=0)
    assert refused.value.topic == topic
    raw = face.consumer()
    raw.assign({(topic, 0): 0})
    found = poll_until([raw], lambda records: len(records) >= 4)
    assert [(r.key, r.value) for r in found] == [(b"key", b'{"n": 1}'), (b"key", None), (b"a", b"[1]"), (None, b"[2]")]
    consumer = face.consumer(key_deserializer=bytes.decode, value_deserializer=json.loads)
    consumer.assign({(topic, 0): 0})
    found = poll_until([consumer], lambda records: len(records) >= 4)
    assert keys(found) == ["key", "key", "a", None]
    assert values(found) == [{"n": 1}, None, [1], [2]]


def test_a_record_that_can_not_be_deserialized_can_be_passed(face: Face, topic: str) -> None:
    producer = face.producer()
    for value in (b"1", b"2", b"three", b"4"):
        producer.send(topic, value, partition=0)
    producer.flush()
    consumer = face.consumer(value_deserializer=int)
    consumer.assign({(topic, 0): 0})
    assert values(poll_until([consumer], lambda records: len(records) >= 2)) == [1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationFailed) as raised:
            poll_until([consumer], bool)
        error = raised.value
        assert (error.topic, error.partition, error.offset, error.field) == (topic, 0, 2, "value")
        assert error.record.value == b"three"
        assert consumer.position((topic, 0)) == 2
    consumer.seek(error.topic_partition, error.next_offset)
    assert values(poll_until([consumer], bool)) == [4]


class Stamping(ProducerInterceptor):
    """Adds a header to each record, and keeps what became of them."""

    def __init__(self) -> None:
        self.told: list[tuple[RecordMetadata, Exception | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[*record.headers, ("stamp", b"1")])

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.told.append((metadata, error))


class Broken(ProducerInterceptor, ConsumerInterceptor):
    """Fails in every method."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("on_send is broken")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise RuntimeError("on_acknowledgement is broken")

    def on_consume(self, records: list[Record]) -> list[Record]:
        raise RuntimeError("on_consume is broken")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise RuntimeError("on_commit is broken")

    def close(self) -> None:
        raise RuntimeError("close is broken")


def test_a_producers_interceptors(face: Face, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    stamping = Stamping()
    producer = face.producer(interceptors=[Broken(), stamping])
    for n in range(3):
        producer.send(topic, b"%d" % n, partition=0)
    producer.flush()
    assert [(each.partition, each.offset, error) for each, error in stamping.told] == [(0, n, None) for n in range(3)]
    with pytest.raises(KafkaError):
        producer.send(topic, b"x", partition=99)
    metadata, error = stamping.told[-1]
    assert (metadata.offset, type(error)) == (-1, KafkaError)
    producer.close()
    consumer = face.consumer()
    consumer.assign({(topic, 0): 0})
    found = poll_until([consumer], lambda records: len(records) >= 3)
    assert [(r.value, r.headers) for r in found] == [(b"%d" % n, (("stamp", b"1"),)) for n in range(3)]
    logged = [record for record in caplog.records if "Broken." in record.getMessage()]
    assert {record.name for record in logged} == {"pylogd.client.producer"}
    for method in ("on_send", "on_acknowledgement", "close"):
        assert any(f"Broken.{method} failed" in record.getMessage() for record in logged)


class Counting(ConsumerInterceptor):
    """Leaves out every other record, and keeps what was committed."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}

    def on_consume(self, records: list[Record]) -> list[Record]:
        return [record for record in records if record.offset % 2 == 0]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update((partition, each.offset) for partition, each in offsets.items())


def test_a_consumers_interceptors(face: Face, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(face, topic, 10, partitions=1)
    counting = Counting()
    consumer = face.consumer(group_id=name("group"), auto_commit="off", interceptors=[Broken(), counting])
    consumer.assign([(topic, 0)])
    assert numbers(poll_until([consumer], lambda records: len(records) >= 5)) == [0, 2, 4, 6, 8]
    consumer.commit()
    assert counting.committed == {TopicPartition(topic, 0): 10}
    consumer.close()
    for method in ("on_consume", "on_commit", "close"):
        assert any(f"Broken.{method} failed" in record.getMessage() for record in caplog.records)


def test_statistics(face: Face, topic: str) -> None:
    told: list[Any] = []
    producer = face.producer(client_id="measured", statistics_interval=0.01, on_statistics=told.append)
    fill_by(producer, topic, 100)
    found = producer.metrics()
    assert (found.client_id, found.record_send_total, found.record_error_total) == ("measured", 100, 0)
    assert found.record_send_rate > 0 and found.batch_size_avg > 100
    assert found.records_per_request_avg > 1
    assert 0 <= found.record_queue_time_avg <= found.record_queue_time_max
    assert found.buffer_available_bytes == found.buffer_total_bytes
    assert {partition: each.record_send_total for partition, each in found.partitions.items()} == {
        (topic, 0): 50, (topic, 1): 50,
    }  # fmt: skip
    leader = found.brokers[next(node for node in found.brokers if isinstance(node, int))]
    assert leader.connection_count >= 1 and leader.requests_in_flight == 0
    assert leader.apis["Produce"].response_total >= 1
    assert 0 < leader.apis["Produce"].request_latency_avg <= found.request_latency_max
    assert found.outgoing_byte_total > 100 and found.incoming_byte_total > 0
    assert eventually(lambda: bool(told) or fill_by(producer, topic, 2))
    assert told[-1].client_id == "measured"
    consumer = face.consumer()
    consumer.assign({(topic, 0): 0})
    poll_until([consumer], lambda records: len(records) >= 50)
    read = consumer.metrics()
    assert read.records_consumed_total >= 50 and read.fetch_total >= 1
    partition = read.partitions[topic, 0]
    assert partition.records_consumed_total == read.records_consumed_total
    assert (partition.records_lag, read.records_lag_max) == (0, 0) or told
    json.dumps(read.as_dict())


def fill_by(producer: Any, topic: str, count: int) -> bool:
    for n in range(count):
        producer.send(topic, b"%d" % n, partition=n % 2)
    producer.flush()
    return False


def test_logs_go_through_logging(face: Face, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the application's fault")

    producer = face.producer(on_batch=fail)
    with caplog.at_level(logging.DEBUG, "pylogd.client"):
        producer.send(topic, b"x", partition=0, on_delivery=fail).result()
        producer.flush()
    found = [record for record in caplog.records if record.exc_info and record.name.startswith("pylogd.client.")]
    assert [record.getMessage().split()[0] for record in found] == ["on_batch", "on_delivery"]


# Groups


def test_commits(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, auto_commit="off")
    assert consumer.committed([first, second]) == {first: None, second: None}
    consumer.assign([first])
    assert len(consumer.poll(30, max_records=20)) == 20
    consumer.commit()
    consumer.commit({second: OffsetAndMetadata(7, "note")})
    found = consumer.committed([first, second])
    assert (found[first].offset, found[second].offset, found[second].metadata) == (20, 7, "note")
    consumer.close()
    again = face.consumer(group_id=group, auto_commit="off")
    again.assign([first, second])
    assert (again.position(first), again.position(second)) == (20, 7)


def test_a_group_of_one_commits_what_it_processed(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    group = name("group")
    consumer = face.consumer(group_id=group)
    consumer.subscribe(topic)
    assert sorted(numbers(poll_until([consumer], lambda records: len(records) >= 100))) == list(range(100))
    consumer.close()
    fill(face, topic, 2)
    again = face.consumer(group_id=group)
    again.subscribe([topic])
    assert sorted(numbers(poll_until([again], lambda records: len(records) >= 2))) == [0, 1]


def test_two_members_share_and_one_takes_over(face: Face, topic: str) -> None:
    group = name("group")
    told: list[tuple[str, list[TopicPartition]]] = []
    first = face.consumer(group_id=group, heartbeat_interval=0.2)
    first.subscribe(
        topic, on_assign=lambda p: told.append(("assigned", p)), on_revoke=lambda p: told.append(("revoked", p))
    )
    poll_until([first], lambda _: len(first.assignment) == 2)
    assert told == [("assigned", places(topic))]
    second = face.consumer(group_id=group, heartbeat_interval=0.2)
    second.subscribe(topic)
    poll_until([first, second], lambda _: len(first.assignment) == len(second.assignment) == 1)
    assert ("revoked", places(topic)) in told
    assert sorted(first.assignment + second.assignment) == places(topic)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first, second], lambda records: len(records) >= 20))) == list(range(20))
    second.close()
    poll_until([first], lambda _: len(first.assignment) == 2)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first], lambda records: len(records) >= 20))) == list(range(20))


def test_a_pattern_and_leaving(face: Face, admin: Any) -> None:
    prefix = name("some")
    for suffix in ("a", "b"):
        admin.create_topic(f"{prefix}.{suffix}", 1)
    consumer = face.consumer(group_id=name("group"), metadata_max_age=0.5)
    consumer.subscribe(re.compile(re.escape(prefix) + r"\..*"))
    poll_until([consumer], lambda _: len(consumer.assignment) == 2)
    admin.create_topic(f"{prefix}.c", 1)
    poll_until([consumer], lambda _: len(consumer.assignment) == 3)
    consumer.unsubscribe()
    assert consumer.assignment == []


def test_a_commit_for_what_is_not_ours_fails(face: Face, topic: str) -> None:
    group = name("group")
    first = face.consumer(group_id=group)
    first.subscribe(topic)
    poll_until([first], lambda _: len(first.assignment) == 2)
    stranger = face.consumer(group_id=group)
    with pytest.raises((CommitFailed, RequestTimedOut)):
        stranger.commit({(topic, 0): 1}, timeout=20)


def test_message_streams(face: Face, topic: str) -> None:
    fill(face, topic, 40)
    consumer = face.consumer(group_id=name("group"))
    streams = consumer.create_message_streams(topic, 2)[topic]
    assert len(streams) == 2
    found = [face.take(stream, 20) for stream in streams]
    assert sorted(numbers(found[0] + found[1])) == list(range(40))
    for records in found:
        assert len({record.partition for record in records}) == 1
    consumer.close()


# The administrator


def test_topics(face: Face, admin: Any) -> None:
    one, two = name("one"), name("two")
    outcome = admin.create_topics([NewTopic(one, 3, 1, {"retention.ms": "1000"}), NewTopic("no/slash")])
    assert outcome[one] is None
    assert outcome["no/slash"].code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError) as raised:
        admin.create_topic(one)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert eventually(lambda: len(admin.describe_topic(one).partitions) == 3)
    assert one in [topic.name for topic in admin.list_topics()]
    admin.create_partitions(one, 5)
    assert eventually(lambda: len(admin.describe_topic(one).partitions) == 5)
    admin.create_topic(two, validate_only=True)
    admin.delete_topic(one)
    with pytest.raises(KafkaError) as raised:
        admin.describe_topic(two)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_configs(face: Face, admin: Any, topic: str) -> None:
    def settings() -> tuple[str, str, str]:
        [policy, retention] = admin.describe_configs("topic", topic, ["retention.ms", "cleanup.policy"])
        return policy.value, retention.value, retention.source

    admin.alter_configs("topic", topic, {"retention.ms": "5000", "cleanup.policy": "compact"})
    assert eventually(lambda: settings() == ("compact", "5000", "topic"))
    admin.alter_configs("topic", topic, {}, append={"cleanup.policy": "delete"})
    assert eventually(lambda: settings()[0] == "compact,delete")
    admin.alter_configs("topic", topic, {"retention.ms": None})
    assert eventually(lambda: settings()[2] != "topic")
    with pytest.raises(KafkaError) as raised:
        admin.alter_configs("topic", topic, {"retention.ms": "soon"})
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_offsets_and_records(face: Face, admin: Any, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    found = admin.offsets({first: LATEST, second: MAX_TIMESTAMP})
    assert found[first].offset == 50
    assert (found[second].offset, found[second].timestamp) == (49, T + 99)
    assert admin.delete_records({first: 30}) == {first: 30}
    assert admin.offsets({first: EARLIEST})[first].offset == 30


def test_the_cluster(face: Face, admin: Any, topic: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller in [broker.node_id for broker in cluster.brokers]
    assert eventually(
        lambda: set(places(topic)) <= {place for directory in admin.describe_log_dirs() for place in directory.sizes}
    )


def test_groups(face: Face, admin: Any, topic: str) -> None:
    fill(face, topic, 10)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, client_id="tester")
    consumer.subscribe(topic)
    poll_until([consumer], lambda records: len(records) >= 10)
    assert group in [listing.group_id for listing in admin.list_groups()]
    described = admin.describe_group(group)
    assert described.state == "Stable"
    [member] = described.members
    assert (member.client_id, member.topics, member.assignment) == ("tester", (topic,), (first, second))
    with pytest.raises(KafkaError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    consumer.close()
    assert {place: found.offset for place, found in admin.group_offsets(group).items()} == {first: 5, second: 5}
    assert admin.plan_group_offsets(group, [first], OffsetSpec(shift=-2)) == {first: 3}
    admin.alter_group_offsets(group, {first: 3})
    admin.delete_group_offsets(group, [second])
    assert {place: found.offset for place, found in admin.group_offsets(group).items()} == {first: 3}
    admin.delete_group(group)
    with pytest.raises(KafkaError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
