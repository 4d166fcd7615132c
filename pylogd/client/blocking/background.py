"""Run a consumer in the background while the application works on records.

Strategy: a thread tries to take the loop's lock every few milliseconds. If it gets the lock, the application is not in
a call: then the thread receives data and sends what is due, such as heartbeats. Otherwise the application's call does
both. So the thread costs nothing while the application polls in a tight loop. Two threads that used one socket in turns
would wait for each other's slice of the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pylogd.client.blocking.loop import PollLoop

_log = logging.getLogger(__name__)
_PERIOD = 0.03  # seconds; the socket buffers megabytes in this time


class Background:
    """The thread. `start` may be called more than once, `stop` only once."""

    def __init__(self, loop: PollLoop) -> None:
        """Nothing is started yet."""
        #: set each time that the thread has run, for callers with periodic work
        self.ticked = False
        self._loop = loop
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start the thread, unless it is running."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="pylogd consumer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def let_end(self, close: Callable[[], object]) -> None:
        """End the thread without waiting, from garbage collection; the thread then calls `close`."""
        self._at_end = close
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD):
            try:
                self._loop.background(self._stopped)
            except Exception:  # the application's next call goes on from this state
                _log.exception("unexpected error in the consumer's thread")
            self.ticked = True
        self._at_end()
