"""Ask several brokers at the same time."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time, until all have ended. Raises the exception of the first that failed."""
    try:
        await gatherResults([Deferred.fromCoroutine(each) for each in work], consumeErrors=True)
    except FirstError as first:
        first.subFailure.raiseException()
