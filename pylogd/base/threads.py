"""A pool of threads whose calls leave no cyclic garbage.

For each call Twisted's pool makes a function that refers to itself: four objects that only the garbage collector frees.
To delete a topic with 10,000 partitions takes as many calls, and to collect these objects blocked the reactor for 54
ms.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure


class ThreadPool:
    """Threads for calls that would block the reactor. A thread is started when all others are busy, and stays."""

    def __init__(self, reactor: IReactorFromThreads, most: int, name: str) -> None:
        """`most` is the largest number of threads. The threads' names begin with `name`."""
        self._reactor = reactor
        self._name, self._most = name, most
        self._executor = ThreadPoolExecutor(most, name)
        self._former: list[ThreadPoolExecutor] = []  # pools of other sizes, which may still have calls to make
        self._stopped = False

    def resize(self, most: int) -> None:
        """Make calls in up to `most` threads from now on. Earlier calls keep their threads, which end after them."""
        if self._stopped or most == self._most:
            return
        self._most = most
        self._executor.shutdown(wait=False)
        self._former.append(self._executor)
        self._executor = ThreadPoolExecutor(most, self._name)

    def defer(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Call a function in a thread. Return a Deferred of its result; after `stop`, one that never fires."""
        deferred: Deferred[Any] = Deferred()
        if not self._stopped:
            self._executor.submit(self._run, deferred, [partial(function, *arguments)])
        return deferred

    def _run(self, deferred: Deferred[Any], functions: list[Callable[[], Any]]) -> None:
        """Call the function. Nothing refers to it any more when the result is passed on."""
        try:
            result = functions.pop()()
        except BaseException:
            self._reactor.callFromThread(deferred.errback, Failure())
        else:
            self._reactor.callFromThread(deferred.callback, result)

    def stop(self) -> None:
        """End the threads, once the waiting calls have been made."""
        self._stopped = True
        for executor in (*self._former, self._executor):
            executor.shutdown()
