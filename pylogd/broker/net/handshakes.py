"""Connections of a listener that have not authenticated yet: limit their number, and the time that they take.

They are in the middle of the PROXY protocol's header, the TLS handshake or SASL authentication.
Strategy: they are kept in the order of their arrival, which is the order of their deadlines, so one timer serves all.
If there are too many, one connection of the address with the most is closed: the oldest of those that have sent
nothing. Unknown addresses lose connections before addresses from which a client has authenticated (`limits.shares`). So
a client that is far away and needs a second to authenticate is not closed because thousands of others connect at the
same time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.base.limits.shares import KnownShares, Places, share_of


class NewConnection(Protocol):
    """A connection that has not finished its TLS handshake or authentication."""

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""


class Handshakes:
    """The new connections of one listener."""

    def __init__(self, clock: IReactorTime, limits: Callable[[], tuple[int, float]]) -> None:
        """limits: returns the most connections, and the seconds that each may take."""
        self._clock = clock
        self._limits = limits
        self._begun: OrderedDict[NewConnection, float] = OrderedDict()  # deadlines, by connection
        self._places: Places[NewConnection] = Places()
        self._known = KnownShares()
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, connection: NewConnection, host: str) -> None:
        """Limit the time of a connection until `end` is called. host: the client's address.

        If there are too many such connections, close one.
        """
        most, seconds = self._limits()
        while len(self._begun) >= most:
            chosen = self._places.gives_way()
            self._forget(chosen)
            chosen.give_up(f"max.connections.handshaking={most} is reached, and its address has most of these")
        share = share_of(host)
        self._places.enter(connection, share, known=share in self._known)
        self._begun[connection] = self._clock.seconds() + seconds
        if self._timer is None:
            self._timer = self._clock.callLater(seconds, self._expire)

    def end(self, connection: NewConnection, *, known: bool = False) -> None:
        """Stop watching a connection: the handshake has ended, or it is lost. Do nothing if it is not watched.

        known: whether the client has authenticated.
        """
        share = self._places.share(connection)
        if known and share is not None:
            self._known.add(share)
        self._forget(connection)
        if not self._begun and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def spoke(self, connection: NewConnection) -> None:
        """Note that the first message of a connection was valid. Connections without one are closed first."""
        self._places.spoke(connection)

    def _forget(self, connection: NewConnection) -> bool:
        self._places.leave(connection)
        return self._begun.pop(connection, None) is not None

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        late = [connection for connection, deadline in self._begun.items() if deadline <= now]
        for connection in late:
            if self._forget(connection):
                connection.give_up("its handshake has not ended within connection.handshake.timeout.ms")
        if self._begun and self._timer is None:
            wait = max(0.0, next(iter(self._begun.values())) - now)
            self._timer = self._clock.callLater(wait, self._expire)
