"""Epochs of the transactional sink against a real broker, without Spark: what is written, how often, and by whom."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pylogd.base.errors import PylogdError
from pylogd.client import Admin, Consumer, NewTopic, Producer, TransactionAborted
from pylogd.client.blocking.encoded import BatchEncoder, send_encoded
from pylogd.lake.spark import epochs
from pylogd.lake.spark.epochs import EncodedRows, Epoch
from pylogd.lake.spark.errors import EpochNotCommitted, StaleCheckpoint
from pylogd.lake.spark.sink_options import SinkOptions
from pylogd.wire.records import Record
from tests.integration.conftest import Address

pytestmark = pytest.mark.timeout(120)


def sink(broker: Address, topic: str, **given: str) -> SinkOptions:
    return SinkOptions.read(
        {"kafka.bootstrap.servers": broker.address, "topic": topic, "transactional": f"id-of-{topic}", **given}
    )


def encoded(options: SinkOptions, *values: str, query: str | None = "query") -> EncodedRows:
    rows = pa.RecordBatch.from_pydict({"value": list(values), "partition": pa.array([0] * len(values), pa.int32())})
    found = epochs.encode(options, iter([rows]))
    found.query_id = query
    return found


def records(broker: Address, topic: str, isolation: Any = "committed") -> list[Record]:
    found: list[Record] = []
    with Consumer(broker.address, auto_offset_reset="earliest", isolation=isolation) as consumer:
        ends = consumer.end_offsets(consumer.partitions(topic))
        consumer.assign(consumer.beginning_offsets(ends))
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(1.0)
    return found


def values(found: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in found]


def test_the_rows_of_all_tasks_are_one_transaction(broker: Address, topic: str) -> None:
    options = sink(broker, topic, **{"kafka.compression.type": "lz4"})
    tasks = [encoded(options, "a", "b"), encoded(options, "c"), EncodedRows(0, "query", [])]
    assert epochs.commit(options, tasks, epochs.epoch_of(tasks, 0))
    assert values(records(broker, topic)) == [b"a", b"b", b"c"]
    assert epochs.commit(options, [encoded(options, "d")], Epoch(1, "query"))
    assert values(records(broker, topic)) == [b"a", b"b", b"c", b"d"]


def test_a_repeated_epoch_is_not_written_again(broker: Address, topic: str) -> None:
    options = sink(broker, topic)
    assert epochs.commit(options, [encoded(options, "a")], Epoch(4, "query"))
    assert not epochs.commit(options, [encoded(options, "a")], Epoch(4, "query"))
    assert values(records(broker, topic)) == [b"a"]
    with pytest.raises(StaleCheckpoint, match=r"epoch 3 is older than epoch 4.*delete the group 'id-of-.*-query'"):
        epochs.commit(options, [encoded(options, "z")], Epoch(3, "query"))
    assert epochs.commit(options, [encoded(options, "b")], Epoch(0, "another query"))  # with the same id, later
    assert values(records(broker, topic)) == [b"a", b"b"]


def test_an_epoch_that_died_in_its_transaction_is_written_once(broker: Address, topic: str) -> None:
    options = sink(broker, topic)
    dead = Producer(broker.address, **options.producer())
    dead.begin_transaction()
    for batch in encoded(options, "a", "b").batches:
        send_encoded(dead, batch).result()
    dead.abandon()  # as a process that was killed: its transaction stays open
    assert records(broker, topic) == []
    assert values(records(broker, topic, "uncommitted")) == [b"a", b"b"]
    assert epochs.commit(options, [encoded(options, "a", "b")], Epoch(0, "query"))
    assert values(records(broker, topic)) == [b"a", b"b"]


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_driver_that_was_thought_dead_can_not_commit(
    broker: Address, topic: str, monkeypatch: pytest.MonkeyPatch, refused_first: bool
) -> None:
    """Another driver commits the epoch between two steps of this one.

    refused_first: the leader refuses the rows before the end of the transaction is asked for.
    """
    options = sink(broker, topic)
    successor = encoded(options, "a")
    real = epochs._is_committed
    busy: list[int] = []

    def meanwhile(given: SinkOptions, epoch: Epoch) -> bool:
        found = real(given, epoch)
        if not busy:
            busy.append(1)
            assert epochs.commit(options, [successor], epoch)
        return found

    def send(producer: Producer, batch: Any) -> Any:
        delivery = send_encoded(producer, batch)
        if refused_first and all(batch is not other for other in successor.batches):
            with contextlib.suppress(PylogdError):
                delivery.result()
        return delivery

    monkeypatch.setattr(epochs, "send_encoded", send)
    monkeypatch.setattr(epochs, "_is_committed", meanwhile)
    with pytest.raises(EpochNotCommitted, match="another query has the same sink option 'transactional'"):
        epochs.commit(options, [encoded(options, "a")], Epoch(0, "query"))
    assert values(records(broker, topic)) == [b"a"]


def test_an_aborted_try_is_repeated(broker: Address, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = sink(broker, topic)
    tries = []

    def send(producer: Producer, batch: Any) -> Any:
        tries.append(batch)
        delivery = send_encoded(producer, batch)
        if len(tries) == 1:
            delivery.result()
            raise TransactionAborted("not this time")
        return delivery

    monkeypatch.setattr(epochs, "send_encoded", send)
    assert epochs.commit(options, [encoded(options, "a")], Epoch(0, "query"))
    assert values(records(broker, topic)) == [b"a"]
    assert values(records(broker, topic, "uncommitted")) == [b"a", b"a"]


def test_rows_that_the_broker_refuses_are_an_error_and_not_written(broker: Address, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": "1000"})])
    options = sink(broker, topic)
    with pytest.raises(EpochNotCommitted, match=r"Spark epoch 0 was not committed: .*Start the query again"):
        epochs.commit(options, [encoded(options, "a", "x" * 5000)], Epoch(0, "query"))
    assert records(broker, topic) == []
    many = [f"{number}".rjust(100) for number in range(50)]  # a batch is split that only together is too large
    assert epochs.commit(options, [encoded(options, *many)], Epoch(0, "query"))
    assert values(records(broker, topic)) == [each.encode() for each in many]


def test_a_batch_query_has_no_number(broker: Address, topic: str) -> None:
    options = sink(broker, topic)
    assert epochs.commit(options, [encoded(options, "a", query=None)], None)
    assert epochs.commit(options, [encoded(options, "a", query=None)], None)
    assert values(records(broker, topic)) == [b"a", b"a"]


def test_encoded_batches_fit_their_producer(broker: Address, topic: str) -> None:
    with BatchEncoder(broker.address) as encoder:
        rows = {"key": ["k"], "value": ["v"], "headers": [[{"key": "h", "value": b"1"}]]}
        encoder.add(topic, pa.RecordBatch.from_pydict(rows), 1000)
        [batch] = encoder.finish()
        assert encoder.finish() == []
    with Producer(broker.address) as producer:
        producer.send(topic, b"first", partition=batch.partition)
        assert send_encoded(producer, batch).result() == 1  # behind what was sent before
    [_, found] = records(broker, topic)
    assert (found.key, found.value, found.timestamp, found.headers) == (b"k", b"v", 1000, (("h", b"1"),))
    with Producer(broker.address, transactional_id="any") as producer:
        producer.begin_transaction()
        with pytest.raises(ValueError, match="was encoded for a producer without transactions"):
            send_encoded(producer, batch)
        producer.abort_transaction()
