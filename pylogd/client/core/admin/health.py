"""Judge the health of a cluster, with reasons, from data that any client can read. Pure functions.

Strategy: partitions are added one by one (`Partitions.add`), so that a caller with many partitions needs no list of
objects. Then `judge` returns the reasons, each with a verdict. The worst verdict is that of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from pylogd.client.core.model import LogDir, Topic

#: The most topics, with partitions that are not fully in sync, whose `min.insync.replicas` is read.
MOST_CONFIGS: Final = 100
#: The most partitions or directories that a reason names.
_NAMED: Final = 3
#: A volume with less than this share free is nearly full.
_LOW_SPACE: Final = 0.05
#: A volume with fewer free bytes is full: no segment fits.
_FULL_BYTES: Final = 1 << 20


class Verdict(IntEnum):
    """The verdict on a cluster; its value is the exit status. 1 and 2 mean the same as for all commands: failure, usage
    error.
    """

    HEALTHY = 0
    DEGRADED = 3
    CRITICAL = 4


class Reason(NamedTuple):
    """Why a cluster is not healthy.

    text: the reason in words.
    """

    verdict: Verdict
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Lacking:
    """A partition with replicas that are not in sync.

    leader: the broker's id; -1 if there is no leader.
    replicas, in_sync: the numbers of replicas.
    """

    partition: int
    leader: int
    replicas: int
    in_sync: int


class Partitions:
    """The problems of partitions.

    count: the number of checked partitions.
    leaderless: the names of partitions without a leader.
    lacking: the partitions with replicas that are not in sync, by topic.

    nodes: the ids of the brokers that have replicas.
    """

    def __init__(self, topics: Sequence[Topic] = ()) -> None:
        self.count = 0
        self.leaderless: list[str] = []
        self.lacking: dict[str, list[Lacking]] = {}
        self.nodes: set[int] = set()
        for topic in topics:
            for one in topic.partitions:
                self.add(topic.name, one.index, one.leader, one.replicas, one.isr)

    def add(self, topic: str, index: int, leader: int, replicas: Collection[int], isr: Collection[int]) -> None:
        """Check a partition."""
        self.count += 1
        self.nodes.update(replicas)
        if leader < 0:
            self.leaderless.append(f"{topic}:{index}")
        if len(isr) < len(replicas):
            self.lacking.setdefault(topic, []).append(Lacking(index, leader, len(replicas), len(isr)))


@dataclass(slots=True)
class Facts:
    """The data about a cluster that the verdict is based on.

    brokers: the live brokers.
    controller: the controller's id; -1 if there is none.
    least: `min.insync.replicas` of the topics for which it was read.
    silent: live brokers that did not answer.
    stuck: the names of partitions whose leader's volume is full.
    """

    brokers: Sequence[int]
    controller: int
    partitions: Partitions
    least: Mapping[str, int] = field(default_factory=dict)
    directories: Sequence[LogDir] = ()
    silent: Sequence[int] = ()
    stuck: Sequence[str] = ()


def stuck_partitions(topics: Iterable[Topic], directories: Iterable[LogDir]) -> list[str]:
    """Return the names of the partitions that can't grow, since their leader has them on a volume that is full."""
    full = [one for one in directories if one.error is None and 0 <= one.usable_bytes < _FULL_BYTES]
    held = {(one.broker, topic, index) for one in full for topic, index in one.sizes}
    if not held:
        return []
    return [
        f"{topic.name}:{one.index}"
        for topic in topics
        for one in topic.partitions
        if (one.leader, topic.name, one.index) in held
    ]


def judge(facts: Facts) -> list[Reason]:
    """Return the reasons why a cluster is not healthy, the worst first; none if it is healthy."""
    critical, degraded = Verdict.CRITICAL, Verdict.DEGRADED
    found = facts.partitions
    lacking = [(f"{topic}:{one.partition}", topic, one) for topic, some in found.lacking.items() for one in some]
    refusing = [
        name
        for name, topic, one in lacking
        if one.leader >= 0 and one.in_sync < min(facts.least.get(topic, 1), one.replicas)
    ]
    missing = [f"broker {node}" for node in sorted(found.nodes.difference(facts.brokers))]
    failed = [f"{one.path} of broker {one.broker}" for one in facts.directories if one.error is not None]
    full = [
        f"{one.path} of broker {one.broker}"
        for one in facts.directories
        if one.error is None and 0 <= one.usable_bytes < one.total_bytes * _LOW_SPACE
    ]
    silent = [f"broker {node}" for node in facts.silent]
    reasons = [
        (critical, "no-controller", ["-"] if facts.controller not in set(facts.brokers) else [], "there is no "
         "controller: no leader is elected, and no topic made"),
        (critical, "offline-partitions", found.leaderless, "partitions without a leader, which can't be used: {}"),
        (critical, "under-min-isr", refusing, "partitions that refuse acks=all, as too few replicas are in sync: {}"),
        (critical, "full-disks", facts.stuck, "partitions that refuse records, as their leader's disk is full: {}"),
        (degraded, "missing-brokers", missing, "brokers that have replicas and are not there: {}"),
        (degraded, "silent-brokers", silent, "brokers that are there and do not answer: {}"),
        (degraded, "under-replicated", [name for name, _, _ in lacking],
         "partitions with replicas that are not in sync: {}"),
        (degraded, "offline-directories", failed, "data directories that are offline: {}"),
        (degraded, "low-space", full, "data directories with less than 5 % free: {}"),
    ]  # fmt: skip
    return [Reason(verdict, code, text.format(_some(names))) for verdict, code, names, text in reasons if names]


def verdict_of(reasons: Sequence[Reason]) -> Verdict:
    """Return the worst verdict."""
    return max((reason.verdict for reason in reasons), default=Verdict.HEALTHY)


def _some(names: Sequence[str]) -> str:
    """Return the number of names, and the first of them."""
    return f"{len(names)} ({', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''})"
