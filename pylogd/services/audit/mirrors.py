"""Read the progress of `pylogd mirror` from its checkpoints at the target cluster.

A checkpoint is made when the target has acknowledged everything before it, so the audit need not wait any longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twisted.internet.defer import Deferred

from pylogd.client.deferred import Admin
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.tables import CheckpointTable


class MirrorOffsets:
    """Implements `stages.CommittedOffsets` for topics that keep their names."""

    def __init__(self, source: Admin, target: Cluster) -> None:
        """Pass clients of the source and of the target, which has the checkpoints."""
        self._source = source
        self._target = target
        self._table = CheckpointTable(target)
        self._cluster: str | None = None

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[tuple[str, int], int]]:
        """Return a Deferred of the offsets of the checkpoints."""
        return Deferred.fromCoroutine(self._look_up(topics))

    async def _look_up(self, topics: Collection[str]) -> Mapping[tuple[str, int], int]:
        if self._cluster is None:
            self._cluster = (await self._source.describe_cluster()).cluster_id
        await self._table.refresh()
        return {
            (each.topic, each.partition): checkpoint.offset
            for each, checkpoint in self._table.checkpoints.items()
            if each.cluster == self._cluster and each.topic in topics and each.target_topic == each.topic
        }
