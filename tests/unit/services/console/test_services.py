"""The pages of mirrors, the audit and tables, of what was read in memory."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.services.audit.judging import Judgement, Verdict
from pylogd.services.audit.report import Row
from pylogd.services.console.audits import Audited
from pylogd.services.console.clusters import PeriodicReads
from pylogd.services.console.mirrors import MirrorReader, Mirrors, Route
from pylogd.services.console.sample import Sample, TopicState
from pylogd.services.console.series import TopicSeries
from pylogd.services.console.tables import (
    Snapshot,
    TableOptions,
    TableReader,
    TableState,
    as_document,
    behind,
    from_document,
    total,
)
from tests.unit.services.console.memory import NOW_MS, MemoryConsole

MIRROR = """\
# HELP pylogd_mirror_partitions Partitions that this process is to copy
pylogd_mirror_partitions{route="a-b",state="copied"} 4.0
pylogd_mirror_partitions{route="a-b",state="starting"} 1.0
pylogd_mirror_partitions{route="a-b",state="set_aside"} 0.0
pylogd_mirror_lag_records{route="a-b"} 70.0
pylogd_mirror_lag_records_max{route="a-b"} 40.0
pylogd_mirror_lag_seconds{route="a-b"} 3.5
pylogd_mirror_copied_bytes_total{route="a-b"} %(bytes)s
pylogd_mirror_copied_records_total{route="a-b"} %(records)s
pylogd_mirror_lost_records_total{route="a-b"} 0.0
pylogd_mirror_copied_bytes_created{route="a-b"} 1.7e+09
pylogd_mirror_lag_records{route="quo\\"ted"} 1.0
pylogd_mirror_commits_total{target="b"} 12.0
pylogd_mirror_interruptions_total{target="b"} 2.0
pylogd_mirror_is_controller 1.0
pylogd_mirror_file_is_valid 0.0
"""


def test_routes_are_the_sum_of_all_processes() -> None:
    now = 100.0
    reader = MirrorReader([], lambda: NOW_MS, lambda: now)
    for turn in (0, 1):
        routes: dict[str, Route] = {}
        for url, rate in (("x", 1000), ("y", 500)):
            process = reader.add(url, MIRROR % {"bytes": turn * rate * 10, "records": turn * rate}, routes)
        now += 10
    found = routes["a-b"]
    assert (found.copied, found.starting, found.lag, found.lag_max, found.lag_seconds) == (8, 2, 140, 40, 3.5)
    assert (found.bytes_rate, found.records_rate, found.state) == (1500, 150, "starting")
    other = routes['quo"ted']
    assert (other.lag, other.lag_max, other.lag_seconds) == (2, None, None), "what no process tells is not known"
    assert (process.controller, process.file_valid, process.commits, process.interruptions) == (True, False, 12, 2)


def test_a_process_that_began_anew_has_no_rate() -> None:
    now = 0.0
    reader = MirrorReader([], lambda: NOW_MS, lambda: now)
    reader.add("x", MIRROR % {"bytes": 500, "records": 5}, {})
    now = 10.0
    routes: dict[str, Route] = {}
    reader.add("x", MIRROR % {"bytes": 100, "records": 1}, routes)
    assert routes["a-b"].bytes_rate is None


def test_other_pages_are_no_mirrors() -> None:
    with pytest.raises(ValueError, match="not a page of a mirror"):
        MirrorReader([], lambda: 0).add("x", "up 1\n", {})
    found = MirrorReader(["http://127.0.0.1:9/metrics"], lambda: 0).read()
    assert not found.routes and found.processes[0].problem


class Read:
    """What was read, as `PeriodicReads` has it."""

    def __init__(self, last: Any) -> None:
        self.last, self.at_ms, self.problem = last, NOW_MS, ""


@pytest.fixture
def console() -> MemoryConsole:
    made = MemoryConsole()
    made.sample()
    return made


def test_the_pages_of_mirrors(console: MemoryConsole) -> None:
    routes: dict[str, Route] = {}
    process = MirrorReader([], lambda: NOW_MS).add("http://m/<x>", MIRROR % {"bytes": 1, "records": 1}, routes)
    routes["a-b"].lags.extend([(1, 5.0), (2, 6.0)])
    console.cluster.mirrors = Read(Mirrors(routes, [process]))
    body = console.ask("/c/cluster/mirrors").body
    assert '<td class="num">1</td><td class="num"><span class="unknown"' in body, "how long is not known"
    assert "a-b" in body and "http://m/&lt;x&gt;" in body and "has an error" in body and "<polyline" in body
    one = console.ask("/c/cluster/mirrors/a-b")
    assert one.status == 200 and "data-chart" in one.body
    assert console.ask("/c/cluster/mirrors/none").status == 404


def window(start: int, verdict: Verdict, stage: str = "serving", **counts: Any) -> Row:
    return Row(stage, "orders<b>", 1_700_000_000_000 + start * 60_000, Judgement(verdict, **counts))


def test_the_page_of_the_audit(console: MemoryConsole) -> None:
    rows = [
        window(0, Verdict.COMPLETE, reported=10, received=10, distinct=10),
        window(1, Verdict.INCOMPLETE, reported=10, received=9, distinct=8, missing=2),
        window(1, Verdict.COMPLETE, "lake", reported=10, received=10, distinct=10),
    ]
    told = json.loads(json.dumps([row.as_document() for row in rows]))
    found = Audited(told)
    assert [row.judgement for row in found.rows] == [row.judgement for row in rows], "nothing that counts is left out"
    assert found.stages == ["serving", "lake"]
    assert [(one.stage, one.verdicts["incomplete"], one.missing) for one in found.summary()] == [
        ("serving", 1, 2), ("lake", 0, 0),
    ]  # fmt: skip
    console.cluster.audit = Read(found)
    body = console.ask("/c/cluster/audit").body
    assert "<svg" in body and "orders<b>" not in body and "orders&lt;b&gt;" in body
    assert body.count("<rect") > 2 and "2023-11-14 22:14:20.000Z" in body
    only = console.ask("/c/cluster/audit?q=incomplete").body
    assert "1 of 3" in only


def test_an_answer_that_is_no_audit() -> None:
    answers: list[Any] = [
        [{"window": "x"}],
        ["x"],
        {"a": 1},
        [{**window(0, Verdict.OPEN).as_document(), "verdict": "odd"}],
    ]
    for answer in answers:
        with pytest.raises(ValueError, match=r"audit service|Verdict"):
            Audited(answer)


def sample_of(ends: list[int], begins: list[int]) -> Sample:
    series = TopicSeries()
    series.add(0.0, array("q", ends))
    topic = TopicState("t", bytes(16), False, series)
    for _ in ends:
        topic.add(1, (1,), (1,))
    topic.begins = array("q", begins)
    return Sample(topics={"t": topic})


def test_how_far_a_table_is_behind() -> None:
    table = TableState("x", "delta:/x", "", "delta", True, {("t", 0): 40, ("t", 1): 7, ("gone", 2): 3})
    rows = behind(table, sample_of([100, 50, 30], [0, 20, 10]))
    assert [(row.topic, row.partition, row.lag) for row in rows] == [
        ("gone", 0, None), ("gone", 1, None), ("gone", 2, None), ("t", 0, 60), ("t", 1, 30), ("t", 2, 20),
    ], "what retention has deleted can't be loaded"  # fmt: skip
    assert total(rows) is None and total(rows[3:]) == 110


def test_the_pages_of_tables(console: MemoryConsole) -> None:
    topic = next(iter(console.calls.record.topics))
    commit = Snapshot(7, "load", NOW_MS, 1234, 0, 2, 4096, 0)
    good = TableState("good", "delta:/d", "", "delta", True, {(topic, 0): 3}, (commit,), 80)
    bad = TableState("bad", "iceberg:x", "the catalog does not answer")
    empty = TableState("empty", "/lake", "", "parquet")
    console.cluster.tables = Read({one.name: one for one in (good, bad, empty)})
    body = console.ask("/c/cluster/tables").body
    assert "the catalog does not answer" in body and "nothing was loaded yet" in body and "1,234" in body
    page = console.ask("/c/cluster/tables/good").body
    assert f"{topic}:0" in page and "The last 1 are shown" in page and "pylogd load --table delta:/d" in page
    assert console.ask("/c/cluster/tables/bad").status == 200
    assert console.ask("/c/cluster/tables/none").status == 404


def test_a_table_that_can_not_be_opened_does_not_hide_the_others(tmp_path: Any) -> None:
    reader = TableReader({"odd": TableOptions("gs://bucket"), "none": TableOptions(str(tmp_path / "none"))})
    found = reader.read()  # in a child process
    assert "neither in a local directory nor on S3" in found["odd"].problem
    assert not found["none"].problem and not found["none"].exists


def test_the_state_of_a_table_as_a_document() -> None:
    commit = Snapshot(7, "load", NOW_MS, 1234, 0, 2, 4096, 0)
    state = TableState("good", "delta:/d", "", "delta", True, {("t", 0): 3, ("u", 11): 4}, (commit,), 80)
    assert from_document(json.loads(json.dumps(as_document(state)))) == state


def test_a_read_after_the_stop_is_refused() -> None:
    reader = TableReader({})
    reader.stop()
    with pytest.raises(OSError, match="the console stops"):
        reader.read()


class Calls:
    """A pool whose calls end when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Deferred[Any]]] = []

    def defer(self, function: Any) -> Deferred[Any]:
        self.waiting.append((function, Deferred()))
        return self.waiting[-1][1]

    def stop(self) -> None:
        """Nothing runs."""

    def end(self) -> None:
        [(function, deferred)], self.waiting = self.waiting, []
        try:
            result = function()
        except OSError as error:
            deferred.errback(error)
        else:
            deferred.callback(result)


def test_a_service_is_read_again_once_the_last_read_has_ended() -> None:
    clock: Any = Clock()
    answers: list[Any] = [OSError("no route"), "one", OSError("gone")]

    def read() -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return str(answer)

    repeated: PeriodicReads[str] = PeriodicReads(clock, "test", read, lambda: int(clock.seconds() * 1000), 10.0)
    pool: Any = Calls()
    repeated._pool = pool
    repeated.start()
    clock.advance(1000)
    assert len(pool.waiting) == 1, "a read that hangs is not begun again"
    pool.end()
    assert (repeated.last, repeated.problem) == (None, "no route")
    clock.advance(10)
    pool.end()
    assert (repeated.last, repeated.problem, repeated.at_ms) == ("one", "", 1_010_000)
    clock.advance(10)
    pool.end()
    assert (repeated.last, repeated.problem) == ("one", "gone"), "what was known stays"
    repeated.stop()
    clock.advance(10)
    assert not pool.waiting and not clock.getDelayedCalls()
