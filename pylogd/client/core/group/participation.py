"""A consumer's part in a group that a broker coordinates, without I/O: membership, commits and look-ups together.

Strategy: the driver, a thread or an event loop, sends the calls that `due` returns, reports their outcomes, and calls
`due` again at `next_time`. A `GroupMember` of either protocol is the state machine; commits go through a `CommitQueue`,
one request at a time; look-ups ask what the group has committed.

Rules: a commit is sent only for partitions that this member holds, and not during a rebalance, whose end decides which
partitions these are. The coordinator is looked up when a request is due; if the look-up fails for good, all waiting
commits and look-ups fail. No clock, no socket, no thread; one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call, Endpoint
from pylogd.client.core.errors import BrokerUnavailable, CommitFailed, is_retriable
from pylogd.client.core.group import commits
from pylogd.client.core.group.classic_member import ClassicMember
from pylogd.client.core.group.commits import CommitQueue
from pylogd.client.core.group.consumer_member import ConsumerMember
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.group.member_model import NOBODY, Event, GroupMetadata, MemberSettings, Revoke
from pylogd.client.core.group.membership import GroupMember
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.messages.offset_commit import OffsetCommitRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

#: A connection to the coordinator that the members of one client share, for requests that are answered at once.
_GROUP = "group"
_NUMBERS = count(1)
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Found = dict[TopicPartition, OffsetAndMetadata | None]


@dataclass(slots=True, eq=False)
class OffsetLookup:
    """A look-up of committed offsets, of some partitions or of all. `on_done` is called once, with `done` set."""

    partitions: list[TopicPartition] | None
    on_done: Callable[[OffsetLookup], None]
    done: bool = False
    offsets: Found = field(default_factory=dict)
    error: PylogdError | None = None
    not_before: float = 0.0
    in_flight: bool = False
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit with a caller who waits for it, and its errors."""

    partitions: frozenset[TopicPartition]
    errors: list[PylogdError] = field(default_factory=list)


class Participation:
    """See the module. Times are in seconds.

    on_event: called when `next_event` has an event.
    unheard: called with each failed commit for which nobody waited.
    stable: whether look-ups wait for offsets that a transaction may still change.
    """

    def __init__(
        self,
        settings: MemberSettings,
        *,
        stable: bool,
        request_timeout: float,
        on_event: Callable[[], None],
        unheard: Callable[[TopicPartition, PylogdError], None],
    ) -> None:
        self.member: GroupMember = (ConsumerMember if settings.protocol == "consumer" else ClassicMember)(settings)
        self.queue = CommitQueue()
        self.has_event = False
        self.subscribed = False
        self._group_id = settings.group_id
        self._stable = stable
        self._request_timeout = request_timeout
        self._on_event = on_event
        self._unheard = unheard
        #: called with committed offsets
        self.on_commit: Callable[[Offsets], object] = lambda _: None
        self._awaited: list[PendingCommit] = []
        self._commit_not_before = 0.0
        self._commit_backoff = Backoff()
        self._lookups: list[OffsetLookup] = []
        # Answers to JoinGroup and SyncGroup wait for other members, and a connection answers in order. So each member
        # has its own connection, and never waits for another member of the same client.
        self._joining = f"joining {next(_NUMBERS)}"
        self._last_poll: float | None = 0.0  # None while the application polls

    # What the application wants

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], now: float) -> None:
        """Become a member that reads topics by name, or topics whose whole names match a pattern.

        Raises ValueError for a pattern that the broker can't match.
        """
        if isinstance(topics, re.Pattern):
            self.member.subscribe_pattern(topics, now)
        else:
            self.member.subscribe(topics, now)
        self.subscribed = True
        if self._last_poll is not None:
            self._last_poll = now

    def leave(self, now: float) -> None:
        """Leave the group. The application has given up all its partitions."""
        self.subscribed = False
        self.member.leave(now)
        self.has_event = False

    def polled(self, polling: bool, now: float) -> None:
        """Record that the application is alive; while `polling`, it counts as alive continuously."""
        self._last_poll = None if polling else now

    def next_event(self) -> Event | None:
        """Return the next event for the application, or None. Call `done` when the application has handled it."""
        self.has_event = False
        return self.member.next_event()

    def done(self, event: Event, now: float) -> None:
        """Record that the application has carried out an event."""
        if isinstance(event, Revoke):
            self.queue.drop(event.partitions)
        self.member.done(event, now)

    def begin_commit(self, offsets: Offsets) -> PendingCommit:
        """Commit for a caller that waits until the queue no longer holds the partitions. Call `end_commit` then."""
        awaited = PendingCommit(frozenset(offsets))
        self._awaited.append(awaited)
        self.queue.put(offsets)
        return awaited

    def end_commit(self, awaited: PendingCommit) -> None:
        """Drop a commit that its caller no longer waits for; unsent offsets are not sent."""
        self.queue.drop(awaited.partitions)
        self._awaited.remove(awaited)

    def look_up(self, lookup: OffsetLookup) -> None:
        """Look up the group's committed offsets."""
        self._lookups.append(lookup)

    def forget(self, lookup: OffsetLookup) -> None:
        """Drop a look-up that its caller no longer waits for."""
        if lookup in self._lookups:
            self._lookups.remove(lookup)

    def fail_lookups(self, error: PylogdError) -> None:
        """Fail all look-ups."""
        for lookup in list(self._lookups):
            self._finish(lookup, error)

    def reset(self, now: float) -> None:
        """Drop all requests in flight: the connections are closed, and no answer will arrive."""
        error = BrokerUnavailable("the request was interrupted")
        self.member.reset(error, now)
        if not self.queue.ready:
            self.queue.failed()
        for lookup in self._lookups:
            lookup.in_flight = False

    # Time

    def due(self, now: float) -> list[Call]:
        """Return the calls to send now."""
        member = self.member
        if self.subscribed:
            member.polled(now if self._last_poll is None else self._last_poll)
        committing = (due := self._commit_due()) is not None and now >= due
        lookups = [lookup for lookup in self._lookups if not lookup.in_flight and now >= lookup.not_before]
        if member.coordinator is None and (committing or lookups):
            member.find_coordinator()
        calls = []
        while (request := member.next_request(now)) is not None:
            calls.append(
                Call(
                    request.api, request.build, partial(member.answered, request), partial(member.failed, request),
                    request.timeout, self._coordinator() if request.to_coordinator else None,
                    self._joining if request.waits else _GROUP if request.to_coordinator else "",
                    exclusive=request.waits,
                )
            )  # fmt: skip
        if member.coordinator is not None:
            calls += [self._lookup_call(lookup) for lookup in lookups]
            if committing:
                calls.append(self._commit_call())
        elif member.error is not None:
            self._give_up(member.error, now)
        if member.has_event != self.has_event:
            self.has_event = not self.has_event
            if self.has_event:
                self._on_event()
        return calls

    def next_time(self, now: float) -> float | None:
        """Return when to call `due`, unless an event comes first."""
        times = []
        if (when := self.member.next_time()) is not None:
            times.append(when)
        waiting = [lookup.not_before for lookup in self._lookups if not lookup.in_flight]
        if (when := self._commit_due()) is not None:
            waiting.append(when)
        # Without a coordinator, due requests have already started a look-up.
        times += [time for time in waiting if self.member.coordinator is not None or time > now]
        return min(times, default=None)

    def _commit_due(self) -> float | None:
        """Return when the next commit may be sent."""
        if not self.queue.ready or (self.subscribed and self.member.rebalancing):
            return None
        return self._commit_not_before

    def _coordinator(self) -> Endpoint:
        coordinator = self.member.coordinator
        assert coordinator is not None
        return Endpoint(coordinator.node_id, coordinator.host, coordinator.port)

    # Commits

    def _commit_call(self) -> Call:
        identity, ids = self.member.identity, self.member.topic_ids
        offsets = self.queue.take()
        return Call(
            OffsetCommitRequest,
            lambda version: self._commit_message(identity, offsets, version, ids),
            lambda response, now: self._commit_answered(identity, offsets, commits.commit_errors(response, ids), now),
            self._commit_lost,
            self._request_timeout,
            self._coordinator(),
            _GROUP,
            highest=commits.highest_version((partition.topic for partition in offsets), ids),
        )

    def _commit_message(
        self, identity: GroupMetadata, offsets: Offsets, version: int, topic_ids: Mapping[str, bytes]
    ) -> OffsetCommitRequest:
        if self.subscribed:
            mine = self.member.holds
            if identity.generation == NO_GENERATION or any(partition not in mine for partition in offsets):
                raise CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, "the partitions are no longer this member's")
        return commits.commit_request(identity, offsets, version, topic_ids)

    def _commit_answered(
        self, identity: GroupMetadata, offsets: Offsets, errors: Mapping[TopicPartition, ErrorCode], now: float
    ) -> None:
        if len(errors) < len(offsets):
            self.on_commit({partition: offset for partition, offset in offsets.items() if partition not in errors})
        for code in set(errors.values()):
            self.member.commit_refused(code, identity, now)
        if not errors:
            self._commit_backoff.reset()
        elif self.member.rebalancing and not commits.LOST_MEMBERSHIP.isdisjoint(errors.values()):
            self.queue.failed()
            return
        for partition, code in self.queue.answered(errors).items():
            kind = CommitFailed if code in commits.LOST_MEMBERSHIP else KafkaError
            self._commit_failed([partition], kind(code, f"{partition}: {code.text}"))
        if self.queue.ready:
            self._commit_not_before = now + self._commit_backoff.next()

    def _commit_lost(self, error: PylogdError, now: float) -> None:
        if not is_retriable(error):
            self._commit_failed(self.queue.refused(), error)
            return
        self.queue.failed()
        self._commit_not_before = now + self._commit_backoff.next()
        self.member.coordinator_lost(now)

    def _commit_failed(self, partitions: Iterable[TopicPartition], error: PylogdError) -> None:
        for partition in partitions:
            told = [awaited for awaited in self._awaited if partition in awaited.partitions]
            for awaited in told:
                awaited.errors.append(error)
            if not told:
                self._unheard(partition, error)

    # Look-ups

    def _lookup_call(self, lookup: OffsetLookup) -> Call:
        lookup.in_flight = True
        partitions, ids = lookup.partitions, self.member.topic_ids
        reader, identity = self.member.reader, self.member.identity
        topics = None if partitions is None else [partition.topic for partition in partitions]

        def answered(response: Any, now: float) -> None:
            try:
                lookup.offsets = commits.fetched(response, ids)
            except KafkaError as error:
                failed(error, now)
            else:
                self._finish(lookup, None)

        def failed(error: PylogdError, now: float) -> None:
            lookup.in_flight = False
            code = error.code if isinstance(error, KafkaError) else None
            outdated = reader != NOBODY and code in commits.OUTDATED_MEMBER
            if not is_retriable(error) and not outdated:
                self._finish(lookup, error)
                return
            if outdated:
                assert code is not None
                self.member.commit_refused(code, identity, now)
            elif code is None or code in _COORDINATOR_MOVED:
                self.member.coordinator_lost(now)
            lookup.not_before = now + lookup.backoff.next()

        return Call(
            OffsetFetchRequest,
            lambda version: commits.fetch_request(
                self._group_id, partitions, version, stable=self._stable, reader=reader, topic_ids=ids
            ),
            answered,
            failed,
            self._request_timeout,
            self._coordinator(),
            _GROUP,
            highest=commits.highest_version(topics, ids),
        )

    def _finish(self, lookup: OffsetLookup, error: PylogdError | None) -> None:
        lookup.done, lookup.error = True, error
        self.forget(lookup)
        lookup.on_done(lookup)

    def _give_up(self, error: PylogdError, now: float) -> None:
        """Fail all waiting commits and look-ups: the coordinator can't be found, and a retry does not help."""
        self.fail_lookups(error)
        if self.queue.ready:
            self.queue.take()
            self._commit_failed(self.queue.refused(), error)
        if not self.subscribed:
            self.member.leave(now)
