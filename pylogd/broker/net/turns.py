"""Share the reactor among connections that have sent more requests than one turn has time for.

Strategy: fair queueing, which fq_codel does for packets (RFC 8290). A connection always starts a few requests at once,
so that a client with one or two requests never waits for others. A connection with more requests asks here, and
continues for at most `SLICE` seconds. Then it waits for its next turn, and is not read from meanwhile. While any
connection waits, the others start one request at once. Waiting connections are served in later turns of the reactor,
one after the other, for at most `TURN` seconds in all before the sockets are polled again: first the connections that
joined the queue without having had a slice, and always one of the others.

Must not know: requests, transports; `Taker` is a connection.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

#: How many requests a connection may start before it asks; and how many while others wait.
AT_ONCE: Final = 4
AT_ONCE_BESIDE_OTHERS: Final = 1
#: How many requests it may then start before it asks again.
MORE: Final = 8
#: The seconds of one connection, and of all waiting ones, in one turn of the reactor.
SLICE: Final = 0.001
TURN: Final = 0.004


class Taker(Protocol):
    """A connection that starts requests."""

    def turn(self) -> None:
        """Start more requests, since it is this connection's turn. Ask `Turns.more` as usual. Ignored after its end."""


class Turns:
    """The turns of all connections of a broker.

    at_once: how many requests to start before asking for `more`.
    seconds: the clock by which connections are active.
    """

    __slots__ = ("_call", "_clock", "_ends", "_had_slice", "_new", "_serving", "at_once", "seconds")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.seconds = clock.seconds
        self._call: IDelayedCall | None = None  # the call of `_serve` in the reactor's next turn
        self._ends = 0.0  # when this turn of the reactor should end
        self._new: OrderedDict[Taker, None] = OrderedDict()  # connections that wait and have had no slice
        self._had_slice: OrderedDict[Taker, None] = OrderedDict()  # the other waiting connections
        self._serving = False  # `_serve` is on the stack
        self.at_once = AT_ONCE

    @property
    def waiting(self) -> int:
        """How many connections wait."""
        return len(self._new) + len(self._had_slice)

    def more(self, taker: Taker, until: float) -> tuple[int, float]:
        """Ask to start more requests. `until` is 0.0 at first, and then the last result.

        Return how many requests to start before asking again. If it is 0, the connection waits, and its `turn` is
        called.
        """
        now = self._clock.seconds()
        if self._call is None and not self._serving:  # it is the first that asks in this turn of the reactor
            self._ends = now + TURN
            self._call = self._clock.callLater(0, self._serve)
        if until:
            if now < until:
                return MORE, until
            self._had_slice[taker] = None
        elif self._serving or (now < self._ends and self.at_once == AT_ONCE):
            return MORE, min(now + SLICE, self._ends)
        else:
            self._new[taker] = None
        self.at_once = AT_ONCE_BESIDE_OTHERS
        return 0, 0.0

    def _serve(self) -> None:
        """Let waiting connections continue, until this turn of the reactor should end."""
        self._call = None
        self._serving = True
        self._ends = self._clock.seconds() + TURN
        new, others = self._new, self._had_slice
        try:
            if others:
                others.popitem(last=False)[0].turn()
            while (new or others) and self._clock.seconds() < self._ends:
                (new or others).popitem(last=False)[0].turn()
        finally:
            self._serving = False
            if new or others:
                self._call = self._clock.callLater(0, self._serve)
            else:
                self.at_once = AT_ONCE
