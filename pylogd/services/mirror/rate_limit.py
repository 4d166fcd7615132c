"""Limit bytes per second; the time is passed in.

Strategy: use beyond the limit is a debt, which the limit pays off; during a debt nothing may be used. So a batch of any
size passes, and the average is exact. Unused capacity is kept for one second.
"""

from __future__ import annotations

from typing import Final

_BURST_SECONDS: Final = 1.0


class ByteRateLimit:
    """A limit of `rate` bytes per second; 0 means no limit. Times are in seconds of one monotonic clock."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._debt = 0.0
        self._at = 0.0

    def used(self, size: int, now: float) -> None:
        """Record that `size` bytes were used."""
        if self.rate:
            self._pay(now)
            self._debt += size

    def wait(self, now: float) -> float:
        """Return the seconds for which nothing may be used; 0.0 if bytes may be used now."""
        if not self.rate:
            return 0.0
        self._pay(now)
        return max(0.0, self._debt / self.rate)

    def _pay(self, now: float) -> None:
        self._debt = max(-_BURST_SECONDS * self.rate, self._debt - (now - self._at) * self.rate)
        self._at = now
