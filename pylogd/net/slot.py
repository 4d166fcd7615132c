"""The place of a request in the order of its connection's replies."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogd.net.request_handler import Event


class Slot:
    """A request whose reply is not made yet, or waits for one before it.

    close_reason: why the connection has to be closed instead of a reply, if it has to be.
    """

    __slots__ = ("close_reason", "deferred", "event", "ready", "response")

    def __init__(self, event: Event | None) -> None:
        """`event` is None for a frame that is no request, and for requests in a batch."""
        self.event: Any = event
        self.deferred: Deferred[Any] | None = None
        self.ready = False
        self.response: Any = None
        self.close_reason: str | None = None
