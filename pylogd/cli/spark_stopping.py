"""End a command on Spark in order when SIGTERM or Ctrl-C comes, without tracebacks of Spark.

Strategy: an exception in the middle of a call to the JVM breaks the connection, and Py4J prints where; a command that
ends without stopping Spark leaves its Python workers to print that their connections are broken. So the signal cancels
the jobs, in a thread, which has a connection of its own. The call of the main thread then fails, or its wait ends, and
`on_spark` stops the session. A load that is cancelled adds nothing to its table.

Rules: only the first signal is handled so; a second one raises at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from pylogd.cli.stopping import Terminated

_AGAIN_SECONDS: Final = 0.2  # a command may start another job before it checks for a signal
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The handler of the signals that end a command on Spark.

    session: returns the session, or None while Spark starts.
    wake: called in a thread after the first signal.
    """

    def __init__(self, session: Callable[[], Any], wake: Callable[[], object]) -> None:
        self._session = session
        self._wake = wake
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._kind: type[KeyboardInterrupt] = KeyboardInterrupt
        self._ended = threading.Event()

    @property
    def asked(self) -> bool:
        """Whether a signal has asked the command to end."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a signal that asks the command to end. Return whether one came."""
        return self._asked.wait(seconds)

    def handle(self, number: int, _frame: Any) -> None:
        """Begin to cancel the jobs at the first signal; raise the signal's exception at the second one."""
        if self._thread is not None:
            raise self._kind
        self._kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        # Not here: the main thread may hold the lock of the event, or be in a call to the JVM.
        self._thread = threading.Thread(target=self._cancel, name="stop Spark", daemon=True)
        self._thread.start()

    def _cancel(self) -> None:
        self._asked.set()
        self._wake()
        while not self._ended.is_set():
            spark = self._session()
            if spark is not None:
                with suppress(Exception):  # a JVM that has ended, or a session that is stopped
                    _cancel_jobs(spark)
            self._ended.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """Stop cancelling jobs. Raises KeyboardInterrupt or Terminated if a signal came."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            raise self._kind


def _cancel_jobs(spark: Any) -> None:
    from pylogd.lake.spark.shared import is_connect  # noqa: PLC0415 - Spark is imported when a command runs

    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.setLogLevel("OFF")  # it would log each job and task that is cancelled
        spark.sparkContext.cancelAllJobs()


@contextmanager
def stopped_in_order(session: Callable[[], Any], wake: Callable[[], object] = lambda: None) -> Iterator[Stopping]:
    """Handle SIGTERM and SIGINT inside the `with` block. If one came, raise Terminated or KeyboardInterrupt at its end.

    session, wake: see `Stopping`. The exception replaces whatever the cancelled calls raise.
    """
    stop = Stopping(session, wake)
    before = [(each, signal.signal(each, stop.handle)) for each in _SIGNALS]
    try:
        yield stop
    finally:
        for each, handler in before:
            signal.signal(each, handler)
        stop.end()
