"""Three sources mirrored to two targets by three workers: topics that come while it runs, and a worker that dies.

The fleet is the first source; the other clusters have one broker each. `tests/mirror` has what is written and read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from pylogd.client import Admin
from pylogd.client.core.model import NewTopic, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.fleet.cluster import Fleet
from tests.mirror.run import owners
from tests.mirror.traffic import Partition, Watcher, Writer
from tests.mirrors import MirrorProcess, committed, until, write_file

FLEET: Final = "fleet"
WORKERS: Final = 3
PARTITIONS: Final = 3
#: A worker is missed after the default session timeout, and ZooKeeper looks every half a second.
MISSED_SECONDS: Final = 6.0
DYNAMIC_SECONDS: Final = 10.0
#: A partition of a worker that lives is not to wait for the dead one's session.
DISTURBED_SECONDS: Final = 4.0
_CALM_SECONDS: Final = 6.0


@dataclass(slots=True)
class MirrorAct:
    """What happened. Times in seconds, latest: from a record's send to its arrival at the target, the longest."""

    routes: int = 0
    partitions: int = 0
    topics_added: int = 0
    added_seconds: float = 0.0
    moved: int = 0
    kept: int = 0
    missed_seconds: float = 0.0
    moved_latest: float = 0.0
    kept_latest: float = 0.0
    calm_latest: float = 0.0
    records: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Route:
    """A way from a source to a target, and the partitions of its topics."""

    source: str
    target: str
    topics: list[str]

    @property
    def partitions(self) -> list[Partition]:
        return [(topic, index) for topic in self.topics for index in range(PARTITIONS)]


class FleetMirror:
    """One act. sources, targets: names of the clusters of one broker, beside the fleet. added: later topics."""

    def __init__(
        self, folder: Path, hosts: str, fleet: Fleet, sources: tuple[str, ...] = ("s1", "s2"),
        targets: tuple[str, ...] = ("t1", "t2"), topics: int = 2, added: int = 20,
    ) -> None:  # fmt: skip
        self.act = MirrorAct()
        self._folder, self._hosts, self._fleet, self._added = folder, hosts, fleet, added
        self._targets = targets
        self._routes = [
            _Route(source, target, [f"{source}-{target}-{number}" for number in range(topics)])
            for source in (FLEET, *sources)
            for target in targets
        ]
        self._workers: list[MirrorProcess] = []
        self._addresses: dict[str, str] = {}

    def run(self) -> MirrorAct:
        """Start everything, let it happen, and compare."""
        with self._running() as held:
            self._work(held)
        return self.act

    @contextmanager
    def _running(self) -> Iterator[Callable[[], Mapping[Partition, str]]]:
        with ExitStack() as stack:
            self._addresses = {FLEET: self._fleet.bootstrap}
            for name in {route.source for route in self._routes} | set(self._targets):
                if name != FLEET:
                    broker = BrokerProcess(self._folder / name, self._folder / f"{name}.log")
                    stack.callback(broker.kill)
                    self._addresses[name] = broker.address
            self._fleet.create({topic: "logs" for route in self._routes_from(FLEET) for topic in route.topics},
                               PARTITIONS)  # fmt: skip
            for source in self._addresses:
                if source != FLEET:
                    self._create(source, [topic for route in self._routes_from(source) for topic in route.topics])
            client = KazooClient(self._hosts)
            stack.callback(client.close)
            client.start()
            stack.callback(client.stop)
            routes = [
                {"source": route.source, "target": route.target,
                 "topics": [f"{route.source}-{route.target}-.*", f"more-{route.source}-{route.target}-.*"]}
                for route in self._routes
            ]  # fmt: skip
            store = f'zookeeper.connect = "{self._hosts}"'
            file = write_file(self._folder / "mirror.toml", self._addresses, routes, store)
            for number in range(WORKERS):
                worker = MirrorProcess(file, self._folder / f"mirror-{number}.log")
                stack.callback(worker.kill)
                self._workers.append(worker)
            for worker in self._workers:
                worker.wait()
            yield lambda: owners(client)

    def _routes_from(self, source: str) -> list[_Route]:
        return [route for route in self._routes if route.source == source]

    def _create(self, cluster: str, names: list[str]) -> None:
        if names:
            with Admin(self._addresses[cluster]) as admin:
                admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])

    def _names(self, cluster: str) -> set[str]:
        with Admin(self._addresses[cluster]) as admin:
            return {topic.name for topic in admin.list_topics()}

    def _log(self) -> str:
        return "\n".join(f"--- {worker.log_path.name}\n{worker.log()[-3000:]}" for worker in self._workers)

    def _work(self, held: Callable[[], Mapping[Partition, str]]) -> None:
        everything = sum(len(route.partitions) for route in self._routes)
        self.act.routes, self.act.partitions = len(self._routes), everything
        until(lambda: len(held()) == everything, "that everything has an owner", self._log)
        for route in self._routes:
            until(lambda at=route: self._names(at.target) >= set(at.topics), "topics at the target", self._log)  # type: ignore[misc]
        writers = [
            Writer(self._addresses[source], [one for route in self._routes_from(source) for one in route.partitions])
            for source in dict.fromkeys(route.source for route in self._routes)
        ]
        watchers = [
            Watcher(self._addresses[target],
                    [one for route in self._routes if route.target == target for one in route.partitions])
            for target in self._targets
        ]  # fmt: skip
        for worker in (*writers, *watchers):
            worker.start()
        time.sleep(_CALM_SECONDS)
        self._add_topics()
        time.sleep(_CALM_SECONDS)
        self._kill_worker(held, watchers)
        for writer in writers:
            writer.stopping.set()
            writer.join(60)
            self.act.faults += [writer.failure] if writer.failure else []
        self._compare(writers, watchers)

    def _add_topics(self) -> None:
        """Create topics at all sources, write to each, and wait until each has a record at its target."""
        began = time.monotonic()
        names: dict[str, _Route] = {}
        for number in range(self._added):
            route = self._routes[number % len(self._routes)]
            names[f"more-{route.source}-{route.target}-{number}"] = route
        for source in self._addresses:
            mine = [name for name, route in names.items() if route.source == source]
            if source == FLEET:
                self._fleet.create(dict.fromkeys(mine, "online"), PARTITIONS)
            else:
                self._create(source, mine)
        writers = [
            Writer(self._addresses[source], [(name, 0) for name, route in names.items() if route.source == source])
            for source in dict.fromkeys(route.source for route in names.values())
        ]
        for writer in writers:
            writer.start()
        for target in self._targets:
            mine = [name for name, route in names.items() if route.target == target]
            until(lambda at=target, its=set(mine): self._names(at) >= its, "new topics", self._log)  # type: ignore[misc]
            with Admin(self._addresses[target]) as admin:
                until(lambda a=admin, m=mine: all(end > 0 for end in _ends(a, m)), "copies", self._log)  # type: ignore[misc]
        self.act.topics_added, self.act.added_seconds = self._added, time.monotonic() - began
        for writer in writers:
            writer.stopping.set()
            writer.join(60)
            self.act.faults += [writer.failure] if writer.failure else []
        if self.act.added_seconds > DYNAMIC_SECONDS:
            self.act.faults.append(f"new topics were mirrored after {self.act.added_seconds:.1f} s")

    def _kill_worker(self, held: Callable[[], Mapping[Partition, str]], watchers: list[Watcher]) -> None:
        """Kill the second worker; exactly its partitions get other owners, and only they have late records."""
        before, began = held(), time.monotonic()
        self._workers[1].kill()
        live = until(lambda: _other_owners(before, held()), "that a dead worker is missed", self._log, 30)
        self.act.missed_seconds = time.monotonic() - began
        (gone,) = set(before.values()) - set(live.values())
        mine = {partition for partition, owner in before.items() if owner == gone}
        until(lambda: len(held()) == len(before), "that everything has an owner", self._log, 30)
        time.sleep(_CALM_SECONDS)
        after, ended = held(), time.monotonic()
        moved = {partition for partition, owner in before.items() if after.get(partition) != owner}
        self.act.moved, self.act.kept = len(moved), len(before) - len(moved)
        if moved != mine:
            self.act.faults.append(f"the dead worker had {len(mine)} partitions, and {len(moved)} have other owners")
        for watcher in watchers:
            for partition in watcher.seen:
                late, calm = watcher.latest(partition, began, ended), watcher.latest(partition, began - 5.0, began)
                self.act.calm_latest = max(self.act.calm_latest, calm)
                if partition in mine:
                    self.act.moved_latest = max(self.act.moved_latest, late)
                else:
                    self.act.kept_latest = max(self.act.kept_latest, late)
        if self.act.kept_latest > max(2 * self.act.calm_latest, DISTURBED_SECONDS):
            self.act.faults.append(f"a partition of another worker had a record {self.act.kept_latest:.1f} s late")
        if self.act.missed_seconds > MISSED_SECONDS:
            self.act.faults.append(f"the dead worker was missed after {self.act.missed_seconds:.1f} s")

    def _compare(self, writers: list[Writer], watchers: list[Watcher]) -> None:
        sent = {partition: writer.sent for writer in writers for partition in writer.partitions}
        waiting = [(watcher, partition) for watcher in watchers for partition in watcher.seen]
        until(lambda: all(w.seen[p].next >= sent[p] for w, p in waiting), "that everything is copied", self._log)
        for watcher in watchers:
            watcher.stopping.set()
            watcher.join(60)
            self.act.faults += [watcher.failure] if watcher.failure else []
            self.act.faults += [fault for seen in watcher.seen.values() for fault in seen.faults]
        for route in self._routes:
            for topic in route.topics:
                expected = committed(self._addresses[route.source], topic)
                found = committed(self._addresses[route.target], topic)
                self.act.records += sum(map(len, found.values()))
                if found != expected:
                    self.act.faults.append(f"{topic} at {route.target} is not what it is at {route.source}")


def _other_owners(before: Mapping[Partition, str], now: Mapping[Partition, str]) -> Mapping[Partition, str]:
    """Return who owns what now once a former owner has nothing more; nothing until then."""
    return now if set(before.values()) - set(now.values()) else {}


def _ends(admin: Admin, topics: list[str]) -> list[int]:
    """Return the end offset of each topic's first partition."""
    found = admin.offsets({TopicPartition(topic, 0): -1 for topic in topics})
    return [one.offset for one in found.values()]
