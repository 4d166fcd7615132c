"""Mirror 60 partitions of two clusters to two others while workers, topics and links come and go.

Strategy: a producer writes a numbered record to every partition 20 times a second, and librdkafka reads the copies as
they come. One event after the other happens; for each, the owners of all partitions are compared before and after, and
the latest record of those partitions that kept their owner. At the end everything is compared, by kcat if it is there.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogd.base.ports import free_ports
from pylogd.client import Admin
from pylogd.client.core.model import NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.services.mirror.membership import MirrorPaths, parse_assignment
from tests.mirror.proxy import Proxy
from tests.mirror.traffic import Partition, Watcher, Writer
from tests.mirrors import MirrorProcess, committed, until, write_file

SOURCES, TARGETS = ("s1", "s2"), ("t1", "t2")
TOPICS, PARTITIONS = 5, 3  # of each of the four routes: 60 partitions
ADDED_TOPICS: Final = 200
SESSION_MS: Final = 4000
_CALM_SECONDS: Final = 8.0
_MAP: Final = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,MIRROR:PLAINTEXT"}


@dataclass(slots=True)
class EventOutcome:
    """What an event did. kept: partitions with the same owner, whose latest record took `kept_seconds` in the event and
    `calm_seconds` in the time before it. moved: those with another owner, and their latest record.
    """

    name: str
    moved: int
    kept: int
    moved_seconds: float
    kept_seconds: float
    calm_seconds: float
    note: str = ""


@dataclass(slots=True)
class MirrorOutcome:
    """The outcome of a run. `faults` is empty if each record was copied once, in order, and every promise was kept."""

    events: list[EventOutcome] = field(default_factory=list)
    records: int = 0
    partitions: int = 0
    faults: list[str] = field(default_factory=list)


class End:
    """A cluster of one broker, which mirrors reach through a proxy only."""

    def __init__(self, folder: Path, name: str) -> None:
        front, back, plain = free_ports(3)
        self.start = lambda: BrokerProcess(
            folder / name, folder / f"{name}.log", {**_MAP, "advertised.listeners": f"MIRROR://127.0.0.1:{front}"},
            ["--listen", f"MIRROR://127.0.0.1:{back}"], plain,
        )  # fmt: skip
        self.broker = self.start()
        self.address = self.broker.address
        self.mirrors_address = f"127.0.0.1:{front}"
        self.proxy = Proxy(front, back)

    def crash(self) -> None:
        """Kill the broker, and start it again."""
        self.broker.kill()
        self.broker = self.start()

    def close(self) -> None:
        """Stop it."""
        self.proxy.close()
        self.broker.kill()


def topic_name(source: str, target: str, number: int) -> str:
    """Return the name of a topic that is copied from `source` to `target`."""
    return f"{source}-{target}-{number}"


class Mirroring:
    """One run. `tell` is called with each event."""

    def __init__(self, folder: Path, tell: Callable[[str], object], calm_seconds: float = _CALM_SECONDS) -> None:
        self.outcome = MirrorOutcome()
        self._folder, self._tell, self._calm = folder, tell, calm_seconds
        self._began = time.monotonic()
        self._ends: dict[str, End] = {}
        self._processes: list[MirrorProcess] = []
        self._file = folder / "mirror.toml"
        self._partitions: dict[str, list[tuple[str, Partition]]] = {
            source: [
                (target, (topic_name(source, target, number), index))
                for target in TARGETS for number in range(TOPICS) for index in range(PARTITIONS)
            ]
            for source in SOURCES
        }  # fmt: skip

    def say(self, text: str) -> None:
        """Report an event with its time."""
        self._tell(f"{time.monotonic() - self._began:7.1f}  {text}")

    def run(self) -> MirrorOutcome:
        """Start everything, let the events happen, and compare."""
        with LocalZooKeeper(self._folder / "zookeeper") as server, self._running(server) as owners:
            self._work(owners)
        return self.outcome

    @contextmanager
    def _running(self, server: LocalZooKeeper) -> Iterator[Callable[[], Mapping[tuple[str, int], str]]]:
        """Run four clusters and three processes of the mirror; yield who owns which partition."""
        client = KazooClient(server.hosts)
        try:
            client.start()
            self._ends = {name: End(self._folder, name) for name in (*SOURCES, *TARGETS)}
            self._create_topics()
            routes = [
                {"source": source, "target": target, "topics": [f"{source}-{target}-.*", f"more-{target}-.*"]}
                for source in SOURCES for target in TARGETS
            ]  # fmt: skip
            store = f'zookeeper.connect = "{server.hosts}"\nzookeeper.session.timeout.ms = {SESSION_MS}'
            addresses = {name: end.mirrors_address for name, end in self._ends.items()}
            write_file(self._file, addresses, routes, store)
            for _ in range(3):
                self._start()
            yield lambda: owners(client)
        finally:
            for process in self._processes:
                process.kill()
            for end in self._ends.values():
                end.close()
            client.stop()
            client.close()

    def _create_topics(self) -> None:
        for source, partitions in self._partitions.items():
            with Admin(self._ends[source].address) as admin:
                names = sorted({topic for _, (topic, _) in partitions})
                admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])

    def _start(self) -> MirrorProcess:
        process = MirrorProcess(self._file, self._folder / f"mirror-{len(self._processes)}.log")
        self._processes.append(process)
        process.wait()
        return process

    def log(self) -> str:
        """Return what the mirror's processes have logged."""
        return "\n".join(f"--- {process.log_path.name}\n{process.log()[-3000:]}" for process in self._processes)

    # -- events

    def _work(self, owners: Callable[[], Mapping[tuple[str, int], str]]) -> None:
        everything = 2 * 2 * TOPICS * PARTITIONS
        until(lambda: len(owners()) == everything, "that everything has an owner", self.log)
        writers = [
            Writer(self._ends[source].address, [partition for _, partition in self._partitions[source]])
            for source in SOURCES
        ]
        by_target = {
            target: [partition for source in SOURCES for to, partition in self._partitions[source] if to == target]
            for target in TARGETS
        }
        for topic, partition in (each for found in by_target.values() for each in found):
            target = topic.split("-")[1]
            until(lambda t=topic, at=target: self._exists(at, t), f"{topic}-{partition}", self.log)  # type: ignore[misc]
        watchers = [Watcher(self._ends[target].address, found) for target, found in by_target.items()]
        for worker in (*writers, *watchers):
            worker.start()
        time.sleep(self._calm)
        for name, happen in self._events().items():
            self._happens(name, happen, owners, watchers)
        for writer in writers:
            writer.stopping.set()
            writer.join(60)
            self.outcome.faults += [writer.failure] if writer.failure else []
        self._compare(writers, watchers)

    def _exists(self, target: str, topic: str) -> bool:
        with Admin(self._ends[target].address) as admin:
            return any(found.name == topic for found in admin.list_topics())

    def _events(self) -> dict[str, Callable[[], str]]:
        return {
            "nothing": lambda: "",
            "a fourth worker": lambda: str(self._start() and ""),
            f"{ADDED_TOPICS} topics are added": self._add_topics,
            f"{ADDED_TOPICS} topics are deleted": self._delete_topics,
            "a worker stops": lambda: f"exit status {self._processes[3].stop()}",
            "a worker is killed": lambda: self._kill(1),
            "the controller is killed": lambda: self._kill(0),
            "two workers come": lambda: str(self._start() and self._start() and ""),
            "a worker is paused until others have taken over": self._pause,
            "the links to a target are cut for 5 s": lambda: self._cut("t1"),
            "the links to a source are cut for 5 s": lambda: self._cut("s2"),
            "a target is killed and starts again": lambda: self._crash("t2"),
            "a source is killed and starts again": lambda: self._crash("s1"),
        }

    def _happens(
        self, name: str, happen: Callable[[], str], owners: Callable[[], Mapping[tuple[str, int], str]],
        watchers: list[Watcher],
    ) -> None:  # fmt: skip
        before, began = owners(), time.monotonic()
        self.say(name)
        note = happen()
        time.sleep(self._calm)
        until(lambda: len(owners()) == len(before) and not self._is_moving(watchers), "calm", self.log)
        after, ended = owners(), time.monotonic()
        kept = {partition for partition, owner in before.items() if after.get(partition) == owner}
        worst = {True: 0.0, False: 0.0}
        calm = 0.0
        for watcher in watchers:
            for partition in watcher.seen:
                is_kept = partition in kept
                worst[is_kept] = max(worst[is_kept], watcher.latest(partition, began, ended))
                calm = max(calm, watcher.latest(partition, began - self._calm, began))
        found = EventOutcome(name, len(before) - len(kept), len(kept), worst[False], worst[True], calm, note)
        self.outcome.events.append(found)
        self.say(f"  {found.moved} moved, latest {found.moved_seconds:.1f} s; {found.kept} kept, latest "
                 f"{found.kept_seconds:.1f} s; before {found.calm_seconds:.1f} s; {note}")  # fmt: skip

    @staticmethod
    def _is_moving(watchers: list[Watcher]) -> bool:
        """Whether some partition has had no record for two seconds."""
        now = time.monotonic()
        return any(not seen.late or seen.late[-1][0] < now - 2 for w in watchers for seen in w.seen.values())

    def _add_topics(self) -> str:
        names = [f"more-{TARGETS[number % 2]}-{number}" for number in range(ADDED_TOPICS)]
        with Admin(self._ends["s1"].address) as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in names])
        writer = Writer(self._ends["s1"].address, [(name, 0) for name in names])
        began = time.monotonic()
        writer.start()
        readers = {
            target: Watcher(self._ends[target].address, [(name, 0) for name in names if f"-{target}-" in name])
            for target in TARGETS
        }
        for target, reader in readers.items():
            until(lambda t=target, r=reader: all(self._names(t) >= {n} for n, _ in r.seen), "200 topics", self.log)  # type: ignore[misc]
            reader.start()
        until(lambda: all(seen.next for r in readers.values() for seen in r.seen.values()), "200 copies", self.log)
        seconds = time.monotonic() - began
        for worker in (writer, *readers.values()):
            worker.stopping.set()
            worker.join(60)
            self.outcome.faults += [worker.failure] if worker.failure else []
        if seconds > 10:
            self.outcome.faults.append(f"200 topics took {seconds:.1f} s, and 10 are allowed")
        return f"all mirrored within {seconds:.1f} s"

    def _names(self, target: str) -> set[str]:
        with Admin(self._ends[target].address) as admin:
            return {topic.name for topic in admin.list_topics()}

    def _delete_topics(self) -> str:
        with Admin(self._ends["s1"].address) as admin:
            names = [topic.name for topic in admin.list_topics() if topic.name.startswith("more-")]
            admin.delete_topics(names)
        return f"{len(names)} were there"

    def _kill(self, number: int) -> str:
        self._processes[number].kill()
        return ""

    def _pause(self) -> str:
        victim = self._processes[-1]
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * SESSION_MS / 1000)
        victim.process.send_signal(signal.SIGCONT)
        return ""

    def _cut(self, name: str) -> str:
        self._ends[name].proxy.cut()
        time.sleep(5)
        self._ends[name].proxy.mend()
        return ""

    def _crash(self, name: str) -> str:
        self._ends[name].crash()
        return ""

    # -- the comparison

    def _compare(self, writers: list[Writer], watchers: list[Watcher]) -> None:
        sent = {partition: writer.sent for writer in writers for partition in writer.partitions}
        waiting = [(watcher, partition) for watcher in watchers for partition in watcher.seen]
        until(lambda: all(w.seen[p].next >= sent[p] for w, p in waiting), "that everything is copied", self.log)
        time.sleep(2)
        for watcher in watchers:
            watcher.stopping.set()
            watcher.join(60)
            self.outcome.faults += [watcher.failure] if watcher.failure else []
            self.outcome.faults += [fault for seen in watcher.seen.values() for fault in seen.faults]
        self.say("all is copied, and is compared now")
        for source, partitions in self._partitions.items():
            for target, (topic, index) in partitions:
                if index == 0:
                    self._compare_topic(source, target, topic)
        self.outcome.partitions = len(waiting)

    def _compare_topic(self, source: str, target: str, topic: str) -> None:
        expected = committed(self._ends[source].address, topic)
        for index, values in expected.items():
            found = read_with_kcat(self._ends[target].address, topic, index)
            self.outcome.records += len(found)
            if found != values:
                self.outcome.faults.append(f"{topic}-{index}: {len(values)} at the source, {len(found)} at the target")


def owners(client: KazooClient) -> Mapping[tuple[str, int], str]:
    """Return who owns which partition of the topics that are always there, as the store has it."""
    root = MirrorPaths("test").assignments
    found: dict[tuple[str, int], str] = {}
    try:
        for worker in client.get_children(root):
            for path in parse_assignment(client.get(f"{root}/{worker}")[0]).partitions:
                if not path.topic.startswith("more-"):
                    found[path.target_topic, path.partition] = worker
    except NoNodeError:
        return {}
    return found


def read_with_kcat(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """Return the committed values of a partition, as kcat prints them; without kcat, as pylogd's client reads them."""
    kcat = shutil.which("kcat")
    if kcat is None:
        return committed(bootstrap, topic)[partition]
    command = [kcat, "-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", "beginning", "-e", "-q",
               "-X", "isolation.level=read_committed"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return done.stdout.splitlines()
