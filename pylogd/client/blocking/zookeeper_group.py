"""A consumer's part in a group in ZooKeeper, as a `ConsumerGroup` for `EventedConsumer`.

Strategy: `zookeeper.bridge.ZooKeeperMembership` works in a thread of its own; its events become those of a broker's
group, and the committed offsets of an assignment are kept until they are looked up.

Rules: imported only when the ZooKeeper coordinator is chosen, since it imports Twisted. The registries have only
offsets, so metadata and leader epochs are dropped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.start_offsets import Committed
from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.group.assignment import Topics
from pylogd.client.core.group.member_model import Assign, Event, Failed, GroupMetadata, Revoke
from pylogd.client.core.group.participation import Offsets
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.zookeeper.bridge import ZooKeeperMembership
from pylogd.client.zookeeper.events import Assigned, Revoked


class ZooKeeperGroup:
    """A group by its id, joined by `subscribe`."""

    #: `poll` has to check for events of this group
    wakes = False
    #: the member's claims are valid only while its lease lasts
    leased = True

    def __init__(self, options: ConsumerOptions) -> None:
        """Nothing is connected yet."""
        self._options = options
        self._membership: ZooKeeperMembership | None = None
        self._events: deque[Event] = deque()
        self._came: dict[Event, Assigned | Revoked] = {}
        self._owned: frozenset[TopicPartition] = frozenset()
        self._offsets: dict[TopicPartition, int | None] = {}
        self._streams: dict[TopicPartition, int] = {}
        self._on_commit: Callable[[Offsets], object] = lambda _: None

    def on_commit(self, call: Callable[[Offsets], object]) -> None:
        """Have `call` called with committed offsets. The next call of any method of this group makes the call."""
        self._on_commit = call

    def subscribe(self, topics: Topics) -> None:
        """Join. Raises ZooKeeperUnavailable, and ValueError if it is subscribed already."""
        if self._membership is not None:
            raise ValueError("this consumer has subscribed already; unsubscribe first")
        options = self._options
        assert options.group_id is not None
        after = options.auto_commit == "after"
        membership = ZooKeeperMembership(
            options.zookeeper,
            options.group_id,
            topics if isinstance(topics, re.Pattern | Mapping) else list(topics),
            initial="largest" if options.auto_offset_reset == "latest" else "smallest",
            session_timeout_ms=int(options.session_seconds * 1000),
            commit_interval_ms=int(options.auto_commit_interval * 1000) if after else None,
            operation_timeout=options.request_timeout,
            settings=options.zookeeper_settings,
        )
        membership.start(options.request_timeout)
        self._membership = membership

    async def leave(self) -> None:
        """Release all partitions, and leave."""
        await self.close(self._options.request_timeout)

    def stop(self) -> None:
        """Do nothing: `close` has stopped it."""

    async def close(self, timeout: float) -> None:
        """Leave within `timeout` seconds. Like all methods of this group, this one blocks."""
        membership, self._membership = self._membership, None
        self._events.clear()
        self._came.clear()
        self._owned = frozenset()
        if membership is not None:
            membership.close(timeout)
            self._report_commits(membership)

    @property
    def may_fetch(self) -> bool:
        """Whether this member may read its partitions now: its lease has not run out."""
        return self._membership is None or self._membership.may_fetch

    def polled(self, polling: bool) -> None:
        """Do nothing: a consumer keeps its partitions while it is connected."""

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may return an event."""
        if self._membership is not None:
            self._report_commits(self._membership)
        if not self._events and self._membership is not None:
            try:
                self._events.extend(map(self._read, self._membership.poll(0.0)))
            except ClientError as error:
                self._events.append(Failed(error))
        return bool(self._events)

    def _report_commits(self, membership: ZooKeeperMembership) -> None:
        for offsets in membership.take_committed():
            self._on_commit({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})

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
        """Return the next action of the application, or None."""
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
        """Record that an event was carried out: revoked partitions are released."""
        came = self._came.pop(event, None)
        if isinstance(came, Revoked):
            self._owned -= frozenset(came.partitions)
            for partition in came.partitions:
                self._offsets.pop(partition, None)
        if came is not None and self._membership is not None:
            self._membership.done(came)

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Return the number of the stream that the coordinator chose for a partition."""
        return self._streams.get(partition)

    # Offsets

    def metadata(self) -> GroupMetadata:
        """Raise ValueError: transactions commit offsets of groups that brokers coordinate."""
        raise ValueError("transactions can't commit the offsets of a group in ZooKeeper")

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        """Look up committed offsets. Those of a new assignment came with it; others are read now."""
        known = {p: self._offsets.pop(p) for p in partitions if p in self._offsets}
        try:
            if rest := [p for p in partitions if p not in known]:
                known.update(self._joined().committed(rest))
        except PylogdError as error:
            done(None, error)
        else:
            done({p: None if offset is None else OffsetAndMetadata(offset) for p, offset in known.items()}, None)

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit with the next period, or when the partitions are released."""
        self._joined().store({partition: committed.offset for partition, committed in offsets.items()})

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit now. Raises NotOwner, ZooKeeperUnavailable."""
        membership = self._joined()
        membership.commit({partition: committed.offset for partition, committed in offsets.items()})
        self._report_commits(membership)

    def _joined(self) -> ZooKeeperMembership:
        if self._membership is None:
            raise Closed("the consumer is not a member of its group; subscribe first")
        return self._membership
