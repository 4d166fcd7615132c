"""Start Spark in a thread, while the command already does what it can do without it.

Spark's start takes many seconds, nearly all of it processor time of its JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pylogd.cli.spark import one_line, session


class StartingSpark:
    """A session of Spark that is being started."""

    def __init__(self, master: str, settings: Mapping[str, str], name: str) -> None:
        self._arguments = master, settings, name
        self._found: Any = None
        self._failed: BaseException | None = None
        self._over = threading.Event()
        # As a daemon, so that a command can end meanwhile. The JVM ends when the command has ended.
        threading.Thread(target=self._start, name="start Spark", daemon=True).start()

    def _start(self) -> None:
        try:
            self._found = session(*self._arguments)
        except BaseException as error:  # raised again by `session`
            self._failed = error
        self._over.set()

    def found(self) -> Any:
        """Return the session; None until Spark has started."""
        return self._found

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` until the start is over or was given up. Return whether either happened."""
        return self._over.wait(seconds)

    def give_up(self) -> None:
        """Release all threads that wait."""
        self._over.set()

    def session(self) -> Any:
        """Wait for the session and return it. Raises click.ClickException if Spark does not start."""
        self.wait()
        if self._failed is not None:
            raise self._failed
        return self._found

    def stop(self) -> None:
        """Stop the session if Spark has started."""
        if self._found is not None:
            self._found.stop()


@contextmanager
def starting_spark(master: str, settings: Mapping[str, str], name: str) -> Iterator[StartingSpark]:
    """Start Spark on this machine or a cluster. Errors on Spark become a click.ClickException of one line."""
    starting = StartingSpark(master, settings, name)
    with one_line(starting.stop):
        yield starting
