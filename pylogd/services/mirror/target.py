"""The interface of the ends of routes: `kafka_target` is a cluster of brokers, `table_target` a table.

Strategy: a target takes batches of many partitions, and makes all of them durable in one `commit`, together with the
checkpoints that say how far each source partition was copied. Batches since the last commit either become visible with
their checkpoints, or, after a failure, not at all: so each record arrives once. A target without transactions makes the
checkpoints durable after the records, so each record arrives at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pylogd.base.errors import PylogdError
from pylogd.client.core.model import TopicPartition
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.offset_map import Run
from pylogd.wire.records import BatchHeader


class SourcePartition(NamedTuple):
    """A partition of a source cluster, by the cluster's id, and the topic of the target to which it is copied."""

    cluster: str
    topic: str
    partition: int
    target_topic: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Checkpoint(NamedTuple):
    """The progress of a partition: records before `offset` of the topic with this id are copied.

    epoch: the leader epoch of the last batch; -1 if unknown.
    target_offset: records that are copied later get this offset or a higher one.
    time_ms: when the checkpoint was made, in milliseconds since 1970; -1 if unknown.
    """

    topic_id: bytes
    offset: int
    epoch: int
    target_offset: int
    time_ms: int


#: Called with the offset of a batch's first record in the target (-1 if unknown), and the error if the batch failed.
OnAppended = Callable[[int, PylogdError | None], None]


class Target(Protocol):
    """The end of a route. One call at a time. After a failure, close it and open a new one."""

    async def open(self) -> None:
        """Connect, and undo uncommitted writes of earlier copiers with this name. Raises PylogdError."""
        ...

    async def checkpoints(self) -> Mapping[SourcePartition, Checkpoint]:
        """Return the committed checkpoints of all partitions that have one. Raises PylogdError."""
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each of these partitions that exists at the target. Raises PylogdError."""
        ...

    def start(self, key: SourcePartition, known: Checkpoint | None, offset: int, topic_id: bytes) -> None:
        """Announce that a partition will be copied from `offset` on, before its first batch is appended.

        known: the checkpoint that `checkpoints` returned; None if there was none.
        topic_id: the id of the source's topic.
        """
        ...

    def copy_of(self, header: BatchHeader, batch: memoryview, position: int) -> BatchCopy | None:
        """Return the copy of a batch to append; None if it has no records to copy.

        position: records with lower offsets are not copied.

        Raises InvalidRecordBatch if the batch has to be decoded, and can't be.
        """
        ...

    async def begin(self) -> None:
        """Begin a transaction unless one is open. Call it before `append`. Raises PylogdError."""
        ...

    def append(self, partition: TopicPartition, batch: BatchCopy, on_appended: OnAppended) -> bool:
        """Add a batch to the next commit. Return whether it was accepted: False while the buffers are full.

        on_appended: called once with the result.

        Raises PylogdError.
        """
        ...

    async def flush(self) -> None:
        """Wait until all appended batches have their results. Raises the first error."""
        ...

    async def commit(
        self, checkpoints: Mapping[SourcePartition, Checkpoint], runs: Mapping[SourcePartition, Sequence[Run]]
    ) -> None:
        """Commit the appended batches together with these checkpoints and offset maps. Raises PylogdError."""
        ...

    async def close(self) -> None:
        """Undo uncommitted writes, and close the connections."""
        ...
