"""Measure how late the reactor's timers fire, which is how long any event waits for the reactor, and the share of time
in which the reactor is idle.

The reactor's thread is busy while it uses a processor, and while it is late because a disk or the machine has delayed
it. One timer measures both, so requests cost nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import thread_time
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.base.histogram import Histogram

#: The seconds between two measurements.
SECONDS: Final = 0.05
#: The seconds over which the idle share is averaged, as for Kafka's one-minute rates.
_MINUTE: Final = 60.0


class ReactorLag:
    """Measures the lag periodically.

    lag: a histogram of delays in seconds.
    idle: the idle share of about the last minute.
    """

    def __init__(
        self, clock: IReactorTime, tick: Callable[[], object], processor: Callable[[], float] = thread_time
    ) -> None:
        """`tick` is called after each measurement. `processor` returns the seconds of processor time of this thread."""
        self._clock = clock
        self._tick = tick
        self._processor = processor
        self._call: IDelayedCall | None = None
        self._elapsed = self._last = self._used = 0.0
        self.lag = Histogram()
        self.idle = 1.0

    def start(self) -> None:
        """Measure from now on: each tick of the timer adds its delay to `lag`."""
        self._last, self._used = self._clock.seconds(), self._processor()
        self._next(self._last)

    def stop(self) -> None:
        """Stop measuring. `lag` and `idle` keep their values."""
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _next(self, now: float) -> None:
        self._call = self._clock.callLater(SECONDS, self._fired, now + SECONDS)

    def _fired(self, due: float) -> None:
        now, used = self._clock.seconds(), self._processor()
        late = max(now - due, 0.0)
        self.lag.observe(late)
        passed, busy = now - self._last, max(used - self._used, late)
        self._last, self._used = now, used
        if passed > 0:
            self._elapsed += passed
            weight = max(1 - math.exp(-passed / _MINUTE), passed / self._elapsed)
            self.idle += weight * (1 - min(busy / passed, 1.0) - self.idle)
        self._tick()
        self._next(self._clock.seconds())
