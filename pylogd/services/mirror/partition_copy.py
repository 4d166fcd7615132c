"""Partitions that are being copied: their state, their next checkpoints, and when those are committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pylogd.client.core.model import TopicPartition
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.offset_map import Run, joined
from pylogd.services.mirror.target import Checkpoint, SourcePartition


class LagMark:
    """The time for which the oldest record that is not copied has waited. Times are in seconds of one clock.

    The source's end at one moment is a mark. Once all records before the mark are committed at the target, the
    partition is at most as late as the mark is old, and the next mark is set. So the result is never too small, and at
    most twice the delay while records keep coming; it is 0 if no records wait. The time of each record is not needed.
    """

    __slots__ = ("_caught_up_at", "_mark", "_mark_at")

    def __init__(self, since: float) -> None:
        """`since` is the last time at which the target is known to have had all records of the source."""
        self._caught_up_at = self._mark_at = since
        self._mark = -1

    def look(self, committed: int, end: int, now: float) -> float:
        """Return for how many seconds records have waited. Call it at least every few seconds.

        committed: the offset before which all records are committed at the target.
        end: the end of the source's log.
        """
        if committed >= end:
            self._caught_up_at = self._mark_at = now
            self._mark = end
            return 0.0
        if committed >= self._mark:
            self._caught_up_at = self._mark_at
            self._mark, self._mark_at = end, now
        return now - self._caught_up_at


#: A run that no batch can continue.
_NOTHING: Final = Run(-1, -1, 0)


class PartitionRoute(NamedTuple):
    """A partition of a route: the unit that the controller assigns to workers."""

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
    """A partition that is being copied.

    position: records with lower offsets were appended or left out.
    checkpoint: the last committed checkpoint.
    target_offset: the end offset at the target after the acknowledged records.
    runs: the offset map since the checkpoint.
    target: the partition at the target.
    """

    path: PartitionRoute
    key: SourcePartition
    checkpoint: Checkpoint
    position: int
    epoch: int
    target_offset: int
    lag: LagMark
    runs: list[Run] = field(default_factory=list)
    target: TopicPartition = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.path.target

    def appended(self, batch: BatchCopy, offset: int) -> None:
        """Record that the target has acknowledged a batch, whose first record has this offset at the target."""
        runs, end = self.runs, offset + batch.records
        source, target, length = runs[-1] if runs else _NOTHING
        if batch.offsets is None and batch.first == source + length and offset == target + length:
            runs[-1] = Run(source, target, length + batch.records)  # the usual case: the run becomes longer
        else:
            runs[-1:] = joined([*runs[-1:], *batch.runs(offset)])
        self.target_offset = max(self.target_offset, end)

    def next_checkpoint(self, now_ms: int) -> tuple[Checkpoint, list[Run]]:
        """Return the checkpoint to commit, and the runs since the last one."""
        checkpoint = Checkpoint(self.checkpoint.topic_id, self.position, self.epoch, self.target_offset, now_ms)
        return checkpoint, list(self.runs)

    def committed(self, checkpoint: Checkpoint) -> None:
        """Record that the checkpoint is committed."""
        self.checkpoint = checkpoint
        self.runs.clear()


class CommitPace(NamedTuple):
    """A commit is due this many seconds after the first uncommitted batch, or when this many bytes were appended."""

    seconds: float
    bytes: int = 512 << 20


class Uncommitted:
    """The partitions with batches that are appended and not committed, and the time of their commit."""

    def __init__(self, pace: CommitPace) -> None:
        self._pace = pace
        self._copies: dict[PartitionCopy, None] = {}
        self._bytes, self._began = 0, 0.0

    def __contains__(self, copy: PartitionCopy) -> bool:
        return copy in self._copies

    def __bool__(self) -> bool:
        return bool(self._copies)

    def add(self, copy: PartitionCopy, now: float) -> None:
        """Record that a partition has advanced."""
        if not self._copies:
            self._began = now
        self._copies[copy] = None

    def appended(self, size: int) -> None:
        """Count appended bytes."""
        self._bytes += size

    def make_due(self) -> None:
        """Let the commit be due now."""
        self._began = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a commit is due."""
        return bool(self._copies) and (now >= self._began + self._pace.seconds or self._bytes >= self._pace.bytes)

    def wait(self, now: float) -> float:
        """Return the seconds until a commit is due."""
        return max(0.0, self._began + self._pace.seconds - now)

    def take(self) -> list[PartitionCopy]:
        """Return the partitions, and begin anew."""
        copies, self._copies, self._bytes = list(self._copies), {}, 0
        return copies
