"""Run a workload and faults on a cluster, and check that all guarantees held.

Strategy: `nemesis` injects faults for a while. Then everything is healed, the producers deliver their remaining
messages, and these checks follow:

- no acknowledged message is missing, and each is at the offset of its acknowledgement;
- no message is there twice, and each producer's messages are in the order of sending;
- all replicas have the same bytes;
- each consumer has read exactly what is there, from the first offset on without a gap;
- of a topic with smooth expansions, a consumer group has read every acknowledged message (`smooth`);
- groups have exactly those offsets in topics that were recreated which they committed since (`recreated`), also after
  all brokers were restarted;
- no replica is on a broker that lacks the label of the topic, if it has one.

A run is as reproducible as processes and threads allow: a seed gives the same faults at the same times, not the same
races. Histories that repeat exactly are in `tests/simulation`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pylogd.local.zookeeper import LocalZooKeeper
from tests.chaos.clusters import ChaosCluster, running
from tests.chaos.links import Links
from tests.chaos.logs import Writer, bytes_of, lost, messages_in, out_of_order
from tests.chaos.nemesis import HEAL_SECONDS, Nemesis
from tests.chaos.recreated import RecreatedTopics
from tests.chaos.smooth import SmoothTopic
from tests.chaos.workload import ConfluentWriter, PylogdWriter, Reader, Worker

TOPIC = "chaos"
PARTITIONS = 4
_LEVEL_SECONDS = 120.0


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. `faults` is empty if all guarantees held."""

    seed: int
    brokers: int
    seconds: float
    troubles: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    refused: int = 0
    read: int = 0
    epochs: int = 0
    recreated: int = 0
    faults: list[str] = field(default_factory=list)
    without: str = ""  # why some faults could not be injected


class Chaos:
    """One run. `tell` is called with each event."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        brokers: int,
        seconds: float,
        links: bool,
        preload: bool,
        tell: Callable[[str], object],
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        labels: Sequence[str] = (),
    ) -> None:
        """settings: of all brokers, in addition to those of every run. labels: of the brokers in turn, one each."""
        self.outcome = Outcome(seed, brokers, seconds)
        self._folder = folder
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._tell = tell
        self._links = Links(brokers) if links else None
        self._preload = preload
        self._began = time.monotonic()
        self._settings = settings
        self._labels = labels

    def say(self, text: str) -> None:
        """Report an event with its time."""
        self._tell(f"{time.monotonic() - self._began:7.1f}  {text}")

    # -- the run

    def run(self) -> Outcome:
        """Start the cluster, run workload and faults, heal, and compare."""
        with running(
            self._folder, self.outcome.brokers, self._links, self._preload, self.outcome.faults, self._settings,
            self._labels,
        ) as (cluster, store):  # fmt: skip
            self._work(cluster, store)
        return self.outcome

    def _work(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        config = {"placement.label": self._labels[0]} if self._labels else {}
        cluster.ask(lambda admin: admin.create_topic(TOPIC, PARTITIONS, 3, config))
        cluster.wait_for_isr(TOPIC, 3)
        smooth = SmoothTopic(cluster, store.hosts)
        recreated = RecreatedTopics(cluster, self._rng)
        nemesis = Nemesis(cluster, store, {TOPIC: PARTITIONS}, self._rng, self.say, recreated=recreated)
        self.outcome.troubles = nemesis.troubles
        try:
            self._trouble(cluster, nemesis, smooth, recreated)
        finally:
            recreated.stopping.set()
            self.outcome.faults += nemesis.heal()
            nemesis.close()

    def _trouble(
        self, cluster: ChaosCluster, nemesis: Nemesis, smooth: SmoothTopic, recreated: RecreatedTopics
    ) -> None:
        writers: list[Writer] = [
            ConfluentWriter(cluster.bootstrap, TOPIC, 0, 0), ConfluentWriter(cluster.bootstrap, TOPIC, 1, 1),
            ConfluentWriter(cluster.bootstrap, TOPIC, 2, 2), PylogdWriter(cluster.bootstrap, TOPIC, 3, 3),
            ConfluentWriter(cluster.bootstrap, TOPIC, 4, 3),
        ]  # fmt: skip
        readers = [Reader(cluster.bootstrap, TOPIC, PARTITIONS, number) for number in range(2)]
        workers: list[Worker] = [*writers, *readers, *smooth.workers, recreated]
        for worker in workers:
            worker.start()
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            nemesis.trouble()
            time.sleep(self._rng.uniform(0.3, 3.0))
        self.outcome.faults += nemesis.heal()
        self.say("everything is healed")
        cluster.until(lambda: self._whole(cluster), "that all replicas are in sync", HEAL_SECONDS)
        cluster.until(smooth.whole, "that all smooth expansions are done", HEAL_SECONDS)
        time.sleep(2.0)  # every producer has written to the healed cluster
        for writer in [*writers, *smooth.writers]:
            writer.stopping.set()
        for writer in [*writers, *smooth.writers]:
            writer.join(400)
        cluster.until(lambda: self._whole(cluster), "that all replicas are in sync", HEAL_SECONDS)
        self._compare(cluster, writers, readers)
        self.outcome.acknowledged += sum(len(writer.acked) for writer in smooth.writers)
        self.outcome.faults += smooth.compare(cluster.directories, _LEVEL_SECONDS)
        self._compare_offsets(cluster, recreated)

    def _whole(self, cluster: ChaosCluster) -> bool:
        """Return whether all brokers report the same: one that was cut off from ZooKeeper may report an old state."""
        found, *others = (cluster.partitions(TOPIC, node) for node in cluster.ports)
        alike = all(seen == found for seen in others)
        return alike and all(len(one.isr) == 3 and len(one.replicas) == 3 and one.leader >= 0 for one in found)

    # -- checks

    def _compare_offsets(self, cluster: ChaosCluster, recreated: RecreatedTopics) -> None:
        """Compare committed offsets as the coordinators have them, and again as they read them from the log."""
        recreated.stopping.set()
        recreated.delete_soon()
        recreated.join(_LEVEL_SECONDS)
        self.outcome.recreated = recreated.cycles
        self.outcome.faults += [recreated.failure] if recreated.failure else []
        found = recreated.compare()
        for node in list(cluster.ports):
            cluster.kill(node)
        for node in cluster.ports:
            cluster.start(node)
        cluster.until(lambda: self._whole(cluster), "that all replicas are in sync", HEAL_SECONDS)
        self.outcome.faults += found or [f"after a restart: {fault}" for fault in recreated.compare()]

    def _compare(self, cluster: ChaosCluster, writers: list[Writer], readers: list[Reader]) -> None:
        faults, outcome = self.outcome.faults, self.outcome
        states = cluster.partitions(TOPIC)
        outside = {node for state in states for node in state.replicas if self._labels and node > len(self._labels)}
        faults += [f"replicas are on brokers without the label: {sorted(outside)}"] if outside else []
        logs = {state.index: self._settled(cluster, state.index, state.replicas) for state in states}
        self._let_them_finish(readers, {index: messages[-1][0] for index, messages in logs.items() if messages})
        for worker in [*writers, *readers]:
            worker.stopping.set()
            worker.join(_LEVEL_SECONDS)
            if worker.failure:
                faults.append(worker.failure)
        outcome.epochs = sum(state.leader_epoch for state in states)
        for writer in writers:
            outcome.acknowledged += len(writer.acked)
            outcome.refused += len(writer.refused)
            faults += [f"{writer.name} was refused {text}" for text in writer.refused[:3]]
            faults += lost(writer, dict(logs[writer.partition]))
        for index, messages in logs.items():
            values = Counter(value for _, value in messages)
            faults += [f"partition {index} has {value!r} {n} times" for value, n in values.items() if n > 1][:3]
            faults += out_of_order(index, messages)
        for reader in readers:
            for index, seen in reader.seen.items():
                outcome.read += len(seen)
                if seen != logs[index][: len(seen)]:
                    at = next(n for n, pair in enumerate(seen) if n >= len(logs[index]) or pair != logs[index][n])
                    faults.append(f"{reader.name} saw {seen[at]} in {index}, which is not in the log")

    def _settled(self, cluster: ChaosCluster, index: int, nodes: Sequence[int]) -> list[tuple[int, bytes]]:
        """Wait until all replicas have the same bytes, else record a fault. Return the messages of the partition."""
        deadline = time.monotonic() + _LEVEL_SECONDS
        while True:
            copies = {node: bytes_of(cluster.directories(node), TOPIC, index) for node in nodes}
            if len(set(copies.values())) == 1:
                return messages_in(copies[nodes[0]])
            if time.monotonic() > deadline:
                sizes = {node: len(copy) for node, copy in copies.items()}
                self.outcome.faults.append(f"partition {index}: the replicas differ, in bytes: {sizes}")
                return messages_in(copies[nodes[0]])
            time.sleep(0.2)

    def _let_them_finish(self, readers: list[Reader], ends: Mapping[int, int]) -> None:
        """Wait until every consumer has read everything, with a time limit."""
        deadline = time.monotonic() + HEAL_SECONDS

        def done(reader: Reader) -> bool:
            return all(reader.seen[index] and reader.seen[index][-1][0] >= last for index, last in ends.items())

        while time.monotonic() < deadline and not all(done(reader) or reader.failure for reader in readers):
            time.sleep(0.1)
        for reader in readers:
            if not done(reader) and not reader.failure:
                self.outcome.faults.append(f"{reader.name} did not read to the end: {_what_is_left(reader, ends)}")


def _what_is_left(reader: Reader, ends: Mapping[int, int]) -> str:
    """Describe where a consumer stopped, its errors, and whether a new consumer reads on from there."""
    left = {index: reader.next_offset(index) for index, last in ends.items() if reader.next_offset(index) <= last}
    places = ", ".join(f"{index} at {offset} of {ends[index] + 1}" for index, offset in left.items())
    return f"partition {places}; its errors: {dict(reader.errors)}; a new consumer reads on: {reader.reads_anew(left)}"
