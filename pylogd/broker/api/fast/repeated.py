"""The compiled functions for requests that repeat the last one of their connection, and what they need to know.

Strategy: `_repeated.c` does the work of `fast.fetch.answer_repeated` and `fast.produce.answer_repeated_batch` without
the interpreter. It declares which attributes and constants of other modules it uses, and `base.compiled` compares them
when it loads the module. If something was renamed, the functions in Python do the work.
"""

from __future__ import annotations

from typing import Final, Protocol

from pylogd.base.compiled import load
from pylogd.broker.api.context import Connection
from pylogd.wire.fast.compiled import KnownShape
from pylogd.wire.fast.known_fetch import KnownFetch
from pylogd.wire.fast.known_session import KnownSessionFetch

#: The most repeated Produce requests that are answered together.
MOST: Final = 256


class ShapedConnection(Connection, Protocol):
    """A connection that keeps the shape of its last usual Produce request for the next one."""

    produce_shape: KnownShape | None


class FetchingConnection(Connection, Protocol):
    """A connection that keeps its last usual Fetch request for the next one."""

    known_fetch: KnownFetch | KnownSessionFetch | None


class RepeatingConnection(ShapedConnection, FetchingConnection, Protocol):
    """A client's connection, with what its next requests are compared with."""


repeated = load("pylogd.broker.api.fast._repeated")
