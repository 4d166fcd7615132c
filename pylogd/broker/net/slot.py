"""The place of a request in the order of its connection's replies."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol

from pylogd.broker.net.request_handler import Event
from pylogd.wire.session import LargeRequest


class Awaited(Protocol):
    """A Deferred, or another reply that is made later."""

    def cancel(self) -> object:
        """Cancel the reply."""


class Slot:
    """A request whose reply is not made yet, or waits for one before it.

    close_reason: if the connection has to be closed instead of a reply, the reason.
    """

    __slots__ = ("close_reason", "deferred", "event", "ready", "response")

    def __init__(self, event: Event | None, deferred: Awaited | None = None) -> None:
        """`event` is None for a frame that is no request, and for requests in a batch. `deferred` is the reply."""
        self.event: Any = event
        self.deferred = deferred
        self.ready = False
        self.response: Any = None
        self.close_reason: str | None = None


def may_overlap(event: Event, first: Slot, overlapping: Container[int]) -> bool:
    """Return whether a request may start while others of one API wait.

    first: the first of the waiting requests.
    overlapping: the keys of APIs that allow this.
    """
    before = first.event
    if event.api_key != before.api_key or event.api_key not in overlapping:
        return False
    return type(event) is not LargeRequest and type(before) is not LargeRequest
