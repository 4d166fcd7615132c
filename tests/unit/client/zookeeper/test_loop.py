"""The loop that runs a coordinator for blocking callers. Tests wait for conditions, and measure no times."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest
from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
from zope.interface.verify import verifyObject

from pylogd.client.zookeeper.loop import Loop

PATIENCE_SECONDS = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test")
    loop.start()
    yield loop
    loop.stop()
    loop.join(PATIENCE_SECONDS)


def test_the_loop_provides_the_interfaces_it_declares(loop: Loop) -> None:
    assert verifyObject(IReactorTime, loop)
    assert verifyObject(IReactorFromThreads, loop)


def test_calls_run_in_the_loop_s_thread_in_order(loop: Loop) -> None:
    seen: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for number in range(100):
        loop.callFromThread(lambda number: seen.put((number, threading.current_thread().name)), number)
    assert [seen.get(timeout=PATIENCE_SECONDS) for _ in range(100)] == [(number, "test") for number in range(100)]


def test_later_calls_come_in_the_order_of_their_times(loop: Loop) -> None:
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def plan() -> None:
        loop.callLater(0.05, seen.put, "second")
        loop.callLater(0.0, seen.put, "first")
        cancelled = loop.callLater(0.01, seen.put, "never")
        cancelled.cancel()
        put_off = loop.callLater(0.01, seen.put, "third")
        put_off.delay(0.1)
        assert len(loop.getDelayedCalls()) == 3

    loop.callFromThread(plan)
    assert [seen.get(timeout=PATIENCE_SECONDS) for _ in range(3)] == ["first", "second", "third"]
    assert seen.empty()


def test_a_call_that_fails_harms_nobody(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    seen: queue.SimpleQueue[None] = queue.SimpleQueue()

    def broken() -> None:
        raise RuntimeError("a call's own fault")

    loop.callFromThread(broken)
    loop.callFromThread(seen.put, None)
    seen.get(timeout=PATIENCE_SECONDS)
    assert "a call's own fault" in caplog.text
