"""Wait for several writes, but not longer than the slowest disk may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

K = TypeVar("K")


async def unfinished(writes: Mapping[K, Deferred[Any]], clock: IReactorTime, seconds: float) -> list[K]:
    """Wait until all Deferreds have fired, or `seconds` are over. Return the keys of those that have not fired.

    A failure counts as fired, and stays with its Deferred.
    """
    left = dict.fromkeys(writes)
    over: Deferred[None] = Deferred()
    timer = clock.callLater(seconds, over.callback, None)

    def finished(result: Any, key: K) -> Any:
        left.pop(key, None)
        if not left and timer.active():
            timer.cancel()
            over.callback(None)
        return result

    for key, write in writes.items():
        write.addBoth(finished, key)
    await over
    return list(left)
