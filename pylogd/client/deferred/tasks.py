"""Coroutines of a client as Deferreds: in the place of methods, and in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


def deferred(
    method: Callable[Concatenate[M, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Deferred[T]]:
    """Return a coroutine method as a method that returns a Deferred, which the caller may cancel.

    The object with the new method has the object with the coroutine method in `_methods`.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(method(self._methods, *args, **kwargs))

    return call


class Tasks:
    """Coroutines that run in the background; `stop` cancels all of them."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[Deferred[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine. Its exceptions are errors of the program, and are logged."""
        if self.stopped:
            work.close()
            return
        running = Deferred.fromCoroutine(work)
        self._running.add(running)

        def done(result: Any) -> Any:
            self._running.discard(running)
            return result

        running.addBoth(done).addErrback(self._failed)

    def stop(self) -> None:
        """Cancel all coroutines, and start no others."""
        self.stopped = True
        for running in list(self._running):
            running.cancel()

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            _log.error("unexpected error in a background task of the client:\n%s", failure.getTraceback())
