"""Time as a parameter, so that tests need not wait."""

from __future__ import annotations

import select
import time
from typing import Protocol

from pylogd.base.clock import wall_ms

_LONGEST_MS = 3_600_000


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        ...

    def poll(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Wait up to `seconds` for events of sockets; return them by descriptor."""
        ...


class SystemClock:
    """The system's time."""

    monotonic = staticmethod(time.monotonic)

    now_ms = staticmethod(wall_ms)

    def poll(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Wait up to `seconds` for events of sockets; return them by descriptor."""
        return poll.poll(0 if seconds <= 0 else min(int(seconds * 1000) + 1, _LONGEST_MS))
