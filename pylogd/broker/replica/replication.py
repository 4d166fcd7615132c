"""Follows the partitions that other brokers lead, with one fetcher for each leader.

Rules: a partition belongs to at most one fetcher: the fetcher of its leader in the newest epoch known here. A fetcher
without partitions is stopped.

Must not know: requests, how a fetcher works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime

from pylogd.broker.replica.fetcher import Connect, FetcherConfig, ReplicaFetcher
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.replica.replication_throttle import ReplicaThrottle, ReplicationQuota
from pylogd.broker.replica.roles import Role
from pylogd.config import Settings

if TYPE_CHECKING:
    from pylogd.broker.replica.manager import ReplicaManager
    from pylogd.broker.replica.partition_registry import PartitionRegistry


class Replication:
    """Assigns partitions to fetchers, and removes them.

    connect: takes a broker's id, and returns a connection to the broker.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        partitions: PartitionRegistry,
        throttle: ReplicaThrottle,
        connect: Connect,
        settings: Settings,
        clock: IReactorTime,
        node_id: int,
        broker_epoch: Callable[[], int] = lambda: NO_EPOCH,
    ) -> None:
        """broker_epoch: returns this broker's epoch, which requests to leaders contain (KIP-903)."""
        self._replicas = replicas
        self._partitions = partitions
        self._throttle = throttle
        self._connect = connect
        self._clock = clock
        integer = settings.integer
        self._config = FetcherConfig(
            node_id=node_id,
            max_bytes=integer("replica.fetch.max.bytes"),
            max_response_bytes=integer("replica.fetch.response.max.bytes"),
            min_bytes=integer("replica.fetch.min.bytes"),
            max_wait_ms=integer("replica.fetch.wait.max.ms"),
            backoff=integer("replica.fetch.backoff.ms") / 1000,
            timeout=integer("replica.socket.timeout.ms") / 1000,
            broker_epoch=broker_epoch,
        )
        self._quota = ReplicationQuota(lambda: integer("follower.replication.throttled.rate"), clock.seconds)
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leader_of: dict[tuple[bytes, int], int] = {}  # the leader whose fetcher has the partition
        self._running = False

    def start(self, cluster_id: str | None = None) -> None:
        """Follow partitions from now on. Leaders refuse a `cluster_id` of another cluster."""
        self._config = self._config._replace(cluster_id=cluster_id)
        self._running = True
        self._partitions.subscribe(self._changed)
        for partition in list(self._partitions.by_name.values()):
            if partition.role is Role.FOLLOWING:
                self._changed(partition)

    def stop(self) -> Deferred[None]:
        """Stop following. Fires when every fetcher has ended."""
        self._running = False
        self._leader_of.clear()
        fetchers, self._fetchers = self._fetchers, {}
        ended: Deferred[None] = DeferredList([fetcher.stop() for fetcher in fetchers.values()]).addCallback(
            lambda _: None
        )
        return ended

    def _changed(self, partition: Partition) -> None:
        if not self._running:
            return
        key = partition.topic_id, partition.index
        leader = partition.leader_id if partition.role is Role.FOLLOWING else -1
        before = self._leader_of.pop(key, -1)
        if before >= 0 and before != leader:
            fetcher = self._fetchers[before]
            fetcher.unfollow(partition)
            if not len(fetcher):
                del self._fetchers[before]
                fetcher.stop()
        if leader >= 0 and leader != partition.node_id:
            self._leader_of[key] = leader
            self._fetcher(leader).follow(partition)

    def _fetcher(self, leader: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                leader, self._replicas, self._throttle, self._connect, self._clock, self._config, self._quota
            )
        return fetcher
