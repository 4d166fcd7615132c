"""Simulated time in which a broker's own work takes time: as much as its code took of this machine's processor.

A broker is one thread: while it works, events for it wait. What it sends leaves when the work that led to it is done.
With `slowness` 0 work takes no time, and a simulation always has the same history.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.world import Call, SimClock, SimTime


class ScaleTime(SimTime):
    """The queue of all events. slowness: the simulated seconds that a second of this machine's processor stands for."""

    def __init__(self, slowness: float = 0.0) -> None:
        super().__init__()
        self.slowness = slowness
        self._began: float | None = None  # processor time at which the present event began, if it is a broker's
        self._charged = 0.0

    def charge(self, seconds: float) -> None:
        """Let the present event take so much more processor time: for work whose result was taken from another one."""
        self._charged += seconds

    def elapsed(self) -> float:
        """Return for how many simulated seconds the present event has been at work."""
        if self._began is None or not self.slowness:
            return 0.0
        return (time.process_time() - self._began + self._charged) * self.slowness

    def step(self) -> bool:
        if not self._queue:
            return False
        due, _, call = heapq.heappop(self._queue)
        self.now = max(self.now, due)
        clock = call.clock
        self.ran = clock
        if not isinstance(clock, ScaleClock):
            call.due()
        elif call is clock.wake:
            clock.wake = None
            self._run(clock, clock.waiting.popleft())
        elif clock.waiting or clock.busy_until > self.now:
            clock.waiting.append(call)
            self._wake(clock)
        else:
            self._run(clock, call)
        return True

    def _run(self, clock: ScaleClock, call: Call) -> None:
        self._began, self._charged = time.process_time(), 0.0
        call.due()
        spent = time.process_time() - self._began + self._charged
        self._began = None
        clock.spent += spent
        clock.busy_until = self.now + spent * self.slowness
        if clock.waiting:
            self._wake(clock)

    def _wake(self, clock: ScaleClock) -> None:
        """Have the oldest waiting event run once the broker is free."""
        if clock.wake is None:
            clock.wake = Call(clock, max(clock.busy_until, self.now), _nothing, ())
            self.add(clock.wake)


class WorkingClock(SimClock):
    """A clock that advances while a broker works."""

    def __init__(self, time: ScaleTime) -> None:
        super().__init__(time)
        self._scale_time = time

    def seconds(self) -> float:
        return self._scale_time.now + self._scale_time.elapsed()

    def callLater(self, delay: float, function: Callable[..., Any], *args: Any) -> Call:
        call = Call(self, self.seconds() + delay, function, args)
        self._scale_time.add(call)
        return call


class ScaleClock(WorkingClock):
    """The clock of a broker. spent: seconds of processor time. waiting: events that came while it was at work."""

    def __init__(self, time: ScaleTime) -> None:
        super().__init__(time)
        self.spent = 0.0
        self.busy_until = 0.0
        self.waiting: deque[Call] = deque()
        self.wake: Call | None = None


class ServerClock(WorkingClock):
    """The clock of the metadata store's server. What a broker sends there leaves once the broker has done its work."""


def _nothing() -> None:
    """Do nothing: the event only wakes a broker."""
