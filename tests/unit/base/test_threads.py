"""Calls in threads of a pool leave no cyclic garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.python.failure import Failure

from pylogd.base.threads import ThreadPool

CALLS = 100
PATIENCE = 120.0


class Reactor:
    """Calls at once, in the thread."""

    def callFromThread(self, function: Any, *args: Any) -> None:
        function(*args)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool(Reactor(), 2, "test")  # type: ignore[arg-type]
    yield made
    made.stop()


def results(pool: ThreadPool, count: int, function: Any, *args: Any) -> list[Any]:
    """Call a function so often, and return what came of it."""
    found: list[Any] = []
    all_done = threading.Event()

    def note(result: Any) -> None:
        found.append(result)
        if len(found) == count:
            all_done.set()

    for _ in range(count):
        pool.defer(function, *args).addBoth(note)
    assert all_done.wait(PATIENCE)
    return found


def test_results_and_failures_are_passed_on(pool: ThreadPool) -> None:
    assert results(pool, 1, max, 3, 5) == [5]
    (failure,) = results(pool, 1, int, "x")
    assert isinstance(failure, Failure)
    assert failure.check(ValueError)


def test_calls_leave_no_cyclic_garbage(pool: ThreadPool) -> None:
    gc.collect()
    gc.disable()
    try:
        results(pool, CALLS, max, 3, 5)
        assert gc.collect() < CALLS, "Twisted's pool leaves four objects for each"
    finally:
        gc.enable()


def test_a_pool_that_was_stopped_calls_nothing() -> None:
    pool = ThreadPool(Reactor(), 1, "test")  # type: ignore[arg-type]
    pool.stop()
    assert not pool.defer(pytest.fail).called


def test_the_number_of_threads_changes_and_every_call_is_made(pool: ThreadPool) -> None:
    meeting = threading.Barrier(5)

    def meet() -> str:
        meeting.wait(PATIENCE)
        return "met"

    pool.resize(5)
    assert results(pool, 5, meet) == ["met"] * 5  # which needs five threads at the same time
    release = threading.Event()
    waiting: list[Any] = []
    for _ in range(7):  # more than there are threads
        pool.defer(release.wait, PATIENCE).addCallback(waiting.append)
    pool.resize(1)
    release.set()
    running = threading.Semaphore(1)

    def alone() -> bool:
        alone = running.acquire(blocking=False)
        running.release()
        return alone

    assert results(pool, 20, alone) == [True] * 20
    pool.stop()
    assert waiting == [True] * 7
    pool.resize(3)  # ignored
