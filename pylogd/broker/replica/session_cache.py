"""The fetch sessions of a broker (`replica.sessions`): how many there are, and which one gives way to another.

Strategy: there are at most `slots` sessions, and the sessions of clients have at most `most_partitions` partitions
together. When a bound is reached, the principal (or address) that has most sessions, or partitions, gives way
(`limits.shares`): unauthenticated clients before principals. So a client that opens thousands of sessions takes them
from itself, and not from others.

Rules, when a bound is reached:
- Sessions that were unused for two minutes go first, the one unused for longest before others. But a principal's
  session does not go for that of an unauthenticated client.
- Then the largest share gives way to a smaller one. If slots are wanted, its smallest session is closed; if partitions
  are wanted, its largest.
- A share that has most itself may replace its own smallest session, if that is two minutes old and the new one has more
  partitions (KIP-227).
- A follower's session replaces any client's, or a smaller one of a follower that is two minutes old. A client's session
  never replaces a follower's, which ends with its connection.
- A client that gets no session continues with full fetches. A session that grows beyond the bound is closed, unless
  others give way to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from random import randrange
from typing import Any, Generic, TypeVar

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.limits.shares import NOBODY, Places, Share
from pylogd.broker.replica.purgatory import Purgatory
from pylogd.broker.replica.sessions import FetchSession, SessionOwner, SessionPartition, Wanted

_LAST_EPOCH = _LAST_ID = 0x7FFFFFFF
#: A session that is unused for this long gives way to a new one. A session that was made this long ago gives way to a
#: larger one.
EVICTABLE_AFTER_MS = 120_000
#: After a session was refused, sessions of its share with no more partitions are refused for this long without a
#: search.
_REFUSAL_HOLDS_MS = 1000

W = TypeVar("W", bound=Wanted)


class FetchSessions(Generic[W]):
    """The sessions of this broker.

    slots: the most sessions (`max.incremental.fetch.session.cache.slots`).
    waits: the purgatory in which partitions are watched.
    most_partitions: the most partitions of all clients' sessions together, without those of followers.
    evictions: how many sessions were closed to make space for others.
    """

    __slots__ = (
        "_most_partitions", "_now_ms", "_owned", "_places", "_refused", "_sessions", "_sizes", "_slots", "_waits",
        "evictions",
    )  # fmt: skip

    def __init__(
        self, slots: int, now_ms: Callable[[], int], waits: Purgatory, most_partitions: int = sys.maxsize
    ) -> None:
        self.evictions = 0
        self._slots = slots
        self._most_partitions = most_partitions
        self._owned: dict[SessionOwner, set[int]] = {}  # ids of the sessions that end with a connection
        self._now_ms = now_ms
        self._waits = waits
        self._sessions: dict[int, FetchSession[W]] = {}  # in the order of their last use
        self._places: Places[int] = Places()  # the sessions of clients
        self._sizes: Places[int] = Places()  # the sessions of clients, each weighted with the number of its partitions
        # (until when in ms, size, share): sessions of that share up to that size are refused.
        self._refused = (0, -1, "")

    def __len__(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def create(
        self,
        entries: Iterable[SessionPartition[W]],
        by_id: bool,
        privileged: bool = False,
        owner: SessionOwner | None = None,
        share: Share = NOBODY,
    ) -> FetchSession[W] | None:
        """Create a session with `entries`. Return None if there is no space for it.

        privileged: whether it is a follower's session.
        owner: the connection with which it ends.
        share: the share in which a client's session counts.
        """
        now_ms = self._now_ms()
        wanted = {(entry.topic, entry.wanted.partition): entry for entry in entries}
        size, mine = len(wanted), None if privileged else share
        if mine is not None and not self._find_partitions(now_ms, mine, size):
            return None
        if len(self._sessions) >= self._slots and not self._find_slot(now_ms, mine, size):
            return None
        session_id = randrange(1, _LAST_ID)
        while session_id in self._sessions:
            session_id = randrange(1, _LAST_ID)
        session: FetchSession[W] = FetchSession(session_id, by_id, now_ms, self._waits, mine)
        for entry in wanted.values():
            session.add(entry)
        self._sessions[session_id] = session
        if mine is not None:
            self._places.enter(session_id, mine.name, known=mine.known)
            self._sizes.enter(session_id, mine.name, known=mine.known, weight=size)
        if owner is not None:
            session.owner = owner
            self._owned.setdefault(owner, set()).add(session_id)
            owner.on_lost = partial(self._close_all, owner)
        return session

    def _close_all(self, owner: SessionOwner) -> None:
        for session_id in self._owned.pop(owner, ()):
            self.close(session_id)

    def resized(self, session: FetchSession[W]) -> None:
        """Count the partitions of a session again, and close it if it has grown too large.

        Its client then begins again, without a session. Raises KafkaError(FETCH_SESSION_ID_NOT_FOUND).
        """
        if session.share is None:
            return
        self._sizes.weigh(session.session_id, len(session))
        if not self._find_partitions(self._now_ms(), session.share, 0):
            self.close(session.session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def resume(self, session_id: int, epoch: int, by_id: bool, asking: SessionOwner | None = None) -> FetchSession[W]:
        """Return the session that a fetch continues, with its epoch raised.

        asking: the connection of the fetch. A session of another principal counts as unknown.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(session_id)
        if session is None or not _may_use(session, asking):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.advance(session)
        return session

    def expecting(self, session_id: int, epoch: int, asking: SessionOwner) -> FetchSession[W] | None:
        """Return the session that a fetch by topic ids continues, if no fetch of it waits. Return None for any error.

        This changes nothing: call `advance` if the fetch is answered.
        """
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or not session.by_id or session.wait is not None:
            return None
        return session if session.owner is asking or _may_use(session, asking) else None

    def advance(self, session: FetchSession[W]) -> None:
        """Raise the epoch of a session, which is in use. A waiting fetch of the session is answered."""
        epoch, session_id = session.epoch, session.session_id
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used_ms = self._now_ms()
        if session.wait is not None:
            session.wait.expire()
        del self._sessions[session_id]
        self._sessions[session_id] = session

    def close_for(self, session_id: int, asking: SessionOwner) -> None:
        """Close a session at its client's request. A session of another principal is left open."""
        session = self._sessions.get(session_id)
        if session is not None and _may_use(session, asking):
            self.close(session_id)

    def close(self, session_id: int) -> None:
        """Close a session. An unknown session is ignored, since it may have been evicted."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._places.leave(session_id)
            self._sizes.leave(session_id)
            owner, session.owner = session.owner, None
            if owner in self._owned:
                self._owned[owner].discard(session_id)

    # -- who gives way

    def _find_partitions(self, now_ms: int, share: Share, more: int) -> bool:
        """Close sessions of other clients until `more` partitions of a share fit. Return whether they do."""
        sizes = self._sizes
        while sizes.weight + more > self._most_partitions:
            gives_way = self._unused(now_ms, share)
            if gives_way is None:
                other = sizes.share_that_gives_way(share, more)
                if other is None:
                    return False
                gives_way = max(map(self._sessions.__getitem__, sizes.of(other)), key=len)
            self._close_evicted(gives_way)
        return True

    def _find_slot(self, now_ms: int, share: Share | None, size: int) -> bool:
        """Close a session to make space for one of `size` partitions; return whether there is space.

        share: None for a follower's session.
        """
        gives_way = self._unused(now_ms, share)
        if gives_way is None:
            gives_way = self._of_another(share)
        if gives_way is None:
            gives_way = self._smaller(now_ms, share, size)
        if gives_way is None:
            return False
        self._close_evicted(gives_way)
        return True

    def _unused(self, now_ms: int, share: Share | None) -> FetchSession[W] | None:
        """Return the session unused for longest that gives way to one of a share; None if all were used lately."""
        for session in self._sessions.values():
            if now_ms - session.used_ms < EVICTABLE_AFTER_MS:
                break
            if share is None or (session.share is not None and session.share.known <= share.known):
                return session
        return None

    def _of_another(self, share: Share | None) -> FetchSession[W] | None:
        """Return the smallest session of the share that has to give way to a new session; None if no share has to."""
        places = self._places
        if share is not None:
            name = places.share_that_gives_way(share)
        else:
            name = places.share(places.gives_way()) if len(places) else None
        return None if name is None else min(map(self._sessions.__getitem__, places.of(name)), key=len)

    def _smaller(self, now_ms: int, share: Share | None, size: int) -> FetchSession[W] | None:
        """Return the smallest of the share's sessions that were made two minutes ago or earlier.

        Return None if it has `size` partitions or more, or if there is none.
        """
        until, refused, name = self._refused
        if share is not None and share.name == name and size <= refused and now_ms < until:
            return None
        if share is None:
            own: Iterable[FetchSession[W]] = self._sessions.values()
        else:
            own = map(self._sessions.__getitem__, self._places.of(share.name))
        old = (session for session in own if now_ms - session.created_ms >= EVICTABLE_AFTER_MS)
        least = min(old, key=len, default=None)
        if least is not None and len(least) < size:
            return least
        if share is not None:
            self._refused = now_ms + _REFUSAL_HOLDS_MS, size, share.name
        return None

    def _close_evicted(self, session: FetchSession[W]) -> None:
        self.evictions += 1
        self.close(session.session_id)


def _may_use(session: FetchSession[Any], asking: SessionOwner | None) -> bool:
    owner = session.owner
    return owner is None or asking is None or owner is asking or owner.principal == asking.principal
