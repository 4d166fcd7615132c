"""A consumer's part in a group in ZooKeeper, on Twisted.

Strategy: pass the events of the coordinator (`client/zookeeper/coordinator.py`) to `poll`, one at a time, and have the
coordinator release partitions once they were given up.

Rules: each consumer has its own store, so its claims end with its session. Records may be handed out only while
`may_fetch` is true. Offsets can be committed only for owned partitions.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.start_offsets import Committed
from pylogd.client.core.errors import ClientError, RequestTimedOut
from pylogd.client.core.group.member_model import Assign, Event, Failed, GroupMetadata, Revoke
from pylogd.client.core.group.participation import Offsets
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.zookeeper.coordinator import Coordinator, GroupSettings
from pylogd.client.zookeeper.errors import ZooKeeperUnavailable
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.client.zookeeper.registries import GroupPaths, Subscription
from pylogd.client.zookeeper.security import connection_security
from pylogd.store.errors import StoreError
from pylogd.store.zookeeper import ZooKeeperStore

_log = logging.getLogger(__name__)

_COMMIT_SECONDS = 1.0  # seconds between commits of stored offsets


class ZooKeeperGroup:
    """The group of a consumer's options, in the ZooKeeper that they name."""

    def __init__(self, reactor: Any, options: ConsumerOptions, *, on_event: Callable[[], None]) -> None:
        """Nothing is connected before `subscribe`. Raises ValueError for a bad group name or setting."""
        assert options.group_id is not None
        GroupPaths(options.group_id)
        self._reactor = reactor
        self._connect = options.zookeeper
        self._security = connection_security(options.zookeeper_settings)
        self._group_id = options.group_id
        self._session_timeout = options.session_seconds
        self._on_event = on_event
        self._tasks = Tasks()
        self._subscription: Subscription | None = None
        self._store: ZooKeeperStore | None = None
        self._coordinator: Coordinator | None = None
        self._events: deque[Event] = deque()
        self._stopped: dict[Event, Deferred[None]] = {}  # fired once the partitions of an event are given up
        self._offsets: dict[TopicPartition, int | None] = {}  # the committed offsets at the time of the claims
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._leaving = False
        self._on_commit: Callable[[Offsets], object] = lambda _: None

    def on_commit(self, call: Callable[[Offsets], object]) -> None:
        """Have `call` called with committed offsets."""
        self._on_commit = call

    #: events wake a `poll`
    wakes = True
    #: the member's claims are valid only while its lease lasts
    leased = True

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Return None: the consumer chooses the stream."""
        return None

    def stop(self) -> None:
        """Stop sending."""
        self._tasks.stop()

    @property
    def has_event(self) -> bool:
        """Whether `next_event` returns an event."""
        return bool(self._events)

    @property
    def may_fetch(self) -> bool:
        """Whether this member may read its partitions now: its lease has not run out."""
        return self._coordinator is not None and self._coordinator.may_fetch

    def subscribe(self, topics: Iterable[str] | Mapping[str, int] | re.Pattern[str]) -> None:
        """Join the group, for topics with a number of streams each, or for topics whose whole names match a pattern."""
        self._subscription = Subscription.of(topics)
        self._tasks.start(self._rejoin())

    async def leave(self) -> None:
        """Leave the group, after all partitions were given up."""
        self._subscription = None
        self._tasks.start(self._leave())

    def polled(self, polling: bool) -> None:
        """Do nothing: a consumer that does not poll keeps its partitions while it is connected."""

    def next_event(self) -> Event | None:
        """Return the next event for the application, or None. Call `done` when the application has handled it."""
        return self._events.popleft() if self._events else None

    def done(self, event: Event) -> None:
        """Record that the application has carried out an event: revoked partitions are released now."""
        stopped = self._stopped.pop(event, None)
        if stopped is not None:
            stopped.callback(None)
        elif isinstance(event, Failed) and self._coordinator is None and self._subscription is not None:
            self._tasks.start(self._join())

    # Offsets

    def metadata(self) -> GroupMetadata:
        """Raise ValueError: transactions commit offsets of groups that brokers coordinate."""
        raise ValueError("transactions can't commit the offsets of a group in ZooKeeper")

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        """Look up the group's committed offsets. Call `done` once, with the offsets or with an error."""
        self._tasks.start(self._look_up(partitions, done))

    async def _look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        try:
            found = await self._committed(partitions)
        except PylogdError as error:
            done(None, error)
        else:
            done(found, None)
        self._on_event()

    async def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self._coordinator is None:
            raise ClientError("only members can read the offsets of a group in ZooKeeper: subscribe first")
        claimed = [partition for partition in partitions if partition in self._offsets]
        found = {partition: self._offsets.pop(partition) for partition in claimed}
        found.update(await self._coordinator.committed([p for p in partitions if p not in found]))
        return {p: None if offset is None else OffsetAndMetadata(offset) for p, offset in found.items()}

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background, at the latest before a release."""
        if self._coordinator is not None:
            self._coordinator.store_offsets({partition: committed.offset for partition, committed in offsets.items()})

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit, and wait until it is done. Raises NotOwner, ZooKeeperUnavailable, RequestTimedOut."""
        if self._coordinator is None:
            raise ClientError("only members can commit offsets of a group in ZooKeeper: subscribe first")
        committing = self._coordinator.commit({p: committed.offset for p, committed in offsets.items()})
        await self._in_time(committing, timeout)

    async def close(self, timeout: float) -> None:
        """Commit stored offsets, release partitions, leave, and end the session, as far as possible within `timeout`
        seconds. A session that could not be ended expires in ZooKeeper.
        """
        self._subscription = None
        try:
            await self._in_time(Deferred.fromCoroutine(self._leave()), timeout)
        except PylogdError as error:
            _log.warning("group %s: can't remove this member from ZooKeeper: %s", self._group_id, error)
        finally:
            self._tasks.stop()

    async def _in_time(self, waiting: Deferred[Any], timeout: float) -> None:
        def late(*_: Any) -> Any:
            raise RequestTimedOut(f"group {self._group_id}: ZooKeeper did not answer within {timeout:g} s")

        await waiting.addTimeout(timeout, self._reactor, late)

    # Joining and leaving

    async def _rejoin(self) -> None:
        await self._leave()
        await self._join()

    async def _join(self) -> None:
        if self._subscription is None:
            return
        store = ZooKeeperStore(
            self._connect, self._reactor, session_timeout_ms=int(self._session_timeout * 1000),
            security=self._security,
        )  # fmt: skip
        try:
            await store.start()
        except StoreError as error:
            await store.close()
            failure = ZooKeeperUnavailable(str(error))
            failure.__cause__ = error
            self._tell(Failed(failure))
            return
        settings = GroupSettings(session_timeout=store.session_timeout, commit_interval=_COMMIT_SECONDS)
        self._leaving = False
        self._store = store
        self._coordinator = Coordinator(
            store, self._reactor, self._group_id, self._subscription, self, settings,
            on_commit=lambda done: self._on_commit({p: OffsetAndMetadata(offset) for p, offset in done.items()}),
        )  # fmt: skip
        await self._coordinator.start()

    async def _leave(self) -> None:
        """Leave the group. Unfinished events count as handled, because `poll` is no longer called."""
        self._leaving = True
        coordinator, self._coordinator = self._coordinator, None
        store, self._store = self._store, None
        stopped, self._stopped = self._stopped, {}
        self._events.clear()
        self._offsets.clear()
        self._assigned = frozenset()
        for deferred in stopped.values():
            deferred.callback(None)
        try:
            if coordinator is not None:
                await coordinator.close()
        finally:
            if store is not None:
                await store.close()

    # Reports of the coordinator

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._on_event()

    def on_assigned(self, event: Assigned) -> None:
        """Queue an event: partitions are claimed."""
        self._offsets.update(event.offsets)
        self._assigned |= event.offsets.keys()
        self._tell(Assign(self._assigned, frozenset(event.offsets)))

    def on_revoked(self, event: Revoked) -> Deferred[None] | None:
        """Queue an event: partitions have to be given up. The Deferred fires once they are."""
        self._assigned -= frozenset(event.partitions)
        for partition in event.partitions:
            self._offsets.pop(partition, None)
        if self._leaving:
            return None
        revoke = Revoke(frozenset(event.partitions), event.lost)
        stopped = self._stopped[revoke] = Deferred()
        self._tell(revoke)
        return stopped

    def on_failed(self, error: BaseException) -> None:
        """Queue an error that prevents the consumer from claiming its share; the coordinator keeps trying."""
        failure = error if isinstance(error, PylogdError) else ClientError(f"group {self._group_id}: {error!r}")
        self._tell(Failed(failure))
