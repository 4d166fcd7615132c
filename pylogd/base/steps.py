"""Divide long work into steps, between which the reactor handles other events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

#: The longest time of a step in seconds. The next step begins after all other ready events.
STEP_SECONDS: Final = 0.001


async def in_steps(work: Iterator[None], clock: IReactorTime, step: float = STEP_SECONDS) -> None:
    """Run an iterator to its end, and give the reactor back whenever `step` seconds have passed.

    The iterator does the work, and yields wherever it can be paused.
    """
    end = clock.seconds() + step
    for _ in work:
        if clock.seconds() >= end:
            await _turn(clock)
            end = clock.seconds() + step


def _turn(clock: IReactorTime) -> Deferred[None]:
    done: Deferred[None] = Deferred(lambda _: call.cancel())
    call = clock.callLater(0, done.callback, None)
    return done
