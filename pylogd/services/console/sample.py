"""The last sample of a cluster, which the console's pages read. It is compact, for 200,000 partitions.

Rules: a sample does not change once it is the last one. Unknown numbers are None, or -1 in arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pylogd.client.core.admin.health import Reason, Verdict, verdict_of
from pylogd.client.core.model import Broker
from pylogd.services.console.series import UNKNOWN, LagSeries, TopicSeries


class Gaps:
    """The parts of a sample that could not be read.

    nodes: the brokers that failed.
    texts: descriptions for users.
    """

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.texts: list[str] = []

    def add(self, node: int | None, text: str) -> None:
        """Record a gap, and the broker that caused it, if any, which is not asked again."""
        if node is not None:
            self.nodes.add(node)
        self.texts.append(text)


Nodes = tuple[int, ...]


class TopicState:
    """A topic. The index of all sequences is the partition, from 0 to `len(leaders) - 1`.

    leaders: the ids of the leaders; -1 for none.
    sizes: the bytes of the leader's log; -1 if unknown.
    begins: the first offsets; -1 if unknown.
    """

    __slots__ = ("begins", "internal", "isr", "leaders", "name", "replicas", "series", "sizes", "topic_id")

    def __init__(self, name: str, topic_id: bytes, internal: bool, series: TopicSeries) -> None:
        self.name = name
        self.topic_id = topic_id
        self.internal = internal
        self.series = series
        self.leaders: array[int] = array("i")
        self.replicas: list[Nodes] = []
        self.isr: list[Nodes] = []
        self.sizes: array[int] = array("q")
        self.begins: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.leaders)

    def add(self, leader: int, replicas: Nodes, isr: Nodes) -> None:
        """Append the next partition; their ids must come in order from 0."""
        self.leaders.append(leader)
        self.replicas.append(replicas)
        self.isr.append(isr)

    @property
    def factor(self) -> int:
        """The number of replicas of the first partition."""
        return len(self.replicas[0]) if self.replicas else 0

    @property
    def size(self) -> int | None:
        """The sum of the known bytes of leaders' logs; None if none is known."""
        known = [size for size in self.sizes if size != UNKNOWN]
        return sum(known) if known else None

    @property
    def records(self) -> int | None:
        """The sum of end minus begin of all logs, which is an upper limit of the number of records; None if unknown."""
        ends = self.series.ends
        if len(ends) != len(self.begins) or UNKNOWN in ends or UNKNOWN in self.begins or not ends:
            return None
        return sum(ends) - sum(self.begins)

    @property
    def rate(self) -> float | None:
        """Records per second between the last two samples."""
        return self.series.rates[-1] if self.series.rates else None

    @property
    def lacking(self) -> int:
        """The number of partitions without a leader, or with replicas that are not in sync."""
        return sum(
            leader < 0 or len(isr) < len(replicas)
            for leader, isr, replicas in zip(self.leaders, self.isr, self.replicas, strict=True)
        )


class Committed(NamedTuple):
    """A group's committed offsets of a topic, by partition: offsets of the next record to read."""

    partitions: array[int]
    offsets: array[int]


class GroupState:
    """A group.

    members: the number of members; None if unknown.
    lag, seconds: the lag in records and in seconds; None without committed offsets.

    kind: `classic`, `consumer` or another type of the protocol.
    unknown: the number of partitions whose log end is unknown.
    worst: the topic that is furthest behind.
    """

    __slots__ = (
        "committed", "coordinator", "group_id", "kind", "lag", "members", "protocol", "protocol_type", "seconds",
        "series", "state", "unknown",
    )  # fmt: skip

    def __init__(self, group_id: str, state: str, kind: str, protocol_type: str, coordinator: int) -> None:
        self.group_id = group_id
        self.state = state
        self.kind = kind
        self.protocol_type = protocol_type
        self.coordinator = coordinator
        self.protocol = ""
        self.members: int | None = None
        self.committed: dict[str, Committed] = {}
        self.lag: int | None = None
        self.seconds: float | None = None
        self.unknown = 0
        self.series = LagSeries()


class Directory(NamedTuple):
    """A data directory of a broker. Sizes are in bytes; None if unknown.

    error: the name of an error code, or None.
    """

    broker: int
    path: str
    error: str | None
    total: int | None
    usable: int | None
    cordoned: bool


@dataclass(slots=True)
class BrokerState:
    """A broker.

    replicas, leaders, lacking: the numbers of partitions that it has, leads, and leads without all replicas in sync.

    size: the bytes of its logs; None if unknown.
    figures: the figures of its metrics page; empty without one.
    """

    broker: Broker
    leaders: int = 0
    replicas: int = 0
    lacking: int = 0
    size: int | None = None
    directories: list[Directory] = field(default_factory=list)
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """The data of a cluster at one time.

    number: the number of the sample; 0 before the first one.
    at_ms: when it was complete, in milliseconds since 1970.
    seconds: how long it took.
    error: the reason why the last attempt failed, or None.
    by_topic: the groups that have committed offsets of a topic.
    """

    number: int = 0
    at_ms: int = 0
    seconds: float = 0.0
    error: str | None = None
    cluster_id: str | None = None
    controller: int = -1
    brokers: dict[int, BrokerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    by_topic: dict[str, list[str]] = field(default_factory=dict)
    reasons: Sequence[Reason] = ()
    partitions: int = 0
    gaps: Sequence[str] = ()

    @property
    def missing(self) -> list[int]:
        """The ids of brokers that have replicas and are not live."""
        return sorted({node for topic in self.topics.values() for nodes in set(topic.replicas) for node in nodes}
                      - self.brokers.keys())  # fmt: skip

    @property
    def verdict(self) -> Verdict:
        """The worst of the reasons."""
        return verdict_of(self.reasons)
