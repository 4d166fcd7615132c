"""The interface of event loops that a client needs: time, timers, promises and connections."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

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
