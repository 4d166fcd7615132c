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
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pylogd.client import Admin, NewTopic, Producer
from pylogd.local.broker import BrokerProcess, free_ports
from pylogd.wire.records import NewRecord
from tests.kills.comparing import LakeFault, check_history, compare
from tests.kills.lakes import RoundLake
from tests.kills.outcomes import RoundOutcome, from_json
from tests.kills.plan import Kill, Moment, Victim, plan
from tests.kills.processes import Loader, kill

PARTITIONS = 4
START_MS = 1_700_000_000_000
STEP_MS = 4  # between the time stamps of two messages: a million messages take more than an hour
SET = 500
PROGRESS_SECONDS = 600.0
MOMENT_SECONDS = 180.0  # how long to wait for a moment before killing anyway
COMPACTED_COMMITS = 3  # so many commits are made from one compaction to the next
IDLE_SECONDS = 3.0  # so long after the last commit more is written, since an idle loader reaches no moments
LOCAL = "local[2,4]"
CLUSTER = "local-cluster[2,1,1024]"
_LOOK_SECONDS = 0.002


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


class Writer(threading.Thread):
    """Write the topic's messages in a thread, up to an allowed number."""

    def __init__(self, address: str, topic: str, messages: int, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._address, self._topic, self._messages = address, topic, messages
        self._rng = random.Random(seed)
        self._noise = self._rng.randbytes(1 << 16)
        self._allowed = 0
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def allow(self, messages: int) -> None:
        """Allow writing up to `count` messages."""
        with self._changed:
            self._allowed = max(self._allowed, min(messages, self._messages))
            self._changed.notify()

    def trickle(self) -> None:
        """Allow one more set of messages."""
        self.allow(self._allowed + SET)

    def run(self) -> None:
        try:
            with Producer(self._address, idempotence=True, compression="zstd") as producer:
                for number in range(0, self._messages, SET):
                    behind = min(number + SET, self._messages)
                    self._wait_until_allowed(behind)
                    some = [self._record(each) for each in range(number, behind)]
                    producer.send_set(self._topic, some, partition=number // SET % PARTITIONS)
        except BaseException as error:
            self.error = error

    def _wait_until_allowed(self, messages: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: messages <= self._allowed)

    def _record(self, number: int) -> NewRecord:
        """Return a message with an incompressible value of up to 200 bytes. Every 50th value is null."""
        at, size = self._rng.randrange(1 << 16), self._rng.randrange(200)
        value = None if number % 50 == 49 else b"%d/%b" % (number, self._noise[at : at + size])
        headers = [("n", b"%d" % number)] if number % 20 == 0 else []
        return NewRecord(b"key %d" % (number % 1000), value, START_MS + number * STEP_MS, headers)


class Round:
    """A round with its lake, loader and kills."""

    def __init__(self, setting: Setting, lake: RoundLake, folder: Path, tell: Callable[[str], None]) -> None:
        self._setting = setting
        self._lake = lake
        self._tell = tell
        self._folder = folder
        self._scratch = folder / "spark"
        self._scratch.mkdir(parents=True)
        self._topic = f"kills-{setting.seed}"
        self._rng = random.Random(f"{setting.seed} runs")
        self._port = free_ports(1)[0]
        self._broker = self._start_broker()
        self._share = setting.messages // (setting.kills + 1)
        self._writer = Writer(self._broker.address, self._topic, setting.messages, setting.seed)
        self._loader: Loader | None = None
        self._loaders: list[Loader] = []
        self._compactor: Loader | None = None
        self._compacted = 0  # the number of commits when the last compaction began
        self._seen, self._seen_at = 0, time.monotonic()
        self.outcome = Outcome(setting)

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
            for loader in self._loaders:
                loader.kill_all()
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
        arguments = [self._topic, "--to", self._lake.url, "-b", self._broker.address]
        loader = self._start(arguments, LOCAL)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while not loader.ended():
            if time.monotonic() > deadline:
                raise LakeFault(f"the first load did not end:\n{loader.output()[-6000:]}")
            time.sleep(0.1)
        if loader.process.returncode:
            raise LakeFault(f"the first load failed:\n{loader.output()[-6000:]}")

    # The loader -----------------------------------------------------------------------------------------------------

    def _running(self) -> Loader:
        """Return the loader, restarted if it has ended, as a service manager or a timer does."""
        if self._setting.compactor:
            self._keep_compacting()
        loader = self._loader
        if loader is not None and loader.process.poll() is None:
            return loader
        if loader is not None:
            self._ended(loader)
        if self._writer.error is not None:
            raise LakeFault(f"the writer failed: {self._writer.error!r}")
        self._loader = self._start(self._arguments())
        return self._loader

    def _keep_compacting(self) -> None:
        """Run a compaction after some commits."""
        if self._compactor is not None and self._compactor.process.poll() is None:
            return
        if self._compactor is not None:
            self._ended(self._compactor)
            self._compactor = None
        if self._commits() >= self._compacted + COMPACTED_COMMITS:
            self._compacted = self._commits()
            self._compactor = self._start(["--to", self._lake.url, "--compact", "--target-mb", "64"], LOCAL)

    def _start(self, arguments: list[str], master: str | None = None) -> Loader:
        log, classes = self._folder / "loader.log", self._folder.parent / "classes.jsa"
        settings = self._lake.settings
        loader = Loader(arguments, log, master or self._setting.master, self._scratch, classes, settings)
        self._loaders.append(loader)
        return loader

    def _arguments(self) -> list[str]:
        if not self._setting.streaming and self._rng.random() < 0.15:
            return ["--to", self._lake.url, "--compact", "--target-mb", "64"]
        most = ["--max-offsets", str(max(self._share * 2 // 3, 1))]
        follow = ["--follow", "--interval", "0.5"] if self._setting.streaming else []
        return [self._topic, "--to", self._lake.url, "-b", self._broker.address, *most, *follow]

    def _ended(self, loader: Loader) -> None:
        """Note how."""
        if loader.process.returncode in (0, -9):
            return
        said = loader.output()
        last = (said.strip().splitlines() or [""])[-1]
        if not last.startswith("Error: "):
            raise LakeFault(f"a loader ended by {loader.process.returncode} without an error message:\n{said[-6000:]}")
        self.outcome.ends[last] += 1

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
            if self._compactor is not None:
                self._compactor.kill_all()
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
            time.sleep(_LOOK_SECONDS)

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
                return self._commits() > self._lake.commits(".done")

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
        for loader in self._loaders:
            loader.kill_all()
        last = self._start([self._topic, "--to", self._lake.url, "-b", self._broker.address])
        if last.process.wait(PROGRESS_SECONDS):
            raise LakeFault(f"the last load failed:\n{last.output()[-6000:]}")
        self.outcome.commits = check_history(self._lake)
        self.outcome.compared = compare(self._broker.address, self._topic, self._lake)
        if self.outcome.compared != self._setting.messages:
            raise LakeFault(f"{self._setting.messages} messages were sent, {self.outcome.compared} were found")
