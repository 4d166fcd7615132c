"""SIGTERM for commands that run until they are told to stop: finish what is under way, then end.

Strategy: the signal sets a flag, which the command's loop looks at: an exception in the middle of a poll would lose
track of what was handed out. Only where a command waits for its own reader (`while_writing`), which may never take
anything, the wait ends with an exception after a second, and a second signal always raises.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: How long a write may still take once the process was asked to stop.
_WRITE_SECONDS: Final = 1.0


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Whoever catches Ctrl-C catches it; the exit code is another one."""


class Stop:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._writing = False

    @contextmanager
    def while_writing(self) -> Iterator[None]:
        """Have `Terminated` raised in here if it takes long after the signal."""
        self._writing = True
        if self.asked:
            self._limit()
        try:
            yield
        finally:
            self._writing = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def handle(self, *_: Any) -> None:
        """Handle SIGTERM."""
        if self.asked:
            raise Terminated
        self.asked = True
        if self._writing:
            self._limit()

    def late(self, *_: Any) -> None:
        """Handle SIGALRM: the time for a write is up."""
        if self._writing:
            raise Terminated

    @staticmethod
    def _limit() -> None:
        signal.setitimer(signal.ITIMER_REAL, _WRITE_SECONDS)


@contextmanager
def terminable() -> Iterator[Stop]:
    """Handle SIGTERM in here. Raises `Terminated` at the end, once all inside is closed, if it came."""
    stop = Stop()
    before = signal.signal(signal.SIGTERM, stop.handle), signal.signal(signal.SIGALRM, stop.late)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
    if stop.asked:
        raise Terminated
