"""Replication held to a rate while replicas move: `*.replication.throttled.rate` and `*.throttled.replicas`.

Strategy: bytes are recorded as they are sent or fetched, against an allowance that grows with the time, to one second's
worth at most. Once it is used up, throttled replicas give way until it has grown again: a leader leaves their records
out of its answer, a follower leaves them out of its fetch. Who is in sync is never held up.

Must not know: partitions' roles, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylogd.replica.configs import HostedConfig
    from pylogd.replica.partition import Partition

#: In a list of throttled replicas: all of them.
ALL_REPLICAS = "*"


class ReplicationQuota:
    """Bytes a second, together, for all throttled replicas in one direction. `rate` and `seconds` are asked anew."""

    def __init__(self, rate: Callable[[], int], seconds: Callable[[], float]) -> None:
        self._rate = rate
        self._seconds = seconds
        self._left = 0.0
        self._at = -1.0

    def record(self, count: int) -> None:
        """So many bytes have gone."""
        self._grow()
        self._left -= count

    @property
    def exceeded(self) -> bool:
        """Whether throttled replicas have to wait."""
        self._grow()
        return self._left <= 0

    @property
    def wait(self) -> float:
        """Seconds until there is an allowance again, 0 if there is one."""
        self._grow()
        return max(-self._left / self._rate(), 0.0) if self._left <= 0 else 0.0

    def _grow(self) -> None:
        now, rate = self._seconds(), self._rate()
        self._left = rate if self._at < 0 else min(self._left + (now - self._at) * rate, rate)
        self._at = now


def is_throttled(replicas: Sequence[str], index: int, node_id: int) -> bool:
    """Whether a list of `partition:broker`, or `*`, has the replica of partition `index` on broker `node_id`."""
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{index}:{node_id}" in replicas)


class ReplicaThrottle:
    """What the topics' lists say about replicas, with what is left of the leader's allowance.

    `configs`: by topic, those hosted here. `sent`: the allowance for what this broker sends.
    """

    def __init__(self, configs: Mapping[str, HostedConfig], node_id: int, sent: ReplicationQuota) -> None:
        self._configs = configs
        self._node_id = node_id
        self._sent = sent

    def holds_back(self, partition: Partition, follower: int) -> bool:
        """Whether a follower, out of sync, has to wait before this leader sends it more."""
        throttled = self._configs[partition.topic].leader_throttled
        return (
            bool(throttled)
            and follower not in partition.isr
            and is_throttled(throttled, partition.index, follower)
            and self._sent.exceeded
        )

    def note_sent(self, partition: Partition, follower: int, count: int) -> None:
        """A follower is sent so many bytes: they count where its replica is throttled."""
        throttled = self._configs[partition.topic].leader_throttled
        if throttled and is_throttled(throttled, partition.index, follower):
            self._sent.record(count)

    def holds_itself_back(self, partition: Partition) -> bool:
        """Whether the replica here, out of sync, fetches no faster than the follower's rate allows."""
        throttled = self._configs[partition.topic].follower_throttled
        return (
            bool(throttled)
            and self._node_id not in partition.isr
            and is_throttled(throttled, partition.index, self._node_id)
        )
