"""Estimate when a record was appended from samples of its partition's log end offset, without reading the record.

Strategy: a sample is a time and the log end offset at that time. A record was appended between the last sample that
ends before it and the first one that ends after it; its time is interpolated between the two. When there are `_MOST`
samples, every second one of the older half is dropped: the history has a constant size, and older times are less exact.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

_MOST: Final = 24


class EndHistory:
    """Samples of one partition's log end offset. Times are seconds of a monotonic clock."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._ends = array("q")

    def add(self, now: float, end: int) -> None:
        """Add a sample: the log ends at offset `end`. If it ended later before (truncated), drop older samples."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]
        if len(ends) > 1 and end == ends[-1] == ends[-2]:
            times[-1] = now
            return
        times.append(now)
        ends.append(end)
        if len(ends) > _MOST:
            older = len(ends) // 2
            del times[1:older:2], ends[1:older:2]

    def seconds_behind(self, offset: int, now: float) -> float:
        """Return how many seconds ago the record at `offset` was appended; 0 if the log has no such record yet.

        For a record older than the first sample, return the age of that sample: a lower bound.
        """
        times, ends = self._times, self._ends
        if not ends or offset >= ends[-1]:
            return 0.0
        after = bisect_right(ends, offset)  # the first sample with the record
        if after == 0:
            return now - times[0]
        share = (offset - ends[after - 1]) / (ends[after] - ends[after - 1])
        return now - (times[after - 1] + share * (times[after] - times[after - 1]))
