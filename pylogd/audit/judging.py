"""Compare the messages that producers report with those that a stage has, for one window of a topic.

Strategy: sets of numbers, for each producer by itself, so that one producer's surplus does not hide another's loss.
A producer's messages in a window are

- delivered: in its reports, less those that failed;
- given: in the report that its journal made after it had died, and in none of its own. The first stage shows which of
  them arrived; the others are lost;
- received: what was counted at the stage.

The first stage must have all that was delivered. A later one must also have whatever the stage before it has.

Verdicts: a duplicate, a loss, or a delivered message that is missing make a window incomplete. As long as the stage has
not passed the window's bound, missing messages are pending. What is missing is unknown if retention may have deleted
it; a message in no report makes the window unknown, since its producer may have delivered others.

Must not know: when a window is due, who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from pyroaring import BitMap64

from pylogd.audit.counting import Origin, Tally
from pylogd.client.core.audit import Report

#: The most ranges of numbers that a result names.
MOST_FAULTS: Final = 10


class Verdict(StrEnum):
    """The known data of a window at a stage."""

    OPEN = "open"  # not due yet
    PENDING = "pending"  # the stage has not passed it yet
    COMPLETE = "complete"
    UNKNOWN = "unknown"
    INCOMPLETE = "incomplete"

    @property
    def is_final(self) -> bool:
        """Whether only late data can change it."""
        return self not in (Verdict.OPEN, Verdict.PENDING)


class Fault(NamedTuple):
    """Messages of a producer, from number `first` to `last`, that are "missing", "lost" or "unreported"."""

    kind: str
    server: str
    producer: str
    first: int
    last: int


class ServerCounts(NamedTuple):
    """The messages that the producers of one server reported, and the missing and lost ones among them."""

    reported: int
    missing: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The counts of a window at a stage, and the verdict.

    reported: messages that producers report as delivered. received: rows. distinct: distinct messages among them.
    missing: messages that should be here and are not. lost: messages that a dead producer was given and did not
    deliver. unreported: messages received that are in no report. pending: missing, but the stage is not there yet.
    """

    verdict: Verdict
    reported: int = 0
    received: int = 0
    distinct: int = 0
    missing: int = 0
    lost: int = 0
    unreported: int = 0
    pending: int = 0
    servers: Mapping[str, ServerCounts] = field(default_factory=dict)
    faults: Sequence[Fault] = ()

    @property
    def duplicates(self) -> int:
        """The number of duplicate rows: rows beyond the first of each message."""
        return self.received - self.distinct

    @property
    def share(self) -> float:
        """The share of the messages that should be here which are here, from 0 to 1."""
        absent = self.missing + self.lost + self.pending
        wanted = self.distinct + absent
        return 1.0 if not wanted else self.distinct / wanted


@dataclass(slots=True)
class Reported:
    """The reports of a producer for a window.

    seen: the numbers of the reports that were read. settled: the messages that its reports are about, of which `failed`
    were not delivered. given: messages in reports made from its journal.
    """

    server: str
    seen: set[int] = field(default_factory=set)
    settled: BitMap64 = field(default_factory=BitMap64)
    failed: BitMap64 = field(default_factory=BitMap64)
    given: BitMap64 = field(default_factory=BitMap64)

    def add(self, report: Report) -> bool:
        """Add a report that has the numbers of its messages. Return whether it is a new one."""
        if report.number in self.seen:
            return False
        self.seen.add(report.number)
        for first, last in report.failed:
            self.failed.add_range(first, last + 1)
        (self.given if report.recovered else self.settled).add_range(report.first, report.last + 1)
        return True

    @property
    def delivered(self) -> BitMap64:
        """The numbers that were delivered."""
        return self.settled - self.failed

    @property
    def undecided(self) -> BitMap64:
        """The numbers of which the producer died before it knew."""
        return self.given - self.settled - self.failed


_NOTHING: Final[Mapping[Origin, Tally]] = {}


def judge(
    reports: Mapping[str, Reported],
    tallies: Mapping[Origin, Tally],
    before: Mapping[Origin, Tally] | None = None,
    *,
    reporting: Iterable[str] = (),
    passed: bool = True,
    trimmed: bool = False,
    overflow: bool = False,
) -> Judgement:
    """Return the judgement on a window at a stage.

    reports, tallies: by producer, and what was counted at the stage. before: what was counted at the stage before it;
    None at the first one. reporting: the producers that report on this topic, in any window.
    passed: whether the stage has passed the window's bound. trimmed: whether messages may have been deleted before they
    were counted. overflow: whether some were not counted, because there are too many producers.
    """
    known = {*reporting, *reports}
    here = _by_producer(tallies, known)
    there = None if before is None else _by_producer(before, known)
    servers = {origin.producer: origin.server for origin in (*(before or ()), *tallies)}
    servers.update((producer, report.server) for producer, report in reports.items())
    each = [
        _of_producer(producer, servers[producer], reports.get(producer), here.get(producer), there)
        for producer in sorted({*reports, *here, *(there or ())})
    ]
    missing, lost = sum(len(one.missing) for one in each), sum(len(one.lost) for one in each)
    found = Judgement(
        Verdict.PENDING,
        reported=sum(one.reported for one in each),
        received=sum(one.rows for one in each),
        distinct=sum(one.distinct for one in each),
        missing=missing if passed else 0,
        lost=lost if passed else 0,
        unreported=sum(len(one.unreported) for one in each),
        pending=0 if passed else missing + lost,
        servers=_by_server(each, passed),
        faults=tuple(_faults(each))[:MOST_FAULTS] if passed else (),
    )
    return _with_verdict(found, passed=passed, unsure=trimmed or overflow)


def _with_verdict(found: Judgement, *, passed: bool, unsure: bool) -> Judgement:
    if found.duplicates or ((found.missing or found.lost) and not unsure):
        verdict = Verdict.INCOMPLETE
    elif not passed:
        verdict = Verdict.PENDING
    elif found.missing or found.lost or found.unreported or unsure:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.COMPLETE
    return replace(found, verdict=verdict)


@dataclass(frozen=True, slots=True)
class _OfProducer:
    """The messages of one producer."""

    producer: str
    server: str
    reported: int
    rows: int
    distinct: int
    missing: BitMap64
    lost: BitMap64
    unreported: BitMap64


def _of_producer(
    producer: str, server: str, report: Reported | None, here: Tally | None, there: Mapping[str, Tally] | None
) -> _OfProducer:
    report, here = report or Reported(server), here or Tally()
    numbers, delivered = here.numbers, report.delivered
    wanted, lost = delivered, BitMap64()
    if there is None:
        lost = report.undecided - numbers
    elif producer in there:
        wanted = delivered | there[producer].numbers
    strangers = numbers - report.settled - report.given
    return _OfProducer(
        producer, server, len(delivered), here.rows, len(numbers), wanted - numbers, lost, strangers
    )  # fmt: skip


def _by_producer(tallies: Mapping[Origin, Tally], known: set[str]) -> dict[str, Tally]:
    """Return the tallies that count: of a chain of producers the last one that reports on the topic, else the last."""
    found: dict[str, Tally] = {}
    for origin, tally in tallies.items():
        reporting = [at for at, producer in enumerate(origin.producers) if producer in known]
        if origin.at == (reporting[-1] if reporting else len(origin.producers) - 1):
            found.setdefault(origin.producer, Tally()).add(tally.rows, tally.numbers)
    return found


def _by_server(each: Sequence[_OfProducer], passed: bool) -> dict[str, ServerCounts]:
    found: dict[str, ServerCounts] = {}
    for one in each:
        before = found.get(one.server, ServerCounts(0, 0))
        absent = len(one.missing) + len(one.lost) if passed else 0
        found[one.server] = ServerCounts(before.reported + one.reported, before.missing + absent)
    return {server: found[server] for server in sorted(found)}


def _faults(each: Sequence[_OfProducer]) -> Iterator[Fault]:
    for one in each:
        for kind in ("missing", "lost", "unreported"):
            for first, last in runs(getattr(one, kind), MOST_FAULTS):
                yield Fault(kind, one.server, one.producer, first, last)


def runs(numbers: BitMap64, most: int) -> Iterator[tuple[int, int]]:
    """Yield first and last of the first runs of consecutive numbers, at most `most` runs."""
    position = 0
    while most and (first := _next(numbers, position)) is not None:
        low, high = first, numbers.max() + 1  # the run ends between the two
        while high - low > 1:
            middle = (low + high) // 2
            if numbers.contains_range(first, middle + 1):
                low = middle
            else:
                high = middle
        yield first, low
        position, most = low + 1, most - 1


def _next(numbers: BitMap64, least: int) -> int | None:
    if not numbers or numbers.max() < least:
        return None
    return int(numbers.next_set_bit(least))
