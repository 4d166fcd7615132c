"""Coroutines that run in the background of a client."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

_log = logging.getLogger(__name__)


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
