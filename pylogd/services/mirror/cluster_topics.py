"""The controller's view of one cluster: its topics, and the origins of topics that mirrors fill."""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.client.core.model import Topic
from pylogd.client.deferred import Admin, Producer
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.records import CHECKPOINTS, Origin, origin_record
from pylogd.services.mirror.starting import describe_topics
from pylogd.services.mirror.tables import OriginTable, ensure_topics


class ClusterTopics:
    """The controller's view of one cluster, for all routes that begin or end there."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        """Nothing is known yet.

        `name` is that in the mirror's file.
        """
        self.name = name
        self.cluster = cluster
        self.admin = Admin(cluster)
        self.table = OriginTable(cluster)
        self.topics: Mapping[str, Topic] = {}
        self._producer: Producer | None = None
        self._prepared = False

    @property
    def cluster_id(self) -> str:
        """The cluster's id; "" before it is known."""
        return self.cluster.metadata.cluster_id or ""

    async def refresh(self) -> None:
        """Read all topics, and the origins of topics that mirrors fill. Raises PylogdError."""
        self.topics = (await describe_topics(self.cluster, None))[0]
        if CHECKPOINTS in self.topics:
            await self.table.refresh()

    async def prepare(self, map_days: int) -> None:
        """Create the mirror's own topics here, since it is a target. Raises PylogdError."""
        if not self._prepared:
            await ensure_topics(self.admin, map_days)
            self._prepared = True

    def origins(self, topic: str) -> list[Origin]:
        """Return the origin of the records of a topic."""
        return [origin for origin in self.table.origins.values() if origin.target_topic == topic]

    def passed(self, topic: str) -> set[str]:
        """Return the ids of the clusters that a topic's records have passed, including this cluster."""
        return {self.cluster_id}.union(*(origin.via for origin in self.origins(topic)))

    async def write_origins(self, origins: list[Origin]) -> None:
        """Write origins to this cluster. Raises PylogdError."""
        if self._producer is None:
            self._producer = Producer(self.cluster)
        for origin in origins:
            key, value = origin_record(origin)
            await self._producer.send(CHECKPOINTS, value, key, partition=0)
        await self._producer.flush()
        for origin in origins:
            self.table.origins[origin.key] = origin

    async def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._producer.abandon()
        try:
            await self.table.close()
        finally:
            self.cluster.close()
