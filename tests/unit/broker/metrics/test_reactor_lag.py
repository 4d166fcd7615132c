"""How late the reactor is, and how much of its time it has nothing to do."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from pylogd.broker.metrics.sampling import REACTOR_SECONDS, ReactorLag


class Reactor:
    """A reactor's clock beside the processor time of its thread, and a lag that measures it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.used = 0.0
        self.lag = ReactorLag(self.clock, lambda: None, lambda: self.used)
        self.lag.start()

    def run(self, seconds: float, busy: float = 0.0) -> None:
        """Let time pass of which the thread uses this share of a processor."""
        for _ in range(round(seconds / REACTOR_SECONDS)):
            self.used += busy * REACTOR_SECONDS
            self.clock.advance(REACTOR_SECONDS)


def test_the_idle_share_is_what_the_thread_does_not_use() -> None:
    reactor = Reactor()
    reactor.run(10, busy=0.25)
    assert reactor.lag.idle == pytest.approx(0.75, abs=0.01), "from the first seconds on"
    reactor.run(600, busy=0.9)
    assert reactor.lag.idle == pytest.approx(0.1, abs=0.01)
    reactor.run(60)
    assert 0.5 < reactor.lag.idle < 0.8, "an average over about a minute"


def test_a_thread_that_is_held_up_is_not_idle() -> None:
    reactor = Reactor()
    for _ in range(10):
        reactor.clock.advance(1.0)  # no processor time, but a timer that is late
    assert reactor.lag.idle == pytest.approx(REACTOR_SECONDS, abs=0.01)
    assert reactor.lag.lag.sum == pytest.approx(10 * (1 - REACTOR_SECONDS))


def test_it_stays_between_nothing_and_all() -> None:
    reactor = Reactor()
    reactor.run(1, busy=3.0)
    assert reactor.lag.idle == 0.0
    reactor.lag.stop()
    reactor.run(1)
    assert reactor.lag.idle == 0.0 and not reactor.clock.getDelayedCalls()
