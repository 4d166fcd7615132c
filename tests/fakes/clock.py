"""Time for the blocking client that passes only when somebody sleeps."""

from __future__ import annotations


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

    def wait(self, _wakeup: object, seconds: float) -> None:
        self.sleep(seconds)
