"""The acts of a fleet: placement, fail-over from each fault, expansion and decommission, mirror, comparison."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylogd.local.zookeeper import LocalZooKeeper
from tests.commands import run_command
from tests.fleet.cluster import FACTOR, LABELS, SIZE, Fleet, Place, running
from tests.fleet.faults import FAULTS, Fault, heal, strike
from tests.fleet.load import LabelLoad
from tests.fleet.mirroring import FleetMirror, MirrorAct
from tests.fleet.outage import Outage, Probes, measure

#: What Kuaishou's talk names as the time in which a dead broker is detected and replaced.
BOUND_SECONDS: Final = 6.0
_HEAL_SECONDS: Final = 120.0
#: Between a fault's end and the next one: the writers' records come in time again.
_CALM_SECONDS: Final = 3.0
_TOPICS: Final = 10


@dataclass(slots=True)
class Plan:
    """What a run does. interval: seconds in which each partition gets a record. tick_ms: `tickTime` of ZooKeeper."""

    partitions: int = 1000
    rounds: int = 3
    interval: float = 5.0
    tick_ms: int = 500
    bound: float = BOUND_SECONDS
    faults: Sequence[Fault] = FAULTS
    topics: int = _TOPICS
    expands: bool = True
    mirrors: bool = True


@dataclass(slots=True)
class FaultOutcome:
    """One fault in one round. latest: the longest time from `send` to acknowledgement among the load's records.

    load: of the machine, on average over a minute.
    """

    fault: str
    victims: Sequence[int]
    outage: Outage
    latest: float
    load: float


@dataclass(slots=True)
class Expansion:
    """How a broker came and went. Times in seconds; moved: replicas that it got."""

    moved: int = 0
    grown: float = 0.0
    shrunk: float = 0.0
    latest: float = 0.0


@dataclass(slots=True)
class FleetOutcome:
    """The outcome of a run. `faults` is empty if every promise was kept."""

    partitions: int = 0
    outages: list[FaultOutcome] = field(default_factory=list)
    spread: dict[int, tuple[int, int]] = field(default_factory=dict)  # by broker: replicas, and how many it leads
    expansion: Expansion | None = None
    mirror: MirrorAct | None = None
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)  # what is wrong with the records; in `faults` too
    faults: list[str] = field(default_factory=list)


class FleetRun:
    """One run. `tell` is called with each event."""

    def __init__(self, folder: Path, plan: Plan, tell: Callable[[str], object]) -> None:
        self.outcome = FleetOutcome()
        self._folder, self._plan, self._tell = folder, plan, tell
        self._began = time.monotonic()
        self._labels: dict[str, str] = {}
        self._loads: dict[str, LabelLoad] = {}

    def say(self, text: str) -> None:
        """Report an event with its time."""
        self._tell(f"{time.monotonic() - self._began:7.1f}  {text}")

    def run(self) -> FleetOutcome:
        """Start everything, play all acts, and compare."""
        options = {"tickTime": str(self._plan.tick_ms)}
        with (
            LocalZooKeeper(self._folder / "zookeeper", options=options, sync=False) as store,
            running(self._folder, store, self.outcome.faults) as fleet,
        ):
            self._place(fleet)
            self._load(fleet)
            for fault in self._plan.faults:
                for number in range(self._plan.rounds):
                    self._fail_over(fleet, fault, number)
            if self._plan.expands:
                self._expand(fleet)
            self._compare()
            if self._plan.mirrors:
                self.say("mirror")
                self.outcome.mirror = FleetMirror(self._folder, store.hosts, fleet).run()
                self.outcome.faults += self.outcome.mirror.faults
                self.say(f"  {self.outcome.mirror}")
        return self.outcome

    # -- placement

    def _place(self, fleet: Fleet) -> None:
        """Create the topics of all labels, and look where their replicas are."""
        each = self._plan.topics
        self._labels = {f"{label}-{number}": label for label in LABELS for number in range(each)}
        count = self._plan.partitions // len(self._labels)
        fleet.create(self._labels, count)
        fleet.until(fleet.is_whole, "that all replicas are in sync", _HEAL_SECONDS)
        places = fleet.places()
        self.outcome.partitions = len(places)
        self.outcome.faults += fleet.misplaced(self._labels)
        for node in fleet.ports:
            replicas = sum(node in one.replicas for one in places.values())
            self.outcome.spread[node] = replicas, sum(one.leader == node for one in places.values())
        self._check_spread()
        self.say(f"{len(places)} partitions are placed; by broker: {self.outcome.spread}")

    def _check_spread(self) -> None:
        """Brokers of a label, of which there are as many as replicas, have all of them, and lead alike."""
        share = self.outcome.partitions // len(LABELS)
        for node, (replicas, led) in self.outcome.spread.items():
            alike = abs(led - share / (SIZE // len(LABELS))) <= max(2 * self._plan.topics, 0.1 * share)
            if replicas != share * FACTOR * len(LABELS) // SIZE or not alike:
                self.outcome.faults.append(f"broker {node} has {replicas} of {share} replicas, and leads {led}")

    def _load(self, fleet: Fleet) -> None:
        for label in LABELS:
            places = [place for place in fleet.places() if self._labels[place[0]] == label]
            load = self._loads[label] = LabelLoad(fleet.bootstrap, label, places, self._plan.interval)
            load.start()
        time.sleep(_CALM_SECONDS + self._plan.interval)

    # -- fail-over

    def _fail_over(self, fleet: Fleet, fault: Fault, number: int) -> None:
        before = fleet.places()
        victims = fault.victims(fleet, number)
        self.say(f"{fault.name}: {victims}")
        probes = Probes(len(self.outcome.outages))
        began = strike(fault, fleet, victims)
        try:
            outage = measure(fleet, victims, before, began, probes)
        finally:
            heal(fault, fleet, victims)
        probes.close()
        for node in victims:
            fleet.brokers[node].wait() if not fleet.brokers[node].port else None
        fleet.until(fleet.is_whole, f"that all is whole after: {fault.name}", _HEAL_SECONDS)
        time.sleep(_CALM_SECONDS)
        for place, acked in probes.acked.items():
            self._loads[self._labels[place[0]]].probes[place].update(acked)
        latest = max(load.writer.latest(began, time.monotonic()) for load in self._loads.values())
        self.outcome.outages.append(FaultOutcome(fault.name, victims, outage, latest, os.getloadavg()[0]))
        self.outcome.faults += probes.errors
        self.say("  " + summary(outage) + f"; latest record {latest:.1f} s")
        if outage.worst > self._plan.bound:
            self.outcome.faults.append(
                f"{fault.name}, brokers {list(victims)}: in use again after {outage.worst:.1f} s, "
                f"and {self._plan.bound:.0f} are allowed; {len(outage.missing)} partitions never"
            )

    # -- expansion

    def _expand(self, fleet: Fleet) -> None:
        """Add a broker with the first label, move replicas to it, and take it out of service again."""
        node, label = SIZE + 1, LABELS[0]
        expansion = self.outcome.expansion = Expansion()
        began = time.monotonic()
        fleet.labels[node], fleet.racks[node] = label, "r2"
        fleet.start(node)
        fleet.wait_for_brokers(fleet.ports)
        topics = [topic for topic, its in self._labels.items() if its == label]
        plan = self._folder / "plan.json"
        plan.write_text(self._command(fleet, "reassign", "plan", *topics))
        self._command(fleet, "reassign", "execute", str(plan))
        fleet.until(fleet.is_whole, "that all is whole after the expansion", _HEAL_SECONDS)
        expansion.grown = time.monotonic() - began
        expansion.moved = sum(node in one.replicas for one in fleet.places().values())
        share = self.outcome.partitions // len(LABELS) * FACTOR // len(fleet.nodes_of(label))
        if not 0.8 * share <= expansion.moved <= 1.2 * share:
            self.outcome.faults.append(f"the new broker has {expansion.moved} replicas, and its share is {share}")
        self.outcome.faults += fleet.misplaced(self._labels)
        self.say(f"broker {node} has {expansion.moved} replicas after {expansion.grown:.1f} s")
        middle = time.monotonic()
        self._command(fleet, "brokers", "decommission", str(node), "-y")
        fleet.until(fleet.is_whole, "that all is whole after the decommission", _HEAL_SECONDS)
        expansion.shrunk = time.monotonic() - middle
        left = [place for place, one in fleet.places().items() if node in one.replicas]
        self.outcome.faults += [f"{left[:3]} are on the broker that was decommissioned"] if left else []
        self.outcome.faults += fleet.misplaced(self._labels)
        if code := fleet.stop(node):
            self.outcome.faults.append(f"the broker that was decommissioned ended with {code}")
        time.sleep(_CALM_SECONDS)
        expansion.latest = max(load.writer.latest(began, time.monotonic()) for load in self._loads.values())
        self.say(f"broker {node} has none after {expansion.shrunk:.1f} s; latest record {expansion.latest:.1f} s")

    def _command(self, fleet: Fleet, *words: str) -> str:
        done = run_command(*words, "-b", fleet.bootstrap)
        if done.returncode:
            self.outcome.faults.append(f"pylogd {' '.join(words)}: {done.stderr}")
        return done.stdout

    # -- comparison

    def _compare(self) -> None:
        for load in self._loads.values():
            self.outcome.lost += load.finish()
            self.outcome.acknowledged += load.acknowledged()
        self.outcome.faults += self.outcome.lost
        self.say(f"{self.outcome.acknowledged} acknowledged records were compared with what was read")


def summary(outage: Outage) -> str:
    """Return in one line how long it took."""
    parts = [
        f"{name} {len(times)}: median {statistics.median(times.values()):.2f}, worst {max(times.values()):.2f} s"
        for name, times in (("led", outage.led), ("written", outage.written), ("followed", outage.followed))
        if times
    ]
    return "; ".join(parts) + (f"; {len(outage.missing)} NEVER" if outage.missing else "")


def by_fault(outages: Sequence[FaultOutcome]) -> Mapping[str, list[FaultOutcome]]:
    """Return the rounds of each fault, in order."""
    found: dict[str, list[FaultOutcome]] = {}
    for one in outages:
        found.setdefault(one.fault, []).append(one)
    return found


__all__ = ["BOUND_SECONDS", "FaultOutcome", "FleetOutcome", "FleetRun", "Place", "Plan", "by_fault"]
