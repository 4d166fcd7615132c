"""The limit of bytes per second of all cleaner threads, which may change while they sleep."""

from __future__ import annotations

from pylogd.broker.log.compaction.rate_limit import UNLIMITED, RateLimit


def test_the_throttle_accounts_for_every_byte() -> None:
    now, pauses = [0.0], []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    throttle = RateLimit(100.0, lambda: now[0], wait)
    throttle.take(50)
    throttle.take(0)
    throttle.take(200)
    assert pauses == [0.5, 1.0, 1.0]


def test_the_rate_of_the_throttle_may_change_while_a_thread_sleeps() -> None:
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        throttle.rate = UNLIMITED

    throttle = RateLimit(1.0, lambda: 0.0, wait)
    throttle.take(1_000_000)
    assert pauses == [1.0]
    throttle.rate = 10.0
    throttle.take(5)
    assert pauses == [1.0, 1.0]  # what was slept for with the former rate is not slept for again


def test_the_throttle_ends_at_a_stop() -> None:
    throttle = RateLimit(1.0, lambda: 0.0, lambda _seconds: True)
    throttle.take(1 << 40)
