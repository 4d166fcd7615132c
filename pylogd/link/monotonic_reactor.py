"""A reactor with a monotonic clock, wrapped around an application's reactor that uses the wall clock.

Strategy: a library must not change the clock of the process's reactor (`pylogd.base.clock.use_monotonic_time` is for
the application). So `seconds()` is the monotonic clock here. If the reactor makes a call too early, since the wall
clock was set forward, the call is delayed by the time that is left. All other attributes are the reactor's.

Rule: after the wall clock was set back, the reactor makes no calls at all before the old time has come again. Only the
application can prevent that: see "On Twisted" in docs/client.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.python.runtime import seconds as wall_clock
from zope.interface import directlyProvides, implementer, providedBy


def monotonic_reactor(reactor: Any) -> Any:
    """Return the reactor; if it uses the wall clock, return one with a monotonic clock around it."""
    return MonotonicReactor(reactor) if getattr(reactor, "seconds", None) is wall_clock else reactor


class MonotonicReactor:
    """A reactor with a monotonic clock; see the module."""

    def __init__(self, reactor: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._reactor = reactor
        self.seconds = clock
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def callLater(self, delay: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> IDelayedCall:
        """Call `function` once, `delay` seconds from now."""
        return MonotonicCall(self._reactor, self.seconds, delay, lambda: function(*args, **kwargs))


@implementer(IDelayedCall)
class MonotonicCall:
    """A delayed call that is due by a given clock instead of the reactor's."""

    def __init__(self, reactor: Any, clock: Callable[[], float], delay: float, function: Callable[[], Any]) -> None:
        self._reactor = reactor
        self._clock = clock
        self._function = function
        self._due = clock() + delay
        self._call: Any = reactor.callLater(delay, self._fire)

    def _fire(self) -> None:
        left = self._due - self._clock()
        if left > 0:
            self._call = self._reactor.callLater(left, self._fire)
        else:
            self._function()

    def getTime(self) -> float:
        """See `IDelayedCall`."""
        return self._due

    def cancel(self) -> None:
        """See `IDelayedCall`."""
        self._call.cancel()

    def delay(self, secondsLater: float) -> None:
        """See `IDelayedCall`."""
        self._move(self._due + secondsLater)

    def reset(self, secondsFromNow: float) -> None:
        """See `IDelayedCall`."""
        self._move(self._clock() + secondsFromNow)

    def active(self) -> bool:
        """See `IDelayedCall`."""
        return bool(self._call.active())

    def _move(self, due: float) -> None:
        self._call.reset(max(due - self._clock(), 0.0))
        self._due = due
