"""The coordinator of one consumer: Algorithm 1 of the Kafka paper as a state machine over a metadata store.

Strategy: `states` has the table. This module has the work of each state, one coroutine a state; only one runs at a
time. Watches, the session and the caller only set a flag and wake the sleeper, so nothing is decided while a step runs.

Rules:

- A partition is released only after the caller has stopped fetching it (its Deferred fired), together with the last
  commit. It is assigned only after it was claimed, and its offset was read after the claim.
- Partitions that stay in the consumer's share stay claimed, and are fetched while others change their owners. A claim
  that collides changes nothing; the consumer then waits until the owner releases the partition, or for the back-off
  with jitter, reads the registries, and tries again. After `max_retries` back-offs in a row the listener is told.
- Ask `may_fetch` before records are handed out: see `lease`. After a session is lost, nothing is claimed before the
  caller has stopped.

Must not know: threads, brokers, records.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from pylogd.base.clock import wall_ms
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.assignment import share_of, stream_name
from pylogd.client.zookeeper.claims import Claims, Collision, NotRegistered
from pylogd.client.zookeeper.errors import NotOwner, RebalanceFailed, ZooKeeperUnavailable
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.client.zookeeper.lease import HEARTBEAT, Lease
from pylogd.client.zookeeper.registries import GroupPaths, Subscription
from pylogd.client.zookeeper.states import (
    CONNECTION,
    COORDINATOR,
    ConnectionEvent,
    ConnectionState,
    CoordinatorState,
    Event,
)
from pylogd.client.zookeeper.view import GroupView
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.store.errors import SessionExpired, StoreError
from pylogd.store.interfaces import IMetadataStore, SessionState, WatchEvent

log = logging.getLogger(__name__)


class IConsumer(Protocol):
    """The consumer that fetches the assigned partitions."""

    def on_assigned(self, event: Assigned) -> None:
        """Fetch these partitions from now on."""

    def on_revoked(self, event: Revoked) -> Deferred[None] | None:
        """Stop fetching these partitions, and commit. Return None if both are done, or a Deferred that fires when they
        are. The partitions are released even if it fails.
        """

    def on_failed(self, error: BaseException) -> None:
        """Report the error that prevents the consumer from claiming its share; the claim is retried."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a consumer. Times are in seconds.

    session_timeout: zookeeper.session.timeout.ms of Kafka 0.8, with the server's value.
    commit_interval: auto.commit.interval.ms; None commits stored offsets only with releases.
    max_retries: rebalance.max.retries.
    backoff: rebalance.backoff.ms.
    """

    session_timeout: float = 6.0
    commit_interval: float | None = 5.0
    max_retries: int = 20
    backoff: float = 0.5


class Coordinator:
    """One consumer's membership in a group, on a store that is started.

    `new_name` makes the names under which it registers, `rng` the jitter; tests replace both.
    """

    def __init__(
        self,
        store: IMetadataStore,
        clock: IReactorTime,
        group: str,
        subscription: Subscription,
        consumer: IConsumer,
        settings: GroupSettings | None = None,
        *,
        on_commit: Callable[[dict[TopicPartition, int]], object] = lambda _: None,
        new_name: Callable[[], str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`on_commit` is called with committed offsets. Raises ValueError for an invalid group name."""
        paths = GroupPaths(group)
        self.settings = settings or GroupSettings()
        self._store = store
        self._clock = clock
        self._subscription = subscription
        self._listener = consumer
        self._random = rng or random.Random()
        self._sleeper = Sleeper(clock)
        self._lease = Lease(clock, self.settings.session_timeout)
        self._view = GroupView(store, paths, subscription, self._sleeper.wake)
        name = new_name or (lambda: consumer_name(group))
        self._claims = Claims(store, clock, paths, self._lease, name, on_commit)
        self._share: dict[TopicPartition, int] = {}
        self._assigned: set[TopicPartition] = set()
        self._created: dict[TopicPartition, int | None] = {}  # for held partitions: see `GroupView.created`
        self._stored: dict[TopicPartition, int] = {}
        self._stopping: list[Deferred[None]] = []
        self._blocked: set[str] = set()
        self._collision: Collision | None = None
        self._tries = 0
        self._closing = self._expired = False
        self._connection = CONNECTION.machine()
        self._timers: dict[Callable[[], Coroutine[Any, Any, None]], IDelayedCall] = {}
        self._forget: Callable[[], None] | None = None
        self._registered: Deferred[None] | None = None
        self._left: list[Deferred[None]] = []
        self._machine = COORDINATOR.machine()

    @property
    def state(self) -> CoordinatorState:
        """The state of the consumer."""
        return self._machine.state

    @property
    def may_fetch(self) -> bool:
        """Whether records of assigned partitions may be returned at this moment. Any thread may ask."""
        return self._lease.holds

    @property
    def consumer(self) -> str:
        """The name under which the consumer is registered; "" if it is not."""
        return self._claims.consumer

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that the caller fetches."""
        return frozenset(self._assigned)

    # -- calls of the consumer

    def start(self) -> Deferred[None]:
        """Join the group. The Deferred fires once the consumer is registered."""
        assert self.state is CoordinatorState.CLOSED and not self._closing
        self._machine.handle(Event.STARTED)
        self._forget = self._store.on_session(self._session)
        self._registered = Deferred()
        self._every(HEARTBEAT * self.settings.session_timeout, self._heartbeat)
        if self.settings.commit_interval is not None:
            self._every(self.settings.commit_interval, self._commit_stored)
        registered = self._registered
        Deferred.fromCoroutine(self._run()).addErrback(self._crashed)
        return registered

    def close(self) -> Deferred[None]:
        """Revoke, commit, release and leave the group. The Deferred fires when this is done, or has failed."""
        left: Deferred[None] = Deferred()
        if self.state is CoordinatorState.CLOSED:
            left.callback(None)
            return left
        self._left.append(left)
        self._closing = True
        self._sleeper.wake()
        return left

    def store_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets of processed records, for the next periodic commit or the release of the partition.
        Partitions that are not owned are ignored.
        """
        self._stored.update((p, offset) for p, offset in offsets.items() if p in self._claims.held)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Deferred[None]:
        """Commit now. Fails with `NotOwner` or `ZooKeeperUnavailable`."""

        async def commit() -> None:
            before = {p: self._stored.pop(p) for p in offsets if p in self._stored}
            try:
                await self._claims.commit(offsets)
            except (NotRegistered, SessionExpired) as error:
                raise NotOwner(list(offsets)) from error
            except StoreError as error:
                for partition, offset in before.items():
                    self._stored.setdefault(partition, offset)
                raise ZooKeeperUnavailable(f"the offsets may not be committed: {error}") from error

        return Deferred.fromCoroutine(commit())

    def committed(self, partitions: Iterable[TopicPartition]) -> Deferred[dict[TopicPartition, int | None]]:
        """Return the group's committed offsets; None for partitions without one. Fails with `ZooKeeperUnavailable`."""

        async def committed() -> dict[TopicPartition, int | None]:
            try:
                return await self._claims.offsets(partitions)
            except StoreError as error:
                raise ZooKeeperUnavailable(f"the offsets can't be read: {error}") from error

        return Deferred.fromCoroutine(committed())

    # -- the machine

    async def _run(self) -> None:
        while self.state is not CoordinatorState.CLOSED:
            try:
                event = await self._STEPS[self.state](self)
            except NotRegistered:
                self._claims.unregistered()
                event = Event.UNREGISTERED
            except StoreError as error:
                log.info("group %s: %s: %s", self._claims.group, type(error).__name__, error)
                self._failed(error)
                event = Event.CUT
            self._machine.handle(self._overruled(event))
        self._closed()

    def _overruled(self, event: Event) -> Event:
        """Return the event that happened meanwhile, if it overrules the outcome of the step; otherwise the outcome."""
        if self.state is CoordinatorState.LEAVING:
            return Event.LEFT
        if self._closing:
            return Event.CLOSE
        if self._expired:
            self._expired = False
            return Event.EXPIRED
        return Event.CUT if self._connection.state is ConnectionState.RECONNECTED else event

    async def _join(self) -> Event:
        await self._claims.register(self._subscription, wall_ms())
        self._view.forget()
        if self._registered is not None:
            registered, self._registered = self._registered, None
            registered.callback(None)
        return Event.REGISTERED

    async def _read(self) -> Event:
        if not self._claims.registered:
            raise NotRegistered("not registered yet")
        await self._claims.settle()
        await self._view.refresh()
        me, held = self._claims.consumer, self._claims.held
        members = self._view.members
        if me not in members:
            raise NotRegistered("the consumer's node is gone")
        self._share = share_of(me, self._view.partitions, members)
        if self._not_mine():
            return Event.TOO_MUCH
        if self._share.keys() - held.keys() or held.keys() - self._assigned:
            return Event.TOO_LITTLE
        self._tries = 0
        return Event.SETTLED

    async def _release(self) -> Event:
        gone = self._not_mine()
        await self._stop([p for p in gone if p in self._assigned])
        await self._give_back(gone)
        return Event.RELEASED

    async def _claim(self) -> Event:
        held = self._claims.held
        wanted = {p: stream for p, stream in self._share.items() if p not in held}
        try:
            if wanted:
                await self._claims.claim(wanted)
        except Collision as collision:
            self._collision = collision
            return Event.COLLIDED
        fresh = sorted(held.keys() - self._assigned)
        self._created = {p: self._created.get(p) for p in held} | {p: self._view.created.get(p.topic) for p in fresh}
        offsets = await self._claims.offsets(fresh)
        if not self._expired:
            self._assigned.update(fresh)
            self._listener.on_assigned(Assigned(offsets, {p: self._share[p] for p in fresh}))
        return Event.CLAIMED

    async def _wait(self) -> Event:
        assert self._collision is not None
        wanted = self._share.keys() - self._claims.held.keys()
        self._blocked = set()
        blocked = await self._claims.blocked(wanted, self._freed)
        if blocked:
            self._blocked.update(blocked)
            backoff, since = self._backoff(), self._clock.seconds()
            await self._sleeper.sleep(backoff)
            if self._clock.seconds() - since >= backoff:  # nothing was released
                self._failed(self._collision)
        return Event.AGAIN

    async def _own(self) -> Event:
        await self._sleeper.sleep(None)
        return Event.AGAIN

    async def _resume(self) -> Event:
        if self._connection.state is not ConnectionState.RECONNECTED:
            await self._sleeper.sleep(self._backoff())
        if not self._connection.allows(ConnectionEvent.NOTICED):
            return Event.CUT
        self._connection.handle(ConnectionEvent.NOTICED)
        self._view.forget()
        await self._claims.settle()
        return Event.RESUMED

    async def _surrender(self) -> Event:
        while self._stopping:
            await self._stopping.pop()
        return Event.SURRENDERED

    async def _leave(self) -> Event:
        await self._surrender()
        await self._stop(self._assigned)
        await self._give_back(list(self._claims.held))
        await self._claims.unregister()
        return Event.LEFT

    _STEPS: ClassVar[Mapping[CoordinatorState, Callable[[Coordinator], Coroutine[Deferred[Any], Any, Event]]]] = {
        CoordinatorState.JOINING: _join,
        CoordinatorState.READING: _read,
        CoordinatorState.RELEASING: _release,
        CoordinatorState.CLAIMING: _claim,
        CoordinatorState.WAITING: _wait,
        CoordinatorState.OWNING: _own,
        CoordinatorState.INTERRUPTED: _resume,
        CoordinatorState.SURRENDERING: _surrender,
        CoordinatorState.LEAVING: _leave,
    }

    # -- events between the steps

    def _session(self, state: SessionState) -> None:
        connected = state is SessionState.CONNECTED
        self._connection.handle(ConnectionEvent.CONNECTED if connected else ConnectionEvent.LOST)
        if state is SessionState.EXPIRED:
            self._expired = True
            self._claims.forget()
            self._stored.clear()
            lost = sorted(self._assigned)
            self._assigned.clear()
            if lost:
                log.warning("Session with ZooKeeper expired: stop reading %d partitions and claim them anew", len(lost))
                self._stopping.append(self._told(Revoked(tuple(lost), lost=True)))
        if state is not SessionState.SUSPENDED:
            self._sleeper.wake()

    def _freed(self, event: WatchEvent) -> None:
        """Wake the sleeper once all partitions that it waits for have been released, or have another owner."""
        self._blocked.discard(event.path)
        if not self._blocked:
            self._sleeper.wake()

    async def _heartbeat(self) -> None:
        try:
            if self._claims.registered:
                await self._claims.prove()
        except NotRegistered:
            self._view.forget()
            self._sleeper.wake()

    async def _commit_stored(self) -> None:
        stored = {p: offset for p, offset in self._stored.items() if p in self._assigned}
        if stored:
            await self._claims.commit(stored)
            for partition, offset in stored.items():
                if self._stored.get(partition) == offset:
                    del self._stored[partition]

    # -- helpers

    async def _give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Release partitions with a last commit of their stored offsets."""
        outdated = self._outdated()
        if outdated:  # offsets of a deleted topic do not fit a later topic
            await self._claims.forget_offsets(outdated)
        stored = {p: self._stored.pop(p) for p in partitions if p in self._stored}
        await self._claims.release(partitions, {p: offset for p, offset in stored.items() if p not in outdated})

    def _not_mine(self) -> list[TopicPartition]:
        """Return the held partitions that are not in the share, or are in it for another stream or name, or whose topic
        was deleted and created again.
        """
        names = {p: stream_name(self._claims.consumer, stream) for p, stream in self._share.items()}
        outdated = self._outdated()
        return [p for p, name in self._claims.held.items() if names.get(p) != name or p in outdated]

    def _outdated(self) -> set[TopicPartition]:
        """Return the held partitions of topics that were deleted since the claim."""
        created = self._view.created
        return {p for p in self._claims.held if p in self._created and self._created[p] != created.get(p.topic)}

    async def _stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the caller stop fetching partitions.

        These partitions are not assigned from now on, even if the session continues.
        """
        stopped = tuple(sorted(partitions))
        self._assigned.difference_update(stopped)
        if stopped:
            await self._told(Revoked(stopped))

    def _told(self, event: Revoked) -> Deferred[None]:
        """Tell the caller to stop. The Deferred fires when the caller has stopped, and never fails."""

        async def tell() -> None:
            stopped = self._listener.on_revoked(event)
            if stopped is not None:
                await stopped

        return Deferred.fromCoroutine(tell()).addErrback(self._logged, "can't stop fetching cleanly")

    def _failed(self, error: StoreError) -> None:
        self._tries += 1
        if self._tries % self.settings.max_retries == 0:
            self._listener.on_failed(RebalanceFailed(self._tries, error))

    def _backoff(self) -> float:
        return self.settings.backoff * self._random.uniform(0.5, 1.5)

    def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` periodically. Errors of the store are ignored, since the work is repeated."""

        async def once() -> None:
            try:
                await work()
            except (StoreError, NotOwner) as error:
                log.debug("A periodic task failed, and is tried again: %s", error)
            if self.state is not CoordinatorState.CLOSED:
                self._every(seconds, work)

        def begin() -> None:
            Deferred.fromCoroutine(once()).addErrback(self._logged, "a periodic task failed")

        self._timers[work] = self._clock.callLater(seconds, begin)

    def _logged(self, failure: Failure, what: str) -> None:
        log.error(what, exc_info=failure.value)

    def _crashed(self, failure: Failure) -> None:
        """Stop fetching after an error of the program."""
        self._logged(failure, "the coordinator of a consumer failed")
        self._machine.handle(Event.CRASHED)
        assert failure.value is not None
        self._listener.on_failed(failure.value)
        self._closed()

    def _closed(self) -> None:
        self._lease.end()
        if self._forget is not None:
            self._forget()
            self._forget = None
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        left, self._left = self._left, []
        if self._registered is not None:
            self._registered.errback(Closed("the consumer was closed before it had joined its group"))
            self._registered = None
        for deferred in left:
            deferred.callback(None)


def consumer_name(group: str) -> str:
    """Return a unique name, in Kafka 0.8's format: group, host, time in ms, eight random hexadecimal digits."""
    host = socket.gethostname().replace("/", "-")
    return f"{group}_{host}-{wall_ms()}-{secrets.token_hex(4)}"
