"""Limit the rate of replication during reassignments: `*.replication.throttled.rate` and `*.throttled.replicas`.

Strategy: bytes that are sent or fetched use up an allowance, which grows with time, up to the allowance of one second.
While it is used up, a leader leaves records of throttled replicas out of its answers, and a follower leaves throttled
partitions out of its fetches. Replicas in sync are never throttled.

Must not know: partitions' roles, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylogd.broker.replica.configs import HostedConfig
    from pylogd.broker.replica.partition import Partition

#: Stands for all replicas in a list of throttled replicas.
ALL_REPLICAS = "*"


class ReplicationQuota:
    """The allowance of all throttled replicas in one direction.

    rate: returns the present limit in bytes per second.
    seconds: a monotonic clock.
    """

    def __init__(self, rate: Callable[[], int], seconds: Callable[[], float]) -> None:
        self._rate = rate
        self._seconds = seconds
        self._left = 0.0
        self._at = -1.0

    def record(self, count: int) -> None:
        """Record replicated bytes."""
        self._grow()
        self._left -= count

    @property
    def exceeded(self) -> bool:
        """Whether the allowance is used up."""
        self._grow()
        return self._left <= 0

    @property
    def wait(self) -> float:
        """Return the seconds until bytes may be transferred again; 0 if they may now."""
        self._grow()
        return max(-self._left / self._rate(), 0.0) if self._left <= 0 else 0.0

    def _grow(self) -> None:
        now, rate = self._seconds(), self._rate()
        self._left = rate if self._at < 0 else min(self._left + (now - self._at) * rate, rate)
        self._at = now


def is_throttled(replicas: Sequence[str], index: int, node_id: int) -> bool:
    """Return whether a list of `partition:broker`, or `*`, includes the replica of partition `index` on a broker."""
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{index}:{node_id}" in replicas)


class ReplicaThrottle:
    """Tells which replicas are throttled.

    configs: settings of the hosted topics, by name.
    sent: the quota of the bytes that this broker sends.
    """

    def __init__(self, configs: Mapping[str, HostedConfig], node_id: int, sent: ReplicationQuota) -> None:
        self._configs = configs
        self._node_id = node_id
        self._sent = sent

    def holds_back(self, partition: Partition, follower: int) -> bool:
        """Return whether a follower that is not in sync has to wait before this leader sends it more."""
        throttled = self._configs[partition.topic].leader_throttled
        return (
            bool(throttled)
            and follower not in partition.isr
            and is_throttled(throttled, partition.index, follower)
            and self._sent.exceeded
        )

    def note_sent(self, partition: Partition, follower: int, count: int) -> None:
        """Record bytes sent to a follower."""
        partition.copied_bytes += count
        throttled = self._configs[partition.topic].leader_throttled
        if throttled and is_throttled(throttled, partition.index, follower):
            self._sent.record(count)

    def holds_itself_back(self, partition: Partition) -> bool:
        """Return whether this broker's replica is not in sync and throttled by the follower's rate."""
        config = self._configs.get(partition.topic)  # None while the topic is being deleted
        return (
            config is not None
            and bool(throttled := config.follower_throttled)
            and self._node_id not in partition.isr
            and is_throttled(throttled, partition.index, self._node_id)
        )
