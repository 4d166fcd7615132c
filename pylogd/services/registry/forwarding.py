"""Forward a request to the leader of the registries, and return its answer.

Strategy: the request is sent with its path, query, body and credentials, which the leader checks itself. It is marked,
so that a registry that is no longer the leader refuses it instead of forwarding it again.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.error import ConnectError, ConnectingCancelledError
from twisted.internet.task import deferLater
from twisted.web.client import (
    Agent,
    FileBodyProducer,
    HTTPConnectionPool,
    RequestTransmissionFailed,
    ResponseFailed,
    readBody,
)
from twisted.web.http_headers import Headers
from twisted.web.iweb import IPolicyForHTTPS

from pylogd.services.registry.election import Identity
from pylogd.services.registry.errors import ForwardingFailed, LeaderUnreachable

#: The header that marks a request from another registry, as in Confluent's registry.
FORWARDED: Final = "X-Forward"
_FAILED: Final = "Error while forwarding the request to the leader"
_KEPT: Final = ("authorization", "content-type", "accept")
_BROKEN: Final = (RequestTransmissionFailed, ResponseFailed)
_FAILURES: Final = (*_BROKEN, ConnectingCancelledError, TimeoutError, OSError, ValueError)
_PAUSE_SECONDS: Final = 0.5


class Answer(NamedTuple):
    """The leader's answer.

    document: the JSON document; None without a body.
    """

    status: int
    document: Any


class Forwarder:
    """Sends requests to the leader.

    timeout: the seconds within which an answer must arrive.
    """

    def __init__(self, reactor: Any, policy: IPolicyForHTTPS | None = None, timeout: float = 30.0) -> None:
        """`policy` is the TLS of connections to other registries; None for Twisted's default."""
        self.reactor = reactor
        self._timeout = timeout
        self._pool = HTTPConnectionPool(reactor, persistent=False)
        more: dict[str, Any] = {} if policy is None else {"contextFactory": policy}
        self._agent = Agent(reactor, connectTimeout=timeout / 3, pool=self._pool, **more)

    async def send(self, leader: Identity, request: Any, body: bytes) -> Answer:
        """Return the leader's answer to a request of Twisted Web. Raises ForwardingFailed or LeaderUnreachable."""
        headers = Headers({FORWARDED: ["true"]})
        for name in _KEPT:
            for value in request.requestHeaders.getRawHeaders(name, ()):
                headers.addRawHeader(name, value)
        url = leader.url.encode() + request.uri
        try:
            producer = FileBodyProducer(BytesIO(body)) if body else None
            response = await self._agent.request(request.method, url, headers, producer).addTimeout(
                self._timeout, self.reactor
            )
            text = await readBody(response).addTimeout(self._timeout, self.reactor)
            return Answer(response.code, json.loads(text) if text else None)
        except ConnectError as error:
            raise LeaderUnreachable(f"{_FAILED} {leader.url}: {error}") from error
        except _FAILURES as error:
            raise ForwardingFailed(f"{_FAILED} {leader.url}: {_reason(error)}") from error

    def pause(self) -> Deferred[None]:
        """Wait before the next attempt, until the other registries notice that the leader has ended."""
        return deferLater(self.reactor, _PAUSE_SECONDS, lambda: None)

    async def stop(self) -> None:
        """Close the connections."""
        await self._pool.closeCachedConnections()


def _reason(error: Exception) -> str:
    if isinstance(error, _BROKEN):
        return "; ".join(failure.getErrorMessage() for failure in error.reasons)
    return str(error) or type(error).__name__
