"""A run of the chain: producers, balancer, three brokers, consumers, mirror, loader and audit, while all are struck.

Strategy: the producers send at a constant rate, at most to the share of the events that the next strike has. A strike
is due when its share of the events is acknowledged. It kills or freezes its victim, and starts again what a service
manager would. At the end everything catches up without strikes, every count is compared with the producers' own
journals, and the audit's verdicts with the truth.

Rules: no process may end by itself, but for a loader that says why. Every wait has an end.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.client import Admin, NewTopic
from pylogd.local.zookeeper import LocalZooKeeper
from tests.chain import checking
from tests.chain.journals import Sent
from tests.chain.plan import Setting, Strike, Victim, strikes
from tests.chain.scene import Audit, Balancer, ConsumerGroup, Program, Serving
from tests.chain.verdicts import Verdicts
from tests.kills.comparing import LakeFault
from tests.kills.lakes import on_disk
from tests.kills.loading import Loads
from tests.kills.mirroring import Mirror
from tests.kills.pipeline import Cluster
from tests.kills.processes import Loader, kill

TOPIC: Final = "events"
_PATIENCE_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.2
_FULL_SECONDS: Final = 1.5  # so long before a producer is killed its balancer is gone
_FROZEN_LEASES: Final = 2.5


@dataclass(slots=True)
class Outcome:
    """What happened. struck: milliseconds since 1970 and victim. received: events in the log. killed: processes of
    producers. reads: records that were handed out, by group. behind: how many of the consumers that were struck had
    a backlog. latencies: milliseconds from a send to its row, by the time of the send in milliseconds.
    """

    setting: Setting
    struck: list[tuple[int, Victim]] = field(default_factory=list)
    begun_ms: int = 0
    seconds: float = 0.0
    sent: int = 0
    acked: int = 0
    received: int = 0
    lost: int = 0
    reads: dict[str, int] = field(default_factory=dict)
    behind: int = 0
    commits: int = 0
    windows: Counter[str] = field(default_factory=Counter)
    periods: Counter[str] = field(default_factory=Counter)
    latencies: list[tuple[int, int]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


class Chain:
    """All processes of a run."""

    def __init__(self, setting: Setting, folder: Path, tell: Callable[[str], None]) -> None:
        """folder: for data and logs. tell: gets lines of progress."""
        self._setting, self._folder, self._tell = setting, folder, tell
        self._lake = on_disk(folder / "lake")
        self._loads = Loads(self._lake, folder)
        self._loader: Loader | None = None
        self._rng = random.Random(f"{setting.seed} run")
        self._killed: dict[str, list[int]] = {}
        self._producers: dict[str, Program] = {}
        self._steady: ConsumerGroup | None = None
        self._late: list[tuple[ConsumerGroup, Mapping[int, int]]] = []
        self.outcome = Outcome(setting, ends=self._loads.ends)

    def run(self) -> Outcome:
        """Run it. Raises LakeFault."""
        begun = time.monotonic()
        with ExitStack() as stack:
            self._begin(stack)
            plan = strikes(self._setting)
            if self._setting.loads_first:
                self._allow(1 / (len(plan) + 2))
                self._until(self._lake.commits, "the first commit of the loader")
            for number, each in enumerate(plan, 1):
                self._allow((number + 1) / (len(plan) + 2))  # so that events are on their way during the strike
                self._until_share(number / (len(plan) + 2))
                at = time.monotonic()
                self.outcome.struck.append((wall_ms(), each.victim))
                self._strike(each)
                self._tell(f"strike {number:3d}  {each.victim} ({time.monotonic() - at:.0f} s)")
            self._allow(1.0)
            self._finish()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    # The processes --------------------------------------------------------------------------------------------------

    def _begin(self, stack: ExitStack) -> None:
        """Start everything; events are sent once a loader runs."""
        setting, folder = self._setting, self._folder
        zookeeper = stack.enter_context(LocalZooKeeper(folder / "zookeeper", sync=False))
        self._balancer = Balancer(folder)
        stack.callback(self._balancer.kill)
        self._serving = Serving(folder, f"{zookeeper.hosts}/serving", self._balancer, int(setting.session * 1000))
        stack.callback(self._serving.kill_all)
        self._analysis = Cluster(folder, "analysis")
        stack.callback(self._analysis.kill)
        with Admin(self._serving.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, setting.partitions, 3, {"retention.ms": "-1"})])
        self._mirror = Mirror(
            folder, f"{zookeeper.hosts}/mirror", self._serving.bootstrap, self._analysis.address, TOPIC
        )  # fmt: skip
        stack.callback(self._mirror.kill)
        self._mirror.keep()
        stack.callback(self._loads.kill_all)
        self._until(self._copied, "the topic at the mirror's target", tend=False)
        self._tend()
        self._audit = self._make_audit()
        stack.callback(self._audit.kill)
        self._audit.start()
        self._consumers = [
            f"{zookeeper.hosts}/serving", self._balancer.address, TOPIC, str(setting.lease)
        ]  # fmt: skip
        self._steady = self._make_group("steady", setting.members)
        stack.callback(self._end_programs)
        assert self._loader is not None
        self._until(lambda: self._tend().drivers_jvm(), "the loader's JVM")
        self.outcome.begun_ms = wall_ms()
        self._allow(0.0)
        self._tell("everything runs: sending")
        self._producers = {name: self._make_producer(name) for name in self._names}

    @property
    def _names(self) -> list[str]:
        return [f"producer{number}" for number in range(1, self._setting.producers + 1)]

    def _make_producer(self, name: str) -> Program:
        setting = self._setting
        count = setting.events // setting.producers
        arguments = [self._balancer.address, TOPIC, name, count, setting.a_second / setting.producers,
                     setting.window * 1000, setting.padding, self._folder]  # fmt: skip
        return Program("producer", [str(each) for each in arguments], self._folder / f"{name}.err")

    def _make_group(self, name: str, members: int) -> ConsumerGroup:
        group = ConsumerGroup(self._folder, name, self._consumers)
        group.add(members)
        return group

    def _make_audit(self) -> Audit:
        setting = self._setting
        options = {
            "--since": "1m", "--window": setting.window, "--period": setting.period, "--grace": 1, "--interval": 0.5,
        }  # fmt: skip
        stages = (f"mirror=cluster:{self._analysis.address},via=mirror",
                  f"lake=table:{self._folder / 'lake'},from=mirror,markers=true")  # fmt: skip
        arguments = [str(part) for pair in options.items() for part in pair]
        arguments += [part for stage in stages for part in ("--stage", stage)]
        return Audit(self._balancer.address, TOPIC, self._folder, *arguments)

    def _end_programs(self) -> None:
        """Kill producers and consumers."""
        for group in self._groups():
            group.kill_all()
        for producer in self._producers.values():
            producer.kill()

    def _tend(self) -> Loader:
        """Start again what has ended, as a service manager does, and check what may not end. Return the loader."""
        self._mirror.keep()
        if self._loader is None or self._loader.process.poll() is not None:
            if self._loader is not None:
                self._loads.note_end(self._loader)
            self._loader = self._loads.start(
                [TOPIC, "--to", self._lake.url, "-b", self._analysis.address, "--follow", "--interval", "0.5"]
            )
        for group in self._groups():
            group.check()
        for producer in self._producers.values():
            producer.check()
        return self._loader

    def _groups(self) -> list[ConsumerGroup]:
        return [*([self._steady] if self._steady else []), *(group for group, _ in self._late)]

    @property
    def _group(self) -> ConsumerGroup:
        assert self._steady is not None
        return self._steady

    def _until(self, condition: Callable[[], object], what: str, *, tend: bool = True) -> None:
        """Wait for a condition; errors of clusters count as not yet. Raises LakeFault."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            if tend:
                self._tend()
            try:
                if condition():
                    return
            except PylogdError:
                pass
            if time.monotonic() > deadline:
                raise LakeFault(f"waited in vain for {what}; the logs are in {self._folder}")
            time.sleep(_LOOK_SECONDS)

    def _copied(self) -> bool:
        with Admin(self._analysis.address) as admin:
            return TOPIC in {each.name for each in admin.list_topics()}

    def _journals(self) -> dict[str, Sent]:
        return {name: Sent.read(self._folder / f"{name}.journal") for name in self._names}

    def _until_share(self, share: float) -> None:
        """Wait until so much of all events is acknowledged."""
        wanted = share * self._setting.events
        self._until(lambda: self._acked() >= wanted, f"{wanted:.0f} acknowledged events")

    def _allow(self, share: float) -> None:
        """Let the producers send so much of all events."""
        draft = self._folder / "allowed.new"
        draft.write_text(str(int(share * self._setting.events / self._setting.producers)))
        draft.rename(self._folder / "allowed")

    def _acked(self) -> int:
        paths = [self._folder / f"{name}.journal" for name in self._names]
        return sum(path.read_bytes().count(b"\nA ") for path in paths if path.exists())

    # Strikes --------------------------------------------------------------------------------------------------------

    def _strike(self, each: Strike) -> None:
        match each.victim:
            case Victim.BROKER | Victim.CONTROLLER:
                self._strike_broker(each)
            case Victim.MIRROR:
                workers = self._mirror.all()
                kill([workers[each.pick % len(workers)]])
            case Victim.LOADER:
                self._tend().kill_all()
            case Victim.AUDIT:
                self._audit.kill()
                self._pause(each)
                self._audit.start()
            case Victim.BALANCER:
                self._balancer.kill()
                self._pause(each)
                self._balancer.start()
            case Victim.PRODUCER:
                self._strike_producer(each)
            case Victim.CONSUMER | Victim.FREEZE:
                self._strike_consumers(each)

    def _pause(self, each: Strike) -> None:
        end = time.monotonic() + each.pause
        while time.monotonic() < end:
            self._tend()
            time.sleep(_LOOK_SECONDS)

    def _strike_broker(self, each: Strike) -> None:
        """Kill a broker, and start it again. All replicas have to be in sync before: the one killed may be the last."""
        self._until(self._in_sync, "that all replicas are in sync")
        self._until(self._serving.controller, "a controller")
        controller = self._serving.controller() or 1  # a change in between makes it any broker
        others = sorted(set(self._serving.brokers) - {controller})
        node = controller if each.victim is Victim.CONTROLLER else others[each.pick % len(others)]
        self._serving.kill(node)
        self._pause(each)
        self._serving.start(node)

    def _in_sync(self) -> bool:
        topic = self._serving.ask(lambda admin: admin.describe_topic(TOPIC))
        return all(len(partition.isr) == 3 for partition in topic.partitions)

    def _strike_producer(self, each: Strike) -> None:
        """Kill a producer whose buffer has events that can't be sent: those are lost, and the audit has to say so."""
        self._balancer.kill()
        end = time.monotonic() + _FULL_SECONDS
        while time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
        name = self._names[each.pick % len(self._names)]
        self._producers[name].kill()
        sent = Sent.read(self._folder / f"{name}.journal").sent
        self._killed.setdefault(name, []).append(max(sent, default=-1))
        self._balancer.start()
        self._producers[name].start()

    def _strike_consumers(self, each: Strike) -> None:
        """Kill or freeze a member of the group that keeps up, and one of a new group that reads all from the begin."""
        late = self._make_group(f"late{len(self._late) + 1}", 2)
        ends: dict[int, int] = {}
        self._until(lambda: ends.update(self._ends()) is None, "the ends of the log")
        self._late.append((late, ends))
        self._until(lambda: all(member.has_partitions() for member in late.members), "the partitions of a late group")
        time.sleep(each.delay)
        victims = {group: group.members[each.pick % len(group.members)] for group in (self._group, late)}
        for member in victims.values():
            member.signal(signal.SIGSTOP if each.victim is Victim.FREEZE else signal.SIGKILL)
        self.outcome.behind += not late.has_read(ends)
        if each.victim is Victim.FREEZE:
            time.sleep(self._setting.lease * _FROZEN_LEASES)
            for member in victims.values():
                member.signal(signal.SIGCONT)
        else:
            for group, member in victims.items():
                group.kill(member)
            self._pause(each)
            for group in victims:
                group.add(1)
        self._until(lambda: late.has_read(ends), "that a late group has read everything")
        time.sleep(self._setting.lease)  # the one that was frozen has its chance to hand out what is not its own
        late.kill_all()

    def _ends(self) -> dict[int, int]:
        return checking.ends_of(self._serving.bootstrap, TOPIC)

    # The end --------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let everything catch up, and compare."""
        self._until(lambda: all(each.process.poll() == 0 for each in self._producers.values()), "the end of producers")
        self._until(lambda: self._mirror.lag() == 0, "that everything is copied")
        ends = self._ends()
        self._until(lambda: self._group.has_read(ends), "that the group has read everything")
        self._until(self._loaded, "that everything is loaded")
        self._tell("everything has arrived: comparing")
        found, outcome = checking.Found.read(self._serving.bootstrap, TOPIC, self._journals()), self.outcome
        outcome.sent, outcome.acked, outcome.received = found.counts()
        truth = found.windows(self._killed, self._setting.window * 1000)
        outcome.lost = sum(window.lost for window in truth.values())
        groups = [(self._group, ends), *self._late]
        outcome.reads = {group.name: checking.check_reads(group, until) for group, until in groups}
        verdicts = Verdicts(self._serving.bootstrap, TOPIC)
        outcome.periods = verdicts.check_periods(truth, self._setting.period * 1000)
        outcome.windows = verdicts.check_windows(truth)
        self._loads.kill_all()
        outcome.commits = checking.check_copies(found, self._analysis.address, TOPIC, self._lake)
        outcome.latencies = checking.latencies(self._folder / "lake")
        self._mirror.check_logs()
        self._end_services()

    def _loaded(self) -> bool:
        return self._lake.loaded(TOPIC) == checking.ends_of(self._analysis.address, TOPIC)

    def _end_services(self) -> None:
        """End audit and brokers cleanly. Raises LakeFault for what they logged that nobody expects."""
        if self._audit.end(signal.SIGTERM) or "Traceback" in self._audit.log():
            raise LakeFault(f"the audit's service:\n{self._audit.log()[-4000:]}")
        self._mirror.kill()
        self._group.kill_all()
        faults = self._serving.close()
        if faults:
            raise LakeFault("\n".join(faults))
