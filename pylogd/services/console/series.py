"""The ends of a topic's logs, and the lag of a group, at the last samples. Constant in size.

Strategy: each time has one array of log ends for all partitions of a topic, which samples share as long as nothing is
written. So an idle topic costs two arrays, however many partitions it has; a history for each partition
(`pylogd.broker.metrics.group_lag`) would cost ten times as much for 200,000 partitions. With more than `_MOST`
arrays, every second one of the older half is dropped: the series covers a long time, with less detail for earlier
times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from typing import Final

_MOST: Final = 24
#: The number of samples in a chart.
POINTS: Final = 60
UNKNOWN: Final = -1


class TopicSeries:
    """The log ends of a topic at the last samples.

    rates: the records per second between samples. Times are in seconds of one monotonic clock.
    """

    __slots__ = ("_ends", "_last", "_times", "rates")

    def __init__(self) -> None:
        self._times = array("d")
        self._ends: list[array[int]] = []
        self._last = 0.0
        self.rates: deque[float] = deque(maxlen=POINTS)

    @property
    def ends(self) -> array[int]:
        """The last known log ends by partition; empty before the first sample."""
        return self._ends[-1] if self._ends else array("q")

    def add(self, now: float, ends: array[int]) -> None:
        """Record the log ends at a time. For an unknown end (-1) the last known one is used.

        A new series begins if there are fewer records, or other partitions, than before.
        """
        before = self._ends[-1] if self._ends else None
        if before is None or len(before) != len(ends):
            self._begin(now, ends)
            return
        if UNKNOWN in ends:
            ends = array("q", (old if new == UNKNOWN else new for old, new in zip(before, ends, strict=True)))
        if ends == before:
            self._unchanged(now, before)
            return
        if any(new < old for old, new in zip(before, ends, strict=True)):
            self._begin(now, ends)
            return
        grown = sum(ends) - sum(before) if UNKNOWN not in before else 0
        self._append(now, ends, grown)

    def _begin(self, now: float, ends: array[int]) -> None:
        self._times = array("d", [now])
        self._ends = [ends]
        self._last = now

    def _unchanged(self, now: float, before: array[int]) -> None:
        self.rates.append(0.0)
        self._last = now
        if len(self._ends) > 1 and self._ends[-2] is before:
            self._times[-1] = now
        else:
            self._times.append(now)
            self._ends.append(before)

    def _append(self, now: float, ends: array[int], grown: int) -> None:
        passed = now - self._last
        self.rates.append(grown / passed if passed > 0 else 0.0)
        self._last = now
        self._times.append(now)
        self._ends.append(ends)
        if len(self._ends) > _MOST:
            older = len(self._ends) // 2
            del self._times[1:older:2], self._ends[1:older:2]

    def rate_of(self, partition: int) -> float | None:
        """Return the records per second of a partition between the last two samples; None if unknown."""
        if len(self._ends) < 2:
            return None
        (before, now), passed = self._ends[-2:], self._times[-1] - self._times[-2]
        if partition >= len(now) or UNKNOWN in (before[partition], now[partition]) or passed <= 0:
            return None
        return (now[partition] - before[partition]) / passed

    def seconds_behind(self, partition: int, offset: int, now: float) -> float:
        """Return how long ago the record at `offset` was appended; 0 if it does not exist yet.

        If it was appended before the first sample, return the age of that sample, which is too short.
        """
        ends, times = self._ends, self._times
        if not ends or partition >= len(ends[-1]) or offset >= ends[-1][partition]:
            return 0.0
        after = bisect_right(ends, offset, key=lambda each: each[partition])
        if after == 0:
            return now - times[0]
        low, high = ends[after - 1][partition], ends[after][partition]
        share = (offset - low) / (high - low)
        return now - (times[after - 1] + share * (times[after] - times[after - 1]))


class LagSeries:
    """The lag of a group at the last samples, in records and in seconds."""

    __slots__ = ("records", "seconds")

    def __init__(self) -> None:
        self.records: deque[int] = deque(maxlen=POINTS)
        self.seconds: deque[float] = deque(maxlen=POINTS)

    def add(self, records: int, seconds: float) -> None:
        """Record the lag of a sample."""
        self.records.append(records)
        self.seconds.append(seconds)
