"""Verdicts do not depend on the order of messages and reports, on restarts, or on how often something is read.

A history is drawn: producers with messages that fail, get lost, are doubled, or are never reported; a serving log of
several partitions, a table of its records that may lack some, and the reports. Then the readers, the bounds, the judge,
and deaths of the service are interleaved at random. In the end the judgements must be those of a plain computation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.client.core.audit import Report
from pylogd.services.audit.counting import Counted
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.state import Resume, decode_record, records_of
from pylogd.services.audit.windows import LedgerOptions, Saved, SavedReports
from tests.audits import SERVING, START, TABLE, TOPIC, WIDTH, header, options, report

PARTITIONS = 3
WINDOWS = 3
LATER = START + 100 * WIDTH


@dataclass
class History:
    """What there is to read: (producer, number, time) by partition, the same in the table, and reports."""

    serving: list[list[tuple[str, int, int]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    table: list[list[tuple[int, tuple[str, int, int]]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    reports: list[Report] = field(default_factory=list)
    delivered: Counter[tuple[str, int]] = field(default_factory=Counter)


@st.composite
def histories(draw: Any) -> History:
    history = History()
    for producer in ("alice", "bob"):
        number = 0
        for window in range(WINDOWS):
            first = number
            fates = draw(st.lists(st.sampled_from("ddddflx2"), max_size=8))
            for fate in fates:
                time_ms = START + window * WIDTH + number % WIDTH
                if fate != "f" and fate != "l":
                    log = history.serving[draw(st.integers(0, PARTITIONS - 1))]
                    log += [(producer, number, time_ms)] * (2 if fate == "2" else 1)
                number += 1
            failed = [(first + at, first + at) for at, fate in enumerate(fates) if fate == "f"]
            if fates and draw(st.booleans()):
                start = START + window * WIDTH
                mine = report(producer, first, number - 1, window + 1, start=start, failed=failed)
                history.reports += [mine] * draw(st.integers(1, 2))
            if fates and draw(st.integers(0, 3)) == 0:
                start = START + window * WIDTH
                last = draw(st.integers(first, number - 1))  # the journal may be behind
                history.reports.append(report(producer, first, last, 1000 + window, start=start, recovered=True))
    for partition, log in enumerate(history.serving):
        for offset, row in enumerate(log):
            history.table[partition] += [(offset, row)] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    return history


class Service:
    """The readers around a ledger, and the state topic that survives it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.state: dict[bytes, bytes] = {}
        self.begin()

    def begin(self) -> None:
        """Start, or start again after a death."""
        resumed = Resume(options(late_ms=1 << 40))
        if b"resume" in self.state:
            resumed = Resume.decode(self.state[b"resume"], options(late_ms=1 << 40))
        found: LedgerOptions = resumed.options
        self.ledger = Ledger([SERVING, TABLE], [TOPIC], found)
        for key, value in self.state.items():
            saved = decode_record(key, value)
            if isinstance(saved, Saved):
                self.ledger.restore(saved)
            elif isinstance(saved, SavedReports):
                self.ledger.restore_reports(saved)
        for stage in ("serving", "table"):
            for (topic, partition), offset in resumed.stages.get(stage, {}).items():
                self.ledger.add(stage, topic, Counted(), {partition: offset})
        self.ledger.reports_positions.update(resumed.reports)

    def read_serving(self, partition: int, count: int) -> None:
        position = self.ledger.positions["serving"].get((TOPIC, partition), 0)
        rows = self.history.serving[partition][position : position + count]
        self._count("serving", partition, list(enumerate(rows, position)), position + len(rows))

    def read_table(self, partition: int, count: int) -> None:
        position = self.ledger.positions["table"].get((TOPIC, partition), 0)
        end = min(position + count, len(self.history.serving[partition]))
        rows = [row for row in self.history.table[partition] if position <= row[0] < end]
        self._count("table", partition, rows, end)

    def _count(self, stage: str, partition: int, rows: list[tuple[int, tuple[str, int, int]]], end: int) -> None:
        counted = Counted()
        stamped = [(offset, [header(*row)]) for offset, row in rows]
        counted.count(partition, stamped, WIDTH, START, self.ledger.skip(stage, TOPIC))
        self.ledger.add(stage, TOPIC, counted, {partition: end})

    def read_reports(self, count: int) -> None:
        position = self.ledger.reports_positions.get(0, 0)
        for offset, each in list(enumerate(self.history.reports))[position : position + count]:
            self.ledger.report(each, 0, offset)
            self.ledger.reports_positions[0] = offset + 1

    def judge(self) -> None:
        ends = {partition: len(log) for partition, log in enumerate(self.history.serving)}
        for (stage, topic), starts in self.ledger.needs(LATER).items():
            self.ledger.bind(stage, topic, starts, ends, {0: len(self.history.reports)})
        self.ledger.judge(LATER)

    def store(self, dies_after: int) -> None:
        """Store what changed; after some records the service dies, unless there are not so many."""
        taken = self.ledger.take()
        records = [*records_of(taken)]
        resume = Resume(self.ledger.options, taken.resume, taken.resume_reports, taken.trimmed)
        records.append((b"resume", resume.encode()))
        self.state.update(records[:dies_after])
        if dies_after < len(records):
            self.begin()

    def finish(self) -> None:
        for partition in range(PARTITIONS):
            self.read_serving(partition, 1000)
            self.read_table(partition, 1000)
        self.read_reports(1000)
        self.judge()


def expected(history: History, stage: str, window: int) -> tuple[int, int, int, int, int, int, int]:
    """Return (reported, received, missing, lost, duplicates, unreported, recovered), computed plainly."""
    start = START + window * WIDTH
    rows = [row for log in history.serving for row in log if row[2] // WIDTH * WIDTH == start]
    there = {row[:2] for row in rows}
    if stage == "table":
        rows = [row for log in history.table for _, row in log if row[2] // WIDTH * WIDTH == start]
    here = {row[:2] for row in rows}
    mine = [each for each in history.reports if each.window_start_ms == start]
    settled: set[tuple[str, int]] = set()
    failed: set[tuple[str, int]] = set()
    told: set[tuple[str, int]] = set()
    for each in mine:
        given = {(each.producer, number) for number in range(each.first, each.last + 1)}
        (told if each.recovered else settled).update(given)
        failed.update((each.producer, number) for first, last in each.failed for number in range(first, last + 1))
    for each in mine:
        if each.recovered:  # and what arrived after it
            last = max((number for producer, number in there if producer == each.producer), default=-1)
            told.update((each.producer, number) for number in range(each.first, last + 1))
    wanted = settled - failed
    undecided = told - settled - failed
    lost = undecided - there - here
    missing = (wanted | there if stage == "table" else wanted) - here
    unreported = here - settled - told
    doubled = len(rows) - len(here)
    return len(wanted), len(rows), len(missing), len(lost), doubled, len(unreported), len(undecided & here)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("serving"), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
        st.tuples(st.just("table"), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
        st.tuples(st.just("reports"), st.integers(1, 3)),
        st.tuples(st.just("judge")),
        st.tuples(st.just("store"), st.integers(0, 12)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(histories(), STEPS)
def test_any_order_and_any_restart_gives_the_same_verdicts(history: History, steps: list[tuple[Any, ...]]) -> None:
    service = Service(history)
    for name, *arguments in steps:
        getattr(service, {"serving": "read_serving", "table": "read_table", "reports": "read_reports"}.get(name, name))(
            *arguments
        )  # fmt: skip
    service.finish()
    for window in range(WINDOWS):
        found = service.ledger.windows.get((TOPIC, START + window * WIDTH))
        for stage in ("serving", "table"):
            wanted = expected(history, stage, window)
            judged = None if found is None else found.stages[stage].judgement
            if judged is None:
                assert wanted == (0,) * 7, (stage, window)
                continue
            counts = (
                judged.reported, judged.received, judged.missing, judged.lost, judged.duplicates, judged.unreported,
                judged.recovered,
            )  # fmt: skip
            assert counts == wanted, (stage, window)
