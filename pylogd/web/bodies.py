"""An HTTP server for requests with bodies, which are limited while they arrive, whether or not the length is announced.

A body that is too large is answered with 413 at once. For a while the rest of the body is received and dropped, so that
the client can read the answer; then the connection is closed. A request whose headers and body are not complete in time
ends its connection, however regularly its bytes come. The number of connections and the memory of bodies are limited,
and each address has a share (`channel`). Excess connections are answered with 503 and closed; if there are many of
them, further ones are closed without an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NamedTuple

from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, combinedLogFormatter, datetimeToLogString
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from pylogd.base.clock import wall_ms
from pylogd.base.limits.shares import share_of
from pylogd.web.channel import HttpPlaces, ListeningSite, SharingChannel

log = Logger()

#: The largest body. A registered schema must fit into a record, which by default has at most a megabyte.
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


class RefusalForm(NamedTuple):
    """The form in which a server answers a request whose body it does not accept.

    media_type: the media type of the answer.
    document: returns the answer for the status, 413 or 503, and the message.
    """

    media_type: bytes
    document: Callable[[int, str], bytes]


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
            self._refuse(413, f"the body is larger than {MOST_BODY_BYTES} bytes")

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a piece of the body, or drop it once the request is refused."""
        if self._refused:
            self._drop(len(data))
            return
        if self._held + len(data) > MOST_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MOST_BODY_BYTES} bytes")
        elif not self._site.held.take(self._share, len(data)):
            self._refuse(503, "too many large requests at the same time; try again later")
        else:
            self._held += len(data)
            self._body.write(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Handle the request, unless it was refused."""
        if self._refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]

    def _refuse(self, status: int, message: str) -> None:
        self._refused = True
        self._release()
        self.content = self._body = BytesIO()
        media_type, document = self._site.refusals
        body = document(status, message)
        phrase = b"Payload Too Large" if status == 413 else b"Service Unavailable"
        channel: Any = self.channel
        channel.transport.write(
            b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (status, phrase, media_type, len(body), body)
        )
        self._closing = self._site.reactor.callLater(_DROP_SECONDS, self._close)
        peer: Any = channel.getPeer()
        log.info("Refused a request of {host}: {error}", host=getattr(peer, "host", ""), error=message)

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
    refusals: the form of answers to requests whose body is not accepted.
    refused: the number of further open connections, which are being refused.
    """

    noisy = False
    protocol: Any = _Channel

    def __init__(self, resource: Resource | None, reactor: Any, refusals: RefusalForm) -> None:
        super().__init__(resource, BoundedRequest, reactor=reactor, logFormatter=_access_line)  # type: ignore[no-untyped-call]
        self.displayTracebacks = False
        self.refusals = refusals
        self.held = BodyMemory(MOST_BODIES_BYTES)
        self.places = HttpPlaces(MOST_CONNECTIONS)
        self.refused = 0


class BoundedServer(ListeningSite):
    """An HTTP server with a `BoundedSite`.

    site: the site. Its `resource` answers all paths, and may be set once the server listens.
    """

    def __init__(self, reactor: Any, endpoint: str, tls: Any, refusals: RefusalForm) -> None:
        """tls: a `tls.ReloadedTls`; None for plain HTTP."""
        self.site: Any = BoundedSite(None, reactor, refusals)
        factory: Any = self.site
        if tls is not None:
            from twisted.protocols.tls import TLSMemoryBIOFactory  # noqa: PLC0415 - needs pyOpenSSL, an extra

            factory = TLSMemoryBIOFactory(tls, isClient=False, wrappedFactory=factory)
        super().__init__(reactor, endpoint, factory)
        self._tls = tls

    async def start(self) -> None:
        """Open the port. Raises CannotListenError."""
        if self._tls is not None:
            self._tls.start()
        await super().start()

    async def stop(self) -> None:
        """Close the port, and stop checking the certificate for changes."""
        await super().stop()
        if self._tls is not None:
            self._tls.stop()


def _access_line(_: str, request: IRequest) -> str:
    """Return one line of the access log. It has a time stamp of its own, since Twisted's is the reactor's time, not the
    time of day.
    """
    line: str = combinedLogFormatter(datetimeToLogString(wall_ms() // 1000), request)
    return line
