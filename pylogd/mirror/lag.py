"""Determine for how long a partition has been behind its source, without keeping the time of each record.

Strategy: the source's end at one moment is remembered, a mark. Once everything in front of the mark is committed at the
target, the partition is at most as late as the mark is old, and the next mark is set. So the result is never too small,
and at most twice as large as the delay while records keep coming; it is 0 when nothing waits.
"""

from __future__ import annotations


class LagMark:
    """How long the oldest record that is not copied has waited. Times are in seconds of one clock."""

    __slots__ = ("_caught_up_at", "_mark", "_mark_at")

    def __init__(self, since: float) -> None:
        """since: when the target had everything that was in the source, as far as that is known."""
        self._caught_up_at = self._mark_at = since
        self._mark = -1

    def look(self, committed: int, end: int, now: float) -> float:
        """Return for how many seconds records have waited. To be called at least every few seconds.

        committed: the offset in front of which everything is committed at the target. end: that of the source.
        """
        if committed >= end:
            self._caught_up_at = self._mark_at = now
            self._mark = end
            return 0.0
        if committed >= self._mark:
            self._caught_up_at = self._mark_at
            self._mark, self._mark_at = end, now
        return now - self._caught_up_at
