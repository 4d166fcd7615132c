"""Measure how late the reactor's timers fire, which is how long any event waits until the reactor handles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.histogram import Histogram

#: Between two measurements.
SECONDS: Final = 0.05


class ReactorLag:
    """Measures periodically. lag: a histogram of delays in seconds."""

    def __init__(self, clock: IReactorTime, tick: Callable[[], object]) -> None:
        """tick: called after each measurement."""
        self._clock = clock
        self._tick = tick
        self._call: IDelayedCall | None = None
        self.lag = Histogram()

    def start(self) -> None:
        """Measure from now on: each tick of the timer adds its delay to `lag`."""
        self._call = self._clock.callLater(SECONDS, self._fired, self._clock.seconds() + SECONDS)

    def stop(self) -> None:
        """Stop measuring. `lag` keeps its values."""
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _fired(self, due: float) -> None:
        self.lag.observe(max(self._clock.seconds() - due, 0.0))
        self._tick()
        self.start()
