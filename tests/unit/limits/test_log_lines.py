"""Log lines that clients can cause are bounded."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import Logger, formatEvent

from pylogd.limits.log_lines import LimitedLog


def test_of_a_flood_of_lines_the_first_are_written_and_the_others_counted() -> None:
    lines: list[str] = []
    clock = Clock()

    def note(event: Any) -> None:
        lines.append(formatEvent(event))

    observer: Any = note
    log = LimitedLog(Logger(observer=observer), 3, 10.0, clock.seconds)
    for number in range(50):
        log.warn("bad {number}", number=number)
    log.warn("other {number}", number=0)
    assert lines == ["bad 0", "bad 1", "bad 2", "other 0"]
    clock.advance(12)
    log.warn("bad {number}", number=50)
    assert lines[4:] == ["47 more lines like the next one were left out in the last 12 s", "bad 50"]
