"""Connections of a listener that have not said who they are: bound their number, and the time that they take.

They are in the middle of the PROXY protocol's header, the TLS handshake or SASL authentication. Strategy: they are kept
in the order in which they came, which is that of their deadlines, so one timer serves all. If there are too many, the
oldest is closed: a handshake takes milliseconds, so that is one that does not mean to finish.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime


class NewConnection(Protocol):
    """A connection that has not finished its TLS handshake or authentication."""

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""


class Handshakes:
    """The new connections of one listener."""

    def __init__(self, clock: IReactorTime, limits: Callable[[], tuple[int, float]]) -> None:
        """`limits`: returns the most connections, and the seconds that each may take."""
        self._clock = clock
        self._limits = limits
        self._begun: OrderedDict[NewConnection, float] = OrderedDict()  # deadlines
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, connection: NewConnection) -> None:
        """Limit the time of a connection until `end` is called.

        If there are too many such connections, close the oldest.
        """
        most, seconds = self._limits()
        while len(self._begun) >= most:
            oldest, _ = self._begun.popitem(last=False)
            oldest.give_up(f"max.connections.handshaking={most} is reached, and it is the oldest")
        self._begun[connection] = self._clock.seconds() + seconds
        if self._timer is None:
            self._timer = self._clock.callLater(seconds, self._expire)

    def end(self, connection: NewConnection) -> None:
        """Stop watching a connection: it is known, or lost. Do nothing if it is not watched."""
        self._begun.pop(connection, None)
        if not self._begun and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        late = [connection for connection, deadline in self._begun.items() if deadline <= now]
        for connection in late:
            if self._begun.pop(connection, None) is not None:
                connection.give_up("its handshake has not ended within connection.handshake.timeout.ms")
        if self._begun and self._timer is None:
            wait = max(0.0, next(iter(self._begun.values())) - now)
            self._timer = self._clock.callLater(wait, self._expire)
