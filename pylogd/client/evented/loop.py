"""What a client needs of an event loop: time, timers, promises and connections."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from pylogd.client.core.network import Link

T = TypeVar("T")


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not make the call. Has no effect after it was made."""
        ...


class Promise(Protocol[T]):
    """A value that comes later. Coroutines await it; whoever awaits it may be cancelled, which `done` then shows."""

    @property
    def done(self) -> bool:
        """Whether it has a value or an error, or nobody waits any more."""
        ...

    def succeed(self, value: T) -> None:
        """Give it its value, unless it is done."""
        ...

    def fail(self, error: BaseException) -> None:
        """Give it an error, unless it is done."""
        ...

    def __await__(self) -> Generator[Any, Any, T]: ...


class Transport(Protocol):
    """An open connection, or one that is being opened."""

    def write(self, parts: list[Any]) -> None:
        """Write all parts, in order."""
        ...

    def close(self) -> None:
        """Close it, and report nothing more."""
        ...


class Loop(Protocol):
    """An event loop. Times are seconds of a monotonic clock."""

    def now(self) -> float:
        """The time."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970, for time stamps."""
        ...

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Make a call when so much time has passed; at 0 as soon as the present turn of the loop is over."""
        ...

    def promise(self) -> Promise[Any]:
        """Return a new promise."""
        ...

    def open(self, link: Link, timeout: float, happened: Callable[[], None]) -> Transport:
        """Connect to `link`'s address and report to it what happens; call `happened` after each report."""
        ...
