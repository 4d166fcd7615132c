"""Which periods have markers, what they say, and how late data change them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.markers import InvalidMarker, Marker, MarkerFiles, Periods, period_name
from pylogd.services.audit.windows import Change
from tests.audits import START, TABLE, TOPIC, WIDTH, AuditedLedger, header, numbers, report

PERIOD = 10 * WIDTH
END = START + PERIOD


class Published:
    """A ledger with its periods, and the markers that were published."""

    def __init__(self, **given: int) -> None:
        self.audited = AuditedLedger(TABLE, from_ms=START, **given)
        self.periods = Periods(self.audited.ledger)

    def turn(self, now: int, *, works: bool = True) -> list[Marker]:
        self.audited.now = now
        self.periods.begin(now)
        changes: list[Change] = self.audited.judge(now)
        markers = list(self.periods.due(changes, now))
        if works:
            self.periods.note(markers)
        return markers


def summary(markers: list[Marker]) -> list[tuple[str, int, Verdict, int, int]]:
    return [(each.stage, each.start_ms, each.verdict, each.received, each.revision) for each in markers]


def test_a_period_has_a_marker_of_each_stage_once_its_windows_are_judged_there() -> None:
    published = Published()
    audited = published.audited
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    assert published.turn(END + 99) == []
    (serving,) = published.turn(END + 100)
    assert summary([serving]) == [("serving", START, Verdict.COMPLETE, 3, 1)]
    assert serving.offsets == {"0": 3}
    assert published.turn(END + 200) == []
    audited.rows("table", *numbers("alice", range(3)))
    (table,) = published.turn(END + 300)
    assert summary([table]) == [("table", START, Verdict.COMPLETE, 3, 1)]
    assert (table.decided_at_ms, table.offsets) == (END + 300, {"0": 3})
    assert published.periods.done() == {TOPIC: END}


def test_periods_without_messages_have_markers_too() -> None:
    published = Published()
    markers = published.turn(START + 3 * PERIOD + 100)
    assert summary(markers) == [
        (stage, START + at * PERIOD, Verdict.COMPLETE, 0, 1) for stage in ("serving", "table") for at in range(3)
    ]


def test_late_data_publish_a_marker_again() -> None:
    published = Published()
    published.turn(END + 100)
    published.audited.report(report("bob", 0, 1))
    (serving, table) = published.turn(END + 200)
    assert summary([serving]) == [("serving", START, Verdict.INCOMPLETE, 0, 2)]
    assert (table.verdict, table.missing) == (Verdict.INCOMPLETE, 2)
    published.audited.rows("serving", *numbers("bob", range(2)))
    published.audited.rows("table", *numbers("bob", range(2)))
    again = published.turn(END + 300)
    assert summary(again) == [(stage, START, Verdict.COMPLETE, 2, 3) for stage in ("serving", "table")]


def test_a_marker_that_could_not_be_published_is_due_again() -> None:
    published = Published()
    first = published.turn(END + 100, works=False)
    assert published.turn(END + 101) and first
    published.audited.report(report("bob", 0, 1))
    assert published.turn(END + 200, works=False)
    assert [each.revision for each in published.turn(END + 300)] == [2, 2]
    assert published.turn(END + 400) == []


def test_from_the_beginning_means_from_the_first_window() -> None:
    audited = AuditedLedger(from_ms=0)
    periods = Periods(audited.ledger)
    audited.now = START + PERIOD + 100
    periods.begin(audited.now)
    assert audited.ledger.windows == {}
    audited.rows("serving", header("alice", 0, START + 5))
    periods.begin(audited.now)
    assert sorted(start for _, start in audited.ledger.windows) == [START, END - WIDTH]


def test_empty_periods_take_bounded_memory() -> None:
    """Some are decided at a time, and a first start looks back only so far, whatever a stamp says."""
    audited = AuditedLedger(from_ms=0)
    periods = Periods(audited.ledger)
    audited.rows("serving", header("alice", 0, START + 5))
    audited.now = START + 5000 * PERIOD + 100
    periods.begin(audited.now)
    assert len(audited.ledger.windows) == 1 + 1000
    earliest = sorted(start for _, start in audited.ledger.windows)[1]
    assert earliest == START + 4001 * PERIOD - WIDTH
    later = AuditedLedger(from_ms=START)
    Periods(later.ledger).begin(audited.now)
    assert max(start for _, start in later.ledger.windows) == START + 1000 * PERIOD - WIDTH


def test_markers_continue_after_a_restart() -> None:
    published = Published()
    markers = published.turn(END + 100)
    again = Published()
    again.periods.restore([Marker.decode(each.encode()) for each in markers])
    assert again.turn(END + 100) == []
    assert [each.start_ms for each in again.turn(END + PERIOD + 100)] == [END, END]


@pytest.mark.parametrize("value", [b"", b"7", b"{}", b'{"verdict": "odd"}'])
def test_what_is_no_marker_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidMarker):
        Marker.decode(value)


def test_files_say_which_periods_are_complete(tmp_path: Path) -> None:
    published = Published()
    marker = published.turn(END + 100)[0]
    files = MarkerFiles(str(tmp_path))
    files.write(marker)
    (path,) = tmp_path.rglob("*.json")
    assert path.relative_to(tmp_path).as_posix() == f"serving/{TOPIC}/{period_name(START)}.json"
    document = json.loads(path.read_text())
    assert (document["complete"], document["period"], document["offsets"]) == (True, "1970-02-11T16", {"0": 0})
    published.audited.report(report("bob", 0, 1))
    files.write(published.turn(END + 200)[0])
    assert list(tmp_path.rglob("*.json*")) == [], "it is not complete any more"
    assert [period_name(START + ms) for ms in (60_000, 1000)] == ["1970-02-11T16-01", "1970-02-11T16-00-01"]
