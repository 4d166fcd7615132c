"""How long a consumer may act on its claims without hearing from ZooKeeper.

Strategy: a claim lives as long as the session of its consumer, and only ZooKeeper knows when it ends a session: a
consumer that is cut off, paused or swapped out is told too late. So the consumer counts for itself. A write that was
acknowledged proves that the session lived after the write was sent; the session can't end before its time-out has
passed since ZooKeeper last heard of it. Until then less a margin the consumer may fetch; behind it not, until another
write is acknowledged.

The margin: a session is kept alive by whatever the server hears, but a server that follows reports it to the leader,
which alone ends sessions, only now and then, and not at all if it is cut off from the leader just then. What the
leader knows may then be as old as the heartbeat before. Hence `LEASE + HEARTBEAT < 1` of the time-out; the rest is for
clocks that do not run alike.

Must not know: the tree, sessions.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime

#: Fractions of the session's time-out: how long a write proves the session, and how often one is made.
LEASE: Final = 0.7
HEARTBEAT: Final = 0.25


class Lease:
    """The time until which claims hold. It may be looked at from any thread."""

    def __init__(self, clock: IReactorTime, session_timeout: float) -> None:
        """`session_timeout` is in seconds, as the server granted it."""
        self._clock = clock
        self.session_timeout = session_timeout
        self.until = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether claims are safe to act on at this moment."""
        return self._clock.seconds() < self.until

    def proven(self, sent: float) -> None:
        """A write that was sent at `sent` (the clock's seconds) was acknowledged."""
        self.until = max(self.until, sent + LEASE * self.session_timeout)

    def end(self) -> None:
        """The session is gone, or the consumer leaves."""
        self.until = float("-inf")
