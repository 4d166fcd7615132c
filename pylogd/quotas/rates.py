"""Measure what a client uses, and how long it has to wait to be within its quota again. The clock is passed in.

Strategy: `WindowedRate` is for quantities that are known after the fact, such as bytes; `TokenBucket` for those that
can be refused before, such as new topics. Both let a client use up at once what it did not use for some windows.

Source: Kafka's `Rate`, `SampledStat` and `TokenBucket`; KIP-13, KIP-599.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_START, _LAST, _VALUE = range(3)


class Windows(NamedTuple):
    """Over how much time a rate is measured: `quota.window.num` windows of `quota.window.size.seconds`."""

    number: int
    seconds: float

    @property
    def length(self) -> float:
        """Seconds of all windows together."""
        return self.number * self.seconds


class WindowedRate:
    """The rate of a quantity over the last windows; windows without records count as empty.

    So a client that was idle may use the quota of all windows but the present one at once. Times are in seconds of a
    monotonic clock that never goes back from one call to the next.
    """

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()  # start, last record, sum
        self._total = 0.0

    def record(self, value: float, now: float) -> None:
        """Count `value`."""
        samples = self._samples
        if not samples or now - samples[-1][_START] >= self._windows.seconds:
            samples.append([now, now, value])
        else:
            sample = samples[-1]
            sample[_LAST] = now
            sample[_VALUE] += value
        self._total += value

    def measure(self, now: float) -> float:
        """Return the rate, in units a second."""
        elapsed = self._elapsed(now)
        return self._total / elapsed

    def owed(self, limit: float, now: float) -> float:
        """Return in how many seconds the rate is down to `limit` if nothing is recorded until then; 0 if it is."""
        elapsed = self._elapsed(now)
        return max(self._total / limit - elapsed, 0.0)

    def idle(self, now: float) -> bool:
        """Return whether nothing was recorded in the last windows, so that a new object knows as much."""
        return not self._samples or now - self._samples[-1][_LAST] >= self._windows.length

    def _elapsed(self, now: float) -> float:
        """Drop what is too old. Return over how many seconds the rest was recorded."""
        samples, windows = self._samples, self._windows
        while samples and now - samples[0][_LAST] >= windows.length:
            self._total -= samples.popleft()[_VALUE]
        if not samples:
            self._total = 0.0  # without the errors of rounding
            return max(windows.number - 1, 1) * windows.seconds
        elapsed = now - samples[0][_START]
        missing = windows.number - 1 - int(elapsed / windows.seconds)
        return max(elapsed + max(missing, 0) * windows.seconds, _LEAST_SECONDS)


#: With a single window that has just begun no time has passed yet.
_LEAST_SECONDS: Final = 0.001


class TokenBucket:
    """Tokens that come at the rate of a quota, up to those of all windows, and that changes use up. It begins full.

    A change is accepted while there are tokens, even if it takes more than are left: the next one waits then.
    """

    __slots__ = ("_at", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._at = 0.0

    def take(self, tokens: float, limit: float, now: float) -> None:
        """Use up tokens, also more than there are. limit: how many come in a second."""
        self._fill(limit, now)
        self._tokens -= tokens

    def owed(self, limit: float, now: float) -> float:
        """Return in how many seconds there are no tokens missing; 0 if none are."""
        self._fill(limit, now)
        return max(-self._tokens / limit, 0.0)

    def idle(self, now: float) -> bool:
        """Return whether nothing was taken for so long that the bucket is full again, unless much was missing."""
        return now - self._at >= self._windows.length and self._tokens >= 0

    def _fill(self, limit: float, now: float) -> None:
        self._tokens = min(self._tokens + (now - self._at) * limit, self._windows.length * limit)
        self._at = now
