"""A consumer's part in a group that lives in ZooKeeper, in the shape that `Share` drives.

Strategy: `zookeeper.bridge.ZooKeeperMembership` works in a thread of its own; this turns its events into those of
a broker's group, and keeps the committed offsets that come with an assignment until somebody looks them up.

Rules: it is imported when the ZooKeeper coordinator is chosen, and Twisted with it, and not before. An offset is all
that the registries keep: metadata beside it is dropped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.group.member_model import Assign, Event, Failed, Revoke
from pylogd.client.core.group.sharing import Topics
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.zookeeper.bridge import ZooKeeperMembership
from pylogd.client.zookeeper.events import Assigned, Revoked


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the group is, and how it behaves. Times in seconds; `commit_interval` None commits only when told to."""

    connect: str
    group_id: str
    latest: bool
    session_timeout: float
    commit_interval: float | None
    timeout: float


@dataclass(frozen=True, slots=True)
class _Found:
    """Offsets that are known already."""

    found: dict[TopicPartition, OffsetAndMetadata | None]

    def wait(self, timeout: float) -> bool:
        """They have come."""
        return True


class ZooKeeperGroup:
    """A group by its id, once it is subscribed to."""

    #: its events have to be looked for
    wakes = False

    def __init__(self, settings: ZooKeeperSettings) -> None:
        """Nothing is connected yet."""
        self._settings = settings
        self._membership: ZooKeeperMembership | None = None
        self._events: deque[Event] = deque()
        self._came: dict[Event, Assigned | Revoked] = {}
        self._owned: frozenset[TopicPartition] = frozenset()
        self._offsets: dict[TopicPartition, int | None] = {}
        self._streams: dict[TopicPartition, int] = {}

    def subscribe(self, topics: Topics) -> None:
        """Register. Raises ZooKeeperUnavailable. ValueError: it is subscribed already."""
        if self._membership is not None:
            raise ValueError("the group in ZooKeeper is subscribed to once; unsubscribe first")
        settings = self._settings
        interval = settings.commit_interval
        membership = ZooKeeperMembership(
            settings.connect,
            settings.group_id,
            topics if isinstance(topics, re.Pattern | Mapping) else list(topics),
            initial="largest" if settings.latest else "smallest",
            session_timeout_ms=int(settings.session_timeout * 1000),
            commit_interval_ms=None if interval is None else int(interval * 1000),
            operation_timeout=settings.timeout,
        )
        membership.start(settings.timeout)
        self._membership = membership

    def leave(self) -> None:
        """Release what it has, and leave."""
        self.close(self._settings.timeout)

    def close(self, timeout: float) -> None:
        """The same, within `timeout` seconds."""
        membership, self._membership = self._membership, None
        self._events.clear()
        self._came.clear()
        self._owned = frozenset()
        if membership is not None:
            membership.close(timeout)

    @property
    def may_fetch(self) -> bool:
        """Whether the claims are safe."""
        return self._membership is None or self._membership.may_fetch

    def polled(self, polling: bool) -> None:
        """A consumer keeps its partitions as long as it is connected."""

    @property
    def has_event(self) -> bool:
        """Whether something happened."""
        if not self._events and self._membership is not None:
            try:
                self._events.extend(map(self._read, self._membership.poll(0.0)))
            except ClientError as error:
                self._events.append(Failed(error))
        return bool(self._events)

    def _read(self, came: Assigned | Revoked) -> Event:
        event: Event
        if isinstance(came, Revoked):
            event = Revoke(frozenset(came.partitions), came.lost)
        else:
            added = frozenset(came.offsets)
            event = Assign(self._owned | added, added)
        self._came[event] = came
        return event

    def next_event(self) -> Event | None:
        """What to do now."""
        if not self.has_event:
            return None
        event = self._events.popleft()
        came = self._came.get(event)
        if isinstance(came, Assigned):
            self._offsets.update(came.offsets)
            self._streams.update(came.streams)
            self._owned |= frozenset(came.offsets)
        return event

    def done(self, event: Event) -> None:
        """It is done: what was revoked is released."""
        came = self._came.pop(event, None)
        if isinstance(came, Revoked):
            self._owned -= frozenset(came.partitions)
            for partition in came.partitions:
                self._offsets.pop(partition, None)
        if came is not None and self._membership is not None:
            self._membership.done(came)

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Which of this consumer's streams reads a partition."""
        return self._streams.get(partition)

    # Offsets

    def look_up(self, partitions: Iterable[TopicPartition] | None) -> _Found:
        """What is committed: of a new assignment as it came with it, else as it is now."""
        wanted = list(partitions or ())
        known = {p: self._offsets.pop(p) for p in wanted if p in self._offsets}
        if rest := [p for p in wanted if p not in known]:
            known.update(self._joined().committed(rest))
        return _Found({p: None if offset is None else OffsetAndMetadata(offset) for p, offset in known.items()})

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """With the next period, or when they are released."""
        self._joined().store({partition: committed.offset for partition, committed in offsets.items()})

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Now. Raises NotOwner, ZooKeeperUnavailable."""
        self._joined().commit({partition: committed.offset for partition, committed in offsets.items()})

    def _joined(self) -> ZooKeeperMembership:
        if self._membership is None:
            raise Closed("the consumer is not in its group; subscribe first")
        return self._membership
