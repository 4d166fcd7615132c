"""`make bench-cluster`: speed and costs of a cluster on this machine. Writes CLUSTER.md and cluster.json.

Rules: real brokers on a real ZooKeeper (`pylogd.local.cluster`), default settings; the same client for one broker and
for three (bench/client.c on librdkafka), which take turns, each round on fresh brokers and directories. The results of
a row are saved when it ends, so that an interrupted run can be completed (`--only`). Processor time is measured by the
kernel for each process. No time is asserted.

    python -m bench cluster [--only WORD] [--quick] [--rounds N] [--folder DIR] [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka

from bench import controller_change, failed_directory, failover
from bench.failover import wait_until
from bench.harness import say
from bench.loads.base import TOPIC, Said, run_all
from bench.loads.kafka import CLIENT, build
from bench.machine import machine
from bench.memory import warm_pages
from bench.peers.base import process_seconds
from pylogd.client import Admin, NewTopic
from pylogd.local.cluster import LocalCluster
from tests.pages import json_text, write_page

HERE = Path(__file__).parent
BROKERS = 3
SIZE = 200
MANY = 1000
_SETTLE_SECONDS = 10.0
_FRAMING = 11  # bytes of a message beyond its value
_LONG_ROUNDS = 3  # the most rounds of rows that take minutes


@dataclass(slots=True)
class Figure:
    """A measurement: its values round by round, in `unit`, and bounds for the median."""

    name: str
    unit: str
    samples: list[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Return whether the target was met, None if there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.median >= self.at_least) and (
            self.at_most is None or self.median <= self.at_most
        )


@dataclass(slots=True)
class Samples:
    """Figures by name, in the order of their first measurement."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def add(
        self, name: str, unit: str, value: float, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Add one round of a figure."""
        self.figures.setdefault(name, Figure(name, unit, [], at_least, at_most)).samples.append(value)

    def list(self) -> list[Figure]:
        """Return all figures."""
        return list(self.figures.values())


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run: rounds, a factor for sizes, seconds to watch idle brokers, and the folder for data."""

    rounds: int
    factor: float
    idle_seconds: float
    folder: Path

    def count(self, messages: int) -> int:
        """Return how many messages to use where a full run uses `messages`."""
        return max(int(messages * self.factor), 1000)


def create(cluster: LocalCluster, topics: Sequence[NewTopic], in_sync: int) -> None:
    """Create topics. Return once every broker sees `in_sync` replicas in sync of each partition."""
    with Admin(cluster.bootstrap) as admin:
        for error in admin.create_topics(topics).values():
            if error is not None:
                raise error
    for node in cluster.brokers:
        with Admin(cluster.address(node)) as admin:
            wait_until(
                partial(failover.in_sync, admin, len(topics), in_sync), f"broker {node} sees all replicas in sync"
            )


# -- acks=all


def replicated_produce(scale: Scale) -> list[Figure]:
    """acks=all on three brokers beside one alone: the same client and messages, in turns, each with warm pages."""
    found = Samples()
    count = scale.count(1_000_000)
    for _ in range(scale.rounds):
        alone = _produced(scale, 1, count, found)
        three = _produced(scale, BROKERS, count, found)
        found.add("three brokers over one, the pairs' ratio", "", three / alone, at_least=0.45)
        say(f"alone {alone:,.0f} msg/s, three {three:,.0f} msg/s, ratio {three / alone:.3f}")
    return found.list()


def _produced(scale: Scale, brokers: int, count: int, found: Samples) -> float:
    """Run one round on fresh brokers; return messages per second."""
    with tempfile.TemporaryDirectory(dir=scale.folder) as folder, LocalCluster(Path(folder), brokers) as cluster:
        create(cluster, [NewTopic(TOPIC, 1, brokers, {"min.insync.replicas": str(min(brokers, 2))})], brokers)
        with Admin(cluster.bootstrap) as admin:
            leader = admin.describe_topic(TOPIC).partitions[0].leader
        _produce(cluster, count // 20)  # each broker has served its first requests
        before = {node: process_seconds(broker.pid) for node, broker in cluster.brokers.items()}
        warm_pages(scale.folder, brokers * count * (SIZE + _FRAMING))
        own = _children_seconds()
        said = _produce(cluster, count)
        own = _children_seconds() - own
        spent = {node: process_seconds(broker.pid) - before[node] for node, broker in cluster.brokers.items()}
    who = "one broker" if brokers == 1 else "three brokers"
    million = said.messages / 1e6
    found.add(f"{who}, messages of {SIZE} bytes", "msg/s", said.messages / said.seconds)
    found.add(f"{who}: the leader's processor time", "s for a million", spent[leader] / million)
    if brokers > 1:
        followers = [seconds / million for node, seconds in spent.items() if node != leader]
        found.add(f"{who}: a follower's processor time", "s for a million", statistics.mean(followers))
    found.add(f"{who}: the client's processor time", "s for a million", own / million)
    return said.messages / said.seconds


def _produce(cluster: LocalCluster, count: int, *settings: str) -> Said:
    command = [str(CLIENT), "produce", cluster.bootstrap, TOPIC, str(count), str(SIZE), "acks=all", *settings]
    return run_all([command])[0]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- a follower


def following(scale: Scale) -> list[Figure]:
    """A new replica copies a log that its leader has in the page cache, over loopback."""
    found = Samples()
    for _ in range(scale.rounds):
        rate, follower, leader = _followed(scale, scale.count(6_000_000))
        found.add("a follower applies, by the clock", "MB/s", rate, at_least=300)
        found.add("a follower applies, of its processor time", "MB/s", follower)
        found.add("its leader sends, of its processor time", "MB/s", leader)
        say(f"{rate:.0f} MB/s; {follower:.0f} MB per processor second of the follower, {leader:.0f} of the leader")
    return found.list()


def _followed(scale: Scale, count: int) -> tuple[float, float, float]:
    """Return MB/s by the clock from the first byte on, by the follower's and by the leader's processor time."""
    partitions = 4
    with tempfile.TemporaryDirectory(dir=scale.folder) as folder, LocalCluster(Path(folder), 2) as cluster:
        leader, follower = cluster.brokers.values()
        places = dict.fromkeys(range(partitions), (leader.node_id,))
        create(cluster, [NewTopic(TOPIC, assignments=places)], 1)
        _produce(cluster, count, f"bench.partitions={partitions}")
        total = _stored(cluster.folder / f"broker{leader.node_id}")
        os.sync()  # dirty pages are written before the copy begins
        copied = cluster.folder / f"broker{follower.node_id}"
        moves = {(TOPIC, index): (leader.node_id, follower.node_id) for index in range(partitions)}
        with Admin(cluster.bootstrap) as admin:
            for error in admin.reassign(moves).values():
                if error is not None:
                    raise error
            wait_until(lambda: _stored(copied) > 0, "the follower has begun")
            first, begun = _stored(copied), time.monotonic()
            spent = [process_seconds(leader.pid), process_seconds(follower.pid)]
            wait_until(lambda: _stored(copied) >= total, "the follower has copied everything")
            seconds = time.monotonic() - begun
            spent = [process_seconds(leader.pid) - spent[0], process_seconds(follower.pid) - spent[1]]
            wait_until(lambda: failover.in_sync(admin, 1, 2), "it is in sync")
        megabytes = (total - first) / 1e6
        return megabytes / seconds, megabytes / spent[1], megabytes / spent[0]


def _stored(data: Path) -> int:
    """Return the size in bytes of the topic's segments in a data directory."""
    return sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.log"))


# -- failover, idle brokers


def failing_over(scale: Scale) -> list[Figure]:
    """One of three brokers with 1,000 partitions is killed: until its partitions have leaders and can be written to."""
    found = Samples()
    limits = {"killed to written to, all with acks=all": 6.0, "detected to written to, all with acks=all": 1.0}
    for _ in range(scale.rounds):
        _note(found, failover.measure(MANY, 10, BROKERS), limits)
    return found.list()


def losing_directory(scale: Scale) -> list[Figure]:
    """A leader's log directory fails: until another broker leads and can be written to."""
    found = Samples()
    limits = {"failed to elected": 1.0}
    for row in failed_directory.measure(2 * scale.rounds, scale.folder):
        _note(found, row, limits)
    return found.list()


def changing_controller(scale: Scale) -> list[Figure]:
    """The controller of 10,000 partitions is stopped and killed, and the metadata of all of them requested."""
    found = Samples()
    limits = {
        "metadata of all partitions, first answer after a change": 0.05,
        "metadata of all partitions, cached": 0.05,
        "handed over: vacant to seized": 2.0,
        "controller change after a kill: detected to all decided": 2.0,
    }
    for _ in range(min(scale.rounds, _LONG_ROUNDS)):
        _note(found, controller_change.measure(scale.count(10_000), folder=scale.folder), limits)
    return found.list()


def _note(found: Samples, row: Mapping[str, float], limits: Mapping[str, float]) -> None:
    say(", ".join(f"{name}: {seconds:.3f} s" for name, seconds in row.items()))
    for name, seconds in row.items():
        found.add(name, "s", seconds, at_most=limits.get(name))


def idling(scale: Scale) -> list[Figure]:
    """Three brokers with 1,000 partitions of three replicas and without clients."""
    found = Samples()
    with tempfile.TemporaryDirectory(dir=scale.folder) as folder, LocalCluster(Path(folder), BROKERS) as cluster:
        for made in (0, MANY):
            if made:
                create(cluster, [NewTopic(TOPIC, made, BROKERS)], BROKERS)
            time.sleep(_SETTLE_SECONDS)
            brokers = list(cluster.brokers.values())
            before = [process_seconds(broker.pid) for broker in brokers]
            begun = time.monotonic()
            time.sleep(scale.idle_seconds)
            seconds = time.monotonic() - begun
            used = [process_seconds(broker.pid) - was for broker, was in zip(brokers, before, strict=True)]
            shares = [100 * one / seconds for one in used]
            say(f"{made} partitions: " + ", ".join(f"{share:.2f} %" for share in shares))
            name = f"{made:,} partitions: the busiest broker"
            found.add(name, "% of a core", max(shares), at_most=3.0 if made else None)
    return found.list()


# -- the run

ROWS: dict[str, Callable[[Scale], list[Figure]]] = {
    "acks=all": replicated_produce,
    "follower": following,
    "failover of 1,000 partitions": failing_over,
    "a failed log directory": losing_directory,
    "idle with 1,000 partitions": idling,
    "controller of 10,000 partitions": changing_controller,
}


@dataclass(slots=True)
class Results:
    """The measured rows by name, each with its commit."""

    path: Path
    machine: dict[str, object] = field(default_factory=dict)
    rows: dict[str, dict[str, object]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Return the results of earlier runs."""
        if not path.exists():
            return cls(path)
        said = json.loads(path.read_text())
        return cls(path, said["machine"], said["rows"])

    def put(self, row: str, figures: Iterable[Figure], seconds: float) -> None:
        """Keep a row, in memory and on disk."""
        self.machine = machine(str(confluent_kafka.libversion()[0]))
        self.rows[row] = {
            "commit": self.machine.pop("commit"),
            "seconds": round(seconds),
            "figures": [asdict(figure) for figure in figures],
        }
        ordered = {name: self.rows[name] for name in ROWS if name in self.rows}
        unfinished = self.path.with_suffix(".partial")
        unfinished.write_text(json_text({"machine": self.machine, "rows": ordered}))
        unfinished.replace(self.path)

    def figures(self, row: str) -> list[Figure]:
        """Return the figures of a row."""
        found = self.rows.get(row, {}).get("figures", [])
        assert isinstance(found, list)
        return [Figure(**one) for one in found]


def table(results: Results) -> str:
    """Return the text of CLUSTER.md."""
    lines = [
        "# A cluster on one machine",
        "",
        "Written by `make bench-cluster` (`bench/cluster.py`). Brokers, ZooKeeper and client share the machine. The "
        "client is `bench/client.c` on librdkafka with its default batches.",
    ]
    for row, measure in ROWS.items():
        figures = results.figures(row)
        what = (measure.__doc__ or "").strip()
        lines += ["", f"## {row}", "", what, ""]
        if not figures:
            lines.append("Not measured yet.")
            continue
        lines += ["| what | median | unit | rounds | target | |", "| --- | --: | --- | --- | --- | --- |"]
        for figure in figures:
            target = f"≥ {figure.at_least:g}" if figure.at_least is not None else ""
            target += f"≤ {figure.at_most:g}" if figure.at_most is not None else ""
            verdict = {True: "met", False: "**missed**", None: ""}[figure.met]
            rounds = ", ".join(map(_number, figure.samples))
            lines.append(
                f"| {figure.name} | {_number(figure.median)} | {figure.unit} | {rounds} | {target} | {verdict} |"
            )
        lines += ["", f"Commit {results.rows[row]['commit']}, {results.rows[row]['seconds']} s."]
    lines += ["", "Measured on: " + ", ".join(f"{name} {value}" for name, value in results.machine.items()) + ".", ""]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """Run the rows and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench cluster", description="a cluster on this machine")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="one small round, for an impression; writes nothing")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5); the median counts")
    parser.add_argument("--folder", type=Path, help="folder for data (one under .cache)")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    options = parser.parse_args()
    rows = {name: measure for name, measure in ROWS.items() if options.only in name}
    if options.list or not rows:
        print("\n".join(f"{name}: {(measure.__doc__ or '').strip()}" for name, measure in ROWS.items()))
        return
    build()
    folder = options.folder or CLIENT.parent
    folder.mkdir(parents=True, exist_ok=True)
    quick = options.quick
    results = Results(folder / "cluster.json") if quick else Results.load(HERE / "cluster.json")
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=folder) as data:
        scale = Scale(1 if quick else options.rounds, 0.1 if quick else 1.0, 5.0 if quick else 30.0, Path(data))
        for number, (name, measure) in enumerate(rows.items(), 1):
            say(f"[{number}/{len(rows)}] {name}")
            begun = time.monotonic()
            results.put(name, measure(scale), time.monotonic() - begun)
            if not quick:
                write_page(HERE / "CLUSTER.md", [table(results)])
    print(table(results))


if __name__ == "__main__":
    main()
