"""The location of a batch in a segment, as a look-up returns it."""

from __future__ import annotations

import struct

from pylogd.wire import records

#: The fields of a batch header that a look-up needs: base offset, batch length, last offset delta, record count.
PROBE = struct.Struct(">qi11xi30xi")


class BatchLocation:
    """A batch in a segment: position and size in the file, offsets, and whether compaction removed its records."""

    __slots__ = ("base_offset", "empty", "last_offset", "position", "size")

    def __init__(self, position: int, size: int, base_offset: int, last_offset: int, empty: bool) -> None:
        self.position = position
        self.size = size
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.empty = empty


def skip_batches(window: records.Buffer, offset: int, beyond: int) -> int:
    """Return how many bytes at the start of `window`, which begins with a batch, a look-up can skip.

    They are whole headers of batches that end before `offset`, or at byte `beyond` or before. The result is 0 without a
    compiler.
    """
    speedups = records.speedups
    if speedups is None:
        return 0
    skipped: int = speedups.skip_batches(window, offset, beyond)
    return skipped
