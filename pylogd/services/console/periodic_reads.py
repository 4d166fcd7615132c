"""Read other services and tables periodically in the background, and keep the last readings.

Strategy: each service has its own thread, which reads it again a number of seconds after the last read has ended. So a
service that hangs delays neither pages nor samples, and is not asked twice at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool

log = Logger()
T = TypeVar("T")


class PeriodicReads(Generic[T]):
    """Reads something repeatedly.

    last: the last reading; None before the first one.
    at_ms: the time of the last reading in milliseconds since 1970.
    problem: the reason why the last attempt failed, or "".
    """

    def __init__(
        self, reactor: Any, name: str, read: Callable[[], T], now_ms: Callable[[], int], interval: float
    ) -> None:  # fmt: skip
        """name: the name of the thread.
        read: called in the thread; may raise PylogdError, OSError or ValueError.
        interval: the seconds between reads.
        """
        self._reactor = reactor
        self._read = read
        self._now_ms = now_ms
        self._interval = interval
        self._pool = ThreadPool(reactor, 1, name)
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self.last: T | None = None
        self.at_ms = 0
        self.problem = ""

    def start(self) -> None:
        """Read once now, and again `interval` seconds after each read has ended, until `stop`."""
        self._timer = None
        self._pool.defer(self._read).addCallbacks(self._keep, self._failed).addBoth(self._schedule)

    def stop(self) -> None:
        """Stop reading. The result of a read in progress is still kept."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._pool.stop()

    def _keep(self, found: T) -> None:
        self.last, self.at_ms, self.problem = found, self._now_ms(), ""

    def _failed(self, failure: Failure) -> None:
        if not failure.check(PylogdError, OSError, ValueError):
            log.failure("Unexpected error while a service was read", failure)
        self.problem = failure.getErrorMessage()

    def _schedule(self, _: object) -> None:
        if not self._stopped:
            self._timer = self._reactor.callLater(self._interval, self.start)
