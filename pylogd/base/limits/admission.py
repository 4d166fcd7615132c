"""Limit the rate of single events, such as new connections. The clock is passed in."""

from __future__ import annotations

from typing import Final

_ROUNDING: Final = 1e-6  # seconds


class AdmissionRate:
    """Limits a rate of single events, measured from the first event on, and over at least one window.

    An admitted event uses `1 / limit` seconds, and the next event is admitted when they are over. In the first window,
    the events of all its seconds may come at once. Unused time is kept for one window. If nothing was used for a whole
    window, the measurement begins anew. So a time of `t` seconds has at most `limit * (t + window) + 1` events.

    Times are in seconds of a monotonic clock.

    used: how many events were admitted.
    """

    __slots__ = ("_since", "_used_until", "_window", "used")

    def __init__(self, window: float = 1.0) -> None:
        """window: its length in seconds."""
        self._window = window
        self._since = self._used_until = float("-inf")
        self.used = 0

    def delay(self, limit: float, now: float) -> float:
        """Return in how many seconds the next event may be admitted; 0 if it may be admitted now.

        limit: how many events per second are admitted. It may change from one call to the next.
        """
        if self.idle(now) or self._used_until <= self._since + self._window - 1 / limit + _ROUNDING:
            return 0.0
        delay = self._used_until - now
        return delay if delay > _ROUNDING else 0.0

    def take(self, limit: float, now: float) -> None:
        """Count an event that is admitted."""
        if self.idle(now):
            self._since = self._used_until = now
        self._used_until += 1 / limit
        self.used += 1

    def admit(self, limit: float, now: float) -> bool:
        """Count an event and return True; return False if the limit would be exceeded."""
        if self.delay(limit, now):
            return False
        self.take(limit, now)
        return True

    def idle(self, now: float) -> bool:
        """Return whether nothing was used in a window. This object can then be dropped."""
        return now - self._used_until >= self._window
