"""A cluster under a workload, a nemesis, and the comparison of what is left with what was promised.

Strategy: the nemesis draws what it does from a seeded random source: one trouble after the other, several at a time,
each undone after a while. At the end everything is healed, the producers get rid of what they still have, and then:

- no message that was acknowledged is missing, and each is at the offset of its acknowledgement;
- none is there twice, and each producer's are in the order in which it sent them;
- all replicas hold the same bytes;
- what each consumer read is what is there, from the first offset on without a gap.

A run is as reproducible as processes and threads let it be: the seed gives the same troubles at the same times, not the
same races. Histories that repeat to the byte are in `tests/simulation`.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pylogd.errors import PylogdError
from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.wire.records import decode_batch, iter_batches
from tests.brokers import BrokerProcess
from tests.chaos.links import STORE, Links
from tests.chaos.workload import ConfluentWriter, PylogdWriter, Reader, Worker
from tests.clusters import BrokerCluster

TOPIC = "chaos"
PARTITIONS = 4
#: The broker whose disk can be filled, where there may be one of its own.
SMALL_DISK_NODE = 1
_DISK_MIB = 64
_PORT = 9092
_HEAL_SECONDS = 300.0
_LEVEL_SECONDS = 120.0
#: Shorter than what a broker may be cut off for.
_SESSION_MS = 4000

Writer = ConfluentWriter | PylogdWriter


class ChaosCluster(BrokerCluster):
    """Brokers behind links of their own, where there are any."""

    def __init__(self, folder: Path, connect: str, size: int, links: Links | None) -> None:
        self.links = links
        settings = {
            "zookeeper.session.timeout.ms": str(_SESSION_MS), "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "4000", "replica.socket.timeout.ms": "4000",
            "log.retention.ms": "-1", "log.segment.bytes": "262144", "log.roll.jitter.ms": "0",
            "zookeeper.connection.timeout.ms": "30000", "leader.imbalance.check.interval.seconds": "10",
        }  # fmt: skip
        super().__init__(folder, connect, size, settings)

    def start(self, node: int, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        """As it is there; in the broker's namespace, where it has one."""
        if self.links is None:
            return super().start(node, settings)
        self.ports[node] = _PORT
        broker = BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log",
            {**self.settings, "node.id": str(node), **(settings or {})}, port=_PORT, prefix=self.links.prefix(node),
            host=self.links.address(node),
        )  # fmt: skip
        self.brokers[node] = broker
        return broker

    @property
    def bootstrap(self) -> str:
        """Every broker's address."""
        return ",".join(self.address(node) for node in self.ports)

    def address(self, node: int) -> str:
        """One broker's address."""
        return super().address(node) if self.links is None else f"{self.links.address(node)}:{_PORT}"


@dataclass(slots=True)
class Outcome:
    """What a run came to. `faults` is empty if all held."""

    seed: int
    brokers: int
    seconds: float
    troubles: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    refused: int = 0
    read: int = 0
    epochs: int = 0
    faults: list[str] = field(default_factory=list)
    without: str = ""  # why links could not be cut


class Chaos:
    """One run. `tell` is told what happens."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        brokers: int,
        seconds: float,
        links: bool,
        tell: Callable[[str], object],
    ) -> None:
        self.outcome = Outcome(seed, brokers, seconds)
        self._folder = folder
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._tell = tell
        self._links = Links(brokers) if links else None
        self._began = time.monotonic()
        self._down: dict[int, float] = {}  # when to start it again
        self._paused: dict[int, float] = {}  # when to let it go on
        self._cut_until = 0.0
        self._full_until = 0.0
        self._disk = folder / f"broker{SMALL_DISK_NODE}"

    def say(self, text: str) -> None:
        """Tell what happens, and when."""
        self._tell(f"{time.monotonic() - self._began:7.1f}  {text}")

    # -- the run

    def run(self) -> Outcome:
        """Start, work, break, heal, compare."""
        options = {"clientPortAddress": "0.0.0.0"} if self._links is not None else {}
        if self._links is not None:
            self._disk.mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(self._disk)], check=True, timeout=30
            )
        store = LocalZooKeeper(self._folder / "zookeeper", options=options, sync=False)
        with store:
            connect = store.hosts if self._links is None else f"{STORE}:{store.port}"
            cluster = ChaosCluster(self._folder, connect, self.outcome.brokers, self._links)
            try:
                self._work(cluster, store)
            finally:
                self._heal(cluster, store)
                self.outcome.faults += cluster.close()
                if self._links is not None:
                    self._links.close()
                    subprocess.run(["umount", "-l", str(self._disk)], check=False, timeout=30)
        return self.outcome

    def _work(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        cluster.ask(lambda admin: admin.create_topic(TOPIC, PARTITIONS, 3))
        cluster.wait_for_isr(TOPIC, 3)
        writers: list[Writer] = [
            ConfluentWriter(cluster.bootstrap, TOPIC, 0, 0), ConfluentWriter(cluster.bootstrap, TOPIC, 1, 1),
            ConfluentWriter(cluster.bootstrap, TOPIC, 2, 2), PylogdWriter(cluster.bootstrap, TOPIC, 3, 3),
            ConfluentWriter(cluster.bootstrap, TOPIC, 4, 3),
        ]  # fmt: skip
        readers = [Reader(cluster.bootstrap, TOPIC, PARTITIONS, number) for number in range(2)]
        workers: list[Worker] = [*writers, *readers]
        for worker in workers:
            worker.start()
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            self._undo_what_is_due(cluster)
            self._trouble(cluster, store)
            time.sleep(self._rng.uniform(0.3, 3.0))
        self._heal(cluster, store)
        self.say("everything is healed")
        cluster.until(lambda: self._whole(cluster), "that all replicas are in sync", _HEAL_SECONDS)
        time.sleep(2.0)  # something is written by everybody to a cluster that is whole
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(400)
        cluster.until(lambda: self._whole(cluster), "that all replicas are in sync", _HEAL_SECONDS)
        self._compare(cluster, writers, readers)

    def _whole(self, cluster: ChaosCluster) -> bool:
        """Whether all brokers say so, and the same: one that was cut off from ZooKeeper tells what was, for a while."""
        found, *others = (cluster.partitions(TOPIC, node) for node in cluster.ports)
        alike = all(seen == found for seen in others)
        return alike and all(len(one.isr) == 3 and len(one.replicas) == 3 and one.leader >= 0 for one in found)

    # -- the nemesis

    def _trouble(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        troubles: list[Callable[[ChaosCluster, LocalZooKeeper], str]] = [
            self._kill, self._kill, self._pause, self._restart_store, self._reassign, self._elect,
        ]  # fmt: skip
        if self._links is not None:
            troubles += [self._cut, self._cut, self._isolate, self._expire, self._slow, self._fill]
        trouble = self._rng.choice(troubles)
        try:
            what = trouble(cluster, store)
        except PylogdError as error:
            self.say(f"{trouble.__name__[1:]}: {error}")
            return
        if what:
            self.outcome.troubles[trouble.__name__[1:]] += 1
            self.say(what)

    def _running(self, cluster: ChaosCluster) -> list[int]:
        return [node for node in sorted(cluster.brokers) if node not in self._paused]

    def _kill(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        running = self._running(cluster)
        if len(self._down) >= self.outcome.brokers - 1 or not running:
            return ""
        node = self._rng.choice(running)
        cluster.kill(node)
        self._down[node] = time.monotonic() + self._rng.uniform(0.0, 8.0)
        return f"kill {node}"

    def _pause(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        running = self._running(cluster)
        if not running:
            return ""
        node = self._rng.choice(running)
        cluster.pause(node)
        self._paused[node] = time.monotonic() + self._rng.uniform(0.5, 9.0)
        return f"pause {node}"

    def _restart_store(self, _: ChaosCluster, store: LocalZooKeeper) -> str:
        seconds = self._rng.uniform(0.0, 3.0)
        store.kill()
        time.sleep(seconds)
        store.start()
        return f"ZooKeeper was away for {seconds:.1f} s"

    def _reassign(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        index = self._rng.randrange(PARTITIONS)
        target = self._rng.sample(sorted(cluster.ports), 3)
        running = self._running(cluster)
        if not running:
            return ""
        node = self._rng.choice(running)
        wanted: Mapping[tuple[str, int], list[int]] = {(TOPIC, index): target}
        cluster.ask(lambda admin: admin.reassign(wanted), node)
        return f"partition {index} is to move to {target}"

    def _elect(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        running = self._running(cluster)
        if not running:
            return ""
        node = self._rng.choice(running)
        cluster.ask(lambda admin: admin.elect_leaders([(TOPIC, n) for n in range(PARTITIONS)]), node)
        return "preferred leaders are elected"

    def _cut(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        assert self._links is not None
        source, target = self._rng.sample(sorted(cluster.ports), 2)
        both = self._rng.random() < 0.5
        self._links.cut(source, self._links.address(target))
        if both:
            self._links.cut(target, self._links.address(source))
        self._cut_for(1.0, 10.0)
        return f"cut {source} {'<->' if both else '->'} {target}"

    def _isolate(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        assert self._links is not None
        node = self._rng.choice(sorted(cluster.ports))
        for other in cluster.ports:
            if other != node:
                self._links.cut(node, self._links.address(other))
                self._links.cut(other, self._links.address(node))
        self._cut_for(1.0, 10.0)
        return f"isolate {node} from the other brokers"

    def _expire(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        """A broker goes on, and its session ends."""
        assert self._links is not None
        node = self._rng.choice(sorted(cluster.ports))
        self._links.cut(node, STORE)
        self._cut_for(6.0, 10.0)
        return f"cut {node} from ZooKeeper for longer than its session lasts"

    def _slow(self, cluster: ChaosCluster, _: LocalZooKeeper) -> str:
        assert self._links is not None
        node = self._rng.choice(sorted(cluster.ports))
        kilobits = self._rng.choice((64, 256, 1000))
        self._links.slow(node, kilobits)
        self._cut_for(2.0, 10.0)
        return f"{node} sends {kilobits} kbit/s at most"

    def _cut_for(self, least: float, most: float) -> None:
        self._cut_until = max(self._cut_until, time.monotonic() + self._rng.uniform(least, most))

    def _fill(self, _: ChaosCluster, __: LocalZooKeeper) -> str:
        if self._full_until:
            return ""
        with (self._disk / "ballast").open("wb", buffering=0) as ballast:
            for chunk in (1 << 20, 4096, 512):
                try:
                    while True:
                        ballast.write(bytes(chunk))
                except OSError:
                    continue
        self._full_until = time.monotonic() + self._rng.uniform(1.0, 8.0)
        return f"the disk of {SMALL_DISK_NODE} is full"

    def _undo_what_is_due(self, cluster: ChaosCluster) -> None:
        now = time.monotonic()
        for node in [node for node, until in self._paused.items() if until <= now]:
            del self._paused[node]
            cluster.resume(node)
            self.say(f"resume {node}")
        if self._full_until and self._full_until <= now:
            self._empty_disk()
        for node in [node for node, until in self._down.items() if until <= now]:
            if node != SMALL_DISK_NODE or not self._full_until:
                if self._cut_until:
                    self._heal_links()  # it would wait for them, and everybody here for it
                del self._down[node]
                self._start(cluster, node)
        if self._cut_until and self._cut_until <= now:
            self._heal_links()

    def _start(self, cluster: ChaosCluster, node: int) -> None:
        """Start a broker. One that can't reach what it needs says so and ends: it is tried again."""
        try:
            cluster.start(node)
            self.say(f"start {node}")
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1:]
            self.say(f"{node} does not start: {reason}")
            self._down[node] = time.monotonic() + 1.0

    def _empty_disk(self) -> None:
        (self._disk / "ballast").unlink(missing_ok=True)
        self._full_until = 0.0
        self.say(f"the disk of {SMALL_DISK_NODE} has room")

    def _heal_links(self) -> None:
        if self._links is not None:
            self._links.heal()
        self._cut_until = 0.0
        self.say("the links are whole")

    def _heal(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        self._heal_links()
        if self._full_until:
            self._empty_disk()
        store.start()
        for node in list(self._paused):
            cluster.resume(node)
        self._paused.clear()
        deadline = time.monotonic() + _HEAL_SECONDS
        while self._down and time.monotonic() < deadline:
            for node in list(self._down):
                del self._down[node]
                self._start(cluster, node)
        for node, broker in list(cluster.brokers.items()):
            if broker.process.poll() is not None:  # it gave up while something was broken
                self.outcome.faults.append(f"{node} ended by itself, with exit code {broker.process.returncode}")
                self.say(self.outcome.faults[-1])
                cluster.kill(node)
                self._start(cluster, node)

    # -- what must hold

    def _compare(self, cluster: ChaosCluster, writers: list[Writer], readers: list[Reader]) -> None:
        faults, outcome = self.outcome.faults, self.outcome
        states = cluster.partitions(TOPIC)
        logs = {state.index: self._settled(state.index, state.replicas) for state in states}
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
            faults += _lost(writer, dict(logs[writer.partition]))
        for index, messages in logs.items():
            values = Counter(value for _, value in messages)
            faults += [f"partition {index} has {value!r} {n} times" for value, n in values.items() if n > 1][:3]
            faults += _out_of_order(index, messages)
        for reader in readers:
            for index, seen in reader.seen.items():
                outcome.read += len(seen)
                if seen != logs[index][: len(seen)]:
                    at = next(n for n, pair in enumerate(seen) if n >= len(logs[index]) or pair != logs[index][n])
                    faults.append(f"{reader.name} saw {seen[at]} in {index}, which is not what is there")

    def _settled(self, index: int, nodes: Sequence[int]) -> list[tuple[int, bytes]]:
        """The messages of a partition, once all replicas hold the same bytes; that they never do is a fault."""
        deadline = time.monotonic() + _LEVEL_SECONDS
        while True:
            copies = {node: self._bytes(node, index) for node in nodes}
            if len(set(copies.values())) == 1:
                return _messages(copies[nodes[0]])
            if time.monotonic() > deadline:
                sizes = {node: len(copy) for node, copy in copies.items()}
                self.outcome.faults.append(f"partition {index}: the replicas differ, in bytes: {sizes}")
                return _messages(copies[nodes[0]])
            time.sleep(0.2)

    def _let_them_finish(self, readers: list[Reader], ends: Mapping[int, int]) -> None:
        """Until every consumer has everything, within bounds."""
        deadline = time.monotonic() + _HEAL_SECONDS

        def done(reader: Reader) -> bool:
            return all(reader.seen[index] and reader.seen[index][-1][0] >= last for index, last in ends.items())

        while time.monotonic() < deadline and not all(done(reader) or reader.failure for reader in readers):
            time.sleep(0.1)
        for reader in readers:
            if not done(reader) and not reader.failure:
                self.outcome.faults.append(f"{reader.name} did not get to the end")

    def _bytes(self, node: int, index: int) -> bytes:
        folder = self._folder / f"broker{node}" / f"{TOPIC}-{index}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def _messages(raw: bytes) -> list[tuple[int, bytes]]:
    return [
        (record.offset, bytes(record.value or b""))
        for header, view in iter_batches(raw)
        for record in decode_batch(view, header)
    ]


def _lost(writer: Writer, log: Mapping[int, bytes]) -> list[str]:
    """What was acknowledged and is not there. librdkafka knows no offset of a message whose first answer it lost: it
    learns from the next one that the sequence is behind the log, which is an acknowledgement as good.
    """
    there = set(log.values())
    missing = []
    for sequence, offset in writer.acked.items():
        value = f"{writer.number}:{sequence}".encode()
        if (value not in there) if offset is None else (log.get(offset) != value):
            found = None if offset is None else log.get(offset)
            missing.append(f"{writer.name}: {sequence} was acknowledged at {offset}, where {found!r} is")
    return [f"{len(missing)} lost: {missing[0]}"] if missing else []


def _out_of_order(index: int, messages: list[tuple[int, bytes]]) -> list[str]:
    last: dict[bytes, int] = {}
    for offset, value in messages:
        number, _, sequence = value.partition(b":")
        if int(sequence) <= last.get(number, -1):
            return [f"partition {index}, offset {offset}: {value!r} comes after {last[number]}"]
        last[number] = int(sequence)
    return []
