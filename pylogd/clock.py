"""The wall clock for time stamps, and a monotonic clock for whatever waits, expires or measures.

Strategy: the wall clock can be set, by NTP or by hand, in either direction. What is written into records, files and the
metadata store, and what is compared with it (retention by age), is in milliseconds since 1970 from `wall_ms`, the only
reader of the wall clock in pylogd. Everything else uses `time.monotonic`. Twisted's reactors take the wall clock
(`reactor.seconds` is `time.time`): `use_monotonic_time` gives the process's reactor the monotonic one. A library that
runs on somebody else's reactor wraps it instead (`pylogd.net.steady`).

Rules: `tests/unit/test_time.py` refuses `time.time`, `datetime.now` and their like anywhere else. Code with time stamps
takes a `now_ms` parameter, code that waits takes a reactor (`IReactorTime`) or `seconds`; never one for the other.
"""

from __future__ import annotations

import time
from typing import Any

__all__ = ["use_monotonic_time", "wall_ms"]


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970. For time stamps and ages, never for waiting."""
    return time.time_ns() // 1_000_000


def use_monotonic_time(reactor: Any) -> None:
    """Have a reactor's timers and `seconds()` use the monotonic clock; a second call changes nothing.

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
