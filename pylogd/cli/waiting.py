"""Connect a command to a cluster: report that it waits for a broker, and propose names for a misspelt topic."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.cli.output import note
from pylogd.client import Cluster, UnknownTopic
from pylogd.client.core.admin.calls import refresh

T = TypeVar("T")
#: The seconds without an answer before the user gets a note.
PATIENCE_SECONDS: Final = 2.0


class WatchedCluster(Cluster):
    """A cluster whose requests are reported, once, when an answer takes longer than `PATIENCE_SECONDS`."""

    def __init__(self, bootstrap_servers: str, **options: Any) -> None:
        """Take the options of `Cluster`."""
        super().__init__(bootstrap_servers, **options)
        self._servers = bootstrap_servers
        self._said = False

    def run(self, operation: Awaitable[T]) -> T:
        """Run an operation of `core/admin` on this cluster, and return its result."""
        try:
            if self._said:
                return super().run(operation)
            with note_if_slow(self._waiting):
                return super().run(operation)
        except UnknownTopic as error:
            raise self._with_hint(error) from None

    def _with_hint(self, error: UnknownTopic) -> UnknownTopic:
        """Return the error, with the name of an existing topic if one is similar."""
        try:
            topics = super().run(refresh(self.evented, None))
        except PylogdError:
            return error
        near = difflib.get_close_matches(error.topic, [topic.name for topic in topics], 1)
        return UnknownTopic(error.code, f"{error.message}: did you mean {near[0]}?") if near else error

    def _waiting(self) -> str:
        self._said = True
        longest = self.options.request_timeout
        return f"waiting for a broker of {self._servers}; giving up after {longest:g} s without an answer (--timeout)"


@contextmanager
def note_if_slow(text: Callable[[], str]) -> Iterator[None]:
    """Print a note if the `with` block takes longer than `PATIENCE_SECONDS`.

    text: the function that returns the note's text.
    """
    timer = threading.Timer(PATIENCE_SECONDS, lambda: note(text()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
