"""Serializers and deserializers, without sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylogd.client import Consumer, DeserializationFailed, Producer, Record, SerializationFailed, TopicPartition
from pylogd.client.core.consumer.fetcher import FetchedBatches, Fetcher, FetchSettings
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.serialization import RecordDeserializer, RecordSerializer
from pylogd.wire.records import encode_batch, iter_batches
from tests.fakes.reading import gather

T0 = TopicPartition("t", 0)


def record(offset: int, value: bytes | None, key: bytes | None = None) -> Record:
    return Record("t", 0, offset, 7, key, value, (("h", b"x"),))


def values(records: list[Record]) -> list[Any]:
    return [found.value for found in records]


class OfTopic:
    """A serializer and deserializer that uses the topic."""

    def serialize(self, topic: str, data: Any) -> bytes:
        return f"{topic}:{data}".encode()

    def deserialize(self, topic: str, data: bytes) -> Any:
        return data.decode().removeprefix(f"{topic}:")


def test_functions_and_objects() -> None:
    serializer = RecordSerializer(OfTopic(), lambda value: json.dumps(value).encode())
    assert serializer.key("t", 5) == b"t:5"
    assert serializer.value("t", {"a": 1}) == b'{"a": 1}'
    deserializer = RecordDeserializer(OfTopic(), json.loads)
    [found] = deserializer.deserialize([record(3, b'{"a": 1}', b"t:5")])
    assert list(found) == ["t", 0, 3, 7, "5", {"a": 1}, (("h", b"x"),)]


def test_none_is_never_converted() -> None:
    def fail(_: Any) -> Any:
        raise AssertionError("called")

    serializer = RecordSerializer(fail, fail)
    assert serializer.key("t", None) is None and serializer.value("t", None) is None
    assert RecordDeserializer(fail, fail).deserialize([record(1, None)]) == [record(1, None)]


def test_only_what_is_set_is_converted() -> None:
    assert not RecordSerializer(None, None) and not RecordDeserializer(None, None)
    assert RecordSerializer(None, str.encode).key("t", b"k") == b"k"
    [found] = RecordDeserializer(bytes.decode, None).deserialize([record(1, b"v", b"k")])
    assert list(found[4:6]) == ["k", b"v"]


@pytest.mark.parametrize("fault", [lambda value: 1 / value, lambda value: "no bytes"])
def test_a_serializer_that_fails(fault: Any) -> None:
    with pytest.raises(SerializationFailed, match="topic 'orders': can't serialize the value") as raised:
        RecordSerializer(None, fault).value("orders", 0)
    assert (raised.value.topic, raised.value.field) == ("orders", "value")
    assert raised.value.__cause__ is not None


def test_records_in_front_of_a_fault_come_first() -> None:
    deserializer = RecordDeserializer(None, int)
    records = [record(1, b"1"), record(2, b"two"), record(3, b"3")]
    assert values(deserializer.deserialize(records)) == [1]
    with pytest.raises(
        DeserializationFailed, match="t-0: can't deserialize the value of the record at offset 2"
    ) as raised:
        deserializer.deserialize(records[1:])
    error = raised.value
    assert (error.topic_partition, error.offset, error.next_offset, error.field) == (("t", 0), 2, 3, "value")
    assert error.record == records[1]
    assert isinstance(error.__cause__, ValueError)


def make_reader(values: list[bytes], deserializer: RecordDeserializer) -> Reader:
    """Return a reader of one partition that received `values` in batches of two."""
    fetcher = Fetcher(FetchSettings(), 30.0)
    waiting: list[FetchedBatches] = []
    reader = Reader(fetcher, lambda: waiting.pop(0) if waiting else None, deserializer=deserializer)

    def come(offset: int) -> None:
        data = b"".join(
            encode_batch([(None, value, 7, ()) for value in values[at : at + 2]], base_offset=at)
            for at in range(0, len(values), 2)
        )
        fetch = fetcher.partitions[T0]
        waiting[:] = [FetchedBatches(fetch, fetch.generation, offset, iter_batches(data), len(data))]

    reader.come = come  # type: ignore[attr-defined]
    reader.move(T0, 0)
    come(0)
    return reader


def test_the_position_stays_at_a_record_that_fails_until_the_application_seeks() -> None:
    reader = make_reader([b"0", b"1", b"2", b"x", b"4"], RecordDeserializer(None, int))
    [(_, records)] = gather(reader, 100)
    assert values(records) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationFailed) as raised:
            gather(reader, 100)
        assert reader.position(T0) == 3
    reader.move(T0, raised.value.next_offset)
    reader.come(4)  # type: ignore[attr-defined]
    [(_, records)] = gather(reader, 100)
    assert [found.offset for found in records] == values(records) == [4]


def test_limits_hold_and_nothing_is_deserialized_twice() -> None:
    calls: list[bytes] = []

    def count(data: bytes) -> int:
        calls.append(data)
        return int(data)

    reader = make_reader([b"%d" % n for n in range(6)], RecordDeserializer(None, count))
    found: list[Record] = []
    while chunks := gather(reader, 1):
        [(_, records)] = chunks
        assert len(records) == 1
        found += records
    assert values(found) == list(range(6))
    assert calls == [b"%d" % n for n in range(6)]


def test_an_interrupt_in_a_deserializer_loses_nothing() -> None:
    interrupted: list[bytes] = []

    def interrupt_once(data: bytes) -> int:
        if data == b"3" and not interrupted:
            interrupted.append(data)
            raise KeyboardInterrupt
        return int(data)

    reader = make_reader([b"%d" % n for n in range(5)], RecordDeserializer(None, interrupt_once))
    with pytest.raises(KeyboardInterrupt):
        gather(reader, 100)
    assert reader.position(T0) == 0
    reader.come(0)  # type: ignore[attr-defined]
    [(_, records)] = gather(reader, 100)
    assert values(records) == list(range(5))


def test_objects_that_are_no_serializers_are_refused() -> None:
    with pytest.raises(ValueError, match="value_serializer must be a function"):
        ProducerOptions(value_serializer=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key_deserializer must be a function"):
        ConsumerOptions(key_deserializer=5)  # type: ignore[arg-type]


def test_without_options_nothing_is_prepared_or_deserialized() -> None:
    with Producer("localhost:1") as producer, Consumer("localhost:1") as consumer:
        assert not producer._prepares
        assert consumer._consumer.reader._deserializer is None
