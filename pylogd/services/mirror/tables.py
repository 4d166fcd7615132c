"""Read the mirror's topics at a target cluster (`records`).

Strategy: `refresh` reads a topic up to its present end, and the next `refresh` continues there. Checkpoints and runs
count once they are committed. The end is that of all records: committed records may follow those of open transactions,
so the table waits until these transactions are decided. Origins are written without transactions, and are not waited
for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from twisted.internet.defer import DeferredLock

from pylogd.base.errors import ErrorCode, RequestTimedOut
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.errors import UnknownTopic
from pylogd.client.core.model import NewTopic, TopicPartition
from pylogd.client.deferred import Admin, Consumer
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.offset_map import OffsetMap
from pylogd.services.mirror.records import CHECKPOINTS, OFFSETS, Origin, parse_checkpoint, parse_origin, parse_runs
from pylogd.services.mirror.target import Checkpoint, SourcePartition
from pylogd.wire.records import Record

_POLL_SECONDS: Final = 0.2
#: How long a table waits for open transactions.
_PATIENCE_SECONDS: Final = 120.0
_POLL_RECORDS: Final = 10_000

#: The replicas of the mirror's topics, if there are enough brokers.
_REPLICAS: Final = 3
_DAY_MS: Final = 86_400_000
CHECKPOINT_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip


async def ensure_topics(admin: Admin, retention_days: int = 7) -> None:
    """Create the mirror's topics at a target unless they exist. Raises PylogdError."""
    offsets = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_days * _DAY_MS),
        "segment.bytes": str(64 << 20),
    }
    known = {topic.name for topic in await admin.list_topics(internal=True)}
    wanted = {CHECKPOINTS: CHECKPOINT_CONFIGS, OFFSETS: offsets}
    if wanted.keys() <= known:
        return
    replicas = min(_REPLICAS, len((await admin.describe_cluster()).brokers))
    missing = [NewTopic(name, 1, replicas, configs) for name, configs in wanted.items() if name not in known]
    for error in (await admin.create_topics(missing)).values():
        if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise error


class TopicTable:
    """Reads a topic with one partition from its start, and passes each record to `take`."""

    def __init__(self, cluster: Cluster, topic: str, take: Callable[[Record], None], *, committed: bool = True) -> None:
        """`committed` is whether to read only committed records, and to wait until open transactions are decided."""
        self._isolation: Literal["committed", "uncommitted"] = "committed" if committed else "uncommitted"
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._take = take
        self._consumer: Consumer | None = None
        self._lock = DeferredLock()

    async def refresh(self) -> None:
        """Read up to the topic's present end. A topic that does not exist counts as empty. Raises PylogdError.

        Calls wait for each other.
        """
        await self._lock.acquire()
        try:
            await self._refresh()
        finally:
            self._lock.release()

    async def _refresh(self) -> None:
        admin = Admin(self._cluster)
        try:
            end = (await admin.offsets({self._partition: LATEST}))[self._partition].offset
        except UnknownTopic:
            return
        if self._consumer is None:
            self._consumer = Consumer(
                self._cluster, isolation=self._isolation, auto_commit="off", max_poll_records=_POLL_RECORDS,
                auto_offset_reset="earliest",
            )  # fmt: skip
            await self._consumer.assign([self._partition])
            await self._consumer.seek_to_beginning(self._partition)
        late = self._cluster.loop.now() + _PATIENCE_SECONDS
        while await self._consumer.position(self._partition) < end:
            for record in await self._consumer.poll(_POLL_SECONDS):
                self._take(record)
            if self._cluster.loop.now() > late:
                raise RequestTimedOut(
                    f"topic {self._partition.topic}: a transaction has been open for {_PATIENCE_SECONDS:g} s. "
                    "pylogd transactions find-hanging shows whose it is"
                )

    async def close(self) -> None:
        """Stop reading."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()


class OriginTable:
    """The origins of a target's topics, by topic, source cluster and source topic."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is read yet."""
        self.origins: dict[tuple[str, str, str], Origin] = {}
        self._table = TopicTable(cluster, CHECKPOINTS, self._record, committed=False)
        self.refresh = self._table.refresh
        self.close = self._table.close

    def _record(self, record: Record) -> None:
        if (origin := parse_origin(record.key, record.value)) is not None:
            self.origins[origin.key] = origin


class CheckpointTable:
    """The checkpoints at a target."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is read yet."""
        self.checkpoints: dict[SourcePartition, Checkpoint] = {}
        self._table = TopicTable(cluster, CHECKPOINTS, self._record)
        self.refresh = self._table.refresh
        self.close = self._table.close

    def _record(self, record: Record) -> None:
        if (found := parse_checkpoint(record.key, record.value)) is not None:
            self.checkpoints[found[0]] = found[1]


class OffsetTable:
    """The offset maps at a target that its topic still has, by source partition.

    A map belongs to the topic's present id, which is `topic_id`; a map of an earlier id is dropped.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is read yet."""
        self.maps: dict[SourcePartition, OffsetMap] = {}
        self.topic_ids: dict[SourcePartition, bytes] = {}
        self._table = TopicTable(cluster, OFFSETS, self._record)
        self.refresh = self._table.refresh
        self.close = self._table.close

    def _record(self, record: Record) -> None:
        found = parse_runs(record.key, record.value)
        if found is None:
            return
        partition, topic_id, runs = found
        if self.topic_ids.get(partition) != topic_id:
            self.topic_ids[partition] = topic_id
            self.maps[partition] = OffsetMap()
        self.maps[partition].add(runs)
