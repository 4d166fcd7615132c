"""Calls in threads of a pool leave no cyclic garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.python import threadpool
from twisted.python.failure import Failure

from pylogd.threads import ThreadPool

CALLS = 100
PATIENCE = 120.0


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool(0, 2, "test")
    made.start()
    yield made
    made.stop()


def results(pool: threadpool.ThreadPool, count: int, function: Any, *args: Any) -> list[tuple[bool, Any]]:
    """Call a function so often, and return what came of it."""
    found: list[tuple[bool, Any]] = []
    all_done = threading.Event()

    def note(succeeded: bool, result: Any) -> None:
        found.append((succeeded, result))
        if len(found) == count:
            all_done.set()

    for _ in range(count):
        pool.callInThreadWithCallback(note, function, *args)
    assert all_done.wait(PATIENCE)
    return found


def test_results_and_failures_are_passed_on(pool: ThreadPool) -> None:
    assert results(pool, 1, max, 3, 5) == [(True, 5)]
    ((succeeded, failure),) = results(pool, 1, int, "x")
    assert not succeeded
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
    pool = ThreadPool(0, 1, "test")
    pool.start()
    pool.stop()
    pool.callInThreadWithCallback(None, pytest.fail)
