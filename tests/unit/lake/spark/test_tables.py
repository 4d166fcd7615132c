"""Loads into tables of each kind with a Spark that is a loop: each task runs twice, and its first attempt is lost.

What Spark itself does with tasks is tested in tests/integration/spark/lake/test_tables.py.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylogd.lake.spark.load import LoadPlan, follow, load
from pylogd.lake.spark.source import PylogdDataSource
from pylogd.lake.spark.tasks import _Write
from pylogd.lake.tables.errors import LayoutChanged
from pylogd.lake.tables.interface import Committed, Layout
from pylogd.lake.tables.records import RecordRows
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.broker import TOPIC_ID, FakeBroker
from tests.unit.lake.tables.cases import CASES, Case, records

INVALID_MS = 253_402_300_800_000


class FakeFrame:
    """The rows of the source."""

    def __init__(self, options: dict[str, str]) -> None:
        self._reader: Any = PylogdDataSource(options).reader(None)  # type: ignore[arg-type]

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> FakeFrame:
        self._function = function
        return self

    def collect(self) -> list[dict[str, Any]]:
        found = []
        for partition in self._reader.partitions():
            for _ in range(2):
                function = pickle.loads(pickle.dumps(self._function))
                last = [row for batch in function(self._reader.read(partition)) for row in batch.to_pylist()]
            found += last
        return found


class FakeReader:
    def format(self, _: str) -> FakeReader:
        return self

    def options(self, **options: str) -> FakeReader:
        self._options = options
        return self

    def load(self) -> FakeFrame:
        return FakeFrame(self._options)


SPARK: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None), read=FakeReader())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as broker:
        yield broker


@pytest.fixture(params=["iceberg", "delta"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


def append(broker: FakeBroker, partition: int, *stamps: int) -> None:
    batch = encode_batch([NewRecord(b"k", b"%d" % stamp, stamp, [("n", b"1")]) for stamp in stamps])
    broker.append(partition, bytes(batch))


def plan(broker: FakeBroker, **given: Any) -> LoadPlan:
    return LoadPlan(broker.address, ("subscribe", "t"), **given)


def test_each_load_adds_what_is_new_once(broker: FakeBroker, case: Case) -> None:
    append(broker, 0, 1000, 2000, INVALID_MS)
    append(broker, 1, 3_600_000)
    table = case.open()
    first = load(SPARK, table, plan(broker), now_ms=lambda: 5)
    assert first is not None and (first.rows, first.quarantined, first.files) == (3, 1, 2)
    assert load(SPARK, case.open(), plan(broker)) is None
    append(broker, 1, 4000, 5000)
    second = load(SPARK, case.open(), plan(broker))
    assert second is not None and (second.rows, second.read.start) == (2, {("t", 1): 1})
    assert (case.offsets(), case.offsets(partition=1), case.offsets(quarantine=True)) == ([0, 1], [0, 1, 2], [2])
    position = case.open().position
    assert position.offsets == {("t", 0): 3, ("t", 1): 3}
    assert position.topic_ids == {"t": TOPIC_ID.hex()}
    rows = sorted(case.read().to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert [row["value"] for row in rows] == [b"1000", b"2000", b"3600000", b"4000", b"5000"]
    assert [row["hour"] for row in rows] == [0, 0, 1, 0, 0]
    assert rows[0]["headers"] == [{"key": "n", "value": b"1"}]


def test_nothing_is_made_if_there_is_nothing_to_load(broker: FakeBroker, case: Case) -> None:
    assert load(SPARK, case.open(), plan(broker)) is None
    assert not case.open().exists


def test_values_as_text(broker: FakeBroker, case: Case) -> None:
    broker.append(0, bytes(encode_batch([NewRecord(None, value, 1) for value in (b"a", None, b"\xff!")])))
    load(SPARK, case.open(), plan(broker, value="string", by="topic"))
    assert sorted(case.read().column("value").to_pylist(), key=str) == [None, "a", "\ufffd!"]
    append(broker, 0, 1000)
    with pytest.raises(LayoutChanged, match="value=string, which can't be changed to binary"):
        load(SPARK, case.open(), plan(broker, by="topic"))


def test_a_follower_plans_anew_what_another_loader_has_loaded(broker: FakeBroker, case: Case) -> None:
    append(broker, 0, 1000)
    told: list[Committed] = []

    def wait(_: float) -> bool:
        append(broker, 0, 2000)
        load(SPARK, case.open(), plan(broker))
        append(broker, 0, 3000)
        return len(told) == 2

    follow(SPARK, case.open(), plan(broker), seconds=0.0, on_commit=told.append, wait=wait)
    assert [commit.rows for commit in told] == [1, 1]
    assert case.offsets() == [0, 1, 2, 3]


def test_a_task_that_fails_returns_no_files(case: Case) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield records(0, 20, invalid=[3])
        raise OSError("the network")

    write = _Write(case.made().staging(), RecordRows(Layout()))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the network"):
        list(write(batches()))
    assert case.open().files() == []
