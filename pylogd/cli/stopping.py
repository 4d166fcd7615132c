"""Handle SIGTERM in commands that run until they are stopped: finish the current step, then end.

Strategy: in `terminable`, the signal sets a flag that the command's loop checks. An exception inside a poll would lose
track of the records that it returned. Only a write to standard output (`while_writing`), whose reader may never read,
is ended by an exception, one second after the signal; a second signal always raises. In `ended_by_sigterm` the signal
raises at once, as Ctrl-C does.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: The seconds that a write may still take after SIGTERM.
_WRITE_SECONDS: Final = 1.0


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM. Code that handles Ctrl-C handles it as well; the exit status differs."""


class Stop:
    """Record whether the process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._writing = False

    @contextmanager
    def while_writing(self) -> Iterator[None]:
        """Raise `Terminated` inside the `with` block if it is still running one second after the signal."""
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
        """Handle SIGALRM: the time for a write is over."""
        if self._writing:
            raise Terminated

    @staticmethod
    def _limit() -> None:
        signal.setitimer(signal.ITIMER_REAL, _WRITE_SECONDS)


@contextmanager
def terminable() -> Iterator[Stop]:
    """Handle SIGTERM inside the `with` block. If it came, raise `Terminated` at the end of the block."""
    stop = Stop()
    before = signal.signal(signal.SIGTERM, stop.handle), signal.signal(signal.SIGALRM, stop.late)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
    if stop.asked:
        raise Terminated


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise `Terminated` inside the `with` block when SIGTERM comes, wherever the code is, as Ctrl-C does."""

    def handle(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
