"""The interface of a log to a block cache: memory with the bytes that producers appended last, beside the files.

The cache itself is `pylogd.cache`; a `Storage` without one works as if this module did not exist. Each `Segment` has
one `CachedRange`, so that what the cache holds goes with the object: no other segment can ever be taken for it, also
not one that gets its name by compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pylogd.log.files import Buffer, FileSlice, SegmentFile


class CachedRange(Protocol):
    """The bytes of one segment that are held in memory: no bytes, or one range of positions."""

    def wrote(self, file: SegmentFile, position: int, buffers: Sequence[Buffer], size: int, keep: bool) -> None:
        """Take note of `size` bytes that were written to `file` at `position`. Reactor thread only.

        keep: whether a producer appended them, so that they are to be held.
        """

    def copy(self, position: int, length: int) -> bytes | None:
        """Return a copy of `length` bytes if all of them are held, else None. Any thread may call it."""

    def slice(self, file: SegmentFile, position: int, length: int, *, sealed: bool) -> FileSlice:
        """Return a slice of the file. The part that is in memory when the slice is sent is sent from memory.

        sealed: whether the file is not written to any more.
        """

    def drop(self) -> CachedRange:
        """Hold nothing any more. Return a new, empty range for the segment. Any thread may call it."""


class BlockCache(Protocol):
    """Makes ranges."""

    def new_range(self) -> CachedRange:
        """Return an empty range for a segment."""
