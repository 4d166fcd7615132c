"""Kill loaders, their workers and their brokers repeatedly, and check that the lake equals the log at the end.

    python -m tests.kills --kills 50 --messages 5000000 --seed 1

A round has a lake and a topic, to which an idempotent producer writes all the time. Its loader is either run repeatedly
(`pylogd load`, sometimes with `--compact`: an "incremental" round) or runs continuously (`--follow`: "streaming"), with
Spark in one process or on Spark's local cluster, with executors in separate processes. For each kill of the plan the
harness waits for its moment, kills, restarts what a user would restart (the broker; a loader that has ended), and waits
for a commit that is newer than the kill. Then the rest is loaded without kills, and lake and log are compared.

Rules: a round is determined by its seed, except for when a process reaches a moment. After a kill a loader may end with
an error whose last line gives the reason. It may not hang or end with a traceback.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pylogd.base.ports import free_ports
from pylogd.client import Admin, NewTopic
from pylogd.local.broker import BrokerProcess
from tests.kills.comparing import LakeFault, check_history, compare
from tests.kills.lakes import RoundLake
from tests.kills.loading import LOCAL, PROGRESS_SECONDS, Compactor, Loads, compaction
from tests.kills.outcomes import RoundOutcome, from_json
from tests.kills.plan import Kill, Moment, Victim, plan
from tests.kills.processes import Loader, kill
from tests.kills.writer import PARTITIONS, Writer

MOMENT_SECONDS = 180.0  # how long to wait for a moment before killing anyway
IDLE_SECONDS = 3.0  # so long after the last commit more is written, since an idle loader reaches no moments
CLUSTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a round: its kills, and the number of messages."""

    kills: int
    messages: int
    seed: int
    streaming: bool
    master: str = LOCAL
    store: str = "local"
    compactor: bool = False

    @property
    def name(self) -> str:
        """For people."""
        more = ("" if self.store == "local" else f", {self.store}") + (", beside a compactor" if self.compactor else "")
        return f"{'streaming' if self.streaming else 'incremental'}, {self.master}{more}"


@dataclass(slots=True)
class Outcome(RoundOutcome):
    """The outcome of a round."""

    commits: int = 0
    compared: int = 0

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Return the outcome that `as_json` has written."""
        return from_json(text, cls, Setting, Victim, Moment)


class Round:
    """A round with its lake, loader and kills."""

    def __init__(self, setting: Setting, lake: RoundLake, folder: Path, tell: Callable[[str], None]) -> None:
        self._setting = setting
        self._lake = lake
        self._tell = tell
        self._folder = folder
        self._loads = Loads(lake, folder, setting.master)
        self._topic = f"kills-{setting.seed}"
        self._rng = random.Random(f"{setting.seed} runs")
        self._port = free_ports(1)[0]
        self._broker = self._start_broker()
        self._share = setting.messages // (setting.kills + 1)
        self._writer = Writer(self._broker.address, self._topic, setting.messages, setting.seed)
        self._loader: Loader | None = None
        self._compactor = Compactor(self._loads, lake)
        self._seen, self._seen_at = 0, time.monotonic()
        self.outcome = Outcome(setting, ends=self._loads.ends)

    def run(self) -> Outcome:
        """Run the round. Raises LakeFault."""
        begun = time.monotonic()
        try:
            with Admin(self._broker.address) as admin:
                admin.create_topics([NewTopic(self._topic, PARTITIONS, 1, {"retention.ms": "-1"})])
            self._writer.start()
            self._warm_up()
            for number, each in enumerate(plan(self._setting.kills, self._setting.seed, executors=self._on_cluster)):
                self._writer.allow(self._share * (number + 2))  # the loader always has something to do
                before = time.monotonic()
                moment, said = self._strike(each)
                self.outcome.deaths[each.victim, moment] += 1
                self._tell(
                    f"kill {number + 1:3d}  {each.victim}, {moment}; then {said}; {self._commits()} commits "
                    f"({time.monotonic() - before:.0f} s)"
                )
            self._finish()
        finally:
            self._loads.kill_all()
            self._broker.kill()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    @property
    def _on_cluster(self) -> bool:
        return self._setting.master.startswith("local-cluster")

    def _start_broker(self) -> BrokerProcess:
        return BrokerProcess(self._folder / "data", self._folder / "broker.log", port=self._port)

    def _warm_up(self) -> None:
        """Load without kills, and write an archive that makes later starts of Spark faster."""
        self._writer.allow(self._share)
        self._loads.complete([self._topic, "--to", self._lake.url, "-b", self._broker.address], LOCAL)

    # The loader -----------------------------------------------------------------------------------------------------

    def _running(self) -> Loader:
        """Return the loader, restarted if it has ended, as a service manager or a timer does."""
        if self._setting.compactor:
            self._compactor.keep()
        loader = self._loader
        if loader is not None and loader.process.poll() is None:
            return loader
        if loader is not None:
            self._loads.note_end(loader)
        if self._writer.error is not None:
            raise LakeFault(f"the writer failed: {self._writer.error!r}")
        self._loader = self._loads.start(self._arguments())
        return self._loader

    def _arguments(self) -> list[str]:
        if not self._setting.streaming and self._rng.random() < 0.15:
            return compaction(self._lake)
        most = ["--max-offsets", str(max(self._share * 2 // 3, 1))]
        follow = ["--follow", "--interval", "0.5"] if self._setting.streaming else []
        return [self._topic, "--to", self._lake.url, "-b", self._broker.address, *most, *follow]

    # A kill ---------------------------------------------------------------------------------------------------------

    def _strike(self, each: Kill) -> tuple[Moment, str]:
        """Wait for the moment, kill, and wait for a later commit. Return the moment and the outcome."""
        moment, victims = self._wait_for(each)
        loader = self._running()
        commits = self._commits()
        if each.victim is Victim.BROKER:
            self._broker.kill()
            time.sleep(each.pause)
            self._broker = self._start_broker()
        elif each.victim is Victim.LOADER:
            loader.kill_all()
            self._compactor.kill()
        else:
            kill(victims)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while self._commits() <= commits:
            self._running()
            self._keep_busy()
            if time.monotonic() > deadline:
                raise LakeFault(f"no commit in {PROGRESS_SECONDS:.0f} s after {each}; {loader.output()[-4000:]}")
            time.sleep(0.02)
        if loader.process.poll() is None:
            self.outcome.survived += 1
            return moment, "it went on"
        return moment, "it was started again" if loader.process.returncode else "it ended well"

    def _wait_for(self, each: Kill) -> tuple[Moment, list[int]]:
        """Wait for the moment. Return it, and the processes to kill."""
        deadline = time.monotonic() + MOMENT_SECONDS
        moment = each.moment
        if moment is Moment.ANY:
            time.sleep(each.delay)
        while True:
            if time.monotonic() > deadline:
                moment = Moment.ANY
            if moment is Moment.ANY or self._is_now(moment):
                if each.delay and moment is not Moment.ANY:
                    time.sleep(each.delay)
                victims = self._victims(each)
                if victims or each.victim is Victim.BROKER:
                    return moment, victims
            self._running()
            self._keep_busy()
            time.sleep(self._lake.look_seconds)

    def _keep_busy(self) -> None:
        """Have more messages written if the loader would be idle, as the moment may have passed unseen."""
        commits, now = self._commits(), time.monotonic()
        if commits != self._seen:
            self._seen, self._seen_at = commits, now
        elif now - self._seen_at > IDLE_SECONDS:
            self._seen_at = now
            self._writer.trickle()

    def _is_now(self, moment: Moment) -> bool:
        match moment:
            case Moment.WORKING:
                return bool(self._running().workers())
            case Moment.WRITING:
                return self._lake.is_staging()
            case Moment.DECIDING:
                return self._lake.is_deciding()
            case _:
                return self._lake.is_applying()

    def _victims(self, each: Kill) -> list[int]:
        loader = self._running()
        match each.victim:
            case Victim.BROKER:
                return []
            case Victim.LOADER | Victim.DRIVER:
                return [loader.process.pid]
            case Victim.JVM:
                return loader.drivers_jvm()
            case Victim.EXECUTOR:
                found = loader.executors()
            case Victim.WORKER:
                found = loader.workers()
        return [found[each.pick % len(found)]] if found else []

    def _commits(self) -> int:
        return self._lake.commits()

    # The end --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Load the rest without kills, and compare."""
        self._writer.allow(self._setting.messages)
        self._writer.join(PROGRESS_SECONDS)
        if self._writer.error is not None or self._writer.is_alive():
            raise LakeFault(f"the writer failed: {self._writer.error!r}")
        self._loads.kill_all()
        self._loads.complete([self._topic, "--to", self._lake.url, "-b", self._broker.address])
        self.outcome.commits = check_history(self._lake)
        self.outcome.compared = compare(self._broker.address, self._topic, self._lake)
        if self.outcome.compared != self._setting.messages:
            raise LakeFault(f"{self._setting.messages} messages were sent, {self.outcome.compared} were found")
