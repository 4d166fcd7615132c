"""Kill mirror, loader and compactor of a pipeline together, and compare its three ends row by row.

    python -m tests.kills --mirror --kills 50 --messages 5000000 --seed 1

A round is a pipeline: a producer writes to a serving cluster, `pylogd mirror` copies to an analysis cluster in
transactions, `pylogd load --follow` loads the committed records into a lake, and `pylogd load --compact` runs beside it
again and again. For each strike of the plan the harness waits for its moment, kills a part of all three (every second
time also a broker) before any is started again, and starts what a service manager would. Then it waits until records
that were copied after the strike are in the lake. At the end everything is copied, loaded and compacted without kills,
and the log of the serving cluster, that of the analysis cluster, and the lake are compared.

Rules: as in `harness`. A process of the mirror may not end by itself, nor meet an error that it does not expect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_ports
from pylogd.client import Admin, Consumer, NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from tests.kills.comparing import LakeFault, check_history, compare, compare_copy
from tests.kills.lakes import RoundLake
from tests.kills.loading import PROGRESS_SECONDS, Compactor, Loads, compaction
from tests.kills.mirroring import Mirror
from tests.kills.outcomes import RoundOutcome, from_json
from tests.kills.processes import Loader, kill, of_session
from tests.kills.strikes import Moment, Strike, Victim, strikes
from tests.kills.writer import PARTITIONS, Writer

_MOMENT_SECONDS = 45.0  # how long to wait for a moment before striking anyway
_STRIKE_SECONDS = 15.0  # the producer is as fast as if each strike took so long
_IDLE_SECONDS = 2.0  # so long after the last commit more is written, since an idle loader reaches no moments
_ASK_SECONDS = 0.5  # how often a cluster is asked for its ends
_COMPACTED_COMMITS = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a round: its strikes, and the number of messages."""

    kills: int
    messages: int
    seed: int
    store: str = "local"


@dataclass(slots=True)
class Outcome(RoundOutcome):
    """The outcome of a round. killed: how many processes. longest: seconds from a strike until later records were in
    the lake.
    """

    commits: int = 0
    compactions: int = 0
    compared: int = 0
    killed: int = 0
    longest: float = 0.0

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Return the outcome that `as_json` has written."""
        return from_json(text, cls, Setting, Victim, Moment)


class Cluster:
    """A cluster of one broker, which can be killed and started again."""

    def __init__(self, folder: Path, name: str) -> None:
        (port,) = free_ports(1)
        self._start = lambda: BrokerProcess(folder / name, folder / f"{name}.log", port=port)
        self._broker = self._start()
        self.address = self._broker.address

    @property
    def pid(self) -> int:
        """The process."""
        return self._broker.process.pid

    def start_again(self) -> None:
        """Start the broker, which was killed."""
        self._broker.kill()
        self._broker = self._start()

    def kill(self) -> None:
        """Kill the broker."""
        self._broker.kill()


class Pipeline:
    """A round with its clusters, mirror, loader, lake and strikes."""

    def __init__(self, setting: Setting, lake: RoundLake, folder: Path, tell: Callable[[str], None]) -> None:
        self._setting, self._lake, self._folder, self._tell = setting, lake, folder, tell
        self._loads = Loads(lake, folder)
        self._topic = f"kills-{setting.seed}"
        self._share = setting.messages // (setting.kills + 2)  # one for the first load, one that stays for idle times
        self._compactor = Compactor(self._loads, lake, _COMPACTED_COMMITS)
        self._loader: Loader | None = None
        self._seen, self._seen_at = 0, time.monotonic()
        self.outcome = Outcome(setting, ends=self._loads.ends)

    def run(self) -> Outcome:
        """Run the round. Raises LakeFault."""
        begun = time.monotonic()
        with ExitStack() as stack:
            zookeeper = stack.enter_context(LocalZooKeeper(self._folder / "zookeeper"))
            self._serving, self._analysis = Cluster(self._folder, "serving"), Cluster(self._folder, "analysis")
            stack.callback(self._serving.kill)
            stack.callback(self._analysis.kill)
            self._mirror = Mirror(
                self._folder, zookeeper.hosts, self._serving.address, self._analysis.address, self._topic
            )  # fmt: skip
            stack.callback(self._mirror.kill)
            stack.callback(self._loads.kill_all)
            self._begin()
            for number, each in enumerate(strikes(self._setting.kills, self._setting.seed)):
                self._writer.allow(self._share * (number + 2))
                self._tell(f"strike {number + 1:3d}  {self._strike(each)}")
            self._finish()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def _begin(self) -> None:
        """Start everything, and load a first time."""
        with Admin(self._serving.address) as admin:
            admin.create_topics([NewTopic(self._topic, PARTITIONS, 1, {"retention.ms": "-1"})])
        self._writer = Writer(
            self._serving.address, self._topic, self._setting.messages, self._setting.seed,
            a_second=self._share / _STRIKE_SECONDS,
        )  # fmt: skip
        self._writer.start()
        self._writer.allow(self._share)
        self._mirror.keep()
        self._until(lambda: all(self._copied().values()), "records of all partitions at the analysis cluster")
        if not self._loads.classes.exists():
            self._loads.complete(self._load_arguments())

    # What a service manager does ------------------------------------------------------------------------------------

    def _tend(self) -> Loader:
        """Start again what has ended, and have more written if the loader would be idle. Return the loader."""
        self._mirror.keep()
        if self._writer.error is not None:
            raise LakeFault(f"the writer failed: {self._writer.error!r}")
        if self._loader is None or self._loader.process.poll() is not None:
            if self._loader is not None:
                self._loads.note_end(self._loader)
            self._loader = self._loads.start([*self._load_arguments(), "--follow", "--interval", "0.5"])
        self._compactor.keep()
        commits, now = self._lake.commits(), time.monotonic()
        if commits != self._seen:
            self._seen, self._seen_at = commits, now
        elif now - self._seen_at > _IDLE_SECONDS:
            self._seen_at = now
            if self._writer.is_exhausted:
                raise LakeFault("all messages are written before the last strike is over: give the rounds more")
            self._writer.trickle()
        return self._loader

    def _load_arguments(self) -> list[str]:
        most = ["--max-offsets", str(max(self._share * 2 // 3, 1))]
        return [self._topic, "--to", self._lake.url, "-b", self._analysis.address, "--isolation", "committed", *most]

    def _until(self, condition: Callable[[], object], what: str, *, tend: bool = False) -> None:
        """Wait for a condition; errors of clusters that are down count as not yet. Raises LakeFault."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        while True:
            if tend:
                self._tend()
            else:
                self._mirror.keep()
            try:
                if condition():
                    return
            except PylogdError:
                pass
            if time.monotonic() > deadline:
                said = self._loader.output()[-3000:] if self._loader else ""
                raise LakeFault(f"waited in vain for {what}; mirror:\n{self._mirror.log()}\nloader:\n{said}")
            time.sleep(_ASK_SECONDS)

    def _copied(self) -> dict[int, int]:
        """Return the ends of the partitions at the analysis cluster, as readers of committed records see them."""
        with Consumer(self._analysis.address, isolation="committed", prefetch=False) as consumer:
            places = consumer.partitions(self._topic)
            return {place[1]: end for place, end in consumer.end_offsets(places).items()}

    # A strike -------------------------------------------------------------------------------------------------------

    def _strike(self, each: Strike) -> str:
        """Wait for the moment, kill, and wait until later records are in the lake. Return what happened, for people."""
        moment, pids = self._wait_for(each)
        commits = self._lake.commits()
        kill(pids)
        struck = time.monotonic()
        loader, compactor = self._loader, self._compactor.running
        for victim in each.victims:
            self.outcome.deaths[victim, moment] += 1
        self.outcome.killed += len(pids)
        if Victim.LOADER in each.victims and loader is not None:
            loader.kill_all()  # those that were started meanwhile
        if compactor is not None:
            compactor.kill_all()
        self._start_brokers(each, struck)
        copied: dict[int, int] = {}
        self._until(lambda: copied.update(self._copied()) is None, "the analysis cluster", tend=True)
        later: dict[int, int] = {}
        self._until(lambda: later.update(self._copied()) is None and _is_ahead(later, copied), "the mirror", tend=True)
        copied_on = time.monotonic() - struck
        self._until(lambda: not _is_ahead(later, self._lake.loaded(self._topic)), "the loader", tend=True)
        took = time.monotonic() - struck
        self.outcome.longest = max(self.outcome.longest, took)
        if each.compacts:
            self._until(lambda: self._lake.compactions(commits), "a compaction", tend=True)
        if loader is self._loader:
            self.outcome.survived += 1
        names = ", ".join(victim.name.lower() for victim in each.victims)
        return (
            f"{names}; {moment}; {len(pids)} processes; later records were copied within {copied_on:.0f} s, and loaded "
            f"within {took:.0f} s"
        )

    def _start_brokers(self, each: Strike, struck: float) -> None:
        """Start the brokers again that were killed, after a pause. Everything else is started meanwhile."""
        for victim, cluster in self._clusters().items():
            if victim in each.victims:
                while time.monotonic() < struck + each.pause:
                    self._tend()
                    time.sleep(self._lake.look_seconds)
                cluster.start_again()

    def _clusters(self) -> dict[Victim, Cluster]:
        return {Victim.SERVING: self._serving, Victim.ANALYSIS: self._analysis}

    def _wait_for(self, each: Strike) -> tuple[Moment, list[int]]:
        """Wait for the moment. Return it, and the processes to kill."""
        deadline = time.monotonic() + _MOMENT_SECONDS
        moment = each.moment
        while True:
            loader = self._tend()
            if time.monotonic() > deadline:
                moment = Moment.ANY
            if self._is_now(moment, loader) and self._victims(each):
                time.sleep(each.delay)
                if found := self._victims(each):
                    return moment, found
            time.sleep(self._lake.look_seconds)

    def _is_now(self, moment: Moment, loader: Loader) -> bool:
        match moment:
            case Moment.ANY:
                return True
            case Moment.WORKING:
                return bool(loader.workers())
            case Moment.LOADING:
                return self._lake.stages_for(compaction=False)
            case Moment.COMPACTING:
                return self._lake.stages_for(compaction=True)
            case _:
                return self._lake.is_applying()

    def _victims(self, each: Strike) -> list[int]:
        """Return the processes to kill; nothing while a victim does not run."""
        found: list[int] = []
        for victim in each.victims:
            pids = self._processes(victim, each.pick)
            if not pids:
                return []
            found += pids
        return found

    def _processes(self, victim: Victim, pick: int) -> list[int]:
        loader, compactor = self._loader, self._compactor.running
        if loader is None:
            return []
        match victim:
            case Victim.CONTROLLER:
                return self._mirror.controller()
            case Victim.MIRROR_WORKER:
                return self._mirror.workers()[:1] if self._mirror.controller() else []
            case Victim.MIRROR:
                return self._mirror.all()
            case Victim.LOADER:
                return _session(loader)
            case Victim.DRIVER:
                return [loader.process.pid] if loader.drivers_jvm() else []
            case Victim.JVM:
                return loader.drivers_jvm()
            case Victim.PYTHON_WORKER:
                workers = loader.workers()
                return [workers[pick % len(workers)]] if workers else []
            case Victim.COMPACTOR:
                return _session(compactor)
            case _:
                return [self._clusters()[victim].pid]

    # The end --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Copy, load and compact the rest without kills, and compare."""
        self._writer.allow(self._setting.messages)
        self._writer.join(PROGRESS_SECONDS)
        if self._writer.error is not None or self._writer.is_alive():
            raise LakeFault(f"the writer failed: {self._writer.error!r}")
        self._loads.kill_all()
        self._until(lambda: self._mirror.lag() == 0, "that everything is copied")
        self._loads.complete(self._load_arguments()[:-2])
        self._loads.complete(compaction(self._lake))
        self._mirror.check_logs()
        self.outcome.commits = check_history(self._lake, gaps=True)
        self.outcome.compactions = self._lake.compactions(0)
        copied = compare_copy(self._serving.address, self._analysis.address, self._topic, self._setting.messages)
        self.outcome.compared = compare(self._analysis.address, self._topic, self._lake, "committed")
        sent, found = self._setting.messages, self.outcome.compared
        if not found == copied == sent:
            raise LakeFault(f"{sent} messages were sent, {copied} are in the copy, {found} in the lake")


def _session(loader: Loader | None) -> list[int]:
    """Return the processes of a run of `pylogd load`, once it has a JVM."""
    if loader is None or not loader.drivers_jvm():
        return []
    return [each.pid for each in of_session(loader.process.pid)]


def _is_ahead(some: dict[int, int], others: dict[int, int]) -> bool:
    """Return whether a partition is further than in `others`."""
    return any(end > others.get(partition, 0) for partition, end in some.items())
