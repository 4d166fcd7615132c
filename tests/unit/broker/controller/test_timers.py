"""Delayed calls by name."""

from __future__ import annotations

from typing import cast

import pytest
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.broker.controller.timers import Timers


class Case:
    def __init__(self) -> None:
        self.clock = Clock()
        self.timers = Timers(cast(IReactorTime, self.clock))
        self.called: list[tuple[str, float]] = []

    def later(self, name: str, seconds: float, note: str = "") -> None:
        self.timers.later(name, seconds, lambda: self.called.append((note or name, self.clock.seconds())))


@pytest.fixture
def case() -> Case:
    return Case()


def test_each_name_has_a_call_of_its_own(case: Case) -> None:
    case.later("a", 2)
    case.later("b", 1)
    case.clock.pump([1, 1, 1])
    assert case.called == [("b", 1), ("a", 2)]


def test_a_sooner_call_replaces_a_later_one(case: Case) -> None:
    case.later("a", 2, "late")
    case.later("a", 1, "soon")
    case.clock.advance(5)
    assert case.called == [("soon", 5)]


def test_a_later_call_does_not_replace_a_sooner_one(case: Case) -> None:
    case.later("a", 1, "soon")
    case.later("a", 2, "late")
    case.clock.pump([1, 1, 1])
    assert case.called == [("soon", 1)]


def test_a_call_may_schedule_the_next_one_of_its_name(case: Case) -> None:
    case.timers.later("a", 1, lambda: case.later("a", 1))
    case.clock.pump([1, 1])
    assert case.called == [("a", 2)]


def test_cancelled_calls_do_not_run(case: Case) -> None:
    for name in ("a", "b", "c"):
        case.later(name, 1)
    case.timers.cancel("a")
    case.timers.cancel("unknown")
    case.timers.cancel_all()
    case.clock.advance(5)
    assert not case.called
    case.later("a", 1)
    case.clock.advance(1)
    assert case.called == [("a", 6)]
