"""What a look at a table counts: files of loads, of compactions, and files that vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from pylogd.lake.tables.interface import DataFile
from pylogd.lake.tables.position import Position
from pylogd.lake.tables.records import HEADERS
from pylogd.services.audit.counting import Counted, Origin
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.tables import Look, NotAudited, TableReader, TableStage, count_columns, divided
from pylogd.services.audit.topics import Since
from tests.audits import SERVING, START, TABLE, TOPIC, WIDTH, header, options

ALICE = Origin(("alice",), 0, "here")


class FileTable:
    """A table whose files and offsets the test sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, DataFile] = {}
        self.end = 0

    def refresh(self) -> None:
        """Do nothing: the test changes the table itself."""

    def files(self) -> list[DataFile]:
        return [*self._files.values()]

    def quarantined(self) -> list[DataFile]:
        return []

    @property
    def position(self) -> Position:
        return Position({(TOPIC, 0): self.end, ("other", 0): 7})

    def add(self, name: str, offsets: Sequence[int], *, directory: str = "", rows: int = 1000) -> None:
        """Add a file; each row is stamped with its offset as the number."""
        batch = table(offsets, topics=None if directory else [TOPIC] * len(offsets))
        path = self._folder / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(batch, path, row_group_size=rows)
        self._files[name] = DataFile(str(path), 0, len(offsets))
        self.end = max(self.end, *(offset + 1 for offset in offsets))

    def remove(self, *names: str) -> None:
        for name in names:
            Path(self._files.pop(name).path).unlink()

    def lose(self, name: str) -> None:
        """Delete a file that the table still names."""
        Path(self._files[name].path).unlink()


def table(offsets: Sequence[int], topics: list[str] | None = None) -> pa.Table:
    headers = [[("a", b"1"), header("alice", offset)] for offset in offsets]
    columns: dict[str, Any] = {
        "partition": pa.array([0] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "headers": pa.array([[{"key": key, "value": value} for key, value in each] for each in headers], HEADERS),
    }
    return pa.table(columns if topics is None else {"topic": pa.array(topics), **columns})


@pytest.fixture
def lake(tmp_path: Path) -> FileTable:
    return FileTable(tmp_path)


def reader(lake: FileTable) -> TableReader:
    return TableReader(cast("Any", lake), [TOPIC], WIDTH)


def found(look: Look) -> tuple[int, list[int]]:
    """Return rows and numbers of alice's messages."""
    if not look.counted:
        return 0, []
    tally = look.counted[TOPIC].windows[START].tallies[ALICE]
    return tally.rows, list(tally.numbers)


@pytest.mark.parametrize("directory", ["", f"topic={TOPIC}/date=2026-11-23", "topic=%74"])
def test_each_row_is_counted_once(lake: FileTable, directory: str) -> None:
    looker = reader(lake)
    lake.add("1", [0, 1, 2], directory=directory)
    assert found(looker.look({}, {}, START)) == (3, [0, 1, 2])
    lake.add("2", [3, 4], directory=directory)
    look = looker.look({(TOPIC, 0): 3}, {}, START)
    assert (found(look), look.reached) == ((2, [3, 4]), {(TOPIC, 0): 5})
    assert found(looker.look({(TOPIC, 0): 5}, {}, START)) == (0, [])


def test_after_a_restart_only_rows_from_the_given_offsets_on_are_counted(lake: FileTable) -> None:
    lake.add("1", range(100), rows=10)
    lake.add("2", range(100, 103))
    assert found(reader(lake).look({(TOPIC, 0): 98}, {}, START)) == (5, [98, 99, 100, 101, 102])


def test_a_load_that_was_committed_twice_is_seen(lake: FileTable) -> None:
    looker = reader(lake)
    lake.add("1", [0, 1])
    looker.look({}, {}, START)
    lake.add("again", [0, 1])
    assert found(looker.look({(TOPIC, 0): 2}, {}, START)) == (2, [0, 1])


def test_what_a_compaction_wrote_is_not_counted_again(lake: FileTable) -> None:
    looker = reader(lake)
    lake.add("1", [0, 1])
    lake.add("2", [2, 3])
    looker.look({}, {}, START)
    lake.remove("1", "2")
    lake.add("merged", [0, 1, 2, 3])
    lake.add("3", [4])
    assert found(looker.look({(TOPIC, 0): 4}, {}, START)) == (1, [4])


def test_a_file_that_vanished_is_counted_where_its_rows_are_later(lake: FileTable) -> None:
    looker = reader(lake)
    lake.add("1", [0, 1])
    looker.look({}, {}, START)
    lake.add("2", [2, 3])
    lake.lose("2")
    with pytest.raises(FileNotFoundError):
        looker.look({(TOPIC, 0): 2}, {}, START)
    lake.add("2", [2, 3])
    assert found(looker.look({(TOPIC, 0): 2}, {}, START)) == (2, [2, 3])


def test_the_first_run_begins_behind_what_is_there(lake: FileTable) -> None:
    looker = reader(lake)
    lake.add("1", [0, 1])
    assert looker.position() == {(TOPIC, 0): 2}
    lake.add("2", [2])
    assert found(looker.look({(TOPIC, 0): 2}, {}, START)) == (1, [2])


def test_other_topics_are_not_read(lake: FileTable, tmp_path: Path) -> None:
    lake.add("1", [0, 1], directory="topic=other")
    (tmp_path / "topic=other" / "1").write_bytes(b"not read")
    assert found(reader(lake).look({}, {}, START)) == (0, [])


def test_a_table_without_headers_is_refused(lake: FileTable, tmp_path: Path) -> None:
    lake.add("1", [0])
    pq.write_table(pa.table({"partition": [0], "offset": [0]}), tmp_path / "1")
    with pytest.raises(NotAudited, match="has no headers"):
        reader(lake).look({}, {}, START)


def test_stamps_of_rows_with_several_headers_and_of_rows_with_none() -> None:
    rows: list[list[tuple[str, bytes | None]] | None] = [
        [], None, [("a", b"1")], [header("alice", 1), ("b", None), header("bob", 2)], [header("alice", 3)]
    ]  # fmt: skip
    headers = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    batch = pa.record_batch(
        {
            "topic": pa.array(["t", "t", "t", "u", "t"]),
            "partition": pa.array([0] * 5, pa.int32()),
            "offset": pa.array(range(5), pa.int64()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    parts = [(topic, partition, rows.column("offset").to_pylist()) for topic, partition, rows in divided(batch, None)]
    assert parts == [("t", 0, [0, 1, 2, 4]), ("u", 0, [3])]
    for given, seen in ((batch, {1, 2, 3}), (batch.slice(4), {3}), (batch.slice(0, 2), set())):
        counted = Counted()
        count_columns(counted, 0, given, WIDTH, START, {})
        assert {
            n for window in counted.windows.values() for tally in window.tallies.values() for n in tally.numbers
        } == seen


def test_rows_without_stamps_are_counted_by_their_time_stamps(lake: FileTable, tmp_path: Path) -> None:
    """Those of the quarantine too, which has them as numbers. Of a table without time stamps nothing is known."""
    looker = reader(lake)
    lake.add("1", [0, 1])
    assert looker.look({}, {}, START).counted[TOPIC].restamped is False, "every row has a stamp"
    for name, column, times in (
        (
            "2",
            "timestamp",
            pa.array([START * 1000, START * 1000 + 1, (START + WIDTH) * 1000], pa.timestamp("us", "UTC")),
        ),
        ("3", "timestampMs", pa.array([START, START + WIDTH, None], pa.int64())),
        ("4", "timestamp", pa.array(["", "", ""])),
    ):
        lake.add(name, [2, 3, 4])
        rows = table([2, 3, 4], [TOPIC] * 3)
        rows = rows.set_column(3, "headers", pa.array([None, [], [{"key": "a", "value": b"1"}]], HEADERS))
        pq.write_table(rows.append_column(column, times), tmp_path / name)
    counted = looker.look({}, {}, START).counted[TOPIC]
    assert {start: window.unstamped for start, window in counted.windows.items()} == {START: 3, START + WIDTH: 2}
    assert (counted.invalid, counted.restamped) == (1, True)


class UnthreadedStage(TableStage):
    """Looks at its table at once, so that a test has the time in its hands."""

    def _thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(function, *arguments)


def test_a_file_that_a_commit_is_moving_is_no_error_unless_it_stays_away(lake: FileTable) -> None:
    clock, ledger = Clock(), Ledger([SERVING, TABLE], [TOPIC], options())
    stage = UnthreadedStage(clock, TABLE, lambda: cast("Any", lake), ledger, Since(0), lambda: START, interval=5.0)
    lake.add("1", [0, 1])
    path, hidden = Path(lake.files()[0].path), lake.files()[0].path + ".staged"
    path.rename(hidden)
    with capturedLogs() as events:
        stage.start({})
        clock.pump([1.0] * 12)
        assert (ledger.failures, [event for event in events if event["log_level"].name == "error"]) == (0, [])
        clock.pump([1.0] * 60)
    assert (ledger.failures, sum("Can't read the table" in event["log_format"] for event in events)) == (1, 1)
    Path(hidden).rename(path)
    clock.pump([1.0])
    assert ledger.windows[TOPIC, START].stages["table"].tallies[ALICE].rows == 2
    stage.stop()
