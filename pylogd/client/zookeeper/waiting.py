"""A sleep that an event can interrupt."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Sleeper:
    """Sleep for a time, or until `wake` is called. If nobody sleeps, `wake` ends the next sleep at once."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._awake = False
        self._sleeping: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    def sleep(self, seconds: float | None) -> Deferred[None]:
        """Return a Deferred that fires after `seconds` seconds (None: never), or at the next `wake`."""
        assert self._sleeping is None
        sleeping: Deferred[None] = Deferred()
        if self._awake:
            self._awake = False
            sleeping.callback(None)
            return sleeping
        self._sleeping = sleeping
        if seconds is not None:
            self._timer = self._clock.callLater(seconds, self._time_is_up)
        return sleeping

    def wake(self) -> None:
        """End the sleep, or the next one."""
        if self._sleeping is None:
            self._awake = True
            return
        if self._timer is not None:
            self._timer.cancel()
        self._time_is_up()

    def _time_is_up(self) -> None:
        sleeping, self._sleeping, self._timer = self._sleeping, None, None
        assert sleeping is not None
        sleeping.callback(None)
