"""The transactional sink without a coordinator: what tasks make of rows, and of which epoch they are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pylogd.base.errors import KafkaError
from pylogd.client.core.producer.columns import EncodedBatch
from pylogd.lake.spark import epochs
from pylogd.lake.spark.epochs import EncodedRows, Epoch, epoch_of
from pylogd.lake.spark.errors import EpochNotCommitted, WriteError
from pylogd.lake.spark.sink_options import SinkOptions
from pylogd.wire.records import decode_batch, parse_header
from tests.fakes.broker import FakeBroker

BATCH = EncodedBatch("t", 0, b"...")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as broker:
        yield broker


def options(broker: FakeBroker, **given: str) -> SinkOptions:
    return SinkOptions.read({"kafka.bootstrap.servers": broker.address, "transactional": "x", **given})


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_task_encodes_its_rows_for_a_transaction_and_writes_nothing(broker: FakeBroker) -> None:
    some = rows(value=["a", "b", "c"], key=[b"1", None, b"1"], partition=pa.array([1, 0, 1], pa.int32()))
    found = epochs.encode(options(broker, topic="t", **{"kafka.compression.type": "zstd"}), iter([some, some]))
    assert (found.rows, found.query_id) == (6, None)
    values: dict[int | None, list[Any]] = {0: [], 1: []}
    for topic, partition, encoded in found.batches:
        assert topic == "t"
        assert parse_header(encoded).is_transactional
        values[partition] += [(record.key, record.value) for record in decode_batch(encoded)]
    assert values == {0: [(None, b"b")] * 2, 1: [(b"1", b"a"), (b"1", b"c")] * 2}
    assert not any(broker.logs)
    assert pickle.loads(pickle.dumps(found)) == found


def test_batches_have_the_producer_s_size(broker: FakeBroker) -> None:
    some = rows(value=["x" * 400] * 50, partition=pa.array([0] * 50, pa.int32()))
    found = epochs.encode(options(broker, topic="t", **{"kafka.batch.size": "2000"}), iter([some]))
    assert len(found.batches) > 10
    assert sum(parse_header(each.encoded).record_count for each in found.batches) == 50


def test_rows_that_can_not_be_written_are_an_error_in_the_task(broker: FakeBroker) -> None:
    with pytest.raises(WriteError, match="null topic present"):
        epochs.encode(options(broker), iter([rows(value=["a"], topic=[None])]))
    with pytest.raises(KafkaError, match="there is no partition 9"):
        epochs.encode(options(broker, topic="t"), iter([rows(value=["a"], partition=pa.array([9], pa.int32()))]))


def test_the_epoch_of_messages() -> None:
    some, none = EncodedRows(2, "q", [BATCH]), EncodedRows(0, None, [])
    assert epoch_of([some, none, some], 7) == Epoch(7, "q")
    assert epoch_of([none], 7) is None
    for other in (EncodedRows(1, None, [BATCH]), EncodedRows(1, "r", [BATCH])):
        with pytest.raises(EpochNotCommitted, match="Spark epoch 7 was not committed: its tasks"):
            epoch_of([some, other], 7)


def test_each_query_has_a_group_of_its_own() -> None:
    assert Epoch(7, "q").group_of("x") == Epoch(8, "q").group_of("x") == "x-q"
    assert Epoch(7, "r").group_of("x") != "x-q"


def test_without_rows_no_broker_is_asked() -> None:
    unreachable = SinkOptions.read({"kafka.bootstrap.servers": "127.0.0.1:1", "transactional": "x"})
    assert not epochs.commit(unreachable, [EncodedRows(0, None, [])], None)
