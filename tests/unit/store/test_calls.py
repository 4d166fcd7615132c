"""Calls of a store complete in the order in which they were made, and watches fire after the reads that set them."""

from __future__ import annotations

import pytest

from pylogd.store.calls import Call, CallQueue, deliver
from pylogd.store.errors import NoNode
from pylogd.store.interfaces import EventType, WatchEvent

EVENT = WatchEvent(EventType.CHANGED, "/a")


class Case:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self.queue = CallQueue(lambda: self.heard.append("drained"))

    def add(self, name: str) -> Call:
        call = self.queue.add()
        call.deferred.addBoth(lambda result: self.heard.append((name, getattr(result, "value", result))))
        return call


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_call_is_held_back_until_those_before_it_have_settled(case: Case) -> None:
    first, second, third = case.add("first"), case.add("second"), case.add("third")
    case.queue.settle(third, 3)
    case.queue.settle(second, 2)
    assert not case.heard
    assert case.queue
    case.queue.settle(first, 1)
    assert case.heard == [("first", 1), ("second", 2), ("third", 3), "drained"]
    assert not case.queue


def test_a_call_that_failed_keeps_its_place(case: Case) -> None:
    first, second = case.add("first"), case.add("second")
    error = NoNode("/a")
    case.queue.settle(second, error=error)
    case.queue.settle(first, 1)
    assert case.heard == [("first", 1), ("second", error), "drained"]


def test_a_call_that_is_made_and_settled_while_another_fires_comes_behind_it(case: Case) -> None:
    first = case.queue.add()

    def again(_: object) -> None:
        case.queue.settle(case.add("inner"), 2)
        case.heard.append("outer")

    first.deferred.addCallback(again)
    case.queue.settle(first, 1)
    assert case.heard == ["outer", ("inner", 2), "drained"]


def test_a_watch_event_waits_for_the_read_that_set_the_watch(case: Case) -> None:
    first, read = case.add("first"), case.add("read")
    case.queue.settle(read, 2)
    deliver(read, case.heard.append, EVENT)
    assert not case.heard
    case.queue.settle(first, 1)
    assert case.heard == [("first", 1), ("read", 2), EVENT, "drained"]
    deliver(read, case.heard.append, EVENT)
    assert case.heard[-1] is EVENT


def test_a_watch_that_raises_does_not_stop_the_others(case: Case) -> None:
    def broken(_: WatchEvent) -> None:
        raise ValueError

    read = case.add("read")
    deliver(read, broken, EVENT)
    deliver(read, case.heard.append, EVENT)
    case.queue.settle(read, 1)
    assert case.heard == [("read", 1), EVENT, "drained"]
