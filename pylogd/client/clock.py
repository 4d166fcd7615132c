"""Time as a parameter: what the client waits with, so that tests need not."""

from __future__ import annotations

import random
import select
import time
from typing import Protocol

from pylogd.client.wakeup import Wakeup


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def wait(self, wakeup: Wakeup, seconds: float) -> None:
        """Let time pass, but not when woken."""
        ...


class SystemClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def wait(self, wakeup: Wakeup, seconds: float) -> None:
        """Let time pass, but not when woken."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.poll(seconds * 1000 + 1)


class Backoff:
    """How long to wait before each next try: doubling from `first` to `most` seconds, with a fifth of jitter."""

    __slots__ = ("_delay", "_first", "_most", "_random")

    def __init__(self, first: float = 0.1, most: float = 1.0, rng: random.Random | None = None) -> None:
        """`rng` is for tests that must know the jitter."""
        self._first = first
        self._most = most
        self._delay = first
        self._random = rng or random.Random()

    def next(self) -> float:
        """The seconds to wait now."""
        delay = self._delay
        self._delay = min(delay * 2, self._most)
        return delay * self._random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Start again from `first`: something went well."""
        self._delay = self._first
