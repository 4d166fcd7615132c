"""Bound how many log lines a flood of clients can cause: at most `MOST_LINES` of a kind in `SECONDS`.

Events are counted even if they are not logged. `COUNTS` has how often each kind of event happened since the process
began, and the broker logs the increase once a minute (`listening.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

#: The most lines of one kind, and the seconds to which this applies.
MOST_LINES = 100
SECONDS = 10.0


class EventCounts:
    """Counts events by their kind. Kinds are words for a log line."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def __getitem__(self, event: str) -> int:
        return self._counts[event]

    def add(self, event: str) -> None:
        """Count an event."""
        self._counts[event] += 1

    def items(self) -> list[tuple[str, int]]:
        """Return how often each event happened, in alphabetical order."""
        return sorted(self._counts.items())

    def report(self) -> str:
        """Return the counts since the last call, with the totals. The text is empty if nothing happened."""
        new, self._reported = self._counts - self._reported, self._counts.copy()
        return ", ".join(f"{event} {count} (of {self._counts[event]} in all)" for event, count in sorted(new.items()))


#: The counts of this process.
COUNTS: Final = EventCounts()


class LimitedLog:
    """Logs lines, at most `most` of each kind in `seconds`. The next line after that says how many were left out."""

    def __init__(
        self, log: Logger, most: int = MOST_LINES, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # begin and number of lines, by kind

    def warn(self, text: str, *, event: str, **values: Any) -> None:
        """Log a warning, and count `event`. `text`, with `{names}` of `values`, is the kind of line that is bounded."""
        self._line(self._log.warn, text, event, values)

    def info(self, text: str, *, event: str, **values: Any) -> None:
        """Log a line like `warn`, for an event that is no fault."""
        self._line(self._log.info, text, event, values)

    def _line(self, write: Callable[..., None], text: str, event: str, values: dict[str, Any]) -> None:
        COUNTS.add(event)
        now = self._clock()
        begin, count = self._windows.get(text, (now, 0))
        if now - begin >= self._seconds:
            if count > self._most:
                write(
                    "{left_out} more lines like the next one were left out in the last {seconds:.0f} s",
                    left_out=count - self._most, seconds=now - begin,
                )  # fmt: skip
            begin, count = now, 0
        self._windows[text] = begin, count + 1
        if count < self._most:
            write(text, **values)
