"""What the end of a route has to offer. `kafka_target` is a cluster of brokers; a table can be another one.

Strategy: a target takes batches of many partitions, and makes all of them durable in one `commit`, together with the
checkpoints that say how far each source partition was copied. What was appended since the last commit either becomes
visible with its checkpoints, or, after a failure, not at all: so each record arrives once. A target without
transactions makes the checkpoints durable after the records, so each record arrives at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pylogd.client.core.model import TopicPartition
from pylogd.errors import PylogdError
from pylogd.mirror.batches import BatchCopy
from pylogd.mirror.offset_map import Run


class SourcePartition(NamedTuple):
    """A partition of a source cluster, by the cluster's id, and the topic of the target to which it is copied."""

    cluster: str
    topic: str
    partition: int
    target_topic: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Checkpoint(NamedTuple):
    """How far a partition was copied: everything before `offset`, of the topic with this id.

    epoch: the leader epoch of the last batch, -1 if unknown. target_offset: records that are copied later come at this
    offset or behind it. time_ms: when the checkpoint was made, in milliseconds since 1970.
    """

    topic_id: bytes
    offset: int
    epoch: int
    target_offset: int
    time_ms: int


#: Called with the offset of a batch's first record in the target (-1 if not known), and its error if it failed.
OnAppended = Callable[[int, PylogdError | None], None]


class Target(Protocol):
    """Where batches are copied to. One caller at a time; after a failure it is closed, and another one opened."""

    async def open(self) -> None:
        """Take over from earlier copiers of this name, whose unfinished work is undone. Raises PylogdError."""
        ...

    async def checkpoints(self) -> Mapping[SourcePartition, Checkpoint]:
        """Return the checkpoints of all partitions that have one, as they are committed now. Raises PylogdError."""
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset behind the last record of each partition that there is. Raises PylogdError."""
        ...

    async def begin(self) -> None:
        """Begin what the next commit ends, unless it is begun. Nothing is appended before. Raises PylogdError."""
        ...

    def append(self, partition: TopicPartition, batch: BatchCopy, on_appended: OnAppended) -> bool:
        """Add a batch to what is committed next. Return whether it was taken: False while the buffers are full.

        Raises PylogdError.
        """
        ...

    async def flush(self) -> None:
        """Return once all batches have their results. Raises the error of one that failed."""
        ...

    async def commit(
        self, checkpoints: Mapping[SourcePartition, Checkpoint], runs: Mapping[SourcePartition, Sequence[Run]]
    ) -> None:
        """Make everything that was appended durable, with these checkpoints and offset maps. Raises PylogdError."""
        ...

    async def close(self) -> None:
        """Undo what is not committed, and end."""
        ...
