"""Several calls of a store at once, which share a commit or a round trip where one after the other has its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList

T = TypeVar("T")


async def all_of(deferreds: Iterable[Deferred[T]]) -> list[T]:
    """The results of all, in order. Waits for every one; raises what the first that failed raised."""
    outcomes: list[tuple[bool, Any]] = await DeferredList(list(deferreds), consumeErrors=True)
    for succeeded, outcome in outcomes:
        if not succeeded:
            outcome.raiseException()
    return [outcome for _, outcome in outcomes]
