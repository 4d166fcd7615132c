"""Incremental fetch sessions (KIP-227): a client names its partitions once, then requests and answers name changes.

Strategy: for each partition a session keeps the last request entry, and the last offsets that were sent to the client.
A fetch that continues a session changes some entries; the answer has only partitions with records, an error or changed
offsets. Partitions that gave records move to the end, so that under a response limit each gets its turn.

The cost of a fetch depends on what changed since the last one, not on the size of the session. `dirty` has the entries
that the next fetch has to check: those whose request entry changed, those whose partition changed since the last check,
and those that were not finished. An entry watches its partition in the purgatory. Each change of the partition (an
append, another high watermark, leader epoch or log start) adds the entry to `dirty`. The entry is removed when a check
finds no news and holds nothing back (`settle`). So checks of entries that are not in `dirty` would find nothing.

Rules:
- A session is created with its first answer, never while the fetch waits, so that a client that leaves early leaves
  none behind.
- Every fetch raises the epoch by one (1 to 2^31-1, then 1 again). A wrong epoch or an unknown id is refused; the
  client then begins again with a full fetch.
- `replica.session_cache` decides how many sessions there may be, and which one gives way to another.
- A session ends with the connection on which it was created: clients then begin a new one.
- Only the principal that created a session can continue or close it. A client that guesses another's session id learns
  nothing and disturbs nobody.
- A fetch that waits is answered when the next one of its session comes, since that changes what the client waits for.
  It is also answered when its session is closed.
- A session uses topic names or topic ids, as its first fetch did.
- A follower's fetch proves that it still has all records of each partition that is not dirty. The time of the fetch is
  kept once, in the session, and given to the partition's `Follower` when the entry becomes dirty.

Must not know: messages. A request entry is any object with the fields of `Wanted`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.replica.followers import Follower
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.replica.purgatory import OperationState, Purgatory, Wait, Watcher

#: The epoch of a request without a session, or of one that ends its session.
FINAL_EPOCH = -1
#: The epoch of a full request that asks for a session.
INITIAL_EPOCH = 0

TopicKey: TypeAlias = "str | bytes"
"""A topic's name, or its id where the client speaks in ids."""

_by_turn: Callable[[Any], int] = attrgetter("turn")


class Wanted(Protocol):
    """The fields of a partition's entry in a Fetch request that a session needs."""

    partition: int


W = TypeVar("W", bound=Wanted)


class SessionOwner(Protocol):
    """A connection, which is hashable.

    on_lost: called when the connection has ended.
    principal: the principal of the client.
    """

    on_lost: Callable[[], object] | None

    @property
    def principal(self) -> object: ...


class SessionWait(Wait[None]):
    """A waiting fetch, which may belong to a session."""

    __slots__ = ()

    @abstractmethod
    def look_again(self, entry: Any) -> bool:
        """Check a partition of the session that has changed. End the wait if it is over, and return whether it is."""


class SessionPartition(Watcher, Generic[W]):
    """One partition of a session: the client's position, and the last offsets that were sent to the client.

    session: the session to which it belongs; None before and after.
    turn: entries with a lower number are served first.
    partition, leader_epoch: the partition and its leader epoch at the last check.
    key: the key that it watches; None while it watches none.
    follower: in a follower's session, what the leader knows of the follower; None while the entry is dirty.
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
        """Return whether the current offsets differ from those that the client was told last."""
        return high_watermark != self.sent_high_watermark or log_start != self.sent_log_start

    def told(self, high_watermark: int, log_start: int) -> None:
        """Remember the offsets that this answer tells the client."""
        self.sent_high_watermark = high_watermark
        self.sent_log_start = log_start

    def told_error(self) -> None:
        """Remember that the client gets an error, so that the end of the error is news even if no offset changes."""
        self.sent_high_watermark = -1

    def try_complete(self, key: Hashable) -> bool:
        """Have the waiting fetch check the partition, which has changed. If no fetch waits, the next one checks it."""
        session = self.session
        if session is None:
            return False
        session.mark(self)
        wait = session.wait
        if wait is not None and wait.state is OperationState.WAITING:
            return wait.look_again(self)
        session.unwatch(self)  # until the next check, so that an abandoned session costs nothing
        return False

    def fail(self, error: Exception) -> bool:
        """Fail the waiting fetch, which could not check the partition."""
        session = self.session
        return session is not None and session.wait is not None and session.wait.fail(error)


class FetchSession(Generic[W]):
    """One client's session.

    epoch: the epoch of its next fetch.
    wait: its waiting fetch, if any.
    dirty: the entries that the next fetch has to check.
    owner: the connection with which it ends.
    fetched_at: the time of a follower's last fetch, in seconds.
    """

    __slots__ = (
        "_turns", "_view", "_waits", "by_id", "created_ms", "dirty", "epoch", "fetched_at", "owner", "partitions",
        "session_id", "share", "used_ms", "wait",
    )  # fmt: skip

    def __init__(
        self, session_id: int, by_id: bool, now_ms: int, waits: Purgatory, share: Share | None = NOBODY
    ) -> None:
        """Arguments:

        waits: the purgatory in which partitions are watched.
        share: None for a follower's session.
        """
        self.session_id = session_id
        self.share = share
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
        """Do the work of a fetch that names `entry` and is answered with records: `want`, `looks_at`, `served`."""
        entry.wanted = wanted
        if entry not in self.dirty:
            self.mark(entry)
        self.looks_at(entry, partition)
        entry.told(high_watermark, log_start)
        self._to_end(entry)

    def has_nothing(self, entry: SessionPartition[W], wanted: W, partition: Partition) -> None:
        """Do the work of a fetch that names `entry` and finds no news: `want`, `looks_at`, `settle`."""
        entry.wanted = wanted
        self.looks_at(entry, partition)
        self.dirty.pop(entry, None)

    def served(self, entry: SessionPartition[W]) -> None:
        """Note that `entry` gave records, so that the others are served before it the next time."""
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
        """Mark all entries to be checked by the next fetch if `view`, on which answers also depend, has changed."""
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

    def park(self, wait: SessionWait, seconds: float) -> None:
        """Let a fetch of the session wait, for at most `seconds`. Changes are reported to the wait.

        Entries that have changed since the fetch checked them are dirty; the wait checks these with `look_at_dirty`.
        """
        self.wait = wait
        for entry in self.dirty:
            self._watch(entry)
        self._waits.enter(wait, (), seconds)

    def look_at_dirty(self, wait: SessionWait) -> bool:
        """Have a waiting fetch check all entries that may have changed. Return whether that ended the wait."""
        dirty = self.dirty
        return bool(dirty) and any(wait.look_again(entry) for entry in tuple(dirty))

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
        """Close the session. Its waiting fetch is answered."""
        if self.wait is not None:
            self.wait.expire()
        for entry in self.partitions.values():
            self.mark(entry)
            self._leave(entry)

    def _leave(self, entry: SessionPartition[W]) -> None:
        entry.session = None
        self.unwatch(entry)
