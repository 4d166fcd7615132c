"""What every face of the client promises of its consumer, and of hooks and statistics."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    Closed,
    ConsumerInterceptor,
    DeserializationFailed,
    KafkaError,
    ProducerInterceptor,
    ProducerRecord,
    Record,
    RecordMetadata,
    SerializationFailed,
    TopicPartition,
)
from pylogd.client.core.consumer.fetch_session import FetchSession
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.wire.messages.fetch import FetchRequest
from tests.contract.clients.helpers import T, eventually, fill, keys, name, numbers, places, values
from tests.faces import Face, poll_until
from tests.rawclient import RawClient


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


def test_reading_until_an_offset(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    consumer = face.consumer()
    consumer.assign({first: 0, second: 40}, until={first: 50, second: 50})
    records = poll_until([consumer], lambda records: len(records) >= 60)
    assert sorted(record.offset for record in records if record.partition == 1) == list(range(40, 50))
    fill(face, topic, 20)
    assert consumer.poll(0.2) == []
    assert (consumer.position(first), consumer.position(second)) == (50, 50)
    consumer.assign({first: 50})
    assert [record.offset for record in poll_until([consumer], lambda records: len(records) >= 10)] == list(
        range(50, 60)
    )


def test_closing_ends_fetch_sessions(face: Face, admin: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[int, Any] = {}
    succeeded = FetchSession.succeeded

    def spy(self: FetchSession, session_id: int) -> None:
        opened[session_id] = None
        succeeded(self, session_id)

    monkeypatch.setattr(FetchSession, "succeeded", spy)
    topic = name("many")
    admin.create_topic(topic, 6)
    assert eventually(lambda: len(admin.describe_topic(topic).partitions) == 6)
    fill(face, topic, 60, partitions=6)
    consumer = face.consumer(fetch_max_wait_ms=50)
    consumer.assign({(topic, index): 0 for index in range(6)})
    poll_until([consumer], lambda records: len(records) >= 60)
    [session_id] = opened
    with RawClient(address) as raw:

        def state() -> ErrorCode:
            """What the broker answers to a request with an epoch that no session has."""
            request = FetchRequest(
                replica_id=-1, max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=1 << 20
            )
            return ErrorCode(raw.request(request, 12).error_code)

        assert session_id > 0 and state() is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        consumer.close()
        assert state() is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


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


def test_many_rows_are_sent_as_columns(face: Face, topic: str) -> None:
    pa = pytest.importorskip("pyarrow")
    numbers = [b"%d" % n for n in range(2000)]
    producer = face.producer(batch_records=300)
    deliveries = producer.send_columns(topic, pa.record_batch({"key": numbers, "value": numbers}))
    assert len(deliveries) == 2000
    producer.flush()
    consumer = face.consumer()
    consumer.assign(places(topic))
    found: list[Any] = []
    while len(found) < 2000:
        found += consumer.poll(1.0)
    offsets = {each.value: (each.partition, each.offset) for each in found}
    assert [(each.partition, each.offset) for each in deliveries] == [offsets[number] for number in numbers]
    with pytest.raises(KafkaError) as raised:
        producer.send_columns(topic, pa.record_batch({"value": numbers, "partition": [99] * 2000}))
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
