"""Requests to other brokers, over one connection to each; requests to this broker go to its own handlers.

Rules: one connection has one order, so requests that must not wait for others have their own links. When a connection
ends, its requests fail; the next request opens another connection.
Must not know: what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred, fail, maybeDeferred

from pylogd.base.errors import BrokerUnavailable


class Link(Protocol):
    """A connection to a broker, such as `link.client.BrokerConnection`."""

    @property
    def closed(self) -> bool: ...

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        """Send a request; return a Deferred of its response."""

    def close(self) -> None:
        """Close the connection. Waiting requests fail."""


class BrokerLinks:
    """Requests to brokers by their node ids."""

    def __init__(
        self,
        node_id: int,
        connect: Callable[[int], Deferred[Any]],
        ask_self: Callable[[Any], Any],
        timeout: Callable[[], float],
    ) -> None:
        """Make the links.

        connect: opens a connection to a broker.
        ask_self: answers a request to this broker; it may return a Deferred.
        timeout: the seconds within which a request must be answered.
        """
        self._node_id = node_id
        self._connect = connect
        self._ask_self = ask_self
        self._timeout = timeout
        self._links: dict[int, Link] = {}
        self._running = True

    def ask(self, node_id: int, message: Any) -> Deferred[Any]:
        """Return a Deferred of a broker's response. Fails with PylogdError."""
        if not self._running:
            return fail(BrokerUnavailable("this broker is stopping"))
        if node_id == self._node_id:
            return maybeDeferred(self._ask_self, message)
        return Deferred.fromCoroutine(self._ask(node_id, message))

    async def _ask(self, node_id: int, message: Any) -> Any:
        link = self._links.get(node_id)
        if link is None or link.closed:
            link = await self._connect(node_id)
            if not self._running:
                link.close()
                raise BrokerUnavailable("this broker is stopping")
            other = self._links.get(node_id)  # two requests may have begun to connect
            if other is not None and not other.closed:
                link.close()
                link = other
            self._links[node_id] = link
        return await link.request(message, timeout=self._timeout())

    def stop(self) -> None:
        """Close the connections. Waiting requests fail."""
        self._running = False
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
