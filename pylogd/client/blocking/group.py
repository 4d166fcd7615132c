"""A consumer's part in a group that a broker coordinates: a thread that keeps it a member, and commits.

Strategy: the thread drives a `Participation` on connections of its own, so that nothing that a fetch, a slow record or
the application does holds up a heartbeat. Answers to JoinGroup and SyncGroup wait for other members, and replies come
in order: those two have a connection to themselves.

Rules: the participation is touched under one lock, and no lock is held while a socket is waited for. The application's
thread takes events and says when it is done with each; what it waits for, it waits for on a condition, so that Ctrl-C
ends that. The thread is a daemon: a process that ends without `close` is taken for dead by the coordinator after the
session time-out.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterable, Mapping

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.connection import Connection, Reply
from pylogd.client.blocking.wakeup import Wakeup
from pylogd.client.core.errors import BrokerUnavailable, Closed, RequestTimedOut
from pylogd.client.core.group.member import Membership
from pylogd.client.core.group.member_model import Coordinator, Event, MemberSettings, State
from pylogd.client.core.group.participation import Job, Lookup, Participation
from pylogd.client.core.group.sharing import Topics
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.errors import PylogdError

_log = logging.getLogger(__name__)
_LONGEST_WAIT = 60.0  # seconds, for the thread; it is woken when there is something to do


class _Lookup(Lookup):
    """Offsets that the application's thread waits for."""

    def __init__(
        self, group: BrokerGroup, partitions: list[TopicPartition] | None, on_event: Callable[[], None]
    ) -> None:
        super().__init__(partitions, lambda _: on_event())
        self._group = group

    def wait(self, timeout: float) -> bool:
        """Whether it has come, after up to `timeout` seconds."""
        return self._group.wait_until(lambda: self.done, timeout)

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
        self._part = Participation(
            settings, stable=stable, request_timeout=cluster.request_timeout, on_event=on_event, unheard=self._unheard
        )
        self._changed = threading.Condition()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._flying: list[tuple[Connection, Reply, Job]] = []
        self._stopping = False
        self._broken: BaseException | None = None
        self.wakes = True

    # What the application's thread calls

    def subscribe(self, topics: Topics) -> None:
        """Be a member that reads topics by name, or those whose whole names match."""
        with self._changed:
            self._part.subscribe(topics, self._clock.monotonic())
        self._wake()

    def leave(self) -> None:
        """Be a member no more. What the application had, it has given up."""
        with self._changed:
            self._part.leave(self._clock.monotonic())
        self._wake()

    def polled(self, polling: bool) -> None:
        """The application is alive, and until it says otherwise `polling`."""
        self._part.polled(polling, self._clock.monotonic())
        if polling and self._part.member.state is State.AWAY:
            self._wake()

    def next_event(self) -> Event | None:
        """What the application has to do now; `done` with it has to follow."""
        with self._changed:
            self._check()
            return self._part.next_event()

    def done(self, event: Event) -> None:
        """The application has obeyed an event."""
        with self._changed:
            self._part.done(event, self._clock.monotonic())
        self._wake()

    def stream_of(self, partition: TopicPartition) -> None:
        """That is for the consumer to choose."""

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may have something."""
        return self._part.has_event

    @property
    def may_fetch(self) -> bool:
        """Always: what has to be given up is an event."""
        return True

    @property
    def member(self) -> Membership:
        """The state machine, to look at."""
        return self._part.member

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background. What can't be committed is logged."""
        with self._changed:
            self._part.queue.put(offsets)
        self._wake()

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit, and wait until it is done. Raises CommitFailed, KafkaError, RequestTimedOut."""
        with self._changed:
            awaited = self._part.begin_commit(offsets)
            self._wake()
            try:
                self._wait_until(lambda: not self._part.queue.holds(offsets), timeout)
                if awaited.errors:
                    raise awaited.errors[0]
                if self._part.queue.holds(offsets):
                    group = self._settings.group_id
                    raise RequestTimedOut(f"group {group}: the commit was not answered in {timeout:g} s")
            finally:
                self._part.end_commit(awaited)

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, of some partitions or of all. Raises KafkaError, RequestTimedOut."""
        lookup = self.look_up(partitions)
        if not lookup.wait(timeout):
            with self._changed:
                self._part.forget(lookup)
            raise RequestTimedOut(f"group {self._settings.group_id}: no offsets in {timeout:g} s")
        return lookup.found

    def look_up(self, partitions: Iterable[TopicPartition] | None) -> _Lookup:
        """Ask what the group has committed, of some partitions or of all."""
        lookup = _Lookup(self, None if partitions is None else list(partitions), self._on_event)
        with self._changed:
            self._check()
            self._part.look_up(lookup)
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
                    self._wait_until(lambda: not self._part.queue, timeout, quiet=True)
                    self._part.leave(self._clock.monotonic())
                    self._wake()
                    left = max(0.0, deadline - self._clock.monotonic())
                    self._wait_until(lambda: self._part.member.state is State.OUT, left, quiet=True)
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
            jobs = self._part.due(now)
            due = self._part.next_time(now)
            until = now + _LONGEST_WAIT if due is None else min(now + _LONGEST_WAIT, due)
            self._changed.notify_all()
        for job in jobs:
            self._send(job)
        if not jobs:
            self._wait(until)
        self._land()
        return True

    def _send(self, job: Job) -> None:
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

    def _connection(self, job: Job) -> Connection:
        if not job.to_coordinator:
            return self._cluster.any_connection()
        coordinator = self._part.member.coordinator
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

    def _unheard(self, partition: TopicPartition, error: PylogdError) -> None:
        _log.warning("group %s: not committed: %s: %s", self._settings.group_id, partition, error)


def _place(coordinator: Coordinator) -> tuple[int, str, int]:
    return coordinator.node_id, coordinator.host, coordinator.port
