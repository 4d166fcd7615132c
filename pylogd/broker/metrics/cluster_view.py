"""Sum up the partitions of the whole cluster, on the broker that is its controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.image import NO_LEADER
from pylogd.broker.metadata.topics import TopicRegistry


@dataclass(slots=True)
class ClusterCounts:
    """The numbers of topics, partitions and live brokers that the controller knows; zeros on other brokers.

    offline: partitions without a leader, or with a leader that is not live.
    not_preferred: partitions that are led by another replica than the preferred one.
    """

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    not_preferred: int = 0
    brokers: int = 0


class ClusterView:
    """Counts the partitions of the cluster.

    counts: the result of the last complete walk.
    """

    def __init__(self, cluster: Cluster, topics: TopicRegistry) -> None:
        self._cluster = cluster
        self._topics = topics
        self.counts = ClusterCounts()

    def walk(self) -> Iterator[None]:
        """Count all partitions, and yield after each, so that the caller can pause. Only the controller counts."""
        counts = ClusterCounts()
        if self._cluster.controller_id == self._cluster.node_id:
            brokers = self._cluster.brokers
            counts.brokers = len(brokers)
            for topic in self._topics.all():
                counts.topics += 1
                for state in topic.partitions:
                    counts.partitions += 1
                    counts.offline += state.leader == NO_LEADER or state.leader not in brokers
                    counts.not_preferred += state.leader != state.replicas[0]
                    yield
        self.counts = counts
