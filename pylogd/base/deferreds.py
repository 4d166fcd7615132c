"""Wait for several store operations that run concurrently, so that they share a commit or a round trip; or pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
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
