"""The sink without transactions: which rows a task sends where, and rows that can't be sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pylogd.base.errors import KafkaError
from pylogd.client.core.producer.partitioner import positive_murmur2
from pylogd.lake.spark import writing
from pylogd.lake.spark.errors import WriteError
from pylogd.lake.spark.sink_options import SinkOptions
from pylogd.wire.records import Record, decode_batch
from tests.fakes.broker import FakeBroker

PARTITIONS = 3


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=PARTITIONS) as broker:
        yield broker


def options(broker: FakeBroker, **given: str) -> SinkOptions:
    return SinkOptions.read({"kafka.bootstrap.servers": broker.address, **given})


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def records(broker: FakeBroker, partition: int) -> list[Record]:
    return [record for batch in broker.logs[partition] for record in decode_batch(batch)]


def test_keys_and_columns_choose_the_partition(broker: FakeBroker) -> None:
    keys = [b"%d" % number for number in range(100)]
    given = pa.array([0 if number % 10 == 0 else None for number in range(100)], pa.int32())
    batch = rows(key=keys, value=[key.decode() for key in keys], partition=given)
    assert writing.write(options(broker, topic="t"), iter([batch, batch.slice(50, 7)])) == 107
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for key in (*keys, *keys[50:57]):
        expected[0 if int(key) % 10 == 0 else positive_murmur2(key) % PARTITIONS].append(key)
    for partition, of_partition in expected.items():
        found = records(broker, partition)
        assert [(record.key, record.value) for record in found] == [(key, key) for key in of_partition]


def test_rows_without_keys_are_spread_in_batches(broker: FakeBroker) -> None:
    batch = rows(value=[bytes(100)] * 5000)
    assert writing.write(options(broker, topic="t", **{"kafka.batch.size": "10000"}), iter([batch])) == 5000
    counts = [len(records(broker, number)) for number in range(PARTITIONS)]
    assert sum(counts) == 5000
    assert min(counts) > 0


def test_headers_and_nulls_are_kept(broker: FakeBroker) -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "é", "value": None}], None]
    batch = rows(value=[None, "x"], headers=headers, partition=pa.array([1, 1], pa.int32()))
    assert writing.write(options(broker, topic="t", includeHeaders="true"), iter([batch])) == 2
    found = [(record.key, record.value, record.headers) for record in records(broker, 1)]
    assert found == [(None, None, (("a", b"1"), ("é", None))), (None, b"x", ())]


def test_each_row_goes_to_its_topic(broker: FakeBroker) -> None:
    batch = rows(topic=["b", "a", "b"], value=["1", "2", "3"])
    given = options(broker)
    found = [(topic, part.column("value").to_pylist()) for topic, part in writing.by_topic(given, iter([batch, batch]))]
    assert found == [("b", ["1", "3", "1", "3"]), ("a", ["2", "2"])]
    [(topic, part)] = writing.by_topic(options(broker, topic="t"), iter([batch]))
    assert (topic, part.num_rows) == ("t", 3)


def test_rows_are_gathered_up_to_a_size(broker: FakeBroker) -> None:
    megabyte = rows(value=[bytes(1000)] * 1000)
    sizes = [part.num_rows for _, part in writing.by_topic(options(broker, topic="t"), iter([megabyte] * 20))]
    assert sizes == [9000, 9000, 2000]


def test_rows_that_can_not_be_written_are_an_error(broker: FakeBroker) -> None:
    with pytest.raises(WriteError, match="null topic present"):
        writing.write(options(broker), iter([rows(value=["a"], topic=pa.array([None], pa.string()))]))
    with pytest.raises(WriteError, match="a header has no key"):
        headers = [[{"key": None, "value": b""}]]
        writing.write(options(broker, topic="t", includeHeaders="true"), iter([rows(value=["a"], headers=headers)]))
    with pytest.raises(KafkaError, match="there is no partition 9"):
        writing.write(options(broker, topic="t"), iter([rows(value=["a"], partition=pa.array([9], pa.int32()))]))
