"""Incremental fetch sessions (KIP-227): a client names its partitions once, then requests and answers name changes.

Strategy: for each partition a session keeps the last request entry, and the offsets that the client was told last. A
fetch that continues a session changes those entries; the answer has only partitions with records, an error or other
offsets. Partitions that gave records move to the end, so that under a response limit each gets its turn.

A fetch costs what changed since the last one, not what the session has. `dirty` has the partitions that the next fetch
has to look at: those whose request entry changed, those that changed since they were last looked at, and those that
were not finished. An entry watches its partition in the purgatory; each change of it, an append, another high
watermark, leader epoch or log start, adds it to `dirty`. It is removed when a look finds nothing to tell and nothing
held back (`settle`), so a look at any other entry would find nothing either.

Rules:
- A session is created with its first answer, never while the fetch waits, so that a client that leaves early leaves
  none behind.
- Every fetch raises the epoch by one (1 to 2^31-1, then 1 again). A wrong epoch or an unknown id is refused; the
  client then begins again with a full fetch.
- There are at most `slots` sessions. A new one replaces the one unused for longest, if that was for two minutes at
  least; otherwise the smallest one that is two minutes old, if the new one has more partitions. A follower's session
  replaces any other client's, the smallest first, and no other client's replaces a follower's that is in use. A client
  without a session continues with full fetches.
- The sessions of clients have at most `most_partitions` together. A new one replaces others that were unused for two
  minutes; one that grows beyond is closed.
- A session ends with the connection on which it was created: clients then begin a new one.
- Only the principal that created a session continues or closes it: who guesses the id of another's learns nothing and
  disturbs nobody.
- A fetch that waits is answered when the next one of its session comes, since that changes what the client waits for.
  It is also answered when its session is closed.
- A session uses topic names or topic ids, as its first fetch did.
- A follower's fetch says that it still has all records of each partition that is not dirty. The time of that is kept
  once, in the session, and given to the partition's `Follower` when the entry becomes dirty.

It must not know the messages: an entry is any object with the fields of `Wanted`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from random import randrange
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pylogd.errors import ErrorCode, KafkaError
from pylogd.replica.followers import Follower
from pylogd.replica.partition import NO_EPOCH, Partition
from pylogd.replica.purgatory import OperationState, Purgatory, Watcher

#: A request without a session, or one that ends its session.
FINAL_EPOCH = -1
#: A full request that asks for a session.
INITIAL_EPOCH = 0
_LAST_EPOCH = _LAST_ID = 0x7FFFFFFF
#: A session unused for this long gives way to a new one, and one that is so old to a larger one.
EVICTABLE_AFTER_MS = 120_000
#: For so long after a session was refused, others with no more partitions are refused without another look.
_REFUSAL_HOLDS_MS = 1000

TopicKey: TypeAlias = "str | bytes"
"""A topic's name, or its id where the client speaks in ids."""

_by_turn: Callable[[Any], int] = attrgetter("turn")


class Wanted(Protocol):
    """The fields of a partition's entry in a Fetch request that a session needs."""

    partition: int


W = TypeVar("W", bound=Wanted)


class SessionOwner(Protocol):
    """A connection, which can be hashed. on_lost: called when it has ended. principal: who the client is."""

    on_lost: Callable[[], object] | None

    @property
    def principal(self) -> object: ...


class SessionWait(Protocol):
    """A waiting fetch of a session."""

    state: OperationState

    def expire(self) -> bool:
        """Answer the fetch with the available records."""

    def look_again(self, entry: Any) -> bool:
        """Look at a partition that has changed; return whether the wait is over."""

    def fail(self, error: Exception) -> bool:
        """End the wait with an error."""


class SessionPartition(Watcher, Generic[W]):
    """One partition of a session: the client's position, and the offsets that the client was told last.

    session: the one to which it belongs, None before and after. turn: entries with a lower one are served first.
    partition, leader_epoch: as they were at the last look. key: the key that it watches, None while it watches none.
    follower: in a follower's session, while the entry is not dirty, what the leader knows of that follower.
    """

    __slots__ = (
        "follower", "key", "leader_epoch", "partition", "sent_high_watermark", "sent_log_start", "session", "topic",
        "turn", "wanted",
    )  # fmt: skip

    state = OperationState.WAITING

    def __init__(self, topic: TopicKey, wanted: W) -> None:
        self.topic = topic
        self.wanted = wanted
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        self.session: FetchSession[W] | None = None
        self.turn = 0
        self.partition: Partition | None = None
        self.leader_epoch = NO_EPOCH
        self.key: Hashable = None
        self.follower: Follower | None = None

    def is_news(self, high_watermark: int, log_start: int) -> bool:
        """Return whether the client was last told other offsets than the current ones."""
        return high_watermark != self.sent_high_watermark or log_start != self.sent_log_start

    def told(self, high_watermark: int, log_start: int) -> None:
        """Remember the offsets that this answer tells the client."""
        self.sent_high_watermark = high_watermark
        self.sent_log_start = log_start

    def told_error(self) -> None:
        """Remember that the client is told an error, so that the end of the error is told even if no offset changes."""
        self.sent_high_watermark = -1

    def try_complete(self, key: Hashable) -> bool:
        """Have the waiting fetch check the partition, which has changed; if no fetch waits, the next one does."""
        session = self.session
        if session is None:
            return False
        session.mark(self)
        wait = session.wait
        if wait is not None and wait.state is OperationState.WAITING:
            return wait.look_again(self)
        session.unwatch(self)  # until the next look, so that an abandoned session costs nothing
        return False

    def fail(self, error: Exception) -> bool:
        """Fail the waiting fetch, which could not check the partition."""
        session = self.session
        return session is not None and session.wait is not None and session.wait.fail(error)


class FetchSession(Generic[W]):
    """One client's session.

    epoch: of its next fetch. wait: its waiting fetch, if any. dirty: the entries that the next fetch has to look at.
    owner: the connection with which it ends. fetched_at: the time of a follower's last fetch, in seconds.
    """

    __slots__ = (
        "_turns", "_view", "_waits", "by_id", "created_ms", "dirty", "epoch", "fetched_at", "owner", "partitions",
        "privileged", "session_id", "used_ms", "wait",
    )  # fmt: skip

    def __init__(self, session_id: int, by_id: bool, now_ms: int, waits: Purgatory, privileged: bool = False) -> None:
        """waits: the purgatory in which partitions are watched. privileged: whether it is a follower's."""
        self.session_id = session_id
        self.privileged = privileged
        self.by_id = by_id
        self.epoch = 1
        self.wait: SessionWait | None = None
        self.owner: SessionOwner | None = None
        self.created_ms = self.used_ms = now_ms
        self.fetched_at = 0.0
        self.partitions: dict[tuple[TopicKey, int], SessionPartition[W]] = {}
        self.dirty: dict[SessionPartition[W], None] = {}
        self._waits = waits
        self._turns = 0
        self._view: object = None

    def __iter__(self) -> Iterator[SessionPartition[W]]:
        """Iterate over all partitions in the order in which they should be served."""
        return iter(sorted(self.partitions.values(), key=_by_turn))

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self.partitions)

    def in_turn(self) -> list[SessionPartition[W]]:
        """Return the partitions that must be checked, in the order in which they should be served."""
        return sorted(self.dirty, key=_by_turn)

    def add(self, entry: SessionPartition[W]) -> None:
        """Add a new partition at the end of the order."""
        self.partitions[entry.topic, entry.wanted.partition] = entry
        entry.session = self
        self._to_end(entry)
        self.dirty[entry] = None

    def want(self, topic: TopicKey, wanted: W) -> SessionPartition[W]:
        """Add a partition, or replace its request entry."""
        entry = self.partitions.get((topic, wanted.partition))
        if entry is None:
            entry = SessionPartition(topic, wanted)
            self.add(entry)
        else:
            entry.wanted = wanted
            self.mark(entry)
        return entry

    def forget(self, topic: TopicKey, indexes: Iterable[int]) -> None:
        """Remove partitions that the client no longer wants. Unknown ones are ignored."""
        for index in indexes:
            entry = self.partitions.pop((topic, index), None)
            if entry is not None:
                self.mark(entry)
                del self.dirty[entry]
                self._leave(entry)

    def answered(
        self, entry: SessionPartition[W], wanted: W, partition: Partition, high_watermark: int, log_start: int
    ) -> None:
        """Do what a fetch does that names `entry` and is answered with records of it: `want`, `looks_at`, `served`."""
        entry.wanted = wanted
        if entry not in self.dirty:
            self.mark(entry)
        self.looks_at(entry, partition)
        entry.told(high_watermark, log_start)
        self._to_end(entry)

    def has_nothing(self, entry: SessionPartition[W], wanted: W, partition: Partition) -> None:
        """Do what a fetch does that names `entry` and finds nothing to tell of it: `want`, `looks_at`, `settle`."""
        entry.wanted = wanted
        self.looks_at(entry, partition)
        self.dirty.pop(entry, None)

    def served(self, entry: SessionPartition[W]) -> None:
        """Note that `entry` gave records: the others are served before it the next time."""
        if entry.session is self:
            self._to_end(entry)

    def _to_end(self, entry: SessionPartition[W]) -> None:
        self._turns += 1
        entry.turn = self._turns

    # -- what has to be looked at

    def mark(self, entry: SessionPartition[W]) -> None:
        """Mark `entry` to be checked by the next fetch. An entry that is not in the session is ignored."""
        if entry.session is not self or entry in self.dirty:
            return
        self.dirty[entry] = None
        follower, entry.follower = entry.follower, None
        if follower is not None:
            follower.had_all_at(self.fetched_at)

    def saw(self, view: object) -> bool:
        """Return whether `see` would find no change."""
        return view == self._view

    def see(self, view: object) -> None:
        """Mark all entries to be checked by the next fetch, if `view` has changed: answers depend on it besides
        partitions.
        """
        if view != self._view:
            self._view = view
            for entry in self.partitions.values():
                self.mark(entry)

    def looks_at(self, entry: SessionPartition[W], partition: Partition) -> None:
        """Record a check of `entry`, which watches `partition` from now on."""
        entry.partition = partition
        entry.leader_epoch = partition.leader_epoch
        if entry.key is None:
            self._watch(entry)

    def wait_with(self, wait: SessionWait) -> None:
        """Record that a fetch of the session waits: it is told of changes."""
        self.wait = wait
        for entry in self.dirty:
            self._watch(entry)  # it may have changed since the fetch looked at it

    def _watch(self, entry: SessionPartition[W]) -> None:
        if entry.key is None and entry.partition is not None and entry.session is self:
            entry.key = entry.partition.key
            self._waits.add(entry, entry.key)

    def settle(self, entry: SessionPartition[W], follower: Follower | None) -> None:
        """Record that a check of `entry` found no news for the client, and no records were held back.

        follower: in a follower's session, what the leader knows of that follower.
        """
        if entry in self.dirty:
            del self.dirty[entry]
            entry.follower = follower

    def unwatch(self, entry: SessionPartition[W]) -> None:
        """Stop watching the partition of `entry` until the next look."""
        key, entry.key = entry.key, None
        if key is not None:
            self._waits.remove(entry, key)

    def close(self) -> None:
        """Close the session: its waiting fetch is answered."""
        if self.wait is not None:
            self.wait.expire()
        for entry in self.partitions.values():
            self.mark(entry)
            self._leave(entry)

    def _leave(self, entry: SessionPartition[W]) -> None:
        entry.session = None
        self.unwatch(entry)


class FetchSessions(Generic[W]):
    """The sessions of this broker.

    slots: the most sessions (`max.incremental.fetch.session.cache.slots`). waits: the purgatory in which partitions are
    watched. most_partitions: of all sessions but those of followers.
    """

    __slots__ = ("_most_partitions", "_now_ms", "_owned", "_refused", "_sessions", "_slots", "_waits")

    def __init__(
        self, slots: int, now_ms: Callable[[], int], waits: Purgatory, most_partitions: int = sys.maxsize
    ) -> None:
        self._slots = slots
        self._most_partitions = most_partitions
        self._owned: dict[SessionOwner, set[int]] = {}  # ids of the sessions that end with a connection
        self._now_ms = now_ms
        self._waits = waits
        self._sessions: dict[int, FetchSession[W]] = {}  # the one unused for longest first
        self._refused = (0, -1)  # until when, in ms, clients' sessions of up to so many partitions are refused

    def __len__(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def create(
        self,
        entries: Iterable[SessionPartition[W]],
        by_id: bool,
        privileged: bool = False,
        owner: SessionOwner | None = None,
    ) -> FetchSession[W] | None:
        """Create a session with `entries`; return None if there is no space for it.

        privileged: whether it is a follower's. owner: the connection with which it ends.
        """
        now_ms = self._now_ms()
        wanted = {(entry.topic, entry.wanted.partition): entry for entry in entries}
        if not privileged and not self._make_room(now_ms, len(wanted)):
            return None
        if len(self._sessions) >= self._slots and not self._evict(now_ms, privileged, len(wanted)):
            return None
        session_id = randrange(1, _LAST_ID)
        while session_id in self._sessions:
            session_id = randrange(1, _LAST_ID)
        session: FetchSession[W] = FetchSession(session_id, by_id, now_ms, self._waits, privileged)
        for entry in wanted.values():
            session.add(entry)
        self._sessions[session_id] = session
        if owner is not None:
            session.owner = owner
            self._owned.setdefault(owner, set()).add(session_id)
            owner.on_lost = partial(self._close_all, owner)
        return session

    def _close_all(self, owner: SessionOwner) -> None:
        for session_id in self._owned.pop(owner, ()):
            self.close(session_id)

    def check_size(self, session: FetchSession[W]) -> None:
        """Close a session that has grown too large: its client then begins again, without a session.

        Raises KafkaError(FETCH_SESSION_ID_NOT_FOUND).
        """
        if not session.privileged and self._of_clients() > self._most_partitions:
            self.close(session.session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _of_clients(self) -> int:
        """Return how many partitions the sessions of clients have."""
        return sum([len(session) for session in self._sessions.values() if not session.privileged])

    def _make_room(self, now_ms: int, size: int) -> bool:
        """Close unused sessions of clients to make space; return whether `size` partitions fit afterwards."""
        left = self._most_partitions - self._of_clients() - size
        for session in list(self._sessions.values()) if left < 0 else ():
            if left >= 0 or now_ms - session.used_ms < EVICTABLE_AFTER_MS:
                break
            if not session.privileged:
                left += len(session)
                self.close(session.session_id)
        return left >= 0

    def resume(self, session_id: int, epoch: int, by_id: bool, asking: SessionOwner | None = None) -> FetchSession[W]:
        """Return the session that a fetch continues, with its epoch raised.

        asking: the connection of the fetch. A session of another principal is as good as unknown.

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
        """Return the session that a fetch by topic ids continues, if nothing of it waits; None otherwise, or for any
        error. Nothing is changed: call `advance` if the fetch is answered.
        """
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or not session.by_id or session.wait is not None:
            return None
        return session if session.owner is asking or _may_use(session, asking) else None

    def advance(self, session: FetchSession[W]) -> None:
        """Raise the epoch of a session, which is in use. A fetch of it that waits is answered."""
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
        """Close a session. An unknown one is ignored, since it may have been evicted."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            owner, session.owner = session.owner, None
            if owner in self._owned:
                self._owned[owner].discard(session_id)

    def _evict(self, now_ms: int, privileged: bool, size: int) -> bool:
        """Close a session to make space for a session of `size` partitions; return whether there is space."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms >= EVICTABLE_AFTER_MS:
            self.close(oldest.session_id)
            return True
        until, refused = self._refused
        if not privileged and size <= refused and now_ms < until:
            return False
        least = min(
            (
                session
                for session in self._sessions.values()
                if (privileged and not session.privileged) or now_ms - session.created_ms >= EVICTABLE_AFTER_MS
            ),
            key=_worth,
            default=None,
        )
        if least is None or (privileged, size) <= _worth(least):
            if not privileged:
                self._refused = now_ms + _REFUSAL_HOLDS_MS, size
            return False
        self.close(least.session_id)
        return True


def _may_use(session: FetchSession[Any], asking: SessionOwner | None) -> bool:
    owner = session.owner
    return owner is None or asking is None or owner is asking or owner.principal == asking.principal


def _worth(session: FetchSession[Any]) -> tuple[bool, int]:
    """Return a key by which sessions are kept (KIP-227): followers' before others, larger before smaller ones."""
    return session.privileged, len(session)
