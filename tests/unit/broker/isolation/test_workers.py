"""Threads for calls that may hang: order, bounds, and giving up what does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from pylogd.broker.isolation.workers import Workers

SOON = 30.0  # seconds, after which a test that hangs fails


class Reactor:
    """Collects what threads want to be called."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()

    def from_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        self.calls.put((function, arguments))

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            function, arguments = self.calls.get(timeout=SOON)
            function(*arguments)


class Hanging:
    """A call that hangs until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.released.wait(SOON)
        return "returned"


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


@pytest.fixture
def make(reactor: Reactor) -> Iterator[Callable[[int], Workers]]:
    made: list[Workers] = []

    def make(most: int) -> Workers:
        made.append(Workers("test", most, reactor.from_thread, lambda: 7.0))
        return made[-1]

    yield make
    for workers in made:
        workers.stop()


def test_one_thread_makes_calls_in_their_order(reactor: Reactor, make: Callable[[int], Workers]) -> None:
    workers, results = make(1), list[int]()
    for number in range(20):
        workers.run(lambda number=number: number).addCallback(results.append)
    reactor.turn(20)
    assert results == list(range(20))
    assert not len(workers)


def test_a_failure_is_the_calls_own(reactor: Reactor, make: Callable[[int], Workers]) -> None:
    workers, failures, results = make(1), list[Any](), list[Any]()
    workers.run(int, "x").addErrback(failures.append)
    workers.run(int, "7").addCallback(results.append)
    reactor.turn(2)
    assert failures[0].check(ValueError)
    assert results == [7]


def test_a_call_that_hangs_leaves_the_other_threads_alone(reactor: Reactor, make: Callable[[int], Workers]) -> None:
    workers, hanging, results = make(2), Hanging(), list[Any]()
    workers.run(hanging).addCallback(results.append)
    assert hanging.begun.wait(SOON)
    assert workers.oldest() == 7.0
    workers.run(int, "1").addCallback(results.append)
    reactor.turn()
    assert results == [1]
    hanging.released.set()
    reactor.turn()
    assert results == [1, "returned"]
    assert workers.oldest() is None


def test_what_hangs_is_given_up_and_its_thread_is_counted(reactor: Reactor, make: Callable[[int], Workers]) -> None:
    workers, hanging, failures = make(1), Hanging(), list[Any]()
    for call in (hanging, int):
        workers.run(call).addErrback(failures.append)
    assert hanging.begun.wait(SOON)
    workers.give_up(OSError("the disk hangs"))
    assert [failure.check(OSError) for failure in failures] == [OSError, OSError]
    assert workers.stuck == 1
    assert not len(workers)
    workers.run(int).addErrback(failures.append)
    assert len(failures) == 3
    hanging.released.set()
    reactor.turn()
    assert workers.stuck == 0
    assert len(failures) == 3


def test_more_threads_begin_the_calls_that_wait(make: Callable[[int], Workers], reactor: Reactor) -> None:
    workers = make(1)
    calls = [Hanging() for _ in range(3)]
    made = [workers.run(call) for call in calls]
    assert calls[0].begun.wait(SOON) and not calls[1].begun.is_set()
    workers.resize(3)
    assert all(call.begun.wait(SOON) for call in calls)
    for call in calls:
        call.released.set()
    reactor.turn(3)
    assert [one.result for one in made] == ["returned"] * 3


def test_fewer_threads_end_after_earlier_calls(make: Callable[[int], Workers], reactor: Reactor) -> None:
    workers = make(3)
    calls = [Hanging() for _ in range(3)]
    for call in calls:
        workers.run(call)
    assert all(call.begun.wait(SOON) for call in calls)
    workers.resize(1)
    later = [Hanging(), Hanging()]
    for call in later:
        workers.run(call)
    for call in calls:
        call.released.set()
    reactor.turn(3)
    assert any(call.begun.wait(SOON) for call in later)
    first = next(call for call in later if call.begun.is_set())
    (other,) = [call for call in later if call is not first]
    assert not other.begun.wait(0.05)
    first.released.set()
    reactor.turn()
    assert other.begun.wait(SOON)
    other.released.set()
    reactor.turn()
    workers.give_up(OSError())
    workers.resize(5)  # ignored
