"""Log lines that clients can cause are bounded."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import Logger, formatEvent

from pylogd.base.limits.log_lines import COUNTS, EventCounts, LimitedLog


def test_of_a_flood_of_lines_the_first_are_written_and_the_others_counted() -> None:
    lines: list[str] = []
    clock = Clock()

    def note(event: Any) -> None:
        lines.append(formatEvent(event))

    observer: Any = note
    log = LimitedLog(Logger(observer=observer), 3, 10.0, clock.seconds)
    before = COUNTS["bad things"]
    for number in range(50):
        log.warn("bad {number}", event="bad things", number=number)
    log.info("other {number}", event="other things", number=0)
    assert lines == ["bad 0", "bad 1", "bad 2", "other 0"]
    clock.advance(12)
    log.warn("bad {number}", event="bad things", number=50)
    assert lines[4:] == ["47 more lines like the next one were left out in the last 12 s", "bad 50"]
    assert COUNTS["bad things"] - before == 51


def test_a_report_has_what_is_new() -> None:
    counts = EventCounts()
    assert counts.report() == ""
    for event in ("connections refused", "authentications failed", "connections refused"):
        counts.add(event)
    assert counts.report() == "authentications failed 1 (of 1 in all), connections refused 2 (of 2 in all)"
    assert counts.report() == ""
    counts.add("connections refused")
    assert counts.report() == "connections refused 1 (of 3 in all)"
