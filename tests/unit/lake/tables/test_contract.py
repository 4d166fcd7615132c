"""What `pylogd.lake.tables.interface` promises, on each format: no record is lost or there twice, whatever happens."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.errors import CommitConflict, LayoutChanged, OffsetsMoved, TableError
from pylogd.lake.tables.interface import Layout, Table
from pylogd.lake.tables.position import LoadRange, Position
from pylogd.lake.tables.recorded import Quarantine
from tests.unit.lake.tables.cases import CASES, COLUMNS, Case, IcebergCase, records

T0, T1 = ("t", 0), ("t", 1)
RECORDED = ["iceberg", "delta"]


class Crash(BaseException):
    """The process was killed."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


def test_loads_follow_each_other(case: Case) -> None:
    table = case.made()
    assert (table.position, table.files(), list(table.quarantined())) == (Position(), [], [])
    first = case.load(table, 10)
    second = case.load(table, 25)
    assert (first.rows, second.rows, second.kind, second.quarantined) == (10, 15, "load", 0)
    assert (second.read.start, second.read.end) == ({T0: 10}, {T0: 25})
    assert case.offsets() == list(range(25))
    for seen in (table, case.open()):
        assert seen.position == Position({T0: 25}, {"t": "aa"})
        assert sum(file.rows for file in seen.files()) == 25
        loads = [commit for commit in seen.history() if commit.kind == "load"]
        assert [(each.number, each.rows, each.read.end) for each in loads] == [
            (first.number, 10, {T0: 10}), (second.number, 15, {T0: 25}),
        ]  # fmt: skip


def test_files_that_were_not_committed_are_not_in_the_table(case: Case) -> None:
    """A process dies between the files and the commit. The next one loads the same records again."""
    dead = case.made()
    case.stage(dead, records(0, 10))
    table = case.open()
    table.create(Layout())
    case.load(table, 8)
    assert case.offsets() == list(range(8))


def test_a_load_is_committed_once(case: Case) -> None:
    table = case.made()
    before = table.position
    staged = case.stage(table, records(0, 10))
    loading = LoadRange({T0: 0}, {T0: 10}, {"t": "aa"})
    table.commit(before, loading, *staged, at_ms=1)
    for again in (table, case.open()):
        with pytest.raises(OffsetsMoved, match="the table has t-0 up to 10 now, and had it up to None"):
            again.commit(before, loading, *case.stage(again, records(0, 10)), at_ms=2)
    assert case.offsets() == list(range(10))


def test_of_two_loaders_of_a_partition_one_is_refused(case: Case) -> None:
    case.load(case.made(), 5)
    one, two = case.open(), case.open()
    expected = two.position
    staged = case.stage(two, records(5, 9))
    case.load(one, 12)
    with pytest.raises(CommitConflict):
        two.commit(expected, LoadRange({T0: 5}, {T0: 9}, {"t": "aa"}), *staged, at_ms=1)
    assert case.offsets() == list(range(12))
    two.refresh()
    case.load(two, 15)
    assert case.offsets() == list(range(15))


def test_loaders_of_different_partitions_do_not_disturb_each_other(case: Case) -> None:
    case.made()
    one, two = case.open(), case.open()
    expected, staged = two.position, case.stage(two, records(0, 7, partition=1))
    case.load(one, 10)
    loading = LoadRange({T1: 0}, {T1: 7}, {"t": "bb"})
    with pytest.raises(OffsetsMoved, match="another topic 't' now"):  # its id was not known when this was planned
        two.commit(expected, loading, *staged, at_ms=1)
    two.refresh()
    expected, staged = two.position, case.stage(two, records(0, 7, partition=1))
    case.load(one, 20)
    two.commit(expected, LoadRange({T1: 0}, {T1: 7}, {"t": "aa"}), *staged, at_ms=1)
    assert two.position == Position({T0: 20, T1: 7}, {"t": "aa"})
    assert case.offsets(partition=1) == list(range(7))


def test_a_commit_without_files_moves_the_position(case: Case) -> None:
    """As after aborted transactions, or compaction of the log."""
    case.load(case.made(), 5)
    one, two = case.open(), case.open()
    expected = two.position
    one.commit(one.position, LoadRange({T0: 5}, {T0: 8}), (), at_ms=1)
    assert case.open().position.offsets == {T0: 8}
    with pytest.raises(CommitConflict):
        two.commit(expected, LoadRange({T0: 5}, {T0: 7}), (), at_ms=1)
    assert case.open().position.offsets == {T0: 8}
    assert case.offsets() == list(range(5))


def test_a_recreated_topic_begins_again(case: Case) -> None:
    table = case.made()
    case.load(table, 5)
    case.load(table, 5, partition=1)
    stale = case.open()
    planned = stale.position
    case.load(table, 3, topic_id="bb")
    assert case.open().position == Position({T0: 3}, {"t": "bb"})
    assert case.offsets() == [0, 0, 1, 1, 2, 2, 3, 4], "the rows of the old topic stay"
    with pytest.raises(CommitConflict):  # what is left of the old topic comes too late, also of another partition
        stale.commit(planned, LoadRange({T1: 5}, {T1: 6}, {"t": "aa"}), (), at_ms=1)


def test_leader_epochs_and_schemas_are_kept_with_the_offsets(case: Case) -> None:
    table = case.made()
    table.commit(Position(), LoadRange({T0: 0, T1: 0}, {T0: 0, T1: 0}, {}, {T0: 3, T1: 4}), (), at_ms=1)
    table.commit(table.position, LoadRange({T0: 0}, {T0: 0}), (), at_ms=1)
    assert case.open().position.leader_epochs == {T1: 4}


def test_the_quarantine_is_committed_with_the_rest(case: Case) -> None:
    table = case.made()
    assert case.load(table, 10, invalid=[3, 4]).quarantined == 2
    case.load(table, 20)
    assert case.offsets() == [each for each in range(20) if each not in (3, 4)]
    assert case.offsets(quarantine=True) == [3, 4]
    rows = sorted(case.read(quarantine=True).to_pylist(), key=lambda row: row["offset"])
    assert [(row["timestampMs"], row["value"], row["reason"]) for row in rows] == [
        (-1, b"value 3", "the time stamp lies outside of the years 1 to 9999"),
        (-1, b"value 4", "the time stamp lies outside of the years 1 to 9999"),
    ]


@pytest.mark.parametrize("is_added", [False, True])
def test_a_crash_before_the_quarantine_is_complete(
    recorded: Case, monkeypatch: pytest.MonkeyPatch, is_added: bool
) -> None:
    """The next process completes it, once, also if another one has read the table before that."""
    table = recorded.made()
    recorded.load(table, 5)
    with monkeypatch.context() as patch:
        complete = Quarantine.complete

        def die(self: Any, record: Any) -> None:
            if is_added:
                complete(self, record)
            raise Crash

        patch.setattr(Quarantine, "complete", die)
        with pytest.raises(Crash):
            recorded.load(table, 10, invalid=[7])
        with pytest.raises(Crash):
            recorded.open()
        assert recorded.offsets() == [0, 1, 2, 3, 4, 5, 6, 8, 9], "the commit has taken effect"
    for _ in range(2):
        assert recorded.open().position.offsets == {T0: 10}
    assert recorded.offsets(quarantine=True) == [7]
    recorded.load(recorded.open(), 12, invalid=[11])
    table.refresh()
    assert recorded.offsets(quarantine=True) == [7, 11]


def test_a_slow_process_does_not_complete_an_old_load_again(recorded: Case) -> None:
    table = recorded.made()
    recorded.load(table, 5, invalid=[2])
    slow = recorded.open()
    recorded.load(table, 10, invalid=[7])
    slow._complete()  # type: ignore[attr-defined]
    assert recorded.offsets(quarantine=True) == [2, 7]


def test_files_of_dead_loaders_are_deleted_by_age(recorded: Case) -> None:
    table = recorded.made()
    recorded.load(table, 5, invalid=[2])
    recorded.stage(recorded.open(), records(5, 9, invalid=[6]))
    there = set(recorded.directory.rglob("*.parquet"))
    hour_ms = 3_600_000
    assert table.clean(wall_ms() - hour_ms) == 0
    assert set(recorded.directory.rglob("*.parquet")) == there
    for path in there:
        os.utime(path, (0, 0))
    assert table.clean(wall_ms() - hour_ms) == 2
    assert len(there - set(recorded.directory.rglob("*.parquet"))) == 2
    assert (recorded.offsets(), recorded.offsets(quarantine=True)) == ([0, 1, 3, 4], [2])
    recorded.load(table, 9)
    assert recorded.offsets() == [0, 1, 3, 4, 5, 6, 7, 8]


def test_commits_of_other_programs_do_not_hide_the_position(recorded: Case) -> None:
    table = recorded.made()
    recorded.load(table, 5)
    for _ in range(10):
        recorded.foreign_commit()
    assert recorded.open().position == Position({T0: 5}, {"t": "aa"})
    assert recorded.load(table, 9).rows == 4
    assert recorded.offsets() == list(range(9))


def test_the_layout_is_kept(recorded: Case) -> None:
    assert recorded.open().layout is None
    recorded.made(Layout("day", "string"))
    table = recorded.open()
    assert table.layout == Layout("day", "string")
    table.create(Layout("day", "string"))
    with pytest.raises(LayoutChanged, match="was made with by=day, which can't be changed to hour"):
        table.create(Layout("hour", "string"))
    with pytest.raises(LayoutChanged, match="value=string"):
        table.create(Layout("day", "binary"))


def test_a_table_that_does_not_exist(recorded: Case) -> None:
    table = recorded.open()
    assert (table.exists, table.position, table.columns) == (False, Position(), None)
    assert (table.files(), table.quarantined(), list(table.history())) == ([], [], [])
    with pytest.raises(TableError, match="not created"):
        table.commit(Position(), LoadRange({T0: 0}, {T0: 1}), (), at_ms=1)
    with pytest.raises(TableError, match="does not exist"):
        table.evolve(pa.schema([]))


def test_two_processes_may_make_the_same_table(recorded: Case) -> None:
    one, two = recorded.open(), recorded.open()
    one.create(Layout())
    two.create(Layout())
    recorded.load(one, 5)
    two.refresh()
    recorded.load(two, 9)
    assert recorded.offsets() == list(range(9))


def test_columns_are_added_before_a_load(recorded: Case) -> None:
    table = recorded.made()
    recorded.load(table, 3)
    assert table.columns is not None
    table.evolve(pa.schema([*table.columns, pa.field("carrier", pa.string())]))
    table.evolve(table.columns)
    assert recorded.open().columns is not None and recorded.open().columns.names[-1] == "carrier"  # type: ignore[union-attr]
    staging = table.staging()
    rows = records(3, 5).drop_columns(["timestampMs"]).append_column("carrier", pa.array(["AA", None]))
    writer = staging.writer()  # type: ignore[union-attr]
    writer.write(rows)
    table.commit(table.position, LoadRange({T0: 3}, {T0: 5}), writer.close(), at_ms=1)
    read = sorted(recorded.read().to_pylist(), key=lambda row: row["offset"])
    assert [row["carrier"] for row in read] == [None, None, None, "AA", None]


def test_an_error_of_which_it_is_not_known_what_it_did(recorded: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network fails after the commit took effect: refreshing tells, and nothing is there twice."""
    table: Any = recorded.made()
    append = type(table)._append

    def lose_answer(self: Any, *arguments: Any) -> None:
        append(self, *arguments)
        raise TableError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "_append", lose_answer)
        with pytest.raises(TableError, match="connection reset"):
            recorded.load(table, 5)
    table.refresh()
    assert table.position.offsets == {T0: 5}
    recorded.load(table, 8)
    assert recorded.offsets() == list(range(8))


@pytest.mark.parametrize("seed", range(2))
def test_random_loaders_that_die(case: Case, seed: int) -> None:
    """Loaders plan, stage, commit, refresh and die in any order; the rows are always those that the offsets say."""
    rng = random.Random(seed)
    case.made()
    loaders: list[Loader] = [Loader(case, rng) for _ in range(3)]
    for _ in range(30):
        at = rng.randrange(len(loaders))
        if rng.random() < 0.1:
            loaders[at] = Loader(case, rng)
        loaders[at].step()
    table = case.open()
    for partition in (0, 1):
        end = table.position.offsets.get(("t", partition), 0)
        assert case.offsets(partition=partition) + case.offsets(partition=partition, quarantine=True) == list(
            range(end)
        ), partition
    assert table.position.offsets


class Loader:
    """A process that loads partition 0 or 1 of the topic."""

    def __init__(self, case: Case, rng: random.Random) -> None:
        self._case = case
        self._rng = rng
        self._table: Table = case.open()
        self._steps: Iterator[None] = iter(())

    def step(self) -> None:
        """Do the next part of a load, or begin one."""
        try:
            next(self._steps)
        except StopIteration:
            self._steps = self._load()
        except CommitConflict:
            self._table.refresh()
            self._steps = iter(())

    def _load(self) -> Iterator[None]:
        if self._rng.random() < 0.5:
            self._table.refresh()
        partition = ("t", self._rng.randrange(2))
        expected = self._table.position
        start = expected.offsets.get(partition, 0)
        end = start + self._rng.randrange(4)
        yield
        staged = self._case.stage(self._table, records(start, end, partition=partition[1]))
        yield
        self._table.commit(expected, LoadRange({partition: start}, {partition: end}), *staged, at_ms=1)


QUERIES = (
    "SELECT count(*), min(\"offset\"), max(\"offset\"), count(value) FROM t",
    "SELECT topic, date, hour, count(*) AS n FROM t GROUP BY ALL ORDER BY ALL",
    "SELECT topic, partition, \"offset\", epoch_us(timestamp), decode(key), decode(value), "
    "coalesce(len(headers), 0) FROM t "
    "ORDER BY ALL",
    "SELECT decode(headers[1].value), count(*) FROM t WHERE date = DATE '2023-11-15' GROUP BY ALL ORDER BY ALL",
    "SELECT count(*) FROM t WHERE hour = 23 AND topic = 'u'",
    "SELECT decode(key), count(*), sum(\"offset\") FROM t WHERE timestamp >= TIMESTAMPTZ '2023-11-15 00:00:00+00' "
    "GROUP BY ALL ORDER BY ALL",
)  # fmt: skip


def test_the_same_queries_give_the_same_rows_on_all_formats(tmp_path: Path) -> None:
    """DuckDB's answers, of tables with the same loads, are the same; and there are some.

    pyiceberg 0.12 reads null lists as empty ones, so a query must not tell them apart.
    """
    answers = {}
    for name, make in CASES.items():
        case = make(tmp_path / name)
        (tmp_path / name).mkdir()
        table = case.made()
        case.load(table, 30, invalid=[11])
        case.load(table, 20, topic="u", partition=1)
        case.load(table, 41)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("t", case.read().select(COLUMNS))
            answers[name] = [connection.execute(query).fetchall() for query in QUERIES]
    assert answers["iceberg"] == answers["parquet"]
    assert answers["delta"] == answers["parquet"]
    assert all(answers["parquet"])
    assert answers["parquet"][0] == [(60, 0, 40, 53)]


def test_pyiceberg_does_not_repeat_a_refused_commit_by_itself(tmp_path: Path) -> None:
    """Its default is four more attempts, each of which adds the same files. The default stays for others."""
    case = IcebergCase(tmp_path)
    case.load(case.made(), 5)
    one, two = case.open(), case.open()
    expected, staged = two.position, case.stage(two, records(5, 9))
    case.load(one, 9)
    with pytest.raises(OffsetsMoved):
        two.commit(expected, LoadRange({T0: 5}, {T0: 9}, {"t": "aa"}), *staged, at_ms=1)
    assert case.offsets() == list(range(9))
    assert "commit.retry.num-retries" not in case.loaded().metadata.properties


def test_expired_snapshots_of_iceberg_do_not_take_the_position_with_them(tmp_path: Path) -> None:
    case = IcebergCase(tmp_path)
    table = case.made()
    for end in (3, 6, 9):
        case.load(table, end)
    loaded = case.loaded()
    loaded.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in loaded.snapshots()[:-1]]).commit()
    case.foreign_commit()
    assert case.open().position.offsets == {T0: 9}
    assert [commit.kind for commit in case.open().history()] == ["load", "append"]


def test_old_snapshots_of_iceberg_are_expired_as_the_properties_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylogd.lake.tables.iceberg.table._EXPIRE_EVERY", 3)
    case = IcebergCase(tmp_path)
    table = case.made()
    with case.loaded().transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1000"})
    for end in range(1, 3):
        case.load(table, end)
    loading = LoadRange({T0: 2}, {T0: 3}, {"t": "aa"})
    late = case.loaded().snapshots()[-1].timestamp_ms + 1001
    table.commit(table.position, loading, *case.stage(table, records(2, 3)), at_ms=late)
    case.load(table, 5)
    assert [commit.read.end[T0] for commit in case.open().history()] == [3, 5]
    assert case.offsets() == list(range(5))


def test_iceberg_files_have_ids_and_statistics(tmp_path: Path) -> None:
    """Filters skip files by partition and by bounds, without reading them."""
    case = IcebergCase(tmp_path)
    case.load(case.made(), 30)
    table = case.loaded()
    assert len(list(table.scan().plan_files())) == 6
    assert len(list(table.scan(row_filter="offset >= 29").plan_files())) == 1
    assert len(list(table.scan(row_filter="timestamp < '2023-11-14T23:00:00+00:00'").plan_files())) == 1
    assert len(list(table.scan(row_filter="topic == 'u'").plan_files())) == 0
    assert table.scan(row_filter="offset == 17").to_arrow().column("value").to_pylist() == [b"value 17"]
