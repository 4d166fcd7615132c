"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only says and hears what changed.

Strategy: a session keeps, for each partition that the client wants, the request entry it sent last and what it was
told last. A fetch that continues a session changes those entries; the answer holds only partitions that have records,
an error or news. Partitions that gave records move to the end, so that under a response limit each gets its turn.

A fetch costs what changed since the last one, not what the session has. `dirty` holds the partitions that the next
fetch has to look at: those that the client asks for something else, those with news since they were last looked at, and
those that were not done with. An entry watches its partition in the purgatory; each news of it, an append, another high
watermark, leader epoch or log start, puts it in `dirty`. It leaves once a look finds nothing to say and nothing held
back (`settle`), so a look at any other entry would find nothing either.

Rules:
- A session is made when its first answer is, never while the fetch waits: a client that leaves early leaves nothing.
- Every fetch raises the epoch by one (1 to 2^31-1, then 1 again). A wrong epoch or an unknown id is refused; the
  client then starts anew with a full fetch.
- At most `slots` sessions. A new one takes the place of the one unused for longest, if that was for two minutes at
  least; else of the smallest one that is two minutes old, if the new one has more partitions. A follower's takes the
  place of any other client's, the smallest first, and no other client's takes a follower's that is in use. Otherwise
  the client gets no session and goes on with full fetches.
- A fetch that waits is answered when the next one of its session comes: a client that asks twice wants to change
  what it waits for. It is also answered when its session is dropped.
- A session works with topic names or with topic ids, as its first fetch did, and never changes.
- A follower's fetch says that it still has all of each partition that is not dirty: the time of that is kept once, in
  the session, and handed to the partition's `Follower` when the entry becomes dirty.

It must not know the messages: an entry is any object with the fields of `Wanted`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
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
#: For this long a session of no more partitions than one that found no place is refused without another look.
_REFUSAL_HOLDS_MS = 1000

TopicKey: TypeAlias = "str | bytes"
"""A topic's name, or its id where the client speaks in ids."""

_by_turn: Callable[[Any], int] = attrgetter("turn")


class Wanted(Protocol):
    """What a session must know of a partition's entry in a fetch request."""

    partition: int


W = TypeVar("W", bound=Wanted)


class SessionWait(Protocol):
    """A fetch of a session that waits."""

    state: OperationState

    def expire(self) -> bool:
        """Answer it with what there is."""

    def look_again(self, entry: Any) -> bool:
        """There is news of a partition of the session; returns whether the wait is over."""

    def fail(self, error: Exception) -> bool:
        """End the wait with an error."""


class SessionPartition(Watcher, Generic[W]):
    """One partition of a session: what the client wants, and what it was told.

    session: the one that it is in, None before and after. turn: entries of lower ones are served first.
    partition, leader_epoch: as they were at the last look. key: the one it watches.
    follower: of a follower's session and while the entry is not dirty, what the leader knows of that follower.
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
        """Whether the client has not been told these offsets."""
        return high_watermark != self.sent_high_watermark or log_start != self.sent_log_start

    def told(self, high_watermark: int, log_start: int) -> None:
        """Remember what the client is told now."""
        self.sent_high_watermark = high_watermark
        self.sent_log_start = log_start

    def told_error(self) -> None:
        """The client hears of an error: when it is over, that is news whatever the offsets."""
        self.sent_high_watermark = -1

    def try_complete(self, key: Hashable) -> bool:
        """There is news of the partition: the fetch that waits looks at it, or else the next one does."""
        session = self.session
        if session is None:
            return False
        session.mark(self)
        wait = session.wait
        if wait is not None and wait.state is OperationState.WAITING:
            return wait.look_again(self)
        session.unwatch(self)  # until it is looked at: a session that nobody goes on with hears of nothing twice
        return False

    def fail(self, error: Exception) -> bool:
        """The fetch that waits could not look at the partition."""
        session = self.session
        return session is not None and session.wait is not None and session.wait.fail(error)


class FetchSession(Generic[W]):
    """One client's session. `epoch` is the one that its next fetch must carry; `wait` is its fetch that waits, if any.

    dirty: the entries that the next fetch has to look at. fetched_at: of a follower's, the seconds of its last fetch.
    """

    __slots__ = (
        "_turns", "_view", "_waits", "by_id", "created_ms", "dirty", "epoch", "fetched_at", "partitions", "privileged",
        "session_id", "used_ms", "wait",
    )  # fmt: skip

    def __init__(self, session_id: int, by_id: bool, now_ms: int, waits: Purgatory, privileged: bool = False) -> None:
        """`waits`: where there is news of partitions. `privileged`: a follower's."""
        self.session_id = session_id
        self.privileged = privileged
        self.by_id = by_id
        self.epoch = 1
        self.wait: SessionWait | None = None
        self.created_ms = self.used_ms = now_ms
        self.fetched_at = 0.0
        self.partitions: dict[tuple[TopicKey, int], SessionPartition[W]] = {}
        self.dirty: dict[SessionPartition[W], None] = {}
        self._waits = waits
        self._turns = 0
        self._view: object = None

    def __iter__(self) -> Iterator[SessionPartition[W]]:
        """All partitions in the order in which they should be served."""
        return iter(sorted(self.partitions.values(), key=_by_turn))

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self.partitions)

    def in_turn(self) -> list[SessionPartition[W]]:
        """The partitions that have to be looked at, in the order in which they should be served."""
        return sorted(self.dirty, key=_by_turn)

    def add(self, entry: SessionPartition[W]) -> None:
        """Add a partition that is not in it yet; it comes last."""
        self.partitions[entry.topic, entry.wanted.partition] = entry
        entry.session = self
        self._to_end(entry)
        self.dirty[entry] = None

    def want(self, topic: TopicKey, wanted: W) -> SessionPartition[W]:
        """Add a partition, or change what is wanted of it."""
        entry = self.partitions.get((topic, wanted.partition))
        if entry is None:
            entry = SessionPartition(topic, wanted)
            self.add(entry)
        else:
            entry.wanted = wanted
            self.mark(entry)
        return entry

    def forget(self, topic: TopicKey, indexes: Iterable[int]) -> None:
        """Drop partitions that the client no longer wants. Unknown ones are no error."""
        for index in indexes:
            entry = self.partitions.pop((topic, index), None)
            if entry is not None:
                self.mark(entry)
                del self.dirty[entry]
                self._leave(entry)

    def served(self, entry: SessionPartition[W]) -> None:
        """`entry` gave records: the others come before it next time."""
        if entry.session is self:
            self._to_end(entry)

    def _to_end(self, entry: SessionPartition[W]) -> None:
        self._turns += 1
        entry.turn = self._turns

    # -- what has to be looked at

    def mark(self, entry: SessionPartition[W]) -> None:
        """There may be something to say of `entry`. One that is not in the session is passed over."""
        if entry.session is not self or entry in self.dirty:
            return
        self.dirty[entry] = None
        follower, entry.follower = entry.follower, None
        if follower is not None:
            follower.had_all_at(self.fetched_at)

    def see(self, view: object) -> None:
        """`view` is all that answers depend on besides partitions; where it is another one, all are looked at."""
        if view != self._view:
            self._view = view
            for entry in self.partitions.values():
                self.mark(entry)

    def looks_at(self, entry: SessionPartition[W], partition: Partition) -> None:
        """`entry` is looked at: news of `partition` is news of it from now on."""
        entry.partition = partition
        entry.leader_epoch = partition.leader_epoch
        self._watch(entry)

    def wait_with(self, wait: SessionWait) -> None:
        """A fetch of the session has looked, and waits now: it is told of news."""
        self.wait = wait
        for entry in self.dirty:
            self._watch(entry)  # its own fetch may have made news since it was looked at

    def _watch(self, entry: SessionPartition[W]) -> None:
        if entry.key is None and entry.partition is not None and entry.session is self:
            entry.key = entry.partition.key
            self._waits.add(entry, entry.key)

    def settle(self, entry: SessionPartition[W], follower: Follower | None) -> None:
        """A look at `entry` found nothing to say and nothing held back. `follower`: whose session it is, if one's."""
        if entry in self.dirty:
            del self.dirty[entry]
            entry.follower = follower

    def unwatch(self, entry: SessionPartition[W]) -> None:
        """Let `entry` hear of no more news until it is looked at."""
        key, entry.key = entry.key, None
        if key is not None:
            self._waits.remove(entry, key)

    def close(self) -> None:
        """The session is dropped: whoever waits in it is answered."""
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

    slots: how many there may be (`max.incremental.fetch.session.cache.slots`), 0 for none at all.
    waits: where there is news of partitions, by their keys.
    """

    __slots__ = ("_now_ms", "_refused", "_sessions", "_slots", "_waits")

    def __init__(self, slots: int, now_ms: Callable[[], int], waits: Purgatory) -> None:
        self._slots = slots
        self._now_ms = now_ms
        self._waits = waits
        self._sessions: dict[int, FetchSession[W]] = {}  # the one unused for longest first
        self._refused = (0, -1)  # until when, in ms, a client's session of so many partitions finds no place

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def create(
        self, entries: Iterable[SessionPartition[W]], by_id: bool, privileged: bool = False
    ) -> FetchSession[W] | None:
        """A session over `entries`, or None when there is no room for it. `privileged`: a follower's."""
        now_ms = self._now_ms()
        wanted = {(entry.topic, entry.wanted.partition): entry for entry in entries}
        if len(self._sessions) >= self._slots and not self._evict(now_ms, privileged, len(wanted)):
            return None
        session_id = randrange(1, _LAST_ID)
        while session_id in self._sessions:
            session_id = randrange(1, _LAST_ID)
        session: FetchSession[W] = FetchSession(session_id, by_id, now_ms, self._waits, privileged)
        for entry in wanted.values():
            session.add(entry)
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, by_id: bool) -> FetchSession[W]:
        """The session that a fetch continues, with its epoch raised.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used_ms = self._now_ms()
        if session.wait is not None:
            session.wait.expire()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def close(self, session_id: int) -> None:
        """Drop a session. An unknown one is no error: it may have been evicted."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _evict(self, now_ms: int, privileged: bool, size: int) -> bool:
        """Drop a session for one of `size` partitions; whether one could be."""
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


def _worth(session: FetchSession[Any]) -> tuple[bool, int]:
    """What a session is worth to keep (KIP-227): a follower's more than any other, a larger one more than a smaller."""
    return session.privileged, len(session)
