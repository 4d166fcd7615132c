"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only says and hears what changed.

Strategy: a session keeps, for each partition that the client wants, the request entry it sent last and what it was
told last. A fetch that continues a session changes those entries; the answer holds only partitions that have records,
an error or news. Partitions that gave records move to the end, so that under a response limit each gets its turn.

Rules:
- A session is made when its first answer is, never while the fetch waits: a client that leaves early leaves nothing.
- Every fetch raises the epoch by one (1 to 2^31-1, then 1 again). A wrong epoch or an unknown id is refused; the
  client then starts anew with a full fetch.
- At most `slots` sessions. A new one takes the place of the one unused for longest, if that was for two minutes at
  least; otherwise the client gets no session and goes on with full fetches. A follower's takes the place of any other
  client's, in use or not.
- A fetch that waits is answered when the next one of its session comes: a client that asks twice wants to change
  what it waits for.
- A session works with topic names or with topic ids, as its first fetch did, and never changes.

Named gap: Kafka also lets a session with more partitions evict a smaller one in use. Ours evicts only idle ones.

It must not know the messages: an entry is any object with the fields of `Wanted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import randrange
from typing import Generic, Protocol, TypeAlias, TypeVar

from pylogd.errors import ErrorCode, KafkaError

#: A request without a session, or one that ends its session.
FINAL_EPOCH = -1
#: A full request that asks for a session.
INITIAL_EPOCH = 0
_LAST_EPOCH = _LAST_ID = 0x7FFFFFFF
#: A session unused for this long gives way to a new one.
EVICTABLE_AFTER_MS = 120_000

TopicKey: TypeAlias = "str | bytes"
"""A topic's name, or its id where the client speaks in ids."""


class Wanted(Protocol):
    """What a session must know of a partition's entry in a fetch request."""

    partition: int


W = TypeVar("W", bound=Wanted)


class SessionPartition(Generic[W]):
    """One partition of a session: what the client wants, and what it was told."""

    __slots__ = ("sent_high_watermark", "sent_log_start", "topic", "wanted")

    def __init__(self, topic: TopicKey, wanted: W) -> None:
        self.topic = topic
        self.wanted = wanted
        self.sent_high_watermark = -1
        self.sent_log_start = -1

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


class FetchSession(Generic[W]):
    """One client's session. `epoch` is the one that its next fetch must carry; `end_wait` ends the wait of its last."""

    __slots__ = ("by_id", "end_wait", "epoch", "partitions", "privileged", "session_id", "used_ms")

    def __init__(self, session_id: int, by_id: bool, now_ms: int, privileged: bool = False) -> None:
        self.session_id = session_id
        self.privileged = privileged  # a follower's
        self.by_id = by_id
        self.epoch = 1
        self.end_wait: Callable[[], object] | None = None
        self.used_ms = now_ms
        self.partitions: dict[tuple[TopicKey, int], SessionPartition[W]] = {}

    def __iter__(self) -> Iterator[SessionPartition[W]]:
        """The partitions in the order in which they should be served."""
        return iter(self.partitions.values())

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self.partitions)

    def want(self, topic: TopicKey, wanted: W) -> SessionPartition[W]:
        """Add a partition, or change what is wanted of it."""
        key = (topic, wanted.partition)
        entry = self.partitions.get(key)
        if entry is None:
            entry = self.partitions[key] = SessionPartition(topic, wanted)
        else:
            entry.wanted = wanted
        return entry

    def forget(self, topic: TopicKey, indexes: Iterable[int]) -> None:
        """Drop partitions that the client no longer wants. Unknown ones are no error."""
        for index in indexes:
            self.partitions.pop((topic, index), None)

    def served(self, entry: SessionPartition[W]) -> None:
        """`entry` gave records: the others come before it next time."""
        key = (entry.topic, entry.wanted.partition)
        if self.partitions.get(key) is entry:
            del self.partitions[key]
            self.partitions[key] = entry


class FetchSessions(Generic[W]):
    """The sessions of this broker.

    slots: how many there may be (`max.incremental.fetch.session.cache.slots`), 0 for none at all.
    """

    __slots__ = ("_now_ms", "_sessions", "_slots")

    def __init__(self, slots: int, now_ms: Callable[[], int]) -> None:
        self._slots = slots
        self._now_ms = now_ms
        self._sessions: dict[int, FetchSession[W]] = {}  # the one unused for longest first

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def create(
        self, entries: Iterable[SessionPartition[W]], by_id: bool, privileged: bool = False
    ) -> FetchSession[W] | None:
        """A session over `entries`, or None when there is no room for it. `privileged`: a follower's."""
        now_ms = self._now_ms()
        if len(self._sessions) >= self._slots and not self._evict(now_ms, privileged):
            return None
        session_id = randrange(1, _LAST_ID)
        while session_id in self._sessions:
            session_id = randrange(1, _LAST_ID)
        session: FetchSession[W] = FetchSession(session_id, by_id, now_ms, privileged)
        session.partitions = {(entry.topic, entry.wanted.partition): entry for entry in entries}
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
        if session.end_wait is not None:
            session.end_wait()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def close(self, session_id: int) -> None:
        """Drop a session. An unknown one is no error: it may have been evicted."""
        self._sessions.pop(session_id, None)

    def _evict(self, now_ms: int, privileged: bool) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.used_ms < EVICTABLE_AFTER_MS:
            others = (session for session in self._sessions.values() if not session.privileged)
            oldest = next(others, None) if privileged else None
        if oldest is None:
            return False
        del self._sessions[oldest.session_id]
        return True
