"""The interface of event loops that a client needs, and what coroutines on any loop wait with.

`Loop` has time, timers, promises and connections. A `Notifier` wakes coroutines, `OneAtATime` lets one of them run, and
`in_thread` makes calls that may block in a thread, such as an application's function that fetches a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from inspect import CORO_RUNNING, CORO_SUSPENDED, getcoroutinestate
from typing import Any, Protocol, TypeVar

from pylogd.client.core.effects import Work
from pylogd.client.core.link import Link

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call, unless it was made already."""
        ...


class Promise(Protocol[T]):
    """A value that is set later, and awaited by a coroutine. If the coroutine is cancelled, the promise is `done`."""

    @property
    def done(self) -> bool:
        """Whether the promise has a value or an error, or its coroutine was cancelled."""
        ...

    def succeed(self, value: T) -> None:
        """Set the value, unless the promise is done."""
        ...

    def fail(self, error: BaseException) -> None:
        """Set an error, unless the promise is done."""
        ...

    def __await__(self) -> Generator[Any, Any, T]: ...


class Transport(Protocol):
    """An open connection, or one that is being opened."""

    def write(self, parts: list[Any]) -> None:
        """Write all parts, in order."""
        ...

    def close(self) -> None:
        """Close the connection, and report no more events."""
        ...


class Loop(Protocol):
    """An event loop. Times are seconds of a monotonic clock."""

    def now(self) -> float:
        """Return the time."""
        ...

    def now_ms(self) -> int:
        """Return the milliseconds since 1970, for time stamps."""
        ...

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call a function after `seconds` seconds; with 0, as soon as the running code has returned."""
        ...

    def from_thread(self, call: Callable[[], object]) -> None:
        """Call a function soon in the loop's thread. Any thread may ask for it. Do nothing if the loop has ended."""
        ...

    def promise(self) -> Promise[Any]:
        """Return a new promise."""
        ...

    def tls_reader(self, link: Link) -> Callable[[], Any] | None:
        """Return a function that reads certificates and keys; its result must be in `connections.tls` before `open`.

        None means that nothing has to be read, or that the loop's thread may wait for the disk.
        """
        ...

    def open(self, link: Link, timeout: float, happened: Callable[[], None]) -> Transport:
        """Connect to `link`'s address, and report its events to `link`; call `happened` after each report."""
        ...


class Notifier:
    """Wakes coroutines that wait for an event or for a time."""

    def __init__(self, loop: Loop) -> None:
        """No coroutine waits yet."""
        self._loop = loop
        self._waiting: list[Promise[None]] = []

    def notify(self) -> None:
        """Wake all coroutines that wait."""
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.succeed(None)

    async def wait(self, until: float) -> None:
        """Wait for `notify`, at most until a time of the loop's clock."""
        promise: Promise[None] = self._loop.promise()
        self._waiting.append(promise)
        timer = self._loop.later(max(0.0, until - self._loop.now()), lambda: promise.succeed(None))
        try:
            await promise
        finally:
            timer.cancel()
            if promise in self._waiting:
                self._waiting.remove(promise)


class OneAtATime:
    """Tell whether a coroutine is in progress, by the coroutine's own state: a flag could stay set after a signal."""

    def __init__(self) -> None:
        self._present: Coroutine[Any, Any, Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether a coroutine is in progress."""
        return self._present is not None and getcoroutinestate(self._present) in (CORO_RUNNING, CORO_SUSPENDED)

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the coroutine that `make` returns."""
        coroutine = self._present = make()
        try:
            return await coroutine
        finally:
            self._present = None


#: A function that any thread may use to have a call made in the loop's thread.
FromThread = Callable[[Callable[[], None]], object]


def in_thread(call: Callable[[], T], done: Callable[[T | None, BaseException | None], None], loop: FromThread) -> None:
    """Make a call in a new thread. In the loop's thread, report its result or exception to `done`.

    The thread does not keep the process from ending.
    """

    def run() -> None:
        outcome: T | None = None
        failure: BaseException | None = None
        try:
            outcome = call()
        except Exception as error:
            failure = error
        loop(lambda: done(outcome, failure))

    threading.Thread(target=run, name="pylogd authentication", daemon=True).start()


def work(effect: Work[Link], loop: FromThread, now: Callable[[], float]) -> None:
    """Make the call of a `Work` effect, and report the outcome to its link."""
    in_thread(effect.call, lambda outcome, failure: effect.link.worked(outcome, failure, now()), loop)
