"""Log lines that a flood of bad connections can't multiply: at most so many of a kind in a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

#: Lines of one kind in so many seconds.
MOST_LINES = 100
SECONDS = 10.0


class LimitedLog:
    """Log warnings, at most `most` of each kind in `seconds`; the next line after that says how many were left out."""

    def __init__(
        self, log: Logger, most: int = MOST_LINES, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # kind: begin, lines

    def warn(self, text: str, **values: Any) -> None:
        """Log a warning. `text`, with `{names}` of `values`, is also its kind."""
        now = self._clock()
        begin, count = self._windows.get(text, (now, 0))
        if now - begin >= self._seconds:
            if count > self._most:
                self._log.warn(
                    "{left_out} more lines like the next one were left out in the last {seconds:.0f} s",
                    left_out=count - self._most, seconds=now - begin,
                )  # fmt: skip
            begin, count = now, 0
        self._windows[text] = begin, count + 1
        if count < self._most:
            self._log.warn(text, **values)
