"""A monotonic clock around a reactor that uses the wall clock."""

from __future__ import annotations

import time

import pytest
from twisted.internet import reactor
from twisted.internet.error import AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTCP
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from pylogd.link.monotonic_reactor import MonotonicReactor, monotonic_reactor


class Times:
    """A reactor on a wall clock, and a monotonic clock."""

    def __init__(self) -> None:
        self.wall = Clock()
        self.monotonic = 500.0
        self.reactor = MonotonicReactor(self.wall, lambda: self.monotonic)
        self.called: list[str] = []

    def pass_time(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall.advance(seconds)


@pytest.fixture
def times() -> Times:
    return Times()


def test_a_step_forward_makes_no_call_early(times: Times) -> None:
    call = times.reactor.callLater(10, times.called.append, "ten")
    assert verifyObject(IDelayedCall, call)
    times.wall.advance(70)
    assert (times.called, call.active(), call.getTime()) == ([], True, 510)
    times.pass_time(9)
    assert times.called == []
    times.pass_time(1)
    assert (times.called, call.active()) == (["ten"], False)
    assert times.reactor.seconds() == 510


def test_calls_are_moved_and_cancelled(times: Times) -> None:
    call = times.reactor.callLater(10, times.called.append, "moved")
    call.delay(5)
    call.reset(20)
    times.wall.advance(70)
    times.pass_time(19)
    assert times.called == []
    times.pass_time(1)
    assert times.called == ["moved"]
    gone = times.reactor.callLater(10, times.called.append, "gone")
    times.wall.advance(70)
    gone.cancel()
    with pytest.raises(AlreadyCancelled):
        gone.cancel()
    times.pass_time(100)
    assert times.called == ["moved"]


def test_only_a_reactor_on_the_wall_clock_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactor, "seconds", time.time)  # a test of a command may have set the monotonic clock
    clock = Clock()
    assert monotonic_reactor(clock) is clock
    wrapped = monotonic_reactor(reactor)
    assert isinstance(wrapped, MonotonicReactor)
    assert IReactorTCP.providedBy(wrapped)
    assert wrapped.connectTCP == reactor.connectTCP
    assert monotonic_reactor(wrapped) is wrapped
