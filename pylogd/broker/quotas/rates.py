"""Measure a client's use, and how long it must wait to be within its quota again. The clock is passed in.

Strategy: there are three measures. `WindowedRate` is Kafka's rate, for the time spent on requests: windows without
records count, so an idle client may use the quota of all windows at once. `PacedRate` is for bytes: time counts from
the first record, so a client that always has something to send has its quota from the first second on, and is never
stopped for long. Kafka's rate would let such a client send the bytes of ten seconds at once, and then stop it until the
windows have passed: it would send 10 % too much in the first minute, and in any other minute with six such bursts.
`TokenBucket` is for changes, which can be refused before they are made. New connections, which are refused one by one,
have `limits.admission`.

Source: Kafka's `Rate`, `SampledStat` and `TokenBucket`; KIP-13, KIP-599.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_START, _LAST, _VALUE = range(3)


class Windows(NamedTuple):
    """The time over which a rate is measured: `quota.window.num` windows of `quota.window.size.seconds`."""

    number: int
    seconds: float

    @property
    def length(self) -> float:
        """The seconds of all windows together."""
        return self.number * self.seconds


class WindowedRate:
    """The rate of a quantity over the last windows; windows without records count as empty.

    Times are in seconds of a monotonic clock that never goes back from one call to the next.

    used: the sum of all records since this object was made.
    """

    __slots__ = ("_samples", "_total", "_windows", "used")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()  # start, last record, sum
        self._total = self.used = 0.0

    def record(self, value: float, now: float) -> None:
        """Count `value`."""
        self.used += value
        samples = self._samples
        if not samples or now - samples[-1][_START] >= self._windows.seconds:
            samples.append([now, now, value])
        else:
            sample = samples[-1]
            sample[_LAST] = now
            sample[_VALUE] += value
        self._total += value

    def owed(self, limit: float, now: float) -> float:
        """Return in how many seconds the rate falls to `limit` if nothing more is recorded; 0 if it is not above it."""
        samples, (number, seconds) = self._samples, self._windows
        while samples and now - samples[0][_LAST] >= number * seconds:
            self._total -= samples.popleft()[_VALUE]
        if not samples:
            self._total = 0.0  # without rounding errors
            return 0.0
        elapsed = now - samples[0][_START]
        missing = number - 1 - int(elapsed / seconds)
        return max(self._total / limit - elapsed - max(missing, 0) * seconds, 0.0)

    def idle(self, now: float) -> bool:
        """Return whether nothing was recorded in the last windows. This object can then be dropped."""
        return not self._samples or now - self._samples[-1][_LAST] >= self._windows.length


class PacedRate(WindowedRate):
    """The rate of a quantity since the first record in the last windows, but over one window at least.

    A client still owes what it used beyond its quota after its window is too old to count. Otherwise a client with many
    connections would never pay: each connection may have one request answered before it waits.
    """

    __slots__ = ("_owed_until",)

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows)
        self._owed_until = 0.0

    def owed(self, limit: float, now: float) -> float:
        """See `WindowedRate`."""
        samples, windows = self._samples, self._windows
        while samples and now - samples[0][_LAST] >= windows.length:
            start, _, value = samples.popleft()
            covered = (samples[0][_START] if samples else now) - start
            left = max(value - covered * limit, 0.0)
            self._total += left - value
            if samples:
                samples[0][_VALUE] += left
            elif left:
                samples.append([now, now, left])
        if not samples:
            self._total = 0.0  # without rounding errors
            return 0.0
        owed = max(self._total / limit - max(now - samples[0][_START], windows.seconds), 0.0)
        self._owed_until = now + owed
        return owed

    def idle(self, now: float) -> bool:
        """See `WindowedRate`."""
        return now >= self._owed_until and super().idle(now)


class TokenBucket:
    """A token bucket, which starts full.

    It fills at the rate of a quota, up to the tokens of all windows. Changes use tokens up. A change is accepted while
    there are tokens, even if it takes more than are left: then the next change waits.

    used: all tokens that were taken.
    """

    __slots__ = ("_at", "_tokens", "_windows", "used")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._at = self.used = 0.0

    def take(self, tokens: float, limit: float, now: float) -> None:
        """Use up tokens, possibly more than are left.

        limit: tokens per second.
        """
        self._fill(limit, now)
        self._tokens -= tokens
        self.used += tokens

    def owed(self, limit: float, now: float) -> float:
        """Return in how many seconds no tokens will be missing; 0 if none are missing."""
        self._fill(limit, now)
        return max(-self._tokens / limit, 0.0)

    def idle(self, now: float) -> bool:
        """Return whether nothing was used for the time of all windows, and no tokens are missing."""
        return now - self._at >= self._windows.length and self._tokens >= 0

    def _fill(self, limit: float, now: float) -> None:
        self._tokens = min(self._tokens + (now - self._at) * limit, self._windows.length * limit)
        self._at = now
