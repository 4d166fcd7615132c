"""The coordinator for blocking callers, in a thread with its own loop and its own connection to ZooKeeper.

Strategy: the caller's thread and the loop's thread share only queues. Events of the coordinator are put into a queue
and fetched by `poll`; requests of the caller are run in the loop. The package's docstring has the interface and the
rules for callers.

Rules: Ctrl-C interrupts the caller's waits at once, and waits are bounded where the interface says so. No reactor of
the user is touched. A caller that does not poll keeps its partitions as long as it is connected.

Must not know: how partitions are assigned, how records are fetched.
"""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeVar, cast

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.coordinator import Coordinator, GroupSettings
from pylogd.client.zookeeper.errors import ZooKeeperUnavailable
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.client.zookeeper.loop import Loop
from pylogd.client.zookeeper.registries import GroupPaths, Subscription
from pylogd.client.zookeeper.security import connection_security
from pylogd.store.errors import StoreError
from pylogd.store.kazoo_session import Reactor
from pylogd.store.zookeeper import ZooKeeperStore

T = TypeVar("T")

#: The share of `close`'s time for leaving the group; the rest is for ending the session.
_LEAVING: Final = 0.6
#: The seconds that a failed or interrupted start waits for its end, and for the reason.
_GIVING_UP: Final = 5.0


class ZooKeeperMembership:
    """One consumer's membership in a group. Only one thread may use it, except for `may_fetch`."""

    def __init__(
        self,
        connect: str,
        group_id: str,
        subscription: Subscription | Mapping[str, int] | Iterable[str] | str | re.Pattern[str],
        *,
        initial: Literal["smallest", "largest"] = "smallest",
        session_timeout_ms: int = 6000,
        commit_interval_ms: int | None = 5000,
        rebalance_max_retries: int = 20,
        rebalance_backoff_ms: int = 500,
        operation_timeout: float = 30.0,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Nothing is connected yet. Raises ValueError.

        connect: `host:port,host:port/chroot`, where the brokers of the topics are registered.
        initial: is only for the caller; see the package.
        operation_timeout: the limit for commits and look-ups of offsets, in seconds.

        settings: see `security`.
        """
        if initial not in ("smallest", "largest"):
            raise ValueError(f"initial is smallest or largest, not {initial!r}")
        GroupPaths(group_id)
        self.initial = initial
        self._security = connection_security(settings)
        self._connect = connect
        self._group = group_id
        self._subscription = Subscription.of(subscription)
        self._session_timeout_ms = session_timeout_ms
        self._settings = (commit_interval_ms, rebalance_max_retries, rebalance_backoff_ms)
        self._timeout = operation_timeout
        self._loop = Loop("zookeeper-consumer")
        self._events: queue.SimpleQueue[Assigned | Revoked | None] = queue.SimpleQueue()
        self._commits: queue.SimpleQueue[dict[TopicPartition, int]] = queue.SimpleQueue()
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._stopping: dict[Revoked, Deferred[None]] = {}  # used only by the loop's thread
        self._store: ZooKeeperStore | None = None
        self._coordinator: Coordinator | None = None
        self._running = self._leaving = False

    def start(self, timeout: float = 30.0) -> None:
        """Connect and register. Raises `ZooKeeperUnavailable` if that takes longer than `timeout` seconds."""
        if self._running or self._leaving:
            raise Closed("a membership is started once")
        self._running = True
        self._loop.start()
        try:
            self._ask(lambda: Deferred.fromCoroutine(self._start(timeout)), timeout + _GIVING_UP)
        except StoreError as error:
            self.close(_GIVING_UP)
            raise ZooKeeperUnavailable(str(error)) from error
        except BaseException:
            self.close(_GIVING_UP)
            raise

    def poll(self, timeout: float = 0.0) -> list[Assigned | Revoked]:
        """Return the events since the last call. Wait up to `timeout` seconds for the first event.

        Raises the errors that the coordinator reports to `on_failed`, mostly `RebalanceFailed`; the next call
        continues.
        """
        if not self._running:
            raise Closed("the membership is closed")
        found: list[Assigned | Revoked] = []
        deadline = time.monotonic() + timeout
        while not found and self._failures.empty():
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return found
            while event is not None or not self._events.empty():
                if event is not None:
                    found.append(event)
                event = None if self._events.empty() else self._events.get()
        if not found:
            raise self._failures.get()
        return found

    def done(self, event: Assigned | Revoked) -> None:
        """Record that the caller has carried out an event. Revoked partitions are released now."""
        if isinstance(event, Revoked):
            self._loop.callFromThread(self._stopped, event)

    def take_committed(self) -> list[dict[TopicPartition, int]]:
        """Return the offsets of each commit since the last call: explicit and periodic commits, and commits at
        releases.
        """
        found = []
        while not self._commits.empty():
            found.append(self._commits.get())
        return found

    @property
    def may_fetch(self) -> bool:
        """Whether records may be handed out at this moment. Any thread may ask."""
        return self._running and self._coordinator is not None and self._coordinator.may_fetch

    @property
    def consumer(self) -> str:
        """The consumer's name in the registries, which changes with each loss of its session; "" while it has none."""
        return "" if self._coordinator is None else self._coordinator.consumer

    def store(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets of processed records, for the next periodic commit or the release of the partition."""
        if self._coordinator is not None:
            self._loop.callFromThread(self._coordinator.store_offsets, dict(offsets))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit now. Raises `NotOwner`, `ZooKeeperUnavailable`."""
        wanted = dict(offsets)
        self._ask(lambda: self._joined().commit(wanted), self._timeout)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the group's committed offsets; None for partitions without one. Raises `ZooKeeperUnavailable`."""
        wanted = list(partitions)
        return self._ask(lambda: self._joined().committed(wanted), self._timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Commit stored offsets, release partitions, leave the group and end the session, as far as `timeout` seconds
        allow. The caller must have stopped fetching; events without `done` count as carried out. A session that could
        not be ended expires in ZooKeeper.
        """
        if not self._running:
            return
        self._running = False
        answer = self._begin(lambda: Deferred.fromCoroutine(self._close(timeout)))
        try:
            answer.get(timeout=timeout)
        except queue.Empty:
            return  # the thread continues to end by itself
        self._loop.join(1.0)

    # -- between the threads

    def _begin(self, work: Callable[[], Deferred[T]]) -> queue.SimpleQueue[T | Failure]:
        answer: queue.SimpleQueue[T | Failure] = queue.SimpleQueue()
        self._loop.callFromThread(lambda: maybeDeferred(work).addBoth(answer.put))
        return answer

    def _ask(self, work: Callable[[], Deferred[T]], timeout: float) -> T:
        if not self._running:
            raise Closed("the membership is closed")
        try:
            result = self._begin(work).get(timeout=timeout)
        except queue.Empty:
            raise ZooKeeperUnavailable(f"ZooKeeper did not answer within {timeout:g} s") from None
        if isinstance(result, Failure):
            result.raiseException()
        return result

    # -- in the loop's thread

    async def _start(self, timeout: float) -> None:
        commit_interval_ms, max_retries, backoff_ms = self._settings
        self._store = store = ZooKeeperStore(
            self._connect,
            cast(Reactor, self._loop),  # its arguments have the names of Twisted's interfaces
            session_timeout_ms=self._session_timeout_ms,
            connection_timeout_ms=int(timeout * 1000),
            security=self._security,
        )
        await store.start()
        settings = GroupSettings(
            session_timeout=store.session_timeout,
            commit_interval=None if commit_interval_ms is None else commit_interval_ms / 1000,
            max_retries=max_retries,
            backoff=backoff_ms / 1000,
        )
        self._coordinator = Coordinator(
            store, self._loop, self._group, self._subscription, self, settings, on_commit=self._commits.put
        )
        await self._coordinator.start()

    async def _close(self, timeout: float) -> None:
        self._leaving = True
        for event in list(self._stopping):
            self._stopped(event)
        try:
            if self._coordinator is not None:
                left = self._coordinator.close()
                await left.addTimeout(_LEAVING * timeout, self._loop, onTimeoutCancel=lambda *_: None)
        finally:
            if self._store is not None:
                await self._store.close()
            self._loop.stop()

    def _joined(self) -> Coordinator:
        assert self._coordinator is not None
        return self._coordinator

    def _stopped(self, event: Revoked) -> None:
        stopped = self._stopping.pop(event, None)
        if stopped is not None:
            stopped.callback(None)

    # -- reports of the coordinator

    def on_assigned(self, event: Assigned) -> None:
        """See `IConsumer`."""
        self._events.put(event)

    def on_revoked(self, event: Revoked) -> Deferred[None] | None:
        """See `IConsumer`."""
        stopped: Deferred[None] | None = None
        if not self._leaving:
            self._stopping[event] = stopped = Deferred()
        self._events.put(event)  # last, since the application's thread may take the event at once
        return stopped

    def on_failed(self, error: BaseException) -> None:
        """See `IConsumer`."""
        self._failures.put(error)
        self._events.put(None)
