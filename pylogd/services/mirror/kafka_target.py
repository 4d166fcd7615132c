"""A cluster of brokers as the end of a route: pylogd, Apache Kafka, or another one with the protocol.

Strategy: one producer for all partitions that a worker copies to this cluster. With transactions, batches and their
checkpoints are committed together, and `open` fences earlier users of the transactional id. Without transactions, the
producer is idempotent if possible, and the checkpoints are sent once the batches were acknowledged.

Rules: acks=all. A batch is never split and never compressed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.errors import RequestTimedOut
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.options import BatchResult
from pylogd.client.deferred import Admin, Producer
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.batches import BatchCopy, copy_of
from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.records import CHECKPOINTS, OFFSETS, checkpoint_record, runs_record
from pylogd.services.mirror.starting import describe_topics
from pylogd.services.mirror.tables import CheckpointTable, ensure_topics
from pylogd.services.mirror.target import Checkpoint, OnAppended, SourcePartition
from pylogd.wire.records import BatchHeader

#: The size of a few requests. A larger buffer would not make sending faster, and filling it holds the reactor.
_BUFFER_BYTES: Final = 16 << 20
_REQUEST_BYTES: Final = 8 << 20
#: A short timeout, since after a failure everything is copied again from the last checkpoints.
_DELIVERY_SECONDS: Final = 20.0
_TRANSACTION_SECONDS: Final = 40.0
_BLOCK_SECONDS: Final = 30.0


class KafkaTarget:
    """See `target.Target`."""

    def __init__(
        self, bootstrap: str, options: ClientOptions, *, transactional_id: str | None, reactor: Any, map_days: int = 7
    ) -> None:
        """Nothing is connected yet.

        transactional_id: a name that no other live copier has; None for a target without transactions.
        map_days: how long the offset map is kept.
        """
        self._cluster = Cluster(bootstrap, options, reactor=reactor)
        self._table = CheckpointTable(self._cluster)
        self._transactional = transactional_id is not None
        self._producer = Producer(
            self._cluster, client_id=options.client_id, transactional_id=transactional_id,
            buffer_memory=_BUFFER_BYTES, max_request_bytes=_REQUEST_BYTES, delivery_timeout=_DELIVERY_SECONDS,
            transaction_timeout=_TRANSACTION_SECONDS, max_block=_BLOCK_SECONDS,
            request_timeout=options.request_timeout, metadata_max_age=options.metadata_max_age,
        )  # fmt: skip
        self._map_days = map_days
        self._begun = False

    async def open(self) -> None:
        """Connect, and fence earlier copiers with this transactional id. Raises PylogdError."""
        await ensure_topics(Admin(self._cluster), self._map_days)
        if self._transactional:
            await self._producer.init_transactions()

    async def checkpoints(self) -> Mapping[SourcePartition, Checkpoint]:
        """Return the committed checkpoints of all partitions. Raises PylogdError."""
        await self._table.refresh()
        return self._table.checkpoints

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition whose topic exists. Raises PylogdError."""
        if not partitions:
            return {}
        topics, _ = await describe_topics(self._cluster, {partition.topic for partition in partitions})
        known = [partition for partition in partitions if partition.topic in topics]
        found = await Admin(self._cluster).offsets(dict.fromkeys(known, LATEST))
        return {partition: answer.offset for partition, answer in found.items()}

    def start(self, key: SourcePartition, known: Checkpoint | None, offset: int, topic_id: bytes) -> None:
        """Do nothing: the transactional id protects all partitions alike."""

    def copy_of(self, header: BatchHeader, batch: memoryview, position: int) -> BatchCopy | None:
        """Return the copy of a batch to append. Raises InvalidRecordBatch."""
        return copy_of(header, batch, position)

    async def begin(self) -> None:
        """Begin a transaction unless one is open."""
        if not self._begun:
            if self._transactional:
                await self._producer.begin_transaction()
            self._begun = True

    def append(self, partition: TopicPartition, batch: BatchCopy, on_appended: OnAppended) -> bool:
        """Add a batch. Return whether it was accepted: False while the buffer is full. Raises PylogdError."""

        def completed(result: BatchResult) -> None:
            on_appended(result.base_offset, result.error)

        return self._producer.copy(partition, batch.batch, batch.records, completed)

    async def flush(self) -> None:
        """Wait until all appended batches have their results. Raises the first error."""
        await self._producer.flush()

    async def commit(
        self, checkpoints: Mapping[SourcePartition, Checkpoint], runs: Mapping[SourcePartition, Sequence[Run]]
    ) -> None:
        """Commit the appended batches together with these checkpoints and offset maps. Raises PylogdError."""
        await self.flush()
        for partition, found in runs.items():
            if found:
                key, value = runs_record(partition, checkpoints[partition].topic_id, found)
                await self._producer.send(OFFSETS, value, key, partition=0)
        for partition, checkpoint in checkpoints.items():
            key, value = checkpoint_record(partition, checkpoint)
            await self._producer.send(CHECKPOINTS, value, key, partition=0)
        await self.flush()
        if self._transactional:
            await self._end()
        self._begun = False

    async def _end(self) -> None:
        """Commit the transaction. If the coordinator does not answer in time, ask once more for the outcome."""
        try:
            await self._producer.commit_transaction()
        except RequestTimedOut:
            await self._producer.commit_transaction()

    async def close(self) -> None:
        """Abort the open transaction if the cluster answers, and close the connections."""
        self._producer.abandon()
        try:
            await self._table.close()
        finally:
            self._cluster.close()
