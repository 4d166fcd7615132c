"""What a leader knows of its followers, and what follows from it: who is in sync, who fell behind, what is committed.

Strategy: a follower says with each fetch how far it has come. It is caught up when it had, at a time, all that the
leader had at that time, so that a leader that is written to without a pause can still tell. The committed end is the
least end of the *maximal* in-sync set: the one that is written in the metadata, with a replica that was asked to join
it counted from before the write on (KIP-497). So no replica is ever in the written set without what is committed.

Must not know: the log, requests, the metadata store.

Source: KIP-16 (lag by time), KIP-497 (in-sync sets written by the leader).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

#: An offset that is not known yet.
UNKNOWN = -1


class Follower:
    """How far one follower has come. Offsets are -1 until its first fetch in this leader epoch; times in seconds."""

    __slots__ = ("broker_epoch", "caught_up_at", "fetched_at", "leader_end_then", "log_end", "log_start")

    def __init__(self, now: float) -> None:
        self.log_end = UNKNOWN
        self.log_start = UNKNOWN
        #: When it last had all that the leader had; a new leader gives everybody the whole time to show up.
        self.caught_up_at = now
        self.fetched_at = now
        self.leader_end_then = UNKNOWN
        self.broker_epoch = UNKNOWN

    def fetched(self, offset: int, log_start: int, leader_end: int, now: float) -> None:
        """It asks for `offset`, and so has all before it; the leader's log ends at `leader_end`."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif 0 <= self.leader_end_then <= offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end = offset
        self.log_start = log_start
        self.leader_end_then = leader_end
        self.fetched_at = now

    def had_all_at(self, then: float) -> None:
        """Until a fetch at `then` it asked for the leader's end, which had not moved; that fetch did not name it."""
        self.caught_up_at = max(self.caught_up_at, then)
        self.fetched_at = max(self.fetched_at, then)

    def lags(self, leader_end: int, now: float, most: float) -> bool:
        """Whether it lacks something, and has for longer than `most` seconds."""
        return self.log_end < leader_end and now - self.caught_up_at > most


class PendingIsr(NamedTuple):
    """A change of the in-sync set that was asked for. It ends when a newer state of the partition is known, and only
    then: nobody can tell whether a write without an answer was done.

    `epochs`: of those that are to join, the broker epoch in which each was seen to have all. `counted`: who was in
    earlier proposals that may have been written. `unanswered`: whether a write of any of them had no answer.
    """

    isr: tuple[int, ...]
    asked_at: float
    epochs: Mapping[int, int] = MappingProxyType({})
    counted: tuple[int, ...] = ()
    unanswered: bool = False


def committed_end(own_end: int, isr: Iterable[int], followers: Mapping[int, Follower]) -> int:
    """The offset up to which the leader, at `own_end`, and all of `isr` have everything; -1 while one is not heard of.

    The leader itself is not among `followers`.
    """
    end = own_end
    for node_id in isr:
        follower = followers.get(node_id)
        if follower is not None and follower.log_end < end:
            end = follower.log_end
    return end


def low_watermark(own_start: int, live: Iterable[int], followers: Mapping[int, Follower]) -> int:
    """The least log start of the leader and its `live` followers; -1 while one of them is not heard of."""
    return min([own_start, *(followers[node_id].log_start for node_id in live if node_id in followers)])
