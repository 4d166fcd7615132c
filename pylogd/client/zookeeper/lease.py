"""Measure how long a consumer may act on its claims without an answer of ZooKeeper.

Strategy: a claim ends with the session of its consumer, and ZooKeeper decides when that is: a consumer that is cut off,
paused or swapped out is told too late. So the consumer measures time itself. An acknowledged write proves that the
session was alive after the write was sent, and the session can't expire within its timeout from then on. The consumer
may fetch for this time, less a margin, and again once another write is acknowledged.

The margin is needed because only ZooKeeper's leader ends sessions. A follower reports requests, which keep sessions
alive, to the leader only periodically, and not at all while it is cut off. So the leader's knowledge may be as old as
the previous heartbeat. Hence `LEASE + HEARTBEAT < 1` of the timeout; the rest is for differences between clocks.

Must not know: the tree, sessions.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime

#: Fractions of the session's timeout: the time for which a write proves the session, and the interval of heartbeats.
LEASE: Final = 0.7
HEARTBEAT: Final = 0.25


class Lease:
    """The time until which claims hold. Any thread may read it."""

    def __init__(self, clock: IReactorTime, session_timeout: float) -> None:
        """`session_timeout` is the server's value, in seconds."""
        self._clock = clock
        self.session_timeout = session_timeout
        self.until = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether this member may read its partitions now: its lease has not run out."""
        return self._clock.seconds() < self.until

    def proven(self, sent: float) -> None:
        """Record the acknowledgement of a write that was sent at `sent`, in seconds of the clock."""
        self.until = max(self.until, sent + LEASE * self.session_timeout)

    def end(self) -> None:
        """End the lease: the session has expired, or the consumer leaves."""
        self.until = float("-inf")
