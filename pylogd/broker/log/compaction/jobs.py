"""The data that describes one compaction: the job, its result, and the callbacks that connect it to the broker.

A job has no reference to the open log, so it can be pickled and sent to a child process (`process`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pylogd.broker.log.errors import StorageError


class SourcesChanged(StorageError):
    """Retention, truncation or deletion removed a segment while it was being compacted. Nothing was changed."""


class CleanerStopped(Exception):
    """The cleaner is stopping. A progress callback raises this error to end a compaction."""


class OffsetMapTooSmall(StorageError):
    """A single batch has more records than the offset map can hold."""


@dataclass(slots=True, frozen=True)
class CompactionJob:
    """Which part of a log to compact, and how.

    directory: the directory of the partition.
    sources: (base offset, size in bytes) of each sealed segment that starts before `bound`, ascending.
    first_dirty_offset: records at and after it have not been compacted yet.
    bound: records at and after it are kept unchanged.
    last_offsets: for each producer id with state, the last offset of its latest batch in its current epoch.
    last_epochs: for each producer id without such a batch, the epoch of its last marker.
    now_ms: the time by the wall clock.
    delete_retention_ms: how long a tombstone stays after it was first compacted.
    segment_bytes: the most bytes of a new segment.
    index_interval_bytes: how many bytes are between two index entries of a new segment.
    io_buffer_bytes: how many bytes are collected for one write.
    check_bytes: how many bytes are read or written between two calls of the progress callback.
    """

    directory: str
    sources: tuple[tuple[int, int], ...]
    first_dirty_offset: int
    bound: int
    last_offsets: dict[int, int]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    io_buffer_bytes: int
    check_bytes: int
    last_epochs: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The size of the source segments in bytes."""
        return sum(size for _, size in self.sources)


@dataclass(slots=True)
class CompactionResult:
    """The outcome of a job: offsets `first_dirty_offset` to `end_offset` (exclusive) are compacted now."""

    first_dirty_offset: int
    end_offset: int
    dirty_bytes: int = 0  # the bytes that the first pass read
    bytes_read: int = 0  # the bytes that the second pass read
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0


class CompactedSegment(NamedTuple):
    """A new segment, written and synced under its `.cleaned` names.

    replaces: the base offsets of the segments that it replaces.
    size: its size in bytes.
    largest_timestamp: the largest time stamp, and the last offset of the batch that has this time stamp.
    first_timestamp: the largest time stamp of the first batch.
    has_aborted: whether it has the marker of an aborted transaction.
    """

    replaces: tuple[int, ...]
    size: int
    largest_timestamp: tuple[int, int]
    first_timestamp: int
    has_aborted: bool = False


#: Called with the number of bytes read or written since the last call. It may sleep. It may raise to end the
#: compaction.
OnProgress: TypeAlias = Callable[[int], None]
#: Called to put a compacted segment in place of the segments that it replaces.
InstallSegment: TypeAlias = Callable[[CompactedSegment], None]
#: Does a job, and calls `InstallSegment` for each new segment.
RunJob: TypeAlias = Callable[[CompactionJob, OnProgress, InstallSegment], CompactionResult]
