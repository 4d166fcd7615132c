"""Two small things that Deferreds want here: several at once, and a sleep that news end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime

T = TypeVar("T")


async def all_of(deferreds: Iterable[Deferred[T]]) -> list[T]:
    """The results of all, in order. Waits for every one; raises what the first that failed raised."""
    outcomes: list[tuple[bool, Any]] = await DeferredList(list(deferreds), consumeErrors=True)
    for succeeded, outcome in outcomes:
        if not succeeded:
            outcome.raiseException()
    return [outcome for _, outcome in outcomes]


class Sleeper:
    """Whoever waits for time to pass or for a call of `wake`. A `wake` while nobody sleeps ends the next sleep."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._awake = False
        self._sleeping: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    def sleep(self, seconds: float | None) -> Deferred[None]:
        """Fires after so many seconds (None: never) or at the next `wake`. One sleeps at a time."""
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
