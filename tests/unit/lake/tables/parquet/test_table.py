"""The lake as a `Table`, on local disks and with files that pyarrow writes instead of Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylogd.lake.tables.errors import CommitConflict, LayoutChanged, OffsetsMoved, TableError
from pylogd.lake.tables.interface import Committed, DataFile, Layout, SparkStaging, Table, TaskStaging
from pylogd.lake.tables.parquet.changes import evolved
from pylogd.lake.tables.parquet.commits import Commit
from pylogd.lake.tables.parquet.expiry import Expired
from pylogd.lake.tables.parquet.files import COMMITS, numbered
from pylogd.lake.tables.parquet.history import CommitExpired
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.lake.tables.parquet.table import LakeTable
from pylogd.lake.tables.position import LoadRange

T0 = ("t", 0)
HOURLY = Layout()
HOURS = ("topic=t/date=2026-11-21/hour=07", "topic=t/date=2026-11-21/hour=08")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "lake")


def opened(files: LocalFiles, threads: int = 1) -> LakeTable:
    table = LakeTable(files, threads=threads)
    checked: Table = table  # mypy checks that it implements the interface
    assert checked.format == "parquet"
    return table


def write(staging: TaskStaging | SparkStaging, directory: str, numbers: Sequence[int], *, text: bool = False) -> None:
    """Write the records of some offsets to a file below a staging directory."""
    assert isinstance(staging, SparkStaging)
    place = Path(staging.directory, directory)
    place.mkdir(parents=True, exist_ok=True)
    kind = pa.string() if text else pa.binary()
    columns = {"offset": pa.array(numbers, pa.int64()), "value": pa.array([f"{n}" for n in numbers], kind)}
    pq.write_table(pa.table(columns), place / f"part-{numbers[0]}.parquet")


def load(table: LakeTable, until: int, layout: Layout = HOURLY, *, text: bool = False) -> Committed:
    """Load offsets up to `until`, half of them to each of two hours."""
    table.create(layout)
    before = table.position
    start = before.offsets.get(T0, 0)
    loading = LoadRange({T0: start}, {T0: until})
    staging = table.staging(before, loading)
    middle = (start + until) // 2
    write(staging, f"side=lake/{HOURS[0]}", range(start, middle), text=text)
    write(staging, f"side=lake/{HOURS[1]}", range(middle, until), text=text)
    return table.commit(before, loading, staging.found("side=lake", False), at_ms=until)


def offsets(found: Sequence[DataFile]) -> list[int]:
    return sorted(n for file in found for n in pq.read_table(file.path, partitioning=None)["offset"].to_pylist())


def merge(staging: TaskStaging | SparkStaging, found: Sequence[DataFile]) -> list[DataFile]:
    assert isinstance(staging, SparkStaging)
    write(staging, "", offsets(found))
    return staging.found("", False)


def test_a_table_is_loaded_compacted_and_expired(files: LocalFiles) -> None:
    table = opened(files, threads=2)
    assert not table.exists and table.layout is None and table.columns is None
    first = load(table, 10)
    assert (first.number, first.kind, first.rows, first.files, first.read.start) == (1, "load", 10, 2, {T0: 0})
    load(table, 20)
    assert {Path(file.path).parent for file in table.files()} == {Path(table.location, hour) for hour in HOURS}
    assert table.compact(1 << 20, merge, at_ms=30) is not None
    assert table.compact(1 << 20, merge, at_ms=40) is None
    assert len(table.files()) == 2 and offsets(table.files()) == list(range(20))
    history = list(opened(files).history())
    assert sum(each.replaced for each in history) == 4
    assert {each.kind for each in history[2:]} == {"compaction"}
    assert offsets(table.files(1)) == list(range(10)) and offsets(table.files(2)) == list(range(20))
    load(table, 24)
    last = history[-1].number + 1
    assert table.expire(older_than_ms=100, keep=1) == Expired(last, last - 1, 4)
    with pytest.raises(CommitExpired):
        table.files(1)
    assert offsets(table.files()) == list(range(24))
    load(table, 30)
    assert table.position.offsets == {T0: 30}


def test_the_sum_of_several_compactions_is_returned(files: LocalFiles) -> None:
    table = opened(files)
    load(table, 10)
    load(table, 20)
    done = table.compact(1 << 20, merge, at_ms=30)
    assert done is not None
    assert (done.number, done.rows, done.files, done.replaced, done.at_ms) == (4, 20, 2, 4, 30)


def test_a_table_that_was_opened_before_sees_what_others_did_after_refresh(files: LocalFiles) -> None:
    first, second = opened(files), opened(files)
    load(first, 10)
    with pytest.raises(OffsetsMoved):
        load(second, 5)
    second.refresh()
    assert second.position.offsets == {T0: 10}
    for until in range(20, 40, 2):
        load(first, until)
    first.expire(older_than_ms=10**6, keep=1)
    second.refresh()
    assert second.position.offsets == {T0: 38}
    load(second, 50)
    assert offsets(first.files()) == list(range(38))
    first.refresh()
    assert offsets(first.files()) == list(range(50))


def test_another_layout_is_refused_before_anything_is_written(files: LocalFiles) -> None:
    load(opened(files), 10)
    table = opened(files)
    assert table.layout == Layout("hour", "binary")
    for other in (Layout("day"), Layout("hour", "string")):
        with pytest.raises(LayoutChanged, match="omit the option, or load into another table"):
            table.create(other)


@pytest.mark.parametrize("text", [False, True])
def test_the_layout_of_a_lake_of_an_earlier_version_is_that_of_its_files(files: LocalFiles, text: bool) -> None:
    layout = Layout("hour", "string" if text else "binary")
    load(opened(files), 10, layout, text=text)
    path = numbered(COMMITS, 1, ".json")
    old = replace(Commit.from_bytes(path, files.read(path)), version=2, layout=None, writer="", applied=None)
    files.delete(path)
    files.create(path, json.dumps(json.loads(old.as_bytes())).encode())
    table = opened(files)
    assert table.layout == layout
    with pytest.raises(LayoutChanged):
        table.create(Layout("topic", layout.value))
    load(table, 20, layout, text=text)
    assert opened(files).layout == layout


def test_columns_of_a_typed_table_are_recorded_and_evolve(files: LocalFiles) -> None:
    layout = Layout("topic", "columns")
    first = pa.schema([("topic", pa.string()), ("a", pa.int32())])
    table = opened(files)
    table.create(layout, first)
    assert table.columns is None
    table.commit(table.position, LoadRange({T0: 0}, {T0: 1}, schema_ids={"t": 7}), (), at_ms=1)
    assert opened(files).columns == first
    table.evolve(first)
    table.evolve(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    second = pa.schema([("topic", pa.string()), ("a", pa.int64()), ("b", pa.string())])
    assert table.columns == second
    again = opened(files)
    again.create(layout, first)
    again.commit(again.position, LoadRange({T0: 1}, {T0: 2}), (), at_ms=3)
    assert opened(files).columns == second
    assert opened(files).position.schema_ids == {"t": 7}
    assert [each.kind for each in again.history()] == ["load", "columns", "load"]
    with pytest.raises(TableError, match="the column 'b' of the lake is string, which can't be changed to int32"):
        again.evolve(pa.schema([("b", pa.int32())]))


def test_columns_that_evolve_before_the_first_commit_are_recorded_by_it(files: LocalFiles) -> None:
    table = opened(files)
    table.create(Layout("day", "columns"), pa.schema([("topic", pa.string()), ("a", pa.int32())]))
    table.evolve(pa.schema([("b", pa.float32())]))
    table.commit(table.position, LoadRange({T0: 0}, {T0: 1}), (), at_ms=1)
    columns = opened(files).columns
    assert columns is not None and columns.names == ["topic", "a", "b", "date"]


def test_of_two_processes_that_make_a_lake_with_different_columns_one_is_refused(files: LocalFiles) -> None:
    layout = Layout("topic", "columns")
    one = pa.schema([("topic", pa.string()), ("a", pa.int32())])
    both = one.append(pa.field("b", pa.string()))
    first, second, third = opened(files), opened(files), opened(files)
    first.create(layout, one)
    second.create(layout, both)
    third.create(layout, one)
    first.commit(first.position, LoadRange({T0: 0}, {T0: 1}), (), at_ms=1)
    with pytest.raises(CommitConflict, match="with other columns"):
        second.commit(second.position, LoadRange({("t", 1): 0}, {("t", 1): 1}), (), at_ms=2)
    third.commit(third.position, LoadRange({("t", 2): 0}, {("t", 2): 1}), (), at_ms=3)
    columns = opened(files).columns
    assert columns is not None and columns.names == ["topic", "a"]


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.decimal128(5, 2), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), None),
        (pa.int32(), pa.float64(), None),
        (pa.string(), pa.binary(), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.list_(pa.string()), None),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.int32(), pa.int32()), None),
        (pa.struct({"x": pa.int32()}), pa.struct({"y": pa.int32()}), pa.struct({"x": pa.int32(), "y": pa.int32()})),
    ],
)
def test_types_are_widened(before: pa.DataType, now: pa.DataType, then: pa.DataType | None) -> None:
    table, rows = pa.schema([("a", before)]), pa.schema([("a", now)])
    if then is None:
        with pytest.raises(TableError):
            evolved(table, rows)
    else:
        assert evolved(table, rows) == pa.schema([("a", then)])


def test_quarantined_files_are_part_of_the_commit(files: LocalFiles) -> None:
    table = opened(files)
    loading = LoadRange({T0: 0}, {T0: 2})
    staging = table.staging(table.position, loading)
    write(staging, "quarantined/topic=t", [0])
    done = table.commit(table.position, loading, (), staging.found("quarantined", True), at_ms=1)
    assert done.quarantined == 1
    assert offsets(table.quarantined()) == [0]
    assert table.files() == []
