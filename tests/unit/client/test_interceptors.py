"""Interceptors (KIP-42), without sockets: an exception in one is logged and loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pylogd.client import (
    BatchResult,
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
    Record,
    RecordMetadata,
    SerializationFailed,
    TopicPartition,
)
from pylogd.client.core.consumer.interceptors import ConsumerHooks
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.hooks import ProducerHooks
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.wire.records import NewRecord

T0 = TopicPartition("t", 0)
RECORD = ProducerRecord("t", "v", "k", headers=[("a", b"1")])


class Tracing(ProducerInterceptor):
    """An interceptor that adds a header, and keeps what it is called with."""

    def __init__(self) -> None:
        self.told: list[tuple[RecordMetadata, Exception | None]] = []
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[*record.headers, ("trace", b"7")])

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.told.append((metadata, error))

    def close(self) -> None:
        self.closed += 1


class Faulty(ProducerInterceptor):
    """An interceptor that always raises."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("on_send is broken")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise RuntimeError("on_acknowledgement is broken")

    def close(self) -> None:
        raise RuntimeError("close is broken")


class Careless(ProducerInterceptor):
    """An interceptor that does not return the record."""

    def on_send(self, record: ProducerRecord) -> Any:
        return None


def finished(records: int, error: BrokerUnavailable | None = None) -> tuple[Batch, BatchResult]:
    return Batch(T0, 0, 0.0, 0.0), BatchResult(T0, records, 5 if error is None else -1, -1, error)


def test_interceptors_see_objects_before_they_are_serialized() -> None:
    seen: list[Any] = []

    class Seeing(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append((record.key, record.value))
            return record

    options = ProducerOptions(
        interceptors=[Tracing(), Seeing()], key_serializer=str.encode, value_serializer=str.encode
    )
    hooks = ProducerHooks(options)
    assert hooks.prepares
    assert hooks.prepare(RECORD) == ProducerRecord("t", b"v", b"k", headers=[("a", b"1"), ("trace", b"7")])
    assert seen == [("k", "v")]


def test_records_of_a_set_are_prepared_one_by_one() -> None:
    hooks = ProducerHooks(ProducerOptions(interceptors=[Tracing()], value_serializer=str.encode))
    found = hooks.prepare_set("t", [NewRecord(b"k", "a", 7), NewRecord(None, None, 8)], 0)  # type: ignore[arg-type]
    assert found == [(b"k", b"a", 7, [("trace", b"7")]), (None, None, 8, [("trace", b"7")])]


@pytest.mark.parametrize("fault", [Faulty(), Careless()])
def test_a_fault_is_logged_and_the_record_goes_on(fault: ProducerInterceptor, caplog: pytest.LogCaptureFixture) -> None:
    tracing = Tracing()
    hooks = ProducerHooks(ProducerOptions(interceptors=[fault, tracing]))
    assert hooks.prepare(RECORD) == RECORD._replace(headers=[("a", b"1"), ("trace", b"7")])
    hooks.completed(*finished(1))
    hooks.close()
    assert tracing.told == [(RecordMetadata("t", 0, 5, -1), None)]
    assert tracing.closed == 1
    assert f"interceptor {type(fault).__name__}.on_send failed" in caplog.text
    assert {record.name for record in caplog.records} == {"pylogd.client.producer"}


def test_every_record_is_acknowledged_before_its_callback() -> None:
    tracing, order = Tracing(), []
    hooks = ProducerHooks(
        ProducerOptions(interceptors=[tracing], on_batch=lambda result: order.append(len(tracing.told)))
    )
    batch, result = finished(3)
    batch.listeners += (None, lambda _: order.append(len(tracing.told)))
    hooks.completed(batch, result)
    assert [metadata.offset for metadata, _ in tracing.told] == [5, 6, 7]
    assert order == [3, 3]
    error = BrokerUnavailable("gone")
    hooks.completed(*finished(1, error))
    assert tracing.told[-1] == (RecordMetadata("t", 0, -1, -1), error)


def test_refused_records_are_acknowledged_with_their_error() -> None:
    tracing = Tracing()
    hooks = ProducerHooks(ProducerOptions(interceptors=[tracing], value_serializer=lambda value: bytes([1 // 0])))
    with pytest.raises(SerializationFailed):
        hooks.prepare(RECORD)
    [(metadata, error)] = tracing.told
    assert metadata == RecordMetadata("t", -1, -1, -1)
    assert isinstance(error, SerializationFailed)


def test_closing_is_told_once() -> None:
    tracing = Tracing()
    hooks = ProducerHooks(ProducerOptions(interceptors=[tracing]))
    hooks.close()
    hooks.close()
    assert tracing.closed == 1


class Upper(ConsumerInterceptor):
    """An interceptor that changes values, and omits records without one."""

    def __init__(self) -> None:
        self.committed: list[Any] = []

    def on_consume(self, records: list[Record]) -> list[Record]:
        return [record._replace(value=record.value.upper()) for record in records if record.value]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.append(offsets)


class FaultyConsumer(ConsumerInterceptor):
    """A consumer interceptor that always raises."""

    def on_consume(self, records: list[Record]) -> list[Record]:
        raise RuntimeError("on_consume is broken")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise RuntimeError("on_commit is broken")


def test_a_consumers_interceptors(caplog: pytest.LogCaptureFixture) -> None:
    upper = Upper()
    hooks = ConsumerHooks([FaultyConsumer(), upper])
    some, none = Record("t", 0, 0, 7, None, b"a"), Record("t", 1, 0, 7, None, b"")
    assert hooks.consumed([some]) == [some._replace(value=b"A")]
    assert hooks.consumed([none]) == []
    offsets = {T0: OffsetAndMetadata(1)}
    hooks.committed(offsets)
    hooks.close()
    assert upper.committed == [offsets]
    assert "FaultyConsumer.on_consume failed" in caplog.text and "FaultyConsumer.on_commit failed" in caplog.text


def test_without_interceptors_records_are_handed_out_as_they_are() -> None:
    records = [Record("t", 0, 0, 7, None, b"a")]
    assert ConsumerHooks([]).consumed(records) is records
    assert ConsumerHooks([ConsumerInterceptor()]).consumed(records) is records
    assert not ProducerHooks(ProducerOptions(interceptors=[ProducerInterceptor()])).prepares


def test_objects_that_are_no_interceptors_are_refused() -> None:
    with pytest.raises(ValueError, match="instances of ProducerInterceptor"):
        ProducerOptions(interceptors=[ConsumerInterceptor()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="instances of ConsumerInterceptor"):
        ConsumerOptions(interceptors=[print])  # type: ignore[list-item]
