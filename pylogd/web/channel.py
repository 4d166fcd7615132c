"""HTTP connections: each request arrives within Twisted's idle time (`timeOut`), and each address has a share of them.

Services with pages for unknown clients take a limited number of connections. If more come, a connection of the address
with most connections is closed: the oldest one without a request (`limits.shares`). So many silent connections do not
prevent a health check, not even from the same address.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request

from pylogd.base.limits.shares import KnownShares, Places, share_of

#: Connections that wait in the kernel until they are accepted. If the queue is full, the kernel drops the first packet
#: of a client, which sends it again after 1 and after 3 s. Twisted's default of 50 was full in any rush.
BACKLOG: Final = 1024


async def listen(reactor: Any, description: str, factory: IProtocolFactory) -> IListeningPort:
    """Open the port of a Twisted server endpoint. Raises CannotListenError."""
    if description.startswith(("tcp", "ssl")) and "backlog=" not in description:
        description += f":backlog={BACKLOG}"
    port: IListeningPort = await serverFromString(reactor, description).listen(factory)
    return port


class ListeningSite:
    """The port of an HTTP server.

    address: (host, port) once it listens.
    """

    def __init__(self, reactor: Any, endpoint: str, factory: IProtocolFactory) -> None:
        """endpoint: a Twisted server endpoint, such as `tcp:8081:interface=127.0.0.1`."""
        self._reactor = reactor
        self._endpoint = endpoint
        self._factory = factory
        self._port: IListeningPort | None = None
        self.address = ("", 0)

    async def start(self) -> None:
        """Open the port. Raises CannotListenError."""
        self._port = await listen(self._reactor, self._endpoint, self._factory)
        bound: Any = self._port.getHost()
        self.address = (getattr(bound, "host", ""), getattr(bound, "port", 0))

    async def stop(self) -> None:
        """Close the port."""
        port, self._port = self._port, None
        if port is not None:
            await maybeDeferred(port.stopListening)


class DeadlineChannel(HTTPChannel):
    """A connection that is closed if the headers and the body of a request do not arrive in time.

    Twisted restarts the idle time with any received bytes, so a client could keep a connection by sending slowly.
    """

    _receiving = False

    def resetTimeout(self) -> None:
        """Start the idle time with the first bytes of a request, and do not restart it with later ones."""
        if not self._receiving:
            self._receiving = True
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def allContentReceived(self) -> None:
        """Handle the complete request."""
        self._receiving = False
        super().allContentReceived()  # type: ignore[no-untyped-call]


class HttpPlaces:
    """The connections of one HTTP server.

    most: the largest number of connections, which the owner may change.
    known: the shares of addresses whose users have logged in.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.known = KnownShares()
        self._places: Places[SharingChannel] = Places()

    def __len__(self) -> int:
        return len(self._places)

    def logged_in(self, host: str) -> None:
        """Record that a user at this address has given the right credentials."""
        self.known.add(share_of(host))

    def enter(self, channel: SharingChannel, host: str) -> bool:
        """Count a connection. If there are too many, close one of the address with most connections.

        Return False if it is the new connection, which is not counted then.
        """
        share, places = share_of(host), self._places
        places.enter(channel, share, known=share in self.known)
        while len(places) > self.most:
            chosen = places.gives_way()
            places.leave(chosen)
            if chosen is channel:
                return False
            chosen.give_way()
        return True

    def leave(self, channel: SharingChannel) -> None:
        """Stop counting a connection."""
        self._places.leave(channel)

    def request_received(self, channel: SharingChannel) -> None:
        """Record that a whole request has arrived: connections without a request are closed first."""
        self._places.spoke(channel)

    def request_answered(self, channel: SharingChannel) -> None:
        """Record that the request was answered."""
        self._places.fell_silent(channel)


class SharingChannel(DeadlineChannel):
    """A connection that takes one of the `places` of its factory, an `HttpPlaces`."""

    def connectionMade(self) -> None:
        """Take a place, or close the connection if there is none."""
        peer: Any = self.transport.getPeer()  # type: ignore[union-attr]
        if self.factory.places.enter(self, getattr(peer, "host", None) or ""):
            super().connectionMade()  # type: ignore[no-untyped-call]
        else:
            self.dataReceived = _ignore  # type: ignore[method-assign]
            self.refuse()

    def refuse(self) -> None:
        """Close the connection, because there is no place for it."""
        self.transport.abortConnection()  # type: ignore[union-attr]

    def give_way(self) -> None:
        """Close the connection, because another one needs its place."""
        self.transport.abortConnection()  # type: ignore[union-attr]

    def allContentReceived(self) -> None:
        """Handle the complete request."""
        self.factory.places.request_received(self)
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """Wait for the next request, since this one was answered."""
        self.factory.places.request_answered(self)
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Give the place back."""
        self.factory.places.leave(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


def _ignore(_data: bytes) -> None:
    """Drop received bytes, because the connection was refused."""
