"""HTTP connections: each request arrives within Twisted's idle time (`timeOut`), and each address has a share of them.

The services whose pages strangers can reach take a bounded number of connections. Where more come, a connection of the
address that has most is closed, of those without a request the oldest (`limits.shares`). So many silent connections do
not keep a health check out, not even from the same address.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request

from pylogd.limits.shares import KnownShares, Places, share_of


class DeadlineChannel(HTTPChannel):
    """A connection that is closed if a request, headers and body, does not arrive in time.

    Twisted restarts the idle time with all bytes that arrive, so a client could keep a connection by sending slowly.
    """

    _receiving = False

    def resetTimeout(self) -> None:
        """Start the idle time with the first bytes of a request, and do not restart it with later ones."""
        if not self._receiving:
            self._receiving = True
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def allContentReceived(self) -> None:
        """Handle the request, which is complete."""
        self._receiving = False
        super().allContentReceived()  # type: ignore[no-untyped-call]


class HttpPlaces:
    """The connections of one HTTP server. most: how many there may be; the owner may change it.

    known: the shares of addresses whose users have logged in.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.known = KnownShares()
        self._places: Places[SharingChannel] = Places()

    def __len__(self) -> int:
        return len(self._places)

    def logged_in(self, host: str) -> None:
        """Note that a user at this address has given the right credentials."""
        self.known.add(share_of(host))

    def enter(self, channel: SharingChannel, host: str) -> bool:
        """Count a connection, and close one of the address that has most if there are too many.

        Return False if that is the new one, which is not counted then.
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
        """Count a connection no more."""
        self._places.leave(channel)

    def asked(self, channel: SharingChannel) -> None:
        """Note that a whole request has come: connections without one are closed before it."""
        self._places.spoke(channel)

    def answered(self, channel: SharingChannel) -> None:
        """Note that the answer has been given."""
        self._places.fell_silent(channel)


class SharingChannel(DeadlineChannel):
    """A connection that takes one of the `places` of its factory, an `HttpPlaces`."""

    def connectionMade(self) -> None:
        """Take a place, or be refused."""
        peer: Any = self.transport.getPeer()  # type: ignore[union-attr]
        if self.factory.places.enter(self, getattr(peer, "host", None) or ""):
            super().connectionMade()  # type: ignore[no-untyped-call]
        else:
            self.dataReceived = _ignore  # type: ignore[method-assign]
            self.refuse()

    def refuse(self) -> None:
        """Close the connection: there is no place for it."""
        self.transport.abortConnection()  # type: ignore[union-attr]

    def give_way(self) -> None:
        """Close the connection: another one needs its place."""
        self.transport.abortConnection()  # type: ignore[union-attr]

    def allContentReceived(self) -> None:
        """Handle the request, which is complete."""
        self.factory.places.asked(self)
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """Wait for the next request: this one has been answered."""
        self.factory.places.answered(self)
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Give the place back."""
        self.factory.places.leave(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


def _ignore(_data: bytes) -> None:
    """Receive nothing: the connection was refused."""
