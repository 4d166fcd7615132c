"""Consumers that Spark's Python workers keep, with a fake broker."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pylogd.client import RequestTimedOut
from pylogd.lake.spark import worker
from pylogd.lake.spark.errors import DataLoss
from pylogd.lake.spark.ranges import OffsetRange
from pylogd.lake.spark.reading import ReadTask, read
from pylogd.lake.spark.worker import KeptConsumers
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.broker import FakeBroker, close

SETTINGS = {"retry_timeout": 2.0, "fetch_max_wait_ms": 10}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Return one partition with offsets 0 to 9, each in a batch of its own."""
    with FakeBroker() as broker:
        for number in range(10):
            broker.append(0, bytes(encode_batch([NewRecord(None, b"%d" % number, 5, ())])))
        yield broker


@pytest.fixture
def kept() -> Iterator[KeptConsumers]:
    kept = KeptConsumers()
    yield kept
    kept.clear()


def task(broker: FakeBroker, start: int, end: int, **settings: Any) -> ReadTask:
    return ReadTask(broker.address, SETTINGS | settings, OffsetRange("t", 0, start, end), False, True, 20_000)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for found in batches for offset in found.column("offset").to_pylist()]


def test_a_later_task_uses_the_connections_of_an_earlier_one(broker: FakeBroker, kept: KeptConsumers) -> None:
    assert offsets(read(task(broker, 0, 3), kept)) == [0, 1, 2]
    opened, looked_up = broker.connections, len(broker.asked(ApiKey.METADATA))
    for start, end in ((3, 5), (5, 10), (0, 4), (2, 3)):
        assert offsets(read(task(broker, start, end), kept)) == list(range(start, end))
    assert (broker.connections, len(broker.asked(ApiKey.METADATA))) == (opened, looked_up)
    assert len(kept) == 1


def test_nothing_is_asked_for_behind_the_range(broker: FakeBroker, kept: KeptConsumers) -> None:
    """A fetch at the end of the log would wait there for records, and the next task behind it."""
    assert offsets(read(task(broker, 7, 10), kept)) == [7, 8, 9]
    assert offsets(read(task(broker, 2, 5), kept)) == [2, 3, 4]
    asked = [topic.partitions[0].fetch_offset for each in broker.asked(ApiKey.FETCH) for topic in each.topics]
    assert asked == [7, 2]


def test_a_broken_connection_is_replaced_without_an_error(broker: FakeBroker, kept: KeptConsumers) -> None:
    assert offsets(read(task(broker, 0, 3), kept)) == [0, 1, 2]
    broker.drop()
    assert offsets(read(task(broker, 3, 6), kept)) == [3, 4, 5]
    broker.on(ApiKey.FETCH, close)
    assert offsets(read(task(broker, 6, 9), kept)) == [6, 7, 8]


def test_a_kept_consumer_that_fails_is_replaced_by_a_new_one(
    broker: FakeBroker, kept: KeptConsumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets(read(task(broker, 0, 3), kept)) == [0, 1, 2]
    [first] = kept._idle

    def fails(*_: object, **__: object) -> None:
        raise RequestTimedOut("no broker that it knows answers")

    monkeypatch.setattr(first.consumer, "assign", fails)
    assert offsets(read(task(broker, 3, 6), kept)) == [3, 4, 5]
    [second] = kept._idle
    assert second is not first and first.consumer._consumer.closing


def test_a_failure_of_a_new_consumer_is_raised_and_the_consumer_closed(broker: FakeBroker, kept: KeptConsumers) -> None:
    with pytest.raises(DataLoss):
        offsets(read(task(broker, 20, 30), kept))
    assert len(kept) == 0


def test_a_failure_after_rows_were_returned_is_raised(broker: FakeBroker, kept: KeptConsumers) -> None:
    """Rows that Spark has must not be returned again."""
    assert offsets(read(task(broker, 0, 3), kept)) == [0, 1, 2]
    reading = read(task(broker, 3, 9), kept)
    next(reading)
    with pytest.raises(RequestTimedOut):
        reading.throw(RequestTimedOut("gone"))
    assert len(kept) == 0


def test_a_task_that_ends_early_closes_its_consumer(broker: FakeBroker, kept: KeptConsumers) -> None:
    """As with `limit`: a fetch may be in flight."""
    reading = read(task(broker, 0, 10), kept)
    next(reading)
    reading.close()
    assert len(kept) == 0


def test_consumers_are_kept_apart_by_their_settings(broker: FakeBroker, kept: KeptConsumers) -> None:
    offsets(read(task(broker, 0, 3), kept))
    offsets(read(task(broker, 0, 3, client_id="other"), kept))
    offsets(read(task(broker, 3, 4, client_id="other"), kept))
    assert sorted(lent.settings.get("client_id", "") for lent in kept._idle) == ["", "other"]


def test_the_number_of_idle_consumers_is_bounded(broker: FakeBroker) -> None:
    kept = KeptConsumers(most=2)
    try:
        lent = [kept.lend(broker.address, {**SETTINGS, "client_id": str(number)}) for number in range(4)]
        for each in lent:
            kept.give_back(each)
        assert kept._idle == lent[2:]
        assert [each.consumer._consumer.closing for each in lent] == [True, True, False, False]
    finally:
        kept.clear()


def test_idle_consumers_are_closed_after_a_while(broker: FakeBroker) -> None:
    kept = KeptConsumers(idle_seconds=0.05)
    offsets(read(task(broker, 0, 3), kept))
    closer = kept._closer
    if closer is not None:
        closer.join(20)
        assert not closer.is_alive()
    assert (len(kept), kept._closer) == (0, None)
    assert offsets(read(task(broker, 3, 5), kept)) == [3, 4]  # with a new consumer, and a new thread
    kept.clear()


def test_the_thread_that_closes_ends_with_the_last_consumer(broker: FakeBroker, kept: KeptConsumers) -> None:
    offsets(read(task(broker, 0, 3), kept))
    closer = kept._closer
    assert closer is not None
    kept.clear()
    closer.join(20)
    assert not closer.is_alive()


def test_the_collector_passes_over_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.spare_collector.cache_clear()
    try:
        worker.spare_collector()
        assert gc.get_freeze_count() > 0
        monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen twice"))
        worker.spare_collector()
    finally:
        gc.unfreeze()
        worker.spare_collector.cache_clear()
