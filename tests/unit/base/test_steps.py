"""Long work in steps."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.base.steps import in_steps


def test_others_run_between_the_steps() -> None:
    clock, done = Clock(), list[int]()

    def work() -> Iterator[None]:
        for number in range(5):
            done.append(number)
            clock.rightNow += 0.4
            yield

    finished = Deferred.fromCoroutine(in_steps(work(), clock, step=1.0))
    assert done == [0, 1, 2] and not finished.called
    clock.advance(0)
    assert done == [0, 1, 2, 3, 4] and finished.called


def test_cancelled_work_ends() -> None:
    clock, done = Clock(), list[int]()

    def work() -> Iterator[None]:
        for number in range(5):
            done.append(number)
            clock.rightNow += 1
            yield

    finished = Deferred.fromCoroutine(in_steps(work(), clock, step=1.0))
    finished.addErrback(lambda _: None)
    finished.cancel()
    clock.advance(0)
    assert done == [0] and not clock.getDelayedCalls()
