"""A leader's view of its followers: their log ends, which of them lag, and the resulting high watermark.

Strategy: each fetch tells how far a follower has copied the log. A follower is caught up at a time if it later has
everything that the leader had at that time. So a follower can be caught up although the leader is written to without a
pause. The committed end is the lowest log end of the *maximal* in-sync set: the set in the metadata, and the replicas
that were proposed to join it (KIP-497). So every replica in the metadata's set has all committed records.

Must not know: the log, requests, the metadata store.

Source: KIP-16 (lag by time), KIP-497 (in-sync sets written by the leader).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Stands for an offset or a broker epoch that is not known.
UNKNOWN = -1


class Follower:
    """How far one follower has copied. Offsets are -1 until its first fetch in this leader epoch; times in seconds."""

    __slots__ = ("broker_epoch", "caught_up_at", "fetched_at", "leader_end_then", "log_end", "log_start")

    def __init__(self, now: float) -> None:
        self.log_end = UNKNOWN
        self.log_start = UNKNOWN
        #: The last time at which it was caught up. A new leader begins with the time of its election.
        self.caught_up_at = now
        self.fetched_at = now
        self.leader_end_then = UNKNOWN
        self.broker_epoch = UNKNOWN

    def fetched(self, offset: int, log_start: int, leader_end: int, now: float) -> None:
        """Note a fetch from `offset`: the follower has all records before it. leader_end: the leader's log end."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif 0 <= self.leader_end_then <= offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end = offset
        self.log_start = log_start
        self.leader_end_then = leader_end
        self.fetched_at = now

    def had_all_at(self, then: float) -> None:
        """Note that it was caught up at `then`, the time of a fetch in a session that did not name this partition."""
        self.caught_up_at = max(self.caught_up_at, then)
        self.fetched_at = max(self.fetched_at, then)

    def lags(self, leader_end: int, now: float, most: float) -> bool:
        """Return whether it was not caught up for longer than `most` seconds."""
        return self.log_end < leader_end and now - self.caught_up_at > most


class PendingIsr(NamedTuple):
    """A proposed in-sync set.

    It ends only when a newer state of the partition is known, since a write without an answer may have been done.

    asked_at: when it was last written, in seconds.
    epochs: for each joining replica, the broker epoch in which it was seen to be caught up.
    counted: replicas of earlier proposals that may have been written.
    unanswered: whether a write of any of the proposals had no answer.
    """

    isr: tuple[int, ...]
    asked_at: float
    epochs: Mapping[int, int] = MappingProxyType({})
    counted: tuple[int, ...] = ()
    unanswered: bool = False


def committed_end(own_end: int, isr: Iterable[int], followers: Mapping[int, Follower]) -> int:
    """Return the offset up to which the leader and all of `isr` have all records; -1 if a log end is unknown.

    own_end: the leader's log end. The leader is not among `followers`.
    """
    end = own_end
    for node_id in isr:
        follower = followers.get(node_id)
        if follower is not None and follower.log_end < end:
            end = follower.log_end
    return end


def low_watermark(own_start: int, live: Iterable[int], followers: Mapping[int, Follower]) -> int:
    """Return the lowest log start of the leader and its `live` followers; -1 if a follower's log start is unknown."""
    return min([own_start, *(followers[node_id].log_start for node_id in live if node_id in followers)])
