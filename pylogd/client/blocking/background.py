"""A consumer goes on while the application is busy with what it got.

Strategy: a thread tries the loop's lock every few milliseconds. If it gets it, the application is not in a call: it
takes in what has come and sends what is due, heartbeats among it. If not, the call does so itself. So a consumer that
polls in a tight loop pays nothing for it: two threads that take turns at one socket would wait for each other's slice
of the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pylogd.client.blocking.loop import PollLoop

_log = logging.getLogger(__name__)
_PERIOD = 0.03  # seconds; a socket holds megabytes meanwhile


class Background:
    """The thread; `start` may be called again and again, `stop` once."""

    def __init__(self, loop: PollLoop) -> None:
        """Nothing is started yet."""
        #: set every time the thread looked in; for whoever wants to do something now and then
        self.ticked = False
        self._loop = loop
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="pylogd consumer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def let_end(self, close: Callable[[], object]) -> None:
        """End it without waiting, as garbage collection asks for it; the thread then calls `close`."""
        self._at_end = close
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD):
            try:
                self._loop.background(self._stopped)
            except Exception:  # the application's next call goes on where this was
                _log.exception("unexpected error in the consumer's thread")
            self.ticked = True
        self._at_end()
