"""Determine how long a partition has been behind its source, without the time of each record.

Strategy: the source's end at one moment is a mark. Once all records before the mark are committed at the target, the
partition is at most as late as the mark is old, and the next mark is set. So the result is never too small, and at most
twice the delay while records keep coming; it is 0 if no records wait.
"""

from __future__ import annotations


class LagMark:
    """The time for which the oldest record that is not copied has waited. Times are in seconds of one clock."""

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
