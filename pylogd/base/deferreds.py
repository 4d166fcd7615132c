"""Wait for several operations that run concurrently; pause in long loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, DeferredList

T = TypeVar("T")

#: Await this in each step of a long loop: it regularly lets the reactor serve other connections.
Pause: TypeAlias = Callable[[], Awaitable[None]]


async def without_pause() -> None:
    """Do not wait."""


async def all_of(deferreds: Iterable[Deferred[T]]) -> list[T]:
    """Wait for all Deferreds and return their results in order. Raises the error of the first one that failed."""
    outcomes: list[tuple[bool, Any]] = await DeferredList(list(deferreds), consumeErrors=True)
    for succeeded, outcome in outcomes:
        if not succeeded:
            outcome.raiseException()
    return [outcome for _, outcome in outcomes]


async def all_run(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently, until all have ended. Raises the error of the first one that failed."""
    await all_of([Deferred.fromCoroutine(each) for each in work])
