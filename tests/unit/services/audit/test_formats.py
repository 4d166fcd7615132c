"""The audit reads tables of every format: what each commit adds, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.position import LoadRange
from pylogd.lake.tables.records import HEADERS
from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.markers import Marker
from pylogd.services.audit.opening import open_table
from pylogd.services.audit.tables import Look, TableReader
from tests.audits import START, WIDTH, header
from tests.unit.lake.tables.cases import CASES, Case, records

NAMES = {"parquet": "{}/lake", "iceberg": "iceberg:{}/warehouse/demo.flights", "delta": "delta:{}/flights"}


def load(case: Case, first: int, end: int, *, invalid: tuple[int, ...] = ()) -> None:
    """Load stamped records, whose numbers are their offsets."""
    rows = records(first, end, invalid=invalid)
    stamps = [[dict(zip(("key", "value"), header("alice", number), strict=True))] for number in range(first, end)]
    at = rows.schema.get_field_index("headers")
    rows = rows.set_column(at, "headers", pa.array(stamps, HEADERS))
    table = case.open()
    loading = LoadRange({("t", 0): first}, {("t", 0): end}, {"t": "aa"})
    table.commit(table.position, loading, *case.stage(table, rows), at_ms=end)


def found(look: Look) -> list[int]:
    windows = [look.counted["t"].windows[START]] if "t" in look.counted else []
    tallies = [tally for window in windows for tally in window.tallies.values()]
    numbers = sorted(number for tally in tallies for number in tally.numbers)
    assert sum(tally.rows for tally in tallies) == len(numbers)
    return numbers


@pytest.mark.parametrize("kind", CASES)
def test_what_a_commit_adds_is_counted_once(kind: str, tmp_path: Path) -> None:
    case = CASES[kind](tmp_path)
    case.made()
    load(case, 0, 10)
    name = NAMES[kind].format(tmp_path)
    reader = TableReader(open_table(name), ["t"], WIDTH)
    first = reader.look({}, {}, START)
    assert (found(first), first.reached) == ([*range(10)], {("t", 0): 10})
    load(case, 10, 25, invalid=(12,))
    case.foreign_commit()
    second = reader.look(first.reached, {}, START)
    assert (found(second), second.reached) == ([*range(10, 25)], {("t", 0): 25}), "those in the quarantine count too"
    assert found(reader.look(second.reached, {}, START)) == []
    again = TableReader(open_table(name), ["t"], WIDTH)
    assert found(again.look({("t", 0): 20}, {}, START)) == [*range(20, 25)]


@pytest.mark.parametrize("kind", CASES)
def test_a_table_has_a_file_for_each_complete_period(kind: str, tmp_path: Path) -> None:
    """It stays when the table is compacted and cleaned, and goes when the period is not complete any more."""
    case = CASES[kind](tmp_path)
    case.made()
    load(case, 0, 10)
    table = open_table(NAMES[kind].format(tmp_path))
    reader = TableReader(table, ["t"], WIDTH)
    reader.look({}, {}, START)
    marker = Marker("lake", "t", START, START + WIDTH, Verdict.COMPLETE, 0, 0, 0, 0, 0, 0)
    reader.write(marker)
    (path,) = tmp_path.rglob("_complete/t/*.json")
    assert Marker.decode(path.read_bytes()) == marker and path.stem == marker.period
    case.open().clean(wall_ms() + 3_600_000)
    assert path.exists()
    assert found(reader.look({}, {}, START)) == []
    reader.write(replace(marker, verdict=Verdict.INCOMPLETE))
    assert not path.exists()
