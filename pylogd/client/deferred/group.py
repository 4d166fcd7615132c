"""A consumer's part in a group that a broker coordinates, on Twisted: it keeps it a member, and commits.

Strategy: as the blocking face's (`client/group.py`): it drives a `Participation`, by the reactor's timer in place of a
thread. Answers to JoinGroup and SyncGroup wait for other members, and replies come in order: those two
have a connection to themselves.

Rules: what is due is sent in `_turn`, which follows whatever happens. A reactor that is held up for
the session time-out loses the membership.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from pylogd.client.core.errors import BrokerUnavailable, Closed, RequestTimedOut
from pylogd.client.core.group.member import Membership
from pylogd.client.core.group.member_model import Event, MemberSettings, State
from pylogd.client.core.group.participation import Found, Job, Lookup, Offsets, Participation
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Bell, Tasks
from pylogd.errors import PylogdError
from pylogd.net.client import BrokerConnection

log = Logger()


class BrokerGroup:
    """A group by its id, and this consumer's membership in it if it subscribes. Times in seconds."""

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, *, on_event: Callable[[], None], stable: bool = False
    ) -> None:
        """`on_event` is called when `next_event` has one. `stable`: offsets that a transaction may still change are
        waited for.
        """
        self._cluster = cluster
        self._settings = settings
        self._part = Participation(
            settings, stable=stable, request_timeout=cluster.request_timeout, on_event=on_event, unheard=self._unheard
        )
        self._tasks = Tasks()
        self._changed = Bell(cluster.reactor)
        self._timer: IDelayedCall | None = None
        self._in_turn = self._again = False

    @property
    def member(self) -> Membership:
        """The state machine, to look at."""
        return self._part.member

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may have something."""
        return self._part.has_event

    @property
    def may_fetch(self) -> bool:
        """Always: what has to be given up is an event."""
        return True

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Be a member that reads topics by name, or those whose whole names match."""
        self._part.subscribe(topics, self._cluster.seconds())
        self._turn()

    def leave(self) -> None:
        """Be a member no more. What the application had, it has given up."""
        self._part.leave(self._cluster.seconds())
        self._turn()

    def polled(self, polling: bool) -> None:
        """The application is alive, and until it says otherwise `polling`."""
        self._part.polled(polling, self._cluster.seconds())
        if polling and self._part.subscribed:
            self._turn()

    def next_event(self) -> Event | None:
        """What the application has to do now; `done` with it has to follow."""
        return self._part.next_event()

    def done(self, event: Event) -> None:
        """The application has obeyed an event."""
        self._part.done(event, self._cluster.seconds())
        self._turn()

    # Offsets

    def commit_soon(self, offsets: Offsets) -> None:
        """Commit in the background. What can't be committed is logged."""
        self._part.queue.put(offsets)
        self._turn()

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        """Commit, and wait until it is done. Raises CommitFailed, KafkaError, RequestTimedOut, Closed."""
        awaited = self._part.begin_commit(offsets)
        deadline = self._cluster.seconds() + timeout
        try:
            self._turn()
            while self._part.queue.holds(offsets) and self._cluster.seconds() < deadline:
                self._check()
                await self._changed.wait(deadline)
            if awaited.errors:
                raise awaited.errors[0]
            if self._part.queue.holds(offsets):
                group = self._settings.group_id
                raise RequestTimedOut(f"group {group}: the commit was not answered in {timeout:g} s")
        finally:
            self._part.end_commit(awaited)

    async def look_up(self, partitions: list[TopicPartition] | None) -> Found:
        """What the group has committed, of some partitions or of all. Raises KafkaError, Closed."""
        self._check()
        fired: Deferred[Found] = Deferred()
        lookup = Lookup(partitions, lambda lookup: _fire(fired, lookup))
        self._part.look_up(lookup)
        try:
            self._turn()
            return await fired
        finally:
            self._part.forget(lookup)

    async def close(self, timeout: float) -> None:
        """Commit what waits and leave the group, both within `timeout`."""
        deadline = self._cluster.seconds() + timeout
        self._turn()
        while self._part.queue and self._cluster.seconds() < deadline and self.member.error is None:
            await self._changed.wait(deadline)
        self.leave()
        while self.member.state is not State.OUT and self._cluster.seconds() < deadline:
            await self._changed.wait(deadline)
        self.stop()

    def stop(self) -> None:
        """Do nothing more."""
        self._tasks.stop()
        self._stop_timer()
        self._part.fail_lookups(Closed("the consumer is closed"))
        self._changed.ring()

    def _check(self) -> None:
        if self._tasks.stopped:
            raise Closed("the consumer is closed")

    # Turns

    def _turn(self) -> None:
        """Send what is due, and set the timer for what is next."""
        if self._in_turn:
            self._again = True
            return
        if self._tasks.stopped:
            return
        self._in_turn = True
        try:
            self._again = True
            while self._again and not self._tasks.stopped:
                self._again = False
                for job in self._part.due(self._cluster.seconds()):
                    self._tasks.start(self._send(job))
        finally:
            self._in_turn = False
        self._set_timer()
        self._changed.ring()

    def _set_timer(self) -> None:
        self._stop_timer()
        now = self._cluster.seconds()
        when = self._part.next_time(now)
        if when is not None and not self._tasks.stopped:
            self._timer = self._cluster.reactor.callLater(max(0.0, when - now), self._turn)

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    # Requests

    async def _send(self, job: Job) -> None:
        try:
            connection = await self._connection(job)
            version = connection.version_for(job.api, job.highest)
            response = await connection.request(job.at(version), version=version, timeout=job.timeout)
        except PylogdError as error:
            job.failed(error, self._cluster.seconds())
        else:
            job.answered(response, self._cluster.seconds())
        self._turn()

    async def _connection(self, job: Job) -> BrokerConnection:
        if not job.to_coordinator:
            return await self._cluster.connection(None)
        connection = await self._to_coordinator("joining" if job.waits else "group")
        if job.waits and connection.in_flight:  # an answer that nobody wants any more would come first
            connection.close()
            connection = await self._to_coordinator("joining")
        return connection

    async def _to_coordinator(self, purpose: str) -> BrokerConnection:
        coordinator = self.member.coordinator
        if coordinator is None:
            raise BrokerUnavailable(f"group {self._settings.group_id}: the coordinator is not known")
        place = (coordinator.node_id, coordinator.host, coordinator.port)
        return await self._cluster.connection_at(*place, purpose=purpose)

    def _unheard(self, partition: TopicPartition, error: PylogdError) -> None:
        group = self._settings.group_id
        log.warn("group {group}: not committed: {place}: {why}", group=group, place=partition, why=error)


def _fire(fired: Deferred[Found], lookup: Lookup) -> None:
    if fired.called:  # who waited has cancelled
        return
    if lookup.error is not None:
        fired.errback(lookup.error)
    else:
        fired.callback(lookup.offsets)
