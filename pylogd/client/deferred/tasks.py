"""Work that goes on beside its caller, and what a caller waits for."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

_log = logging.getLogger(__name__)


class Tasks:
    """Coroutines that run beside their caller; all are cancelled by `stop`."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[Deferred[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it. What it raises is a fault of the program, and logged."""
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
        """Cancel what runs, and start nothing more."""
        self.stopped = True
        for running in list(self._running):
            running.cancel()

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            _log.error("unexpected error in the client:\n%s", failure.getTraceback())


class Bell:
    """Ends the wait of whoever waits for something to happen, or for a time."""

    def __init__(self, reactor: Any) -> None:
        """`reactor` has the time."""
        self._reactor = reactor
        self._waiting: list[Deferred[None]] = []

    def ring(self) -> None:
        """Something happened: those who wait go on."""
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.callback(None)

    async def wait(self, until: float) -> None:
        """Wait for it to ring, at most until a time of the reactor's clock."""
        rung: Deferred[None] = Deferred()
        self._waiting.append(rung)
        timer: IDelayedCall = self._reactor.callLater(max(0.0, until - self._reactor.seconds()), self.ring)
        try:
            await rung
        finally:
            if rung in self._waiting:
                self._waiting.remove(rung)
            if timer.active():
                timer.cancel()
