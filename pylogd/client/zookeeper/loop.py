"""An event loop in a thread, without globals: the part of a reactor that a metadata store and a coordinator need.

The application may run any other reactor, or none. Where the system supports it (Linux: CLOCK_BOOTTIME), time passes
while the machine sleeps: a lease must not outlast a session because a laptop was closed.

Must not know: what it runs.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.base import DelayedCall
from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime
from zope.interface import implementer

log = logging.getLogger(__name__)

#: The clock that `seconds` reads.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@implementer(IReactorTime, IReactorFromThreads)
class Loop:
    """Runs calls in a daemon thread, until `stop`."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, DelayedCall]] = []
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the queued calls. Any thread may call this."""
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        """Wait up to `seconds` for the thread to end."""
        self._thread.join(timeout)

    def seconds(self) -> float:
        """See `IReactorTime`. Any thread may call this."""
        return time.clock_gettime(_CLOCK)

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> IDelayedCall:
        """See `IReactorTime`. Only the loop's thread may call this."""
        due = self.seconds() + max(0.0, delay)
        call = DelayedCall(due, callable, args, kwargs, _nothing, self._moved, self.seconds)
        heapq.heappush(self._timers, (due, next(self._numbers), call))
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """See `IReactorTime`."""
        return [call for _, _, call in self._timers if call.active()]

    def callFromThread(self, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """See `IReactorFromThreads`."""
        self._queue.put(lambda: callable(*args, **kwargs))

    def _run(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=self._until_next())
            except queue.Empty:
                self._run_due()
                continue
            if call is None:
                return
            _safely(call)
            self._run_due()

    def _until_next(self) -> float | None:
        return max(0.0, self._timers[0][0] - self.seconds()) if self._timers else None

    def _run_due(self) -> None:
        now = self.seconds()
        while self._timers and self._timers[0][0] <= now:
            due, _, call = heapq.heappop(self._timers)
            if call.cancelled or call.called:
                continue
            if call.getTime() > due:
                self._moved(call)  # the call was delayed
                continue
            call.called = 1
            _safely(lambda call=call: call.func(*call.args, **call.kw))  # type: ignore[misc]

    def _moved(self, call: DelayedCall) -> None:
        heapq.heappush(self._timers, (call.getTime(), next(self._numbers), call))


def _safely(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        log.exception("a call in the loop failed")


def _nothing(_: DelayedCall) -> None:
    """Replace a cancelled call, which stays in the heap until it is due."""
