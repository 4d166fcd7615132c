"""Consumer groups with members of both protocols: requests of classic members, and groups that change protocol.

Strategy: `classic` decides what a classic member's request changes. This module writes the change and keeps the
member's times. JoinGroup is answered when its change is committed; nobody waits for the other members. With the join of
the first member of the newer protocol a group moves to that protocol (`upgrade`). When a change would leave only
classic members, the group moves back (`GoBack`) instead of making the change.

Rules: a classic member that is told to join again has its rebalance timeout to do so, and as long again to sync.
Must not know: requests of the protocol, offsets, classic groups.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer import classic
from pylogd.broker.groups.consumer.active_group import ActiveGroup, Made
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer, settled
from pylogd.broker.groups.consumer.embedded import CONSUMER
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import (
    Change,
    FindTopic,
    Heartbeat,
    HeartbeatRefused,
    Match,
    View,
    beat,
    may_assign,
)
from pylogd.broker.groups.consumer.records import Record, encode
from pylogd.broker.groups.consumer.service import (
    AllCommitted,
    Append,
    ConsumerGroups,
    GroupOption,
)
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, LeavingMember, SyncAnswer, SyncRequest
from pylogd.broker.metadata.image import Topic
from pylogd.broker.replica.disk_calls import InThread
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.config import Settings
from pylogd.config.group import ASSIGNMENT_INTERVAL

T = TypeVar("T")

_NONE = ErrorCode.NONE
#: The error for a whole LeaveGroup request, and NONE or an error for each member.
LeaveAnswer = tuple[ErrorCode, list[ErrorCode]]


class Takeover(NamedTuple):
    """A classic group that is about to become a group of the newer protocol.

    records: the group in the newer protocol.
    before: the records that delete the classic group.
    begin: called before the records are appended.
    end: called with True when they are in the log, or with False when it is known that they never will be.
    """

    records: Sequence[Record]
    before: Sequence[KeyValue]
    begin: Callable[[], object]
    end: Callable[[bool], object]


class GoBack(NamedTuple):
    """A group that moves back to the classic protocol.

    logged: called when `records`, which move it, are in the log.
    """

    records: Sequence[KeyValue]
    logged: Callable[[], object]


#: Returns how a group without some members moves back to the classic protocol; None if it stays. The last argument says
#: whether a classic member replaces the member that leaves.
Downgrade = Callable[[ConsumerGroup, Collection[str], bool], GoBack | None]


class MixedGroups(ConsumerGroups):
    """All groups of the newer protocol that this broker coordinates, with their members of both protocols."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        append: Append,
        find: FindTopic,
        topic_of: Callable[[bytes], Topic | None],
        settings: Settings,
        downgrade: Downgrade,
        option: GroupOption,
        all_committed: AllCommitted,
        in_thread: InThread | None = None,
    ) -> None:
        """Arguments:

        clock: times members.
        now_ms: the wall clock.
        topic_of: returns a topic by its id.
        """
        super().__init__(clock, now_ms, append, find, settings, option, all_committed, in_thread)
        self._topic_of = topic_of
        self._downgrade = downgrade

    @property
    def metadata_bytes(self) -> int:
        """How many bytes of metadata are kept for the classic members of all groups."""
        protocols = (
            metadata
            for group in self.groups()
            for member in group.members.values()
            if member.classic is not None
            for _, metadata in member.classic.protocols
        )
        return sum(map(len, protocols))

    # -- changing the protocol

    def upgrade(
        self, group_id: str, takeover: Takeover, request: Heartbeat, match: Match
    ) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Take over a classic group, whose first member of the newer protocol joins with this heartbeat."""
        converted = ConsumerGroup(group_id).with_records(takeover.records)
        try:
            self._check_joining(converted, request)
            change = beat(converted, request, self._find, match, self._now_ms(), topics_changed=True)
        except HeartbeatRefused as refused:
            return HeartbeatAnswer(refused.code, str(refused), request.member_id)
        held = self._held[group_id] = ActiveGroup(ConsumerGroup(group_id))
        takeover.begin()

        def appended() -> None:
            self._appended(held, change.group)
            takeover.end(True)

        records = [*takeover.before, *map(encode, (*takeover.records, *change.records))]
        result = self._log(held, records, appended, lambda: takeover.end(False))
        return settled(self._answer(request, change), result)

    def _remove(self, held: ActiveGroup, member_ids: Sequence[str]) -> ErrorCode | Deferred[ErrorCode]:
        back = self._downgrade(held.group, member_ids, False)
        return super()._remove(held, member_ids) if back is None else self._go_back(held, back)

    def _go_back(self, held: ActiveGroup, back: GoBack) -> ErrorCode | Deferred[ErrorCode]:
        def appended() -> None:
            self._appended(held, ConsumerGroup(held.group.group_id))
            if held.timer is not None and held.timer.active():
                held.timer.cancel()
            self._held.pop(held.group.group_id, None)
            back.logged()

        return self._log(held, back.records, appended)

    # -- classic members

    def join(
        self, group_id: str, request: JoinRequest, again: Callable[[], JoinAnswer | Deferred[JoinAnswer]]
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """Handle a JoinGroup request.

        again: handles the request after the group has moved back to the classic protocol.
        """
        held = self._held[group_id]
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
        try:
            self._check_join(held.group, request)
        except HeartbeatRefused as refused:
            return JoinAnswer(refused.code, request.member_id)
        if request.needs_known_id and not request.member_id and request.instance_id is None:
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        former = held.group.instances.get(request.instance_id or "")
        if former is not None and not request.member_id:
            back = self._downgrade(held.group, [former], True)
            if back is not None:
                return _when_committed(self._go_back(held, back), lambda error: JoinAnswer(error, ""), again)
        interval_ms = self._option(group_id, ASSIGNMENT_INTERVAL)
        make = partial(_join, held.group, request, member_id, now_ms=self._now_ms(), interval_ms=interval_ms)
        wanted = classic.subscription_of(request).topics
        unloaded = JoinAnswer(ErrorCode.NOT_COORDINATOR, request.member_id)
        return self.change(held, request, wanted, make, partial(self._join_made, held, request, member_id), unloaded)

    def _join_made(
        self, held: ActiveGroup, request: JoinRequest, member_id: str, made: Made | HeartbeatRefused
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """Write and answer the join of a classic member."""
        if isinstance(made, HeartbeatRefused):
            return JoinAnswer(made.code, request.member_id)
        member = made.change.member
        assert member is not None
        answer = JoinAnswer(_NONE, member_id, member.epoch, CONSUMER, request.protocols[0][0])
        outcome = self.write_or_wait(held, made, partial(self._joined, held, member_id, request))
        self._renew(held, member_id)
        return _when_committed(outcome, lambda error: JoinAnswer(error, request.member_id), lambda: answer)

    def _check_join(self, group: ConsumerGroup, request: JoinRequest) -> None:
        """Raise HeartbeatRefused if a client can't be a member, or the group is full."""
        classic.subscription_of(request)
        if not classic.supports(group, [name for name, _ in request.protocols]):
            raise HeartbeatRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "No protocol is common to all members.")
        is_member = request.member_id in group.members or request.instance_id in group.instances
        if not is_member and len(group.members) >= self._settings.integer("group.consumer.max.size"):
            raise HeartbeatRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.GROUP_MAX_SIZE_REACHED.text)

    def _joined(self, held: ActiveGroup, member_id: str, request: JoinRequest) -> None:
        held.join_by.pop(member_id, None)
        now = self._clock.seconds()
        held.deadlines[member_id] = now + request.session
        held.sync_by[member_id] = now + request.rebalance
        self._set_timer(held, min(held.deadlines[member_id], held.sync_by[member_id]))

    def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer | Deferred[SyncAnswer]:
        """Handle a SyncGroup request: answer with the partitions that the member may use."""
        held = self._held[group_id]
        member_id, protocol_type, protocol = request.member_id, request.protocol_type, request.protocol
        try:
            member, told = classic.check_generation(held.group, member_id, request.instance_id, request.generation)
            classic.check_protocol(told, protocol_type, protocol)
        except HeartbeatRefused as refused:
            return SyncAnswer(refused.code)
        if classic.is_behind(member, self._epoch_of_next(held.group)):
            self._expect_join(held, member_id, member.rebalance_ms)
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        held.sync_by.pop(member_id, None)
        self._renew(held, member_id)
        answer = SyncAnswer(_NONE, protocol_type, protocol, classic.assignment_of(member, told, self._topic_of))
        return _when_committed(self._last_commit(held), SyncAnswer, lambda: answer)

    def classic_heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat request: REBALANCE_IN_PROGRESS if the member has to join again."""
        held = self._held[group_id]
        try:
            member, _ = classic.check_generation(held.group, member_id, instance_id, generation)
        except HeartbeatRefused as refused:
            return refused.code
        self._renew(held, member_id)
        if not classic.has_to_join(held.group, member, self._epoch_of_next(held.group)):
            return _NONE
        self._expect_join(held, member_id, member.rebalance_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _epoch_of_next(self, group: ConsumerGroup) -> int:
        """Return the epoch that a member would get if it joined now: the last assignment's, until the next is due."""
        due = may_assign(group, self._option(group.group_id, ASSIGNMENT_INTERVAL), self._now_ms())
        return group.epoch if due else group.assignment_epoch

    def _expect_join(self, held: ActiveGroup, member_id: str, rebalance_ms: int) -> None:
        self._set_timer(held, held.join_by.setdefault(member_id, self._clock.seconds() + rebalance_ms / 1000))

    def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> LeaveAnswer | Deferred[LeaveAnswer]:
        """Handle a LeaveGroup request. Members of the newer protocol do not leave by LeaveGroup."""
        held = self._held[group_id]
        found = classic.who_leaves(held.group, leavers)
        gone = list(dict.fromkeys(one for one in found if not isinstance(one, ErrorCode)))
        errors = [one if isinstance(one, ErrorCode) else _NONE for one in found]
        if not gone:
            return _NONE, errors

        def refused(error: ErrorCode) -> LeaveAnswer:
            return error, [error for _ in leavers]

        return _when_committed(self._remove(held, gone), refused, lambda: (_NONE, errors))


def _when_committed(
    outcome: ErrorCode | Deferred[ErrorCode], refused: Callable[[ErrorCode], T], done: Callable[[], T | Deferred[T]]
) -> T | Deferred[T]:
    """Return the result of `done` once a change is committed, or of `refused` if it fails with an error code."""

    def committed(error: ErrorCode) -> T | Deferred[T]:
        return refused(error) if error else done()

    return outcome.addCallback(committed) if isinstance(outcome, Deferred) else committed(outcome)


def _join(
    group: ConsumerGroup,
    request: JoinRequest,
    member_id: str,
    *,
    find: FindTopic,
    topics_changed: bool,
    now_ms: int,
    interval_ms: int,
) -> Change:
    return classic.join(group, request, member_id, View(find, _no_topics, now_ms, topics_changed, interval_ms))


def _no_topics(expression: str) -> frozenset[str]:
    return frozenset()
