"""A consumer's part in a group that a broker coordinates, on Twisted: it keeps it a member, and commits.

Strategy: as the blocking face's (`client/group.py`): it drives `Membership` and a `CommitQueue`, by the reactor's timer
in place of a thread. Answers to JoinGroup and SyncGroup wait for other members, and replies come in order: those two
have a connection to themselves.

Rules: what the state machine wants is sent in `_turn`, which follows whatever happens. A reactor that is held up for
the session time-out loses the membership.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from pylogd.client import commits
from pylogd.client.clock import Backoff
from pylogd.client.commits import CommitQueue
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Bell, Tasks
from pylogd.client.errors import BrokerUnavailable, Closed, CommitFailed, RequestTimedOut, is_retriable
from pylogd.client.membership import Ask, Event, Identity, MemberSettings, Membership, Revoke, State
from pylogd.client.model import OffsetAndMetadata, TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.net.client import BrokerConnection
from pylogd.wire.messages.offset_commit import OffsetCommitRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

log = Logger()

_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_REBALANCING = frozenset({State.JOINING, State.ASSIGNING, State.SYNCING})

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Found = dict[TopicPartition, OffsetAndMetadata | None]


@dataclass(slots=True, eq=False)
class _Lookup:
    """Offsets that somebody waits for."""

    partitions: list[TopicPartition] | None
    fired: Deferred[Found]
    not_before: float = 0.0
    flying: bool = False
    backoff: Backoff = field(default_factory=Backoff)


class BrokerGroup:
    """A group by its id, and this consumer's membership in it if it subscribes. Times in seconds."""

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, *, on_event: Callable[[], None], stable: bool = False
    ) -> None:
        """`on_event` is called when `next_event` has one. `stable`: offsets that a transaction may still change are
        waited for.
        """
        self.member = Membership(settings)
        self.has_event = False
        self._cluster = cluster
        self._settings = settings
        self._on_event = on_event
        self._stable = stable
        self._tasks = Tasks()
        self._changed = Bell(cluster.reactor)
        self._timer: IDelayedCall | None = None
        self._queue = CommitQueue()
        self._awaited: list[tuple[frozenset[TopicPartition], list[PylogdError]]] = []  # commits, and what went wrong
        self._commit_not_before = 0.0
        self._commit_backoff = Backoff()
        self._lookups: list[_Lookup] = []
        self._last_poll = 0.0
        self._polling = False
        self._subscribed = False
        self._in_turn = self._again = False

    @property
    def may_fetch(self) -> bool:
        """Always: what has to be given up is an event."""
        return True

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Be a member that reads topics by name, or those whose whole names match."""
        self._subscribed = True
        self._last_poll = now = self._cluster.seconds()
        if isinstance(topics, re.Pattern):
            self.member.subscribe_pattern(lambda name: topics.fullmatch(name) is not None, now)
        else:
            self.member.subscribe(topics, now)
        self._turn()

    def leave(self) -> None:
        """Be a member no more. What the application had, it has given up."""
        self._subscribed = False
        self.member.leave(self._cluster.seconds())
        self.has_event = False
        self._turn()

    def polled(self, polling: bool) -> None:
        """The application is alive, and until it says otherwise `polling`."""
        self._last_poll = self._cluster.seconds()
        self._polling = polling
        if polling and self._subscribed:
            self._turn()

    def next_event(self) -> Event | None:
        """What the application has to do now; `done` with it has to follow."""
        self.has_event = False
        return self.member.next_event()

    def done(self, event: Event) -> None:
        """The application has obeyed an event."""
        if isinstance(event, Revoke):
            self._queue.drop(event.partitions)
        self.member.done(event, self._cluster.seconds())
        self._turn()

    # Offsets

    def commit_soon(self, offsets: Offsets) -> None:
        """Commit in the background. What can't be committed is logged."""
        self._queue.put(offsets)
        self._turn()

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        """Commit, and wait until it is done. Raises CommitFailed, KafkaError, RequestTimedOut, Closed."""
        awaited: tuple[frozenset[TopicPartition], list[PylogdError]] = (frozenset(offsets), [])
        self._awaited.append(awaited)
        self._queue.put(offsets)
        deadline = self._cluster.seconds() + timeout
        try:
            self._turn()
            while self._queue.holds(offsets) and self._cluster.seconds() < deadline:
                self._check()
                await self._changed.wait(deadline)
            if awaited[1]:
                raise awaited[1][0]
            if self._queue.holds(offsets):
                group = self._settings.group_id
                raise RequestTimedOut(f"group {group}: the commit was not answered in {timeout:g} s")
        finally:
            self._queue.drop(offsets)
            self._awaited.remove(awaited)

    async def look_up(self, partitions: list[TopicPartition] | None) -> Found:
        """What the group has committed, of some partitions or of all. Raises KafkaError, Closed."""
        self._check()
        lookup = _Lookup(partitions, Deferred())
        self._lookups.append(lookup)
        try:
            self._turn()
            return await lookup.fired
        finally:
            if lookup in self._lookups:
                self._lookups.remove(lookup)

    async def close(self, timeout: float) -> None:
        """Commit what waits and leave the group, both within `timeout`."""
        deadline = self._cluster.seconds() + timeout
        self._turn()
        while self._queue and self._cluster.seconds() < deadline and self.member.error is None:
            await self._changed.wait(deadline)
        self.leave()
        while self.member.state is not State.OUT and self._cluster.seconds() < deadline:
            await self._changed.wait(deadline)
        self.stop()

    def stop(self) -> None:
        """Do nothing more."""
        self._tasks.stop()
        self._stop_timer()
        for lookup in list(self._lookups):
            self._looked_up(lookup, Closed("the consumer is closed"))
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
                self._send_due(self._cluster.seconds())
        finally:
            self._in_turn = False
        self._set_timer()
        self._changed.ring()

    def _send_due(self, now: float) -> None:
        member = self.member
        if self._subscribed:
            member.polled(now if self._polling else self._last_poll)
        committing = (due := self._commit_due()) is not None and now >= due
        lookups = [lookup for lookup in self._lookups if not lookup.flying and now >= lookup.not_before]
        if member.coordinator is None and (committing or lookups):
            member.find_coordinator()
        while (ask := member.next_ask(now)) is not None:
            self._tasks.start(self._ask(ask))
        if member.coordinator is not None:
            for lookup in lookups:
                lookup.flying = True
                self._tasks.start(self._look_up(lookup))
            if committing:
                self._tasks.start(self._commit(member.identity, self._queue.take()))
        elif member.error is not None:
            self._give_up(member.error, now)
        if member.has_event != self.has_event:
            self.has_event = member.has_event
            if self.has_event:
                self._on_event()

    def _set_timer(self) -> None:
        self._stop_timer()
        now, times = self._cluster.seconds(), []
        if (when := self.member.next_time()) is not None:
            times.append(when)
        waiting = [lookup.not_before for lookup in self._lookups if not lookup.flying]
        if (when := self._commit_due()) is not None:
            waiting.append(when)
        # Without a coordinator, what is due already has it looked for.
        times += [time for time in waiting if self.member.coordinator is not None or time > now]
        if times and not self._tasks.stopped:
            self._timer = self._cluster.reactor.callLater(max(0.0, min(times) - now), self._turn)

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    # Requests

    async def _ask(self, ask: Ask) -> None:
        try:
            connection = await self._connection(ask)
            version = connection.version_for(ask.api)
            response = await connection.request(ask.at(version), version=version, timeout=ask.timeout)
        except PylogdError as error:
            self.member.failed(ask, error, self._cluster.seconds())
        else:
            self.member.answered(ask, response, self._cluster.seconds())
        self._turn()

    async def _connection(self, ask: Ask) -> BrokerConnection:
        if not ask.to_coordinator:
            return await self._cluster.connection(None)
        connection = await self._to_coordinator("joining" if ask.waits else "group")
        if ask.waits and connection.in_flight:  # an answer that nobody wants any more would come first
            connection.close()
            connection = await self._to_coordinator("joining")
        return connection

    async def _to_coordinator(self, purpose: str) -> BrokerConnection:
        coordinator = self.member.coordinator
        if coordinator is None:
            raise BrokerUnavailable(f"group {self._settings.group_id}: the coordinator is not known")
        place = (coordinator.node_id, coordinator.host, coordinator.port)
        return await self._cluster.connection_at(*place, purpose=purpose)

    def _commit_due(self) -> float | None:
        """When the next commit may go out; not while a rebalance is under way, for its end decides what is ours."""
        if not self._queue.ready or (self._subscribed and self.member.state in _REBALANCING):
            return None
        return self._commit_not_before

    async def _commit(self, identity: Identity, offsets: Offsets) -> None:
        try:
            if self._subscribed and any(partition not in self.member.holds for partition in offsets):
                raise CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, "the partitions are no longer this member's")
            connection = await self._to_coordinator("group")
            version = connection.version_for(OffsetCommitRequest, commits.COMMIT_UNTIL)
            message = commits.commit_request(identity, offsets, version)
            response = await connection.request(message, version=version, timeout=self._cluster.request_timeout)
        except PylogdError as error:
            self._commit_lost(error)
        else:
            self._commit_answered(identity, commits.commit_errors(response))
        self._turn()

    def _commit_answered(self, identity: Identity, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        now = self._cluster.seconds()
        for code in set(errors.values()):
            self.member.commit_refused(code, identity, now)
        if not errors:
            self._commit_backoff.reset()
        elif self.member.state in _REBALANCING and not commits.LOST_MEMBERSHIP.isdisjoint(errors.values()):
            self._queue.failed()
            return
        for partition, code in self._queue.answered(errors).items():
            kind = CommitFailed if code in commits.LOST_MEMBERSHIP else KafkaError
            self._commit_failed([partition], kind(code, f"{partition}: {code.text}"))
        if self._queue.ready:
            self._commit_not_before = now + self._commit_backoff.next()

    def _commit_lost(self, error: PylogdError) -> None:
        now = self._cluster.seconds()
        if not is_retriable(error):
            self._commit_failed(self._queue.refused(), error)
            return
        self._queue.failed()
        self._commit_not_before = now + self._commit_backoff.next()
        self.member.coordinator_lost(now)

    def _commit_failed(self, partitions: Iterable[TopicPartition], error: PylogdError) -> None:
        for partition in partitions:
            told = [errors for awaited, errors in self._awaited if partition in awaited]
            for errors in told:
                errors.append(error)
            if not told:
                group = self._settings.group_id
                log.warn("group {group}: not committed: {place}: {why}", group=group, place=partition, why=error)

    async def _look_up(self, lookup: _Lookup) -> None:
        try:
            connection = await self._to_coordinator("group")
            version = connection.version_for(OffsetFetchRequest, commits.FETCH_UNTIL)
            message = commits.fetch_request(self._settings.group_id, lookup.partitions, version, stable=self._stable)
            response = await connection.request(message, version=version, timeout=self._cluster.request_timeout)
            found = commits.fetched(response)
        except PylogdError as error:
            now = self._cluster.seconds()
            lookup.flying = False
            if not is_retriable(error):
                self._looked_up(lookup, error)
            else:
                if not isinstance(error, KafkaError) or error.code in _COORDINATOR_MOVED:
                    self.member.coordinator_lost(now)
                lookup.not_before = now + lookup.backoff.next()
        else:
            self._looked_up(lookup, found)
        self._turn()

    def _looked_up(self, lookup: _Lookup, result: Any) -> None:
        if lookup in self._lookups:
            self._lookups.remove(lookup)
        if not lookup.fired.called:
            if isinstance(result, PylogdError):
                lookup.fired.errback(result)
            else:
                lookup.fired.callback(result)

    def _give_up(self, error: PylogdError, now: float) -> None:
        """The coordinator can't be had, for a reason that will stay: whoever waits has to know."""
        for lookup in list(self._lookups):
            self._looked_up(lookup, error)
        if self._queue.ready:
            self._queue.take()
            self._commit_failed(self._queue.refused(), error)
        if not self._subscribed:
            self.member.leave(now)
