"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

UNLIMITED = float(sys.maxsize)


class Throttle:
    """Delays its callers so that together they process at most `rate` bytes per second.

    seconds: a monotonic clock. wait: sleeps for a number of seconds.
    """

    def __init__(self, rate: float, seconds: Callable[[], float], wait: Callable[[float], object]) -> None:
        self.rate = rate
        self._seconds = seconds
        self._wait = wait
        self._free_at = 0.0  # when everything processed so far fits the rate
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Account for `count` bytes, and sleep until they fit the rate."""
        if self.rate >= UNLIMITED or not count:
            return
        now = self._seconds()
        with self._lock:
            self._free_at = max(self._free_at, now) + count / self.rate
            pause = self._free_at - now
        self._wait(pause)
