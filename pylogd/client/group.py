"""A consumer's part in a group that a broker coordinates: a thread that keeps it a member, and commits.

Strategy: the thread drives `membership.Membership` on connections of its own, so that nothing that a fetch, a slow
record or the application does holds up a heartbeat. Answers to JoinGroup and SyncGroup wait for other members, and
replies come in order: those two have a connection to themselves. Commits go through a `CommitQueue`.

Rules: the state machine, the queue and the operations are touched under one lock, and no lock is held while a socket is
waited for. The application's thread takes events and says when it is done with each; what it waits for, it waits for on
a condition, so that Ctrl-C ends that. The thread is a daemon: a process that ends without `close` is taken for dead by
the coordinator after the session time-out.
"""

from __future__ import annotations

import logging
import re
import select
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pylogd.client import commits
from pylogd.client.clock import Backoff
from pylogd.client.cluster import Cluster
from pylogd.client.commits import CommitQueue
from pylogd.client.connection import Connection, Reply
from pylogd.client.errors import BrokerUnavailable, Closed, CommitFailed, RequestTimedOut, is_retriable
from pylogd.client.membership import Coordinator, Event, Identity, MemberSettings, Membership, Revoke, State
from pylogd.client.model import OffsetAndMetadata, TopicPartition
from pylogd.client.sharing import Topics
from pylogd.client.subscriptions import NO_GENERATION
from pylogd.client.wakeup import Wakeup
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.wire.messages.offset_commit import OffsetCommitRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

_log = logging.getLogger(__name__)
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_REBALANCING = frozenset({State.JOINING, State.ASSIGNING, State.SYNCING})
_LONGEST_WAIT = 60.0  # seconds, for the thread; it is woken when there is something to do


@dataclass(slots=True, eq=False)
class _Job:
    """A request to send, and who hears of the outcome, under the lock."""

    api: type[Any]
    at: Callable[[int], Any]
    answered: Callable[[Any, float], None]
    failed: Callable[[PylogdError, float], None]
    timeout: float
    highest: int | None = None
    to_coordinator: bool = True
    waits: bool = False


@dataclass(slots=True, eq=False)
class _Lookup:
    """Offsets that the application waits for."""

    group: BrokerGroup
    partitions: list[TopicPartition] | None
    not_before: float = 0.0
    flying: bool = False
    done: bool = False
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = field(default_factory=dict)
    error: PylogdError | None = None
    backoff: Backoff = field(default_factory=Backoff)

    def wait(self, timeout: float) -> bool:
        """Whether it has come, after up to `timeout` seconds."""
        return self.group.wait_until(lambda: self.done, timeout)

    @property
    def found(self) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What came. Raises KafkaError."""
        if self.error is not None:
            raise self.error
        return self.offsets


class BrokerGroup:
    """A group by its id, and this consumer's membership in it if it subscribes. Times in seconds."""

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, *, on_event: Callable[[], None], stable: bool = False
    ) -> None:
        """`cluster` is the thread's own; `on_event` is called when `next_event` or a look-up has something.

        `stable`: offsets that a transaction may still change are waited for.
        """
        self._cluster = cluster
        self._clock = cluster.clock
        self._settings = settings
        self._on_event = on_event
        self._stable = stable
        self._member = Membership(settings)
        self._changed = threading.Condition()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._flying: list[tuple[Connection, Reply, _Job]] = []
        self._queue = CommitQueue()
        self._commit_awaited: frozenset[TopicPartition] = frozenset()
        self._commit_errors: dict[TopicPartition, PylogdError] = {}
        self._commit_not_before = 0.0
        self._commit_backoff = Backoff()
        self._lookups: list[_Lookup] = []
        self._last_poll = 0.0
        self._polling = False
        self._subscribed = False
        self._stopping = False
        self._broken: BaseException | None = None
        self.has_event = False
        self.wakes = True

    # What the application's thread calls

    def subscribe(self, topics: Topics) -> None:
        """Be a member that reads topics by name, or those whose whole names match."""
        with self._changed:
            self._subscribed = True
            now = self._clock.monotonic()
            if isinstance(topics, re.Pattern):
                self._member.subscribe_pattern(lambda name: topics.fullmatch(name) is not None, now)
            else:
                self._member.subscribe(topics, now)
        self._wake()

    def leave(self) -> None:
        """Be a member no more. What the application had, it has given up."""
        with self._changed:
            self._subscribed = False
            self._member.leave(self._clock.monotonic())
            self.has_event = False
        self._wake()

    def polled(self, polling: bool) -> None:
        """The application is alive, and until it says otherwise `polling`."""
        self._last_poll = self._clock.monotonic()
        self._polling = polling
        if polling and self._member.state is State.AWAY:
            self._wake()

    def next_event(self) -> Event | None:
        """What the application has to do now; `done` with it has to follow."""
        with self._changed:
            self._check()
            self.has_event = False
            return self._member.next_event()

    def done(self, event: Event) -> None:
        """The application has obeyed an event."""
        with self._changed:
            if isinstance(event, Revoke):
                self._queue.drop(event.partitions)
            self._member.done(event, self._clock.monotonic())
        self._wake()

    def stream_of(self, partition: TopicPartition) -> None:
        """That is for the consumer to choose."""

    @property
    def may_fetch(self) -> bool:
        """Always: what has to be given up is an event."""
        return True

    @property
    def member(self) -> Membership:
        """The state machine, to look at."""
        return self._member

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background. What can't be committed is logged."""
        with self._changed:
            self._queue.put(offsets)
        self._wake()

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit, and wait until it is done. Raises CommitFailed, KafkaError, RequestTimedOut."""
        with self._changed:
            self._commit_awaited = frozenset(offsets)
            self._commit_errors = {}
            self._queue.put(offsets)
            self._wake()
            try:
                self._wait_until(lambda: not self._queue.holds(offsets), timeout)
                for error in self._commit_errors.values():
                    raise error
                if self._queue.holds(offsets):
                    group = self._settings.group_id
                    raise RequestTimedOut(f"group {group}: the commit was not answered in {timeout:g} s")
            finally:
                self._queue.drop(offsets)
                self._commit_awaited = frozenset()

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, of some partitions or of all. Raises KafkaError, RequestTimedOut."""
        lookup = self.look_up(partitions)
        if not lookup.wait(timeout):
            with self._changed:
                self._lookup_done(lookup, None)
            raise RequestTimedOut(f"group {self._settings.group_id}: no offsets in {timeout:g} s")
        return lookup.found

    def look_up(self, partitions: Iterable[TopicPartition] | None) -> _Lookup:
        """Ask what the group has committed, of some partitions or of all."""
        lookup = _Lookup(self, None if partitions is None else list(partitions))
        with self._changed:
            self._check()
            self._lookups.append(lookup)
        self._wake()
        return lookup

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait while the thread works, up to `timeout` seconds; whether `condition` holds. Raises Closed."""
        with self._changed:
            self._wait_until(condition, timeout)
            return condition()

    def close(self, timeout: float) -> None:
        """Commit what waits, leave the group, and end the thread, all within `timeout`."""
        deadline = self._clock.monotonic() + timeout
        if self._thread is None:
            self._stopping = True
            self._wakeup.close()
        else:
            with self._changed:
                if self._broken is None:
                    self._wait_until(lambda: not self._queue, timeout, quiet=True)
                    self._member.leave(self._clock.monotonic())
                    self._wake()
                    left = max(0.0, deadline - self._clock.monotonic())
                    self._wait_until(lambda: self._member.state is State.OUT, left, quiet=True)
                self._stopping = True
            self._wake()
            self._thread.join(max(0.1, deadline - self._clock.monotonic()))

    def _wait_until(self, condition: Callable[[], bool], timeout: float, *, quiet: bool = False) -> None:
        """Wait, under the lock, while the thread works. Raises what ended the thread, or the group's own error."""
        deadline = self._clock.monotonic() + timeout
        while not condition():
            if not quiet:
                self._check()
            if self._broken is not None or not self._changed.wait(max(0.0, deadline - self._clock.monotonic())):
                return

    def _check(self) -> None:
        if self._broken is not None:
            raise Closed(f"group {self._settings.group_id}: its thread ended: {self._broken!r}") from self._broken
        if self._stopping:
            raise Closed("the consumer is closed")

    def _wake(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(
                target=self._run, name=f"pylogd group {self._settings.group_id}", daemon=True
            )
            self._thread.start()
        self._wakeup.set()

    # The thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            _log.exception("group %s: the thread of its member ended", self._settings.group_id)
            with self._changed:
                self._broken = error
                self._changed.notify_all()
            self._on_event()
        finally:
            self._cluster.close()
            self._wakeup.close()

    def _turn(self) -> bool:
        """Send what is due, wait, take in what came. Whether to go on."""
        with self._changed:
            if self._stopping:
                return False
            now = self._clock.monotonic()
            jobs = self._due(now)
            until = self._next_time(now)
        for job in jobs:
            self._send(job)
        if not jobs:
            self._wait(until)
        self._land()
        return True

    def _due(self, now: float) -> list[_Job]:
        member = self._member
        if self._subscribed:
            member.polled(now if self._polling else self._last_poll)
        committing = (due := self._commit_due()) is not None and now >= due
        lookups = [lookup for lookup in self._lookups if not lookup.flying and now >= lookup.not_before]
        if member.coordinator is None and (committing or lookups):
            member.find_coordinator()
        jobs = []
        while (ask := member.next_ask(now)) is not None:
            jobs.append(
                _Job(
                    ask.api, ask.at, partial(member.answered, ask), partial(member.failed, ask), ask.timeout,
                    to_coordinator=ask.to_coordinator, waits=ask.waits,
                )
            )  # fmt: skip
        if member.coordinator is not None:
            jobs += [self._look_up(lookup) for lookup in lookups]
            if committing:
                jobs.append(self._commit_job())
        elif member.error is not None:
            self._give_up(member.error, now)
        if member.has_event != self.has_event:
            self.has_event = not self.has_event
            if self.has_event:
                self._on_event()
        self._changed.notify_all()
        return jobs

    def _next_time(self, now: float) -> float:
        times = [now + _LONGEST_WAIT]
        if (when := self._member.next_time()) is not None:
            times.append(when)
        waiting = [lookup.not_before for lookup in self._lookups if not lookup.flying]
        if (when := self._commit_due()) is not None:
            waiting.append(when)
        # Without a coordinator, what is due already has it looked for.
        times += [time for time in waiting if self._member.coordinator is not None or time > now]
        return min(times)

    def _send(self, job: _Job) -> None:
        try:
            connection = self._connection(job)
            version = connection.version_for(job.api, job.highest)
            with self._changed:
                message = job.at(version)
            reply = connection.send(message, version=version, timeout=job.timeout)
        except PylogdError as error:
            with self._changed:
                job.failed(error, self._clock.monotonic())
        else:
            self._flying.append((connection, reply, job))

    def _connection(self, job: _Job) -> Connection:
        if not job.to_coordinator:
            return self._cluster.any_connection()
        coordinator = self._member.coordinator
        if coordinator is None:
            raise BrokerUnavailable(f"group {self._settings.group_id}: the coordinator is not known")
        purpose = "joining" if job.waits else "group"
        connection = self._cluster.connection_at(*_place(coordinator), purpose)
        if job.waits and connection.in_flight:  # an answer that nobody wants any more would come first
            connection.close()
            connection = self._cluster.connection_at(*_place(coordinator), purpose)
        return connection

    def _wait(self, until: float) -> None:
        """For an answer, for the application, or for the time."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        for connection, reply, _ in self._flying:
            if reply.done or connection.closed:
                return
            poll.register(connection, select.POLLIN)
            until = min(until, reply.deadline)
        poll.poll(max(0.0, until - self._clock.monotonic()) * 1000 + 1)
        self._wakeup.clear()

    def _land(self) -> None:
        """Take in what came."""
        for connection in {id(connection): connection for connection, _, _ in self._flying}.values():
            connection.poll()
        landed = [flying for flying in self._flying if flying[1].done]
        if landed:
            self._flying = [flying for flying in self._flying if not flying[1].done]
            with self._changed:
                now = self._clock.monotonic()
                for _, reply, job in landed:
                    if reply.error is not None:
                        job.failed(reply.error, now)
                    else:
                        job.answered(reply.response, now)

    # Offsets

    def _commit_due(self) -> float | None:
        """When the next commit may go out; not while a rebalance is under way, for its end decides what is ours."""
        if not self._queue.ready or (self._subscribed and self._member.state in _REBALANCING):
            return None
        return self._commit_not_before

    def _commit_job(self) -> _Job:
        identity = self._member.identity
        offsets = self._queue.take()
        return _Job(
            OffsetCommitRequest,
            lambda version: self._commit_message(identity, offsets, version),
            lambda response, now: self._commit_answered(identity, commits.commit_errors(response), now),
            self._commit_lost,
            self._cluster.request_timeout,
            highest=commits.COMMIT_UNTIL,
        )

    def _commit_message(
        self, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata], version: int
    ) -> OffsetCommitRequest:
        if self._subscribed:
            mine = self._member.holds
            if identity.generation == NO_GENERATION or any(partition not in mine for partition in offsets):
                raise CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, "the partitions are no longer this member's")
        return commits.commit_request(identity, offsets, version)

    def _commit_answered(self, identity: Identity, errors: Mapping[TopicPartition, ErrorCode], now: float) -> None:
        for code in set(errors.values()):
            self._member.commit_refused(code, identity, now)
        if not errors:
            self._commit_backoff.reset()
        elif self._member.state in _REBALANCING and not commits.LOST_MEMBERSHIP.isdisjoint(errors.values()):
            self._queue.failed()
            return
        for partition, code in self._queue.answered(errors).items():
            kind = CommitFailed if code in commits.LOST_MEMBERSHIP else KafkaError
            self._commit_failed([partition], kind(code, f"{partition}: {code.text}"))
        if self._queue.ready:
            self._commit_not_before = now + self._commit_backoff.next()

    def _commit_lost(self, error: PylogdError, now: float) -> None:
        if not is_retriable(error):
            self._commit_failed(self._queue.refused(), error)
            return
        self._queue.failed()
        self._commit_not_before = now + self._commit_backoff.next()
        self._member.coordinator_lost(now)

    def _commit_failed(self, partitions: Iterable[TopicPartition], error: PylogdError) -> None:
        for partition in partitions:
            if partition in self._commit_awaited:
                self._commit_errors[partition] = error
            else:
                _log.warning("group %s: not committed: %s: %s", self._settings.group_id, partition, error)

    def _look_up(self, lookup: _Lookup) -> _Job:
        lookup.flying = True
        group = self._settings.group_id

        def answered(response: Any, now: float) -> None:
            try:
                lookup.offsets = commits.fetched(response)
            except KafkaError as error:
                if error.code in _COORDINATOR_MOVED:
                    self._member.coordinator_lost(now)
                failed(error, now)
            else:
                self._lookup_done(lookup, None)

        def failed(error: PylogdError, now: float) -> None:
            lookup.flying = False
            if not is_retriable(error):
                self._lookup_done(lookup, error)
                return
            if not isinstance(error, KafkaError):
                self._member.coordinator_lost(now)
            lookup.not_before = now + lookup.backoff.next()

        return _Job(
            OffsetFetchRequest,
            lambda version: commits.fetch_request(group, lookup.partitions, version, stable=self._stable),
            answered,
            failed,
            self._cluster.request_timeout,
            highest=commits.FETCH_UNTIL,
        )

    def _lookup_done(self, lookup: _Lookup, error: PylogdError | None) -> None:
        lookup.done, lookup.error = True, error
        self._on_event()
        if lookup in self._lookups:
            self._lookups.remove(lookup)

    def _give_up(self, error: PylogdError, now: float) -> None:
        """The coordinator can't be had, for a reason that will stay: whoever waits has to know."""
        for lookup in list(self._lookups):
            self._lookup_done(lookup, error)
        if self._queue.ready:
            self._queue.take()
            self._commit_failed(self._queue.refused(), error)
        if not self._subscribed:
            self._member.leave(now)


def _place(coordinator: Coordinator) -> tuple[int, str, int]:
    return coordinator.node_id, coordinator.host, coordinator.port
