"""Time as a parameter: what the client waits with, so that tests need not."""

from __future__ import annotations

import select
import time
from typing import Protocol

from pylogd.client.blocking.wakeup import Wakeup
from pylogd.clock import wall_ms


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
    now_ms = staticmethod(wall_ms)

    def wait(self, wakeup: Wakeup, seconds: float) -> None:
        """Let time pass, but not when woken."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.poll(seconds * 1000 + 1)
