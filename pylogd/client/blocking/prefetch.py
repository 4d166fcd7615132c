"""Fetching goes on while the application is busy with what it got.

Strategy: a thread tries the consumer's lock every few milliseconds. If it gets it, the application is not in `poll`: it
takes in what has come and sends what is due. If not, `poll` does so itself. So a consumer that polls in a tight loop
pays nothing for it: two threads that take turns at one socket would wait for each other's slice of the interpreter.
"""

from __future__ import annotations

import logging
import threading

from pylogd.client.blocking.fetch_loop import Fetcher

_log = logging.getLogger(__name__)
_PERIOD = 0.03  # seconds; a socket holds megabytes meanwhile


class Prefetch:
    """The thread; `start` may be called again and again, `stop` once."""

    def __init__(self, fetcher: Fetcher, lock: threading.RLock) -> None:
        """`lock` is held by whoever uses the fetcher."""
        self._fetcher = fetcher
        self._lock = lock
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="pylogd prefetch", daemon=True)
            self._thread.start()

    def stop(self, timeout: float) -> None:
        """End it; wait so long for that."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD):
            if self._lock.acquire(blocking=False):
                try:
                    if not self._stopped.is_set():
                        self._fetcher.receive(0.0)
                        self._fetcher.send()
                except Exception:  # poll would raise the same where somebody can see it
                    _log.exception("fetching in the background ended")
                    return
                finally:
                    self._lock.release()
