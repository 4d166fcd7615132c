"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

UNLIMITED = float(sys.maxsize)
_LONGEST = 1.0  # the most seconds of one sleep, after which the rate is read again


class RateLimit:
    """Delays its callers so that together they process at most `rate` bytes per second.

    seconds: a monotonic clock.
    wait: sleeps for a number of seconds; returns whether the caller has to stop.
    rate: the most bytes per second. It may be set while callers sleep.
    """

    def __init__(self, rate: float, seconds: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._rate = rate
        self._seconds = seconds
        self._wait = wait
        self._free_at = 0.0  # the time at which everything processed so far fits the rate
        self._lock = threading.Lock()

    @property
    def rate(self) -> float:
        """The most bytes per second."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        with self._lock:
            if rate != self._rate:
                self._free_at = min(self._free_at, self._seconds() + _LONGEST)
                self._rate = rate

    def take(self, count: int) -> None:
        """Account for `count` bytes, and sleep until they fit the rate, or until the rate changes."""
        rate = self._rate
        if rate >= UNLIMITED or not count:
            return
        now = self._seconds()
        with self._lock:
            self._free_at = max(self._free_at, now) + count / rate
            pause = self._free_at - now
        while pause > 0 and rate == self._rate:
            if self._wait(min(pause, _LONGEST)):
                return
            pause -= _LONGEST
