"""Simulated time for many parties at once, and processes in it that can be frozen."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from twisted.internet.base import DelayedCall
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer


@implementer(IReactorTime)
class SimulatedTime:
    """As `twisted.internet.task.Clock`, with a heap: fast with thousands of calls pending."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, DelayedCall]] = []
        self._numbers = itertools.count()

    def seconds(self) -> float:
        return self._now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> IDelayedCall:
        assert delay >= 0
        call = DelayedCall(self._now + delay, callable, args, kwargs, lambda _: None, lambda _: None, self.seconds)
        heapq.heappush(self._heap, (call.getTime(), next(self._numbers), call))
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return [call for _, _, call in self._heap if call.active()]

    def step(self, until: float) -> bool:
        """Make the next call that is due by `until`; False if there is none, and then it is `until`."""
        while self._heap and self._heap[0][0] <= until:
            time, _, call = heapq.heappop(self._heap)
            if call.cancelled:
                continue
            self._now = max(self._now, time)
            call.called = 1
            call.func(*call.args, **call.kw)
            return True
        self._now = max(self._now, until)
        return False

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self._now + seconds
        while self.step(until):
            pass


@implementer(IReactorTime)
class ProcessTime:
    """The time of one process: while it is frozen nothing of it runs, and all that fell due runs when it thaws."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._held: list[Callable[[], Any]] | None = None
        self.dead = False

    def seconds(self) -> float:
        return self._time.seconds()

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> IDelayedCall:
        # Belongs to the process: a call that fell due while the process was paused can still be cancelled.
        call = DelayedCall(
            self._time.seconds() + delay, callable, args, kwargs, lambda _: None, lambda _: None, self.seconds
        )

        def make() -> None:
            if not call.cancelled:
                call.called = 1
                callable(*args, **kwargs)

        self._time.callLater(delay, self.enter, make)
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return []

    @property
    def frozen(self) -> bool:
        return self._held is not None

    def enter(self, call: Callable[[], Any]) -> None:
        """Run something in the process, when it runs."""
        if self.dead:
            return
        if self._held is not None:
            self._held.append(call)
        else:
            call()

    def freeze(self) -> None:
        if self._held is None:
            self._held = []

    def thaw(self) -> None:
        held, self._held = self._held or [], None
        for call in held:
            self.enter(call)
