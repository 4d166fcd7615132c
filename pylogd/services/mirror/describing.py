"""Show operators the progress of each route, and where a group of the source continues at the target.

Strategy: all data comes from the clusters: the checkpoints and offset maps that the mirror keeps at the targets, and
the ends of the sources' logs. So neither a running mirror nor access to its metadata store is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pylogd.client.core.model import OffsetAndMetadata, Topic
from pylogd.client.deferred import Admin
from pylogd.client.deferred.cluster import Cluster
from pylogd.lake.tables.opening import open_table
from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.offset_map import OffsetMap
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.settings import MirrorSettings, RouteSettings
from pylogd.services.mirror.starting import LogRange, describe_topics, log_ranges
from pylogd.services.mirror.table_target import TableView
from pylogd.services.mirror.tables import CheckpointTable, OffsetTable
from pylogd.services.mirror.target import Checkpoint, SourcePartition
from pylogd.wire.values import ZERO_UUID


class PartitionLag(NamedTuple):
    """The progress of a partition.

    records: the number of records that are not copied yet; None without a checkpoint.
    age_seconds: the age of the last checkpoint if records wait, else 0.
    """

    path: PartitionRoute
    checkpoint: Checkpoint | None
    records: int | None
    age_seconds: float


class TranslatedOffset(NamedTuple):
    """A group's offset at the source, and the offset at which it continues in the copy.

    note: the reason why the second offset is not exact, or empty.
    """

    path: PartitionRoute
    source: int
    target: int
    note: str = ""


class RouteView:
    """One route, from the data of the clusters at its ends. Call `close` after use."""

    def __init__(self, settings: MirrorSettings, route: RouteSettings, reactor: Any) -> None:
        """Make the parts. Connections are made when they are needed."""
        self._route = route
        self._settings, self._reactor = settings, reactor
        self._source = self._connect(route.source)
        self._target: Cluster | None = None
        self._checkpoints: CheckpointTable | TableView
        table = settings.tables.get(route.target)
        if table is not None:
            self._checkpoints = TableView(lambda: open_table(table.location, table.properties), reactor)
        else:
            self._target = self._connect(route.target)
            self._checkpoints = CheckpointTable(self._target)

    def _connect(self, name: str) -> Cluster:
        return Cluster(
            self._settings.clusters[name].bootstrap, self._settings.options_of(name), retry_timeout=10.0,
            bootstrap_timeout=0.0, reactor=self._reactor,
        )  # fmt: skip

    def _target_cluster(self) -> Cluster:
        """Return the target. Raises MirrorError if it is a table."""
        if self._target is None:
            raise MirrorError(f"{self._route.target} is a table: no groups read it")
        return self._target

    async def close(self) -> None:
        """Close the connections."""
        await self._checkpoints.close()
        self._source.close()
        if self._target is not None:
            self._target.close()

    async def lags(self, now_ms: int) -> list[PartitionLag]:
        """Return the progress of each partition of the route's topics. Raises PylogdError."""
        topics = await self._topics()
        await self._checkpoints.refresh()
        paths = list(self._paths(topics.values()))
        ranges = await log_ranges(self._source, [path.source for path in paths])
        found = []
        for path in paths:
            checkpoint = self._checkpoint(path, topics[path.topic])
            behind = None if checkpoint is None else max(0, ranges[path.source].end - checkpoint.offset)
            waits = checkpoint is not None and bool(behind)
            has_time = checkpoint is not None and waits and checkpoint.time_ms >= 0
            age = max(0.0, (now_ms - checkpoint.time_ms) / 1000) if checkpoint is not None and has_time else 0.0
            found.append(PartitionLag(path, checkpoint, behind, age))
        return found

    async def translate(self, group: str) -> list[TranslatedOffset]:
        """Return the offsets at which a group of the source continues at the target. Raises PylogdError."""
        target = self._target_cluster()
        committed = await Admin(self._source).group_offsets(group)
        topics = await self._topics()
        await self._checkpoints.refresh()
        paths = [path for path in self._paths(topics.values()) if path.source in committed]
        ranges = await log_ranges(target, [path.target for path in paths])
        offsets = OffsetTable(target)
        try:
            await offsets.refresh()
        finally:
            await offsets.close()
        return [
            self._translated(path, topics[path.topic], offsets, committed[path.source], ranges[path.target])
            for path in paths
        ]

    async def commit(self, group: str, offsets: Iterable[TranslatedOffset]) -> None:
        """Commit translated offsets for a group of the target, which must have no members. Raises PylogdError."""
        wanted = {each.path.target: each.target for each in offsets}
        await Admin(self._target_cluster()).alter_group_offsets(group, wanted)

    # Parts

    async def _topics(self) -> dict[str, Topic]:
        found, _ = await describe_topics(self._source, None)
        return {name: found[name] for name in self._route.patterns.select(found)}

    def _paths(self, topics: Iterable[Topic]) -> Iterable[PartitionRoute]:
        for topic in topics:
            for partition in topic.partitions:
                name = self._route.target_name(topic.name)
                yield PartitionRoute(self._route.name, topic.name, partition.index, name)

    def _key(self, path: PartitionRoute) -> SourcePartition:
        cluster = self._source.metadata.cluster_id or ""
        return SourcePartition(cluster, path.topic, path.partition, path.target_topic)

    def _checkpoint(self, path: PartitionRoute, topic: Topic) -> Checkpoint | None:
        found = self._checkpoints.checkpoints.get(self._key(path))
        return found if found is not None and found.topic_id in (topic.topic_id, ZERO_UUID) else None

    def _translated(
        self, path: PartitionRoute, topic: Topic, table: OffsetTable, committed: OffsetAndMetadata, log: LogRange
    ) -> TranslatedOffset:
        key, checkpoint, offset, first = self._key(path), self._checkpoint(path, topic), committed.offset, log.first
        if checkpoint is None:
            return TranslatedOffset(path, offset, first, "nothing is copied yet: it starts at the beginning")
        if checkpoint.target_offset > log.end:
            return TranslatedOffset(path, offset, first, "the copy was deleted since: it starts at the beginning")
        known = table.maps.get(key)
        offsets = OffsetMap()
        if known is not None and table.topic_ids.get(key) == topic.topic_id:
            offsets.add(known.runs)
        offsets.copied_to(checkpoint.offset, checkpoint.target_offset)
        found = offsets.translate(offset)
        if found is not None:
            return TranslatedOffset(path, offset, found)
        if offset > checkpoint.offset:
            behind = offset - checkpoint.offset
            return TranslatedOffset(
                path,
                offset,
                checkpoint.target_offset,
                f"the copy is {behind} offsets behind: these are read again",
            )
        return TranslatedOffset(path, offset, first, "older than the offset map: it starts at the beginning")
