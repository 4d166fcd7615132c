"""Reading the range of one task, from a fake broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client import RequestTimedOut
from pylogd.lake.spark import reading
from pylogd.lake.spark.errors import DataLoss, InvalidTimestamp
from pylogd.lake.spark.ranges import OffsetRange
from pylogd.lake.spark.reading import ReadTask, read
from pylogd.lake.tables.records import arrow_schema
from pylogd.wire.messages import ApiKey, fetch
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.broker import TOPIC_ID, FakeBroker, close, garbage


def batch(*values: bytes, stamp: int = 5, headers: Any = ()) -> bytes:
    return bytes(encode_batch([NewRecord(b"k", value, stamp, headers) for value in values]))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Return one partition: offsets 0 to 2, a gap made by compaction, offsets 10 to 12."""
    with FakeBroker() as broker:
        broker.append(0, batch(b"0", b"1", b"2"))
        broker.ends[0] = 10
        broker.append(0, batch(b"10", b"11", b"12"))
        yield broker


def task(
    broker: FakeBroker, start: int, end: int, *, headers: bool = False, fail: bool = True, ms: int = 20_000
) -> ReadTask:
    client = {"retry_timeout": 2.0, "fetch_max_wait_ms": 10}
    return ReadTask(broker.address, client, OffsetRange("t", 0, start, end), headers, fail, ms)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for found in batches for offset in found.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 13, [0, 1, 2, 10, 11, 12]),
        (1, 2, [1]),
        (2, 11, [2, 10]),
        (3, 10, []),
        (0, 10, [0, 1, 2]),
        (12, 13, [12]),
        (5, 12, [10, 11]),
    ],
)
def test_exactly_the_records_of_the_range_are_read(broker: FakeBroker, start: int, end: int, found: list[int]) -> None:
    assert offsets(read(task(broker, start, end))) == found


def test_a_task_waits_for_the_rest_of_its_range(broker: FakeBroker) -> None:
    def late(request: Any) -> Any:
        broker.append(0, batch(b"13"))
        return broker._fetch(request)

    broker.on(ApiKey.FETCH, broker._fetch, late)
    assert offsets(read(task(broker, 11, 14))) == [11, 12, 13]


@pytest.mark.parametrize("headers", [False, True])
def test_columns(broker: FakeBroker, headers: bool) -> None:
    broker.append(0, batch(b"a", stamp=1_700_000_000_123, headers=[("h", b"x"), ("h", None)]))
    [plain] = read(task(broker, 12, 13, headers=headers))
    [last] = read(task(broker, 13, 14, headers=headers))
    for found in (plain, last):
        assert found.schema == arrow_schema(headers)
        found.validate(full=True)
    row = last.to_pylist()[0]
    assert (row["key"], row["value"], row["topic"], row["partition"]) == (b"k", b"a", "t", 0)
    assert (row["offset"], row["timestamp"].isoformat(), row["timestampType"]) == (
        13, "2023-11-14T22:13:20.123000+00:00", 0,
    )  # fmt: skip
    if headers:
        assert row["headers"] == [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
        assert plain.to_pylist()[0]["headers"] is None


def test_records_deleted_before_the_read_are_a_loss(broker: FakeBroker) -> None:
    broker.starts[0] = 2
    del broker.logs[0][0]
    with pytest.raises(DataLoss, match="offset 0 of t-0 does not exist: the partition begins with 2 and ends with 13"):
        offsets(read(task(broker, 0, 13)))
    assert offsets(read(task(broker, 0, 13, fail=False))) == [10, 11, 12]
    assert offsets(read(task(broker, 0, 2, fail=False))) == []  # nothing of the range is left


def test_records_deleted_during_the_read_are_a_loss(broker: FakeBroker) -> None:
    def gone(request: Any) -> Any:
        broker.starts[0] = 12
        return broker._fetch(request)

    def first_only(request: Any) -> Any:
        response = broker._fetch(request)
        response.responses[0].partitions[0].records = broker.logs[0][0]
        return response

    broker.on(ApiKey.FETCH, first_only, gone)
    assert offsets(read(task(broker, 0, 13, fail=False))) == [0, 1, 2, 12]


def test_a_log_that_ends_before_the_range(broker: FakeBroker) -> None:
    """No records before the range are read instead. The log may be that of a recreated topic."""
    with pytest.raises(DataLoss, match="offset 20 of t-0 does not exist"):
        offsets(read(task(broker, 20, 30)))
    assert offsets(read(task(broker, 20, 30, fail=False))) == []


def test_a_topic_that_no_longer_exists(broker: FakeBroker) -> None:
    broker.topic = "another"
    with pytest.raises(DataLoss, match="topic 't' no longer exists"):
        offsets(read(task(broker, 0, 13)))
    assert offsets(read(task(broker, 0, 13, fail=False))) == []


def test_a_topic_that_was_created_again(broker: FakeBroker) -> None:
    """No record of the new topic is read, although it has as many records as the range."""
    planned = replace(task(broker, 0, 13), topic_id=TOPIC_ID.hex())
    assert offsets(read(planned)) == [0, 1, 2, 10, 11, 12]
    broker.topic_id = b"another topic id"
    with pytest.raises(DataLoss, match="topic 't' was deleted and created again"):
        offsets(read(planned))
    assert offsets(read(replace(planned, fail_on_data_loss=False))) == []


@pytest.mark.parametrize(
    ("stamp", "year"),
    [(0, 1970), (-62_135_596_800_000, 1), (253_402_300_799_999, 9999)]
    + [(stamp, None) for stamp in (-62_135_596_800_001, 253_402_300_800_000, (1 << 63) - 1, -(1 << 63))],
)
def test_time_stamps_that_spark_can_not_represent(broker: FakeBroker, stamp: int, year: int | None) -> None:
    broker.append(0, batch(b"good", stamp=1_700_000_000_000))
    broker.append(0, batch(b"a", stamp=stamp))
    strict = task(broker, 13, 15)
    if year is None:
        with pytest.raises(InvalidTimestamp, match=f"offset 14 of t-0 has the time stamp {stamp} ms"):
            offsets(read(strict))
    lenient = replace(strict, null_timestamps=True, include_timestamp_ms=True)
    rows = []
    for found in read(lenient):
        assert found.schema == arrow_schema(False, True)
        found.validate(full=True)
        rows += found.to_pylist()
    assert [row["timestampMs"] for row in rows] == [1_700_000_000_000, stamp]
    assert [row["timestamp"].year if row["timestamp"] else None for row in rows] == [2023, year]


def test_a_task_fails_if_no_records_arrive(broker: FakeBroker) -> None:
    with pytest.raises(RequestTimedOut, match="Cannot fetch record for offset 13 of t-0 in 100 milliseconds"):
        offsets(read(task(broker, 12, 20, ms=100)))


def test_connections_that_break(broker: FakeBroker) -> None:
    broker.on(ApiKey.FETCH, close, garbage, close)
    assert offsets(read(task(broker, 0, 13))) == [0, 1, 2, 10, 11, 12]


def test_other_errors_are_raised(broker: FakeBroker) -> None:
    def refused(request: Any) -> fetch.FetchResponse:
        response: fetch.FetchResponse = broker._fetch(request)
        answer = response.responses[0].partitions[0]
        answer.error_code, answer.records = ErrorCode.TOPIC_AUTHORIZATION_FAILED, b""
        return response

    broker.on(ApiKey.FETCH, refused)
    with pytest.raises(KafkaError, match=r"(?i)auth"):
        offsets(read(task(broker, 0, 13, fail=False)))


@pytest.mark.parametrize("headers", [False, True])
def test_memory_is_bounded_whatever_the_compression_ratio(broker: FakeBroker, headers: bool) -> None:
    """60 MiB of values take a few kB in one fetch; the batches for Spark are not larger because of that."""
    size, count = 512 * 1024, 120
    squeezed = encode_batch([NewRecord(None, bytes(size), 5, [])], compression=4)
    assert count * len(squeezed) < size
    for _ in range(count):
        broker.append(0, squeezed)
    before = pa.total_allocated_bytes()
    rows, most, held = 0, 0, 0
    for found in read(task(broker, 13, 13 + count, headers=headers)):
        rows += found.num_rows
        most, held = max(most, found.nbytes), max(held, pa.total_allocated_bytes() - before)
    assert rows == count
    assert most <= reading._BATCH_BYTES + 2 * size
    assert held <= 2 * (reading._BATCH_BYTES + 2 * size)  # the batch that Spark has, and the one that is being made
