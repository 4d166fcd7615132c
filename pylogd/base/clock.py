"""The wall clock for time stamps, and a monotonic clock for code that waits, expires or measures.

Strategy: the wall clock can be set, by NTP or by hand, forwards and backwards. Times in records, files and the metadata
store, and times that are compared with them (retention by age), are in milliseconds since 1970 from `wall_ms`, the only
reader of the wall clock in pylogd. Everything else uses `time.monotonic`. Twisted's reactors use the wall clock
(`reactor.seconds` is `time.time`), so `use_monotonic_time` gives the process's reactor the monotonic clock. A library
on an application's reactor wraps the reactor instead (`pylogd.link.monotonic_reactor`).

Rules: `tests/unit/base/test_time.py` refuses `time.time`, `datetime.now` and similar calls anywhere else. Code with
time stamps takes a parameter `now_ms`, code that waits takes a reactor (`IReactorTime`) or `seconds`; the two are never
exchanged.

`WorkTime` measures work in several turns of the reactor and in threads. The code that begins the work makes it the
current work (a context variable, which coroutines keep). `timed` counts a call for the current work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

__all__ = ["WorkTime", "timed", "use_monotonic_time", "wall_ms"]

T = TypeVar("T")


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970. For time stamps and ages, never for waiting."""
    return time.time_ns() // 1_000_000


def use_monotonic_time(reactor: Any) -> None:
    """Have a reactor's timers and `seconds()` use the monotonic clock. A second call changes nothing.

    Only the owner of the process may do so. Calls that were scheduled before keep their remaining delay.
    """
    if reactor.seconds is time.monotonic:
        return
    before = reactor.seconds()
    pending = reactor.getDelayedCalls()
    reactor.seconds = time.monotonic
    for call in pending:
        left = call.getTime() - before
        call.seconds = time.monotonic
        call.reset(max(left, 0.0))


class WorkTime:
    """The time of some work.

    seconds: the sum so far, of elapsed time, like Kafka's times of threads.
    """

    __slots__ = ("_clock", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds, the same in all threads."""
        self._clock = clock
        self.seconds = 0.0

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, in any thread, and add the time that it takes."""
        begun = self._clock()
        try:
            return function(*args)
        finally:
            self.seconds += self._clock() - begun

    def begin(self, function: Callable[..., T], *args: Any) -> T:
        """Do the same as `run`, for the call that begins the work. Work that it starts in threads with `timed` is added
        later.
        """
        before = _current.set(self)
        try:
            return self.run(function, *args)
        finally:
            _current.reset(before)

    def take(self) -> float:
        """Return the sum, and reset it."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


_current: ContextVar[WorkTime | None] = ContextVar("pylogd_work_time", default=None)


def timed(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function whose time is added to the current work; the function itself if there is none."""
    work = _current.get()
    return function if work is None else partial(work.run, function)
