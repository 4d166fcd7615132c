"""A `Loop` that runs only inside calls, so that coroutines of `evented` serve a blocking caller.

Strategy: `run` runs a coroutine to its end in the caller's thread. While it waits for a promise, the loop waits for
sockets and timers. Only `run` resumes coroutines, not timers or sockets, so that a listener that a coroutine calls may
`run` another one.

Rules: `lock` is held while the loop runs; the background thread takes the lock only if it is free. An exception from
outside (Ctrl-C) is raised once the loop is consistent again.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.client.blocking.clock import Clock
from pylogd.client.blocking.sockets import Sockets, Transport
from pylogd.client.core.link import Link

T = TypeVar("T")
_LONG = 3600.0


class PollPromise:
    """A promise that `PollLoop.run` waits for."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def succeed(self, value: Any) -> None:
        """Set the value, unless it is done."""
        if not self.done:
            self.done, self._value = True, value

    def fail(self, error: BaseException) -> None:
        """Set an error, unless it is done."""
        if not self.done:
            self.done, self._error = True, error

    def __await__(self) -> Generator[PollPromise, None, Any]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value


class _Timer:
    """A scheduled call."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not make the call."""
        self.call = None


class PollLoop:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        """`clock` tells the time; tests pass their own."""
        self.lock = threading.RLock()
        self.clock = clock
        self.now = clock.monotonic
        self.now_ms = clock.now_ms
        #: called after something was reported to a link, and after `wake`
        self.happened: Callable[[], object] = lambda: None
        #: called when an exception from outside has interrupted the loop
        self.recover: Callable[[], object] = lambda: None
        self._sockets = Sockets(clock)
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def wake(self) -> None:
        """End a wait. Any thread may call this."""
        self._sockets.wakeup.set()

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()

    # `Loop`

    def later(self, seconds: float, call: Callable[[], object]) -> _Timer:
        """Call a function after `seconds` seconds."""
        timer = _Timer(call)
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), timer))
        return timer

    def from_thread(self, call: Callable[[], object]) -> None:
        """Call a function in the thread that runs the loop. Any thread may ask for it."""
        self._sockets.from_thread(call)

    def promise(self) -> PollPromise:
        """Return a new promise."""
        return PollPromise()

    def tls_reader(self, link: Link) -> None:
        """Return None: the caller's thread may wait for the disk."""

    def open(self, link: Link, timeout: float, happened: Callable[[], None]) -> Transport:
        """Connect to a link's address. This loop calls its own `happened`."""
        return self._sockets.open(link, timeout)

    # Running

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result."""
        with self.lock:
            error: BaseException | None = None
            while True:
                try:
                    waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
                    error = None
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                try:
                    while not waits_for.done:
                        if self.turn(_LONG):
                            self.happened()
                except BaseException as interrupt:
                    self._recover_from(interrupt)
                    error = interrupt

    def turn(self, longest: float) -> bool:
        """Make the calls that are due, and wait for sockets, at most `longest` seconds.

        Return whether anything was reported to a link; then the caller has to call `happened`.
        """
        timers = self._timers
        while timers and (timers[0][2].call is None or timers[0][0] <= self.now()):
            call = heapq.heappop(timers)[2].call
            if call is not None:
                call()
                longest = 0.0
        until = self.now() + longest
        if timers:
            until = min(until, timers[0][0])
        return self._sockets.wait(until)

    def background(self, stopped: threading.Event) -> None:
        """Do what can be done without waiting, unless another thread has the lock, or `stopped` is set."""
        if self.lock.acquire(blocking=False):
            try:
                if not stopped.is_set() and self.turn(0.0):
                    self.happened()
            except BaseException as interrupt:
                self._recover_from(interrupt)
                raise
            finally:
                self.lock.release()

    def _recover_from(self, interrupt: BaseException) -> None:
        if not isinstance(interrupt, PylogdError):
            self.recover()
