"""The interface of a log to a block cache: memory with the bytes that producers appended last, beside the files.

The cache itself is `pylogd.broker.cache`; a `Storage` without one works as if this module did not exist. Each `Segment`
object has one `CachedRange`, so cached bytes can't be mistaken for those of another segment, not even one that gets the
same name by compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pylogd.broker.log.files import Buffer, FileSlice, SegmentFile


class CachedRange(Protocol):
    """The bytes of one segment that are held in memory: no bytes, or one range of positions."""

    def wrote(self, file: SegmentFile, position: int, buffers: Sequence[Buffer], size: int, keep: bool) -> None:
        """Note that `size` bytes were written to `file` at `position`. Reactor thread only.

        keep: whether a producer appended the bytes, so that they are to be cached.
        """

    def copy(self, position: int, length: int) -> bytes | None:
        """Return a copy of `length` bytes if all of them are held, else None. Any thread may call it."""

    def slice(self, file: SegmentFile, position: int, length: int, *, sealed: bool) -> FileSlice:
        """Return a slice of the file. Bytes that are cached when the slice is sent are sent from memory.

        sealed: whether the file is no longer written to.
        """

    def drop(self) -> CachedRange:
        """Drop all cached bytes, and return a new, empty range for the segment. Any thread may call it."""


class BlockCache(Protocol):
    """A block cache, which makes ranges."""

    def new_range(self) -> CachedRange:
        """Return an empty range for a segment."""
