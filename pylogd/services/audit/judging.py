"""Compare the messages that producers report with the messages at a stage, for one window of a topic.

Strategy: sets of numbers are compared for each producer separately, so that one producer's surplus does not hide
another's loss. A producer's messages in a window are

- delivered: in its reports, less those that failed;
- given: in the report of its journal after its death, and in none of its own reports. A journal may lack the last
  messages, but numbers are consecutive, so all messages up to the last received one were given too. The first stage
  shows   which of them arrived (recovered); the others are lost, at this and at every later stage;
- received: counted at the stage.

The first stage must have all delivered messages. A later stage must also have all messages of the earlier stages.
Messages without stamps are only counted, by their time stamps: a later stage must have as many.

Verdicts: a duplicate, a loss, or a missing delivered message makes a window incomplete. As long as the stage has not
passed the window's bound, missing messages are pending. If retention may have deleted missing messages, the verdict is
unknown. It is unknown too if a message is in no report, since its producer may have delivered other messages.

Must not know: when a window is due, who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from pyroaring import BitMap64

from pylogd.client.core.audit import Report
from pylogd.services.audit.counting import Origin, Tally

#: The most ranges of numbers that a result names.
MOST_FAULTS: Final = 10


class Verdict(StrEnum):
    """The known data of a window at a stage."""

    OPEN = "open"  # the window is not due yet
    PENDING = "pending"  # the stage has not passed the window yet
    COMPLETE = "complete"
    UNKNOWN = "unknown"
    INCOMPLETE = "incomplete"

    @property
    def is_final(self) -> bool:
        """Whether only late data can change the verdict."""
        return self not in (Verdict.OPEN, Verdict.PENDING)


class Fault(NamedTuple):
    """Messages of a producer, from number `first` to `last`, that are "missing", "lost" or "unreported"."""

    kind: str
    server: str
    producer: str
    first: int
    last: int


class ServerCounts(NamedTuple):
    """The numbers of messages of one server's producers: reported, missing and lost."""

    reported: int
    missing: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The counts of a window at a stage, and the verdict.

    reported: the messages that producers report as delivered.
    received: the received rows.
    distinct: the distinct messages among them.
    missing: the messages that should be at the stage and are not.
    lost: the messages that a dead producer was given and did not deliver.
    unreported: the received messages that are in no report.
    pending: the missing messages that the stage has not reached yet.
    recovered: the messages in a dead producer's journal that are at the stage.
    unstamped: the rows of clients that are not audited. They are in no other count, except that `missing` and `pending`
    include those that the previous stage has in excess.
    """

    verdict: Verdict
    reported: int = 0
    received: int = 0
    distinct: int = 0
    missing: int = 0
    lost: int = 0
    unreported: int = 0
    pending: int = 0
    recovered: int = 0
    unstamped: int = 0
    servers: Mapping[str, ServerCounts] = field(default_factory=dict)
    faults: Sequence[Fault] = ()

    @property
    def duplicates(self) -> int:
        """The number of duplicate rows: rows beyond the first of each message."""
        return self.received - self.distinct

    @property
    def share(self) -> float:
        """The share of the expected messages that are at the stage, from 0 to 1."""
        absent = self.missing + self.lost + self.pending
        wanted = self.distinct + absent
        return 1.0 if not wanted else self.distinct / wanted


@dataclass(slots=True)
class Reported:
    """The reports of a producer for a window.

    seen: the numbers of the reports that were read.
    settled: the messages in its reports; `failed` are those that were not delivered.
    given: messages in reports made from its journal.
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

    def given_up_to(self, arrived: BitMap64) -> BitMap64:
        """Return the messages that a dead producer was given, from its journal and the received messages; else none."""
        if not self.given or not arrived or arrived.max() <= self.given.max():
            return self.given
        found = self.given.copy()
        found.add_range(self.given.max(), arrived.max() + 1)
        return found


class Counts(NamedTuple):
    """The counts of a window at a stage.

    unstamped: the rows without stamps; None if they can't be compared with those of other stages.
    """

    tallies: Mapping[Origin, Tally]
    unstamped: int | None = 0


def judge(
    reports: Mapping[str, Reported],
    here: Counts,
    before: Sequence[Counts] = (),
    *,
    reporting: Iterable[str] = (),
    unstamped: int = 0,
    passed: bool = True,
    trimmed: bool = False,
) -> Judgement:
    """Return the judgement on a window at a stage.

    reports: the reports by producer.
    here: the counts at the stage.
    before: the counts of the earlier stages, the first stage first.
    reporting: the producers that report on this topic, in any window.
    unstamped: the rows without stamps.
    passed: whether the stage has passed the window's bound.
    trimmed: whether messages may have been deleted before they were counted.
    """
    each = _judge_producers(reports, here, before, {*reporting, *reports})
    missing, lost = sum(len(one.missing) for one in each), sum(len(one.lost) for one in each)
    if before and here.unstamped is not None:
        missing += max([(other.unstamped or 0) - here.unstamped for other in before] + [0])
    found = Judgement(
        Verdict.PENDING,
        reported=sum(one.reported for one in each),
        received=sum(one.rows for one in each),
        distinct=sum(one.distinct for one in each),
        missing=missing if passed else 0,
        lost=lost if passed else 0,
        unreported=sum(len(one.unreported) for one in each),
        pending=0 if passed else missing + lost,
        recovered=sum(one.recovered for one in each),
        unstamped=unstamped,
        servers=_by_server(each, passed),
        faults=tuple(_faults(each))[:MOST_FAULTS] if passed else (),
    )
    return replace(found, verdict=verdict_of(found, passed=passed, unsure=trimmed))


def _judge_producers(
    reports: Mapping[str, Reported], here: Counts, before: Sequence[Counts], known: set[str]
) -> list[OfProducer]:
    """Return the messages of each producer.

    known: the producers that report on the topic.
    """
    mine = by_producer(here.tallies, known)
    others = [by_producer(each.tallies, known) for each in before]
    servers = {origin.producer: origin.server for each in (*before, here) for origin in each.tallies}
    servers.update((producer, report.server) for producer, report in reports.items())
    return [
        of_producer(
            producer, servers[producer], reports.get(producer), mine.get(producer),
            [other.get(producer, _NOTHING) for other in others],
        )
        for producer in sorted({*reports, *mine, *(producer for other in others for producer in other)})
    ]  # fmt: skip


def verdict_of(found: Judgement, *, passed: bool, unsure: bool) -> Verdict:
    """Return the verdict that follows from counts.

    unsure: whether messages may have been deleted uncounted.
    """
    if found.duplicates or ((found.missing or found.lost) and not unsure):
        return Verdict.INCOMPLETE
    if not passed:
        return Verdict.PENDING
    if found.missing or found.lost or found.unreported or unsure:
        return Verdict.UNKNOWN
    return Verdict.COMPLETE


@dataclass(frozen=True, slots=True)
class OfProducer:
    """The messages of one producer in a window at a stage."""

    producer: str
    server: str
    reported: int
    recovered: int
    rows: int
    distinct: int
    missing: BitMap64
    lost: BitMap64
    unreported: BitMap64


_NOTHING: Final = Tally()


def of_producer(
    producer: str, server: str, report: Reported | None, here: Tally | None, before: Sequence[Tally] = ()
) -> OfProducer:
    """Compare the messages of one producer.

    before: the messages at the earlier stages, the first stage first.
    """
    report, here = report or Reported(server), here or Tally()
    numbers, wanted = here.numbers, report.delivered
    reported = len(wanted)
    for each in before:
        wanted = wanted | each.numbers
    arrived = before[0].numbers if before else numbers
    given = report.given_up_to(arrived)
    undecided = given - report.settled - report.failed
    return OfProducer(
        producer, server, reported, len(undecided & numbers), here.rows, len(numbers), wanted - numbers,
        undecided - wanted - numbers, numbers - report.settled - given,
    )  # fmt: skip


def by_producer(tallies: Mapping[Origin, Tally], known: set[str]) -> dict[str, Tally]:
    """Return the tallies by producer. In a chain, the last producer that reports on the topic counts, or else the last
    one.
    """
    found: dict[str, Tally] = {}
    for origin, tally in tallies.items():
        reporting = [at for at, producer in enumerate(origin.producers) if producer in known]
        if origin.at == (reporting[-1] if reporting else len(origin.producers) - 1):
            found.setdefault(origin.producer, Tally()).add(tally.rows, tally.numbers)
    return found


def _by_server(each: Sequence[OfProducer], passed: bool) -> dict[str, ServerCounts]:
    found: dict[str, ServerCounts] = {}
    for one in each:
        before = found.get(one.server, ServerCounts(0, 0))
        absent = len(one.missing) + len(one.lost) if passed else 0
        found[one.server] = ServerCounts(before.reported + one.reported, before.missing + absent)
    return {server: found[server] for server in sorted(found)}


def _faults(each: Sequence[OfProducer]) -> Iterator[Fault]:
    for one in each:
        for kind in ("missing", "lost", "unreported"):
            for first, last in runs(getattr(one, kind), MOST_FAULTS):
                yield Fault(kind, one.server, one.producer, first, last)


def runs(numbers: BitMap64, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of runs of consecutive numbers, at most `most` runs."""
    position = 0
    while most and (first := _next(numbers, position)) is not None:
        low, high = first, numbers.max() + 1  # the end of the run is between the two
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
