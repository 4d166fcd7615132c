"""Time for the blocking client that passes only when somebody sleeps."""

from __future__ import annotations

import select

_MOMENT_MS = 100


class FakeClock:
    """As `pylogd.client.blocking.clock.Clock`: `sleep` returns at once and time has passed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def poll(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        """A broker gets a moment of real time to answer; if it does not, the fake time passes."""
        events = poll.poll(0 if seconds <= 0 else _MOMENT_MS)
        if not events and seconds > 0:
            self.sleep(seconds)
        return events
