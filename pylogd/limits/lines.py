"""Bounded log lines for events that any client can cause as often as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_PERIOD: Final = 60.0  # seconds
_MOST: Final = 100  # lines in a period


class LineLimit:
    """Lets the first lines of each period through, and counts the others.

    seconds: a monotonic clock. most: how many lines in `period` seconds.
    """

    __slots__ = ("_begun", "_made", "_most", "_period", "_seconds", "_suppressed")

    def __init__(self, seconds: Callable[[], float], most: int = _MOST, period: float = _PERIOD) -> None:
        self._seconds = seconds
        self._most = most
        self._period = period
        self._begun = float("-inf")
        self._made = 0
        self._suppressed = 0

    def admit(self) -> int | None:
        """Return None if a line should be suppressed, else how many were since the last one that was not."""
        now = self._seconds()
        if now - self._begun >= self._period:
            self._begun, self._made = now, 0
        if self._made >= self._most:
            self._suppressed += 1
            return None
        self._made += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
