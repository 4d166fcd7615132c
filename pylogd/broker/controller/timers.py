"""Delayed calls by name. There is one call of each name at a time, at the earliest requested time."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Timers:
    """The pending calls of one owner."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._calls: dict[str, IDelayedCall] = {}

    def later(self, name: str, seconds: float, function: Callable[[], object]) -> None:
        """Call `function` after this many seconds, unless a call of its name comes earlier. Replaces a later one."""
        pending = self._calls.get(name)
        if pending is not None:
            if pending.getTime() <= self._clock.seconds() + seconds:
                return
            pending.cancel()

        def call() -> None:
            del self._calls[name]
            function()

        self._calls[name] = self._clock.callLater(seconds, call)

    def cancel(self, name: str) -> None:
        """Cancel the call with that name, if there is one."""
        call = self._calls.pop(name, None)
        if call is not None:
            call.cancel()

    def cancel_all(self) -> None:
        """Cancel every call."""
        for call in self._calls.values():
            call.cancel()
        self._calls = {}
