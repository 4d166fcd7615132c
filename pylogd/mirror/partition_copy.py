"""One partition that is being copied: where it stands, and what the next checkpoint of it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pylogd.client.core.model import TopicPartition
from pylogd.mirror.offset_map import Run, joined
from pylogd.mirror.target import Checkpoint, SourcePartition


class PartitionRoute(NamedTuple):
    """A partition and the route that it takes: what a worker is told to copy."""

    route: str
    topic: str
    partition: int
    target_topic: str

    @property
    def source(self) -> TopicPartition:
        """The partition at the source."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The partition at the target."""
        return TopicPartition(self.target_topic, self.partition)


@dataclass(slots=True, eq=False)
class PartitionCopy:
    """See the module.

    position: everything in front of it was appended, or left out. checkpoint: the last that was committed.
    target_offset: behind what was appended, as far as that was acknowledged.
    """

    path: PartitionRoute
    key: SourcePartition
    checkpoint: Checkpoint
    position: int
    epoch: int
    target_offset: int
    runs: list[Run] = field(default_factory=list)

    def appended(self, runs: list[Run]) -> None:
        """Record that records were acknowledged by the target."""
        self.runs += runs
        self.target_offset = max(self.target_offset, runs[-1].target + runs[-1].length)

    def next_checkpoint(self, now_ms: int) -> tuple[Checkpoint, list[Run]]:
        """Return what to commit: the checkpoint, and the runs since the last one."""
        return Checkpoint(self.checkpoint.topic_id, self.position, self.epoch, self.target_offset, now_ms), joined(
            self.runs
        )

    def committed(self, checkpoint: Checkpoint) -> None:
        """Record that the checkpoint is committed."""
        self.checkpoint = checkpoint
        self.runs.clear()
