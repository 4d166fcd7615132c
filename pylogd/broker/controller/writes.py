"""A few writes at a time. The caller waits while there are too many, and learns if one has failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure


class Writes:
    """Writes that run concurrently, at most `most` of them.

    any_begun: whether any write was begun.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: deque[Deferred[None]] = deque()
        self._failures: list[Failure] = []
        self.any_begun = False

    async def may_begin(self) -> None:
        """Wait until another write may begin. Once one has failed, wait for all and raise its error."""
        while len(self._under_way) >= self._most and not self._failures:
            await self._under_way.popleft()
        if self._failures:
            await self.done()

    def begin(self, write: Coroutine[Deferred[Any], Any, None]) -> None:
        """Begin a write."""
        self.any_begun = True
        self._under_way.append(Deferred.fromCoroutine(write).addErrback(self._failures.append))

    async def done(self) -> None:
        """Wait for all writes. Raises the error of the first one that failed."""
        while self._under_way:
            await self._under_way.popleft()
        if self._failures:
            self._failures[0].raiseException()
