"""HTTP requests whose bodies are limited while they arrive, whether the length is known in advance or not.

A body that is too large is answered with 413 at once. For a while the rest of the body is received and dropped, so that
the client can read the answer; then the connection is closed. A request whose headers and body are not complete in time
ends its connection, however regularly its bytes come. The number of connections and the memory of bodies are limited,
and each address has a share (`http_channel`). Excess connections are answered with 503 and closed; if there are many of
them, further ones are closed without an answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from pylogd.base.limits.shares import share_of
from pylogd.services.registry.errors import BodyTooLarge, Overloaded, RegistryError
from pylogd.web.channel import HttpPlaces, SharingChannel

log = Logger()

#: The largest body. A schema must fit into a record of the topic, which by default has at most a megabyte.
MOST_BODY_BYTES: Final = 1 << 20
#: The largest sum of the sizes of all bodies that are being received.
MOST_BODIES_BYTES: Final = 64 << 20
#: The most connections at a time, and the most connections that are being refused.
MOST_CONNECTIONS: Final = 4000
_MOST_REFUSED: Final = 100
#: The bytes of a refused body that are received and dropped before the connection is aborted.
_MOST_DROPPED_BYTES: Final = 16 << 20
_DROP_SECONDS: Final = 5.0
_CROWDED: Final = b"too many connections; try again later\n"


class BoundedRequest(Request):
    """A request that refuses a body that is too large. For use with `BoundedSite`."""

    def __init__(self, channel: HTTPChannel, queued: Any = Request) -> None:
        super().__init__(channel, queued)  # type: ignore[no-untyped-call]
        self._held = 0
        self._dropped = 0
        self._refused = False
        self._site: BoundedSite = channel.factory
        self._share = share_of(getattr(channel.getPeer(), "host", None) or "")
        self._closing: Any = None
        self._body = BytesIO()

    def gotLength(self, length: int | None) -> None:
        """Record the length that the headers announce; None for a body in chunks."""
        self.content = self._body = BytesIO()
        if length is not None and length > MOST_BODY_BYTES:
            self._refuse(BodyTooLarge(f"the body is larger than {MOST_BODY_BYTES} bytes"))

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a piece of the body, or drop it once the request is refused."""
        if self._refused:
            self._drop(len(data))
            return
        if self._held + len(data) > MOST_BODY_BYTES:
            self._refuse(BodyTooLarge(f"the body is larger than {MOST_BODY_BYTES} bytes"))
        elif not self._site.held.take(self._share, len(data)):
            self._refuse(Overloaded("too many large requests at the same time; try again later"))
        else:
            self._held += len(data)
            self._body.write(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Handle the request, unless it was refused."""
        if self._refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]

    def _refuse(self, error: RegistryError) -> None:
        self._refused = True
        self._release()
        self.content = self._body = BytesIO()
        body = json.dumps({"error_code": error.code, "message": error.message}).encode()
        phrase = b"Payload Too Large" if error.status == 413 else b"Service Unavailable"
        channel: Any = self.channel
        channel.transport.write(
            b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-type: application/vnd.schemaregistry.v1+json\r\n"
            b"content-length: %d\r\n\r\n%b" % (error.status, phrase, len(body), body)
        )
        self._closing = self._site.reactor.callLater(_DROP_SECONDS, self._close)
        peer: Any = channel.getPeer()
        log.info("Refused a request of {host}: {error}", host=getattr(peer, "host", ""), error=error.message)

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > _MOST_DROPPED_BYTES:
            self._close()

    def _close(self) -> None:
        if self._closing.active():
            self._closing.cancel()
        self.channel.transport.abortConnection()  # type: ignore[union-attr]

    def connectionLost(self, reason: Any) -> None:
        """Release the request's memory."""
        self._release()
        if self._closing is not None and self._closing.active():
            self._closing.cancel()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """End the response, and release the body."""
        self._release()
        super().finish()  # type: ignore[no-untyped-call]

    def _release(self) -> None:
        self._site.held.give_back(self._share, self._held)
        self._held = 0


class BodyMemory:
    """The bytes of the bodies that are being received: the sum, and that of each address.

    An address may take half of the free memory, so that other addresses have the other half after a flood from it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self.total = 0

    def take(self, share: str, size: int) -> bool:
        """Count bytes of an address. Return False if there would be too many."""
        own = self._held[share]
        if own + size > (self._most - (self.total - own)) // 2:
            return False
        self._held[share] += size
        self.total += size
        return True

    def give_back(self, share: str, size: int) -> None:
        """Stop counting bytes of an address."""
        self.total -= size
        self._held[share] -= size
        if not self._held[share]:
            del self._held[share]


class _Channel(SharingChannel):
    """A connection that answers if there are too many connections."""

    _closing: Any = None

    def refuse(self) -> None:
        """Answer that there are too many connections, and close."""
        site: Any = self.factory
        transport: Any = self.transport
        if site.refused >= _MOST_REFUSED:
            transport.abortConnection()
            return
        if not site.refused:
            log.warn("Refusing new connections: {count} are open already", count=len(site.places))
        site.refused += 1
        transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n"
            b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n\r\n%b" % (len(_CROWDED), _CROWDED)
        )
        self._closing = site.reactor.callLater(_DROP_SECONDS, transport.abortConnection)
        transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remove the connection from the count."""
        if self._closing is not None:
            self.factory.refused -= 1
            if self._closing.active():
                self._closing.cancel()
            self._closing = None
        super().connectionLost(reason)


class BoundedSite(Site):
    """The factory of a limited number of connections, whose requests are limited too.

    held: the bytes of all bodies at present.
    places: the open connections.
    refused: the number of further open connections, which are being refused.
    """

    noisy = False
    protocol: Any = _Channel

    def __init__(self, resource: Resource | None, reactor: Any, log_line: Callable[[str, IRequest], str]) -> None:
        super().__init__(resource, BoundedRequest, reactor=reactor, logFormatter=log_line)  # type: ignore[no-untyped-call]
        self.displayTracebacks = False
        self.held = BodyMemory(MOST_BODIES_BYTES)
        self.places = HttpPlaces(MOST_CONNECTIONS)
        self.refused = 0
