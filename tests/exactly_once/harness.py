"""Kill a query, its workers and its brokers repeatedly, and check that each of its counts was written exactly once.

A round has two topics, to which a producer writes events in transactions, some of them aborted, and a query that counts
them in windows and writes the counts to a third topic in transactions (`examples/counts_exactly_once.py`). For each
kill of the plan the harness waits for its moment, kills, restarts what a user would restart (the broker; a query that
has ended), and waits until Spark has noted a later epoch. Then the rest is counted without kills, and what consumers of
committed records read is compared with the counts of a plain loop over the events.

Rules: a round is determined by its seed, except for when a process reaches a moment. A query that does not go on is a
fault, as is one that ends without a reason.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_ports
from pylogd.client import Admin, NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.local.cluster import LocalCluster
from tests.exactly_once.events import (
    PARTITIONS,
    CountFault,
    Writer,
    check,
    expected_counts,
    write_sentinels,
    written_counts,
)
from tests.exactly_once.plan import Kill, Moment, Victim, plan
from tests.exactly_once.query import TARGET, TOPICS, Checkpoint, QueryProcess, is_open, recorded
from tests.kills.outcomes import RoundOutcome, from_json
from tests.kills.processes import kill
from tests.sparks import is_slow_start

T = TypeVar("T")
PROGRESS_SECONDS = 240.0
MOMENT_SECONDS = 30.0  # how long to wait for a moment before killing anyway
AHEAD = 9000  # events that the query has not read yet
SETTINGS = {
    "offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}  # fmt: skip
#: A line with which a program in Python ends by an exception, and what differs between two of the same kind.
_REASON = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Committed|Checkpoint)\b.*", re.MULTILINE)
_IDS = re.compile(r"\[?(?:id|runId) = [-0-9a-f]+[],]?")
_LOOK_SECONDS = 0.001
_ADMIN_SECONDS = 2.0  # for a look at brokers, of which some may be dead


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a round. brokers: how many there are."""

    kills: int
    seed: int
    brokers: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.brokers} broker{'s' * (self.brokers > 1)}"


@dataclass(slots=True)
class Outcome(RoundOutcome):
    """The outcome of a round. repeated: how many epochs the sink was given again after it had committed them."""

    repeated: int = 0
    epochs: int = 0
    events: int = 0
    counts: int = 0

    @property
    def kills(self) -> int:
        """How many kills there were. The plan may have more, if time was over."""
        return self.deaths.total()

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Return the outcome that `as_json` has written."""
        return from_json(text, cls, Setting, Victim, Moment)


class Brokers(Protocol):
    """The brokers of a round."""

    bootstrap: str

    def restart(self, pick: int, pause: float) -> None:
        """Kill one of them, and start it again after so many seconds."""

    def close(self) -> None:
        """End all of them."""


class OneBroker:
    """A broker with a metadata store of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(1)[0]
        self._broker = self._start()
        self.bootstrap = self._broker.address

    def _start(self) -> BrokerProcess:
        return BrokerProcess(self._folder / "data", self._folder / "broker.log", SETTINGS, port=self._port)

    def restart(self, pick: int, pause: float) -> None:
        """See `Brokers`."""
        self._broker.kill()
        time.sleep(pause)
        self._broker = self._start()

    def close(self) -> None:
        """See `Brokers`."""
        self._broker.kill()


class ManyBrokers:
    """A cluster whose topics have three replicas."""

    def __init__(self, folder: Path, count: int) -> None:
        self._cluster = LocalCluster(folder / "cluster", count, settings={**SETTINGS, "min.insync.replicas": "2"})
        self._cluster.__enter__()
        self.bootstrap = self._cluster.bootstrap

    def restart(self, pick: int, pause: float) -> None:
        """See `Brokers`."""
        node = sorted(self._cluster.ports)[pick % len(self._cluster.ports)]
        self._cluster.kill(node)
        time.sleep(pause)
        self._cluster.start(node)

    def close(self) -> None:
        """See `Brokers`."""
        self._cluster.kill_all()
        self._cluster.close()


class Round:
    """A round with its brokers, query and kills."""

    def __init__(self, setting: Setting, folder: Path, tell: Callable[[str], None], longest: float = math.inf) -> None:
        """`longest`: seconds after which no further kill begins."""
        self._setting = setting
        self._longest = longest
        self._tell = tell
        self._folder = folder
        self._scratch = folder / "spark"
        self._scratch.mkdir(parents=True)
        self._classes = folder.parent / "classes.jsa"
        self._brokers: Brokers = OneBroker(folder) if setting.brokers == 1 else ManyBrokers(folder, setting.brokers)
        self._bootstrap = self._brokers.bootstrap
        self._admin = Admin(self._bootstrap, retry_timeout=_ADMIN_SECONDS, request_timeout=_ADMIN_SECONDS)
        self._writer = Writer(self._bootstrap, TOPICS, setting.seed)
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._query: QueryProcess | None = None
        self._queries: list[QueryProcess] = []
        self.outcome = Outcome(setting)

    def run(self) -> Outcome:
        """Run the round. Raises CountFault."""
        begun = time.monotonic()
        try:
            with Admin(self._bootstrap) as admin:
                replicas = min(3, self._setting.brokers)
                kept = {"retention.ms": "-1"}  # the events are of 2023
                admin.create_topics([NewTopic(name, PARTITIONS, replicas, kept) for name in (*TOPICS, TARGET)])
            self._writer.start()
            if not self._classes.exists():
                self._warm_up()
            for number, each in enumerate(plan(self._setting.kills, self._setting.seed)):
                before = time.monotonic()
                if before - begun > self._longest:
                    break
                moment, said = self._strike(each)
                self.outcome.deaths[each.victim, moment] += 1
                self._tell(
                    f"kill {number + 1:3d}  {each.victim}, {moment}; then {said}; epoch {self._checkpoint.committed()} "
                    f"({time.monotonic() - before:.0f} s)"
                )
            self._finish()
        finally:
            for query in self._queries:
                query.kill_all()
            self._admin.close()
            self._brokers.close()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    # The query

    def _start(self, *, follow: bool) -> QueryProcess:
        query = QueryProcess(
            self._bootstrap, self._checkpoint.folder, self._folder / "query.log", self._scratch,
            follow=follow, classes=self._classes,
        )  # fmt: skip
        self._queries.append(query)
        return query

    def _running(self) -> QueryProcess:
        """Return the query, restarted if it has ended, as a service manager does."""
        query = self._query
        if query is not None and query.process.poll() is None:
            return query
        if query is not None:
            self._ended(query)
        self._note_repeated()
        self._query = self._start(follow=True)
        return self._query

    def _note_repeated(self) -> None:
        """Count an epoch that is committed, while Spark does not know that and will repeat it."""
        if self._recorded() > self._checkpoint.committed():
            self.outcome.repeated += 1

    def _ended(self, query: QueryProcess) -> None:
        """Note how. Its other processes may live on for a moment, as after a crash."""
        if query.process.returncode == -9:
            return
        said = query.output()
        reasons = _REASON.findall(said)
        if not reasons:
            raise CountFault(f"a query ended by {query.process.returncode} without a reason:\n{said[-2000:]}")
        self.outcome.ends[_IDS.sub("...", reasons[-1])] += 1

    def _warm_up(self) -> None:
        """Count a little without kills, and write an archive that makes later starts of Spark faster."""
        self._writer.allow(self._writer.per_transaction)
        self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        """Have everything counted that there is; again if Spark gave up waiting for its Python process."""
        deadline = time.monotonic() + 2 * PROGRESS_SECONDS
        while True:
            self._note_repeated()
            query = self._start(follow=False)
            while not query.ended():
                if time.monotonic() > deadline:
                    raise CountFault(f"the query did not end:\n{query.output()[-2000:]}")
                time.sleep(0.1)
            if not query.process.returncode:
                return
            if not is_slow_start(RuntimeError(query.output())):
                raise CountFault(f"the query failed without kills:\n{query.output()[-2000:]}")

    # A kill

    def _strike(self, each: Kill) -> tuple[Moment, str]:
        """Wait for the moment, kill, and wait for a later epoch. Return the moment and the outcome."""
        moment, victims = self._wait_for(each)
        query = self._running()
        epoch = max(self._checkpoint.planned(), self._checkpoint.committed() + 1)
        if each.victim is Victim.BROKER:
            self._brokers.restart(each.pick, each.pause)
        elif each.victim is Victim.QUERY:
            query.kill_all()
        else:
            kill(victims)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while self._checkpoint.committed() <= epoch:
            self._running()
            self._feed()
            if time.monotonic() > deadline:
                raise CountFault(f"no epoch in {PROGRESS_SECONDS:.0f} s after {each}:\n{query.output()[-2000:]}")
            time.sleep(0.02)
        if query is self._query and query.process.poll() is None:
            self.outcome.survived += 1
            return moment, "it went on"
        return moment, "it was started again"

    def _wait_for(self, each: Kill) -> tuple[Moment, list[int]]:
        """Wait for the moment. Return it, and the processes to kill."""
        moment = each.moment
        if moment is Moment.ANY:
            time.sleep(each.delay)
        deadline = time.monotonic() + MOMENT_SECONDS
        while True:
            if time.monotonic() > deadline:
                moment = Moment.ANY
            if moment is Moment.ANY or self._is_now(moment):
                if each.delay and moment is not Moment.ANY:
                    time.sleep(each.delay)
                victims = self._victims(each)
                if victims or each.victim in (Victim.BROKER, Victim.QUERY):
                    return moment, victims
            self._running()
            self._feed()
            time.sleep(_LOOK_SECONDS)

    def _is_now(self, moment: Moment) -> bool:
        match moment:
            case Moment.WORKING:
                return self._checkpoint.planned() > self._checkpoint.committed()
            case Moment.OPEN:
                return self._looked(lambda: is_open(self._admin), False)
            case _:
                return self._recorded() > self._checkpoint.committed()

    def _recorded(self) -> int:
        return self._looked(lambda: recorded(self._admin, self._checkpoint), -1)

    @staticmethod
    def _looked(look: Callable[[], T], otherwise: T) -> T:
        """Return what a look at the brokers says, or `otherwise` while they can't answer."""
        try:
            return look()
        except PylogdError:
            return otherwise

    def _victims(self, each: Kill) -> list[int]:
        query = self._running()
        match each.victim:
            case Victim.BROKER | Victim.QUERY:
                return []
            case Victim.DRIVER:
                return [query.process.pid]
            case Victim.JVM:
                return query.drivers_jvm()
            case _:
                found = query.workers()
        return [found[each.pick % len(found)]] if found else []

    def _feed(self) -> None:
        """Have the writer write a little more than the query has read."""
        self._writer.allow(self._checkpoint.events() + AHEAD)

    # The end

    def _finish(self) -> None:
        """Count the rest without kills, and compare."""
        for query in self._queries:
            query.kill_all()
        self._writer.stop()
        for days in (1, 2):  # what the first sentinels make final is written at the latest beside the second ones
            write_sentinels(self._bootstrap, TOPICS, days)
            self._run_to_the_end()
        outcome = self.outcome
        wanted = expected_counts(self._bootstrap, TOPICS)
        outcome.counts = check(wanted, written_counts(self._bootstrap, TARGET))
        outcome.events, outcome.epochs = wanted.total(), self._checkpoint.committed() + 1
        if self._recorded() > self._checkpoint.committed():
            raise CountFault("an epoch is recorded that Spark does not know")
