"""A member of a consumer group by the classic protocol: the state machine, without I/O (KIP-62, 134, 345, 394, 429).

Strategy: members join, one of them (the leader) assigns the partitions, and all join again when anything changes. The
table of states is in `classic_states`. In every state the member may have lost the coordinator and be looking it up.
`membership` describes how a member is driven.

Rules: only `member_model` says what an error code means. No clock, no socket, no thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group import classic_states as states
from pylogd.client.core.group import requests as group_requests
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.classic_states import MEMBER, MemberInput, MemberState
from pylogd.client.core.group.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from pylogd.client.core.group.member_model import (
    AFTER_JOIN,
    AFTER_OTHERS,
    Assign,
    ErrorAction,
    Event,
    Failed,
    GroupMetadata,
    MemberRequest,
    MemberSettings,
    Revoke,
)
from pylogd.client.core.group.membership import GroupMember, Standing
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from pylogd.wire.messages.leave_group import LeaveGroupRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest

_JOIN_SLACK = 5.0  # seconds beyond the rebalance timeout that an answer may take
_MISSING_TOPIC_SECONDS = 2.0  # seconds before a missing topic is looked up again


class ClassicMember(GroupMember):
    """See the module."""

    errors = AFTER_OTHERS
    standing = Standing(MemberState.OUT, MemberState.AWAY, states.INSIDE, states.LEAVING)

    def __init__(self, settings: MemberSettings, rng: random.Random | None = None) -> None:
        """Not in the group. Tests pass `rng` to know the jitter of retries."""
        super().__init__(settings, MEMBER, rng)
        self.assignment: frozenset[TopicPartition] = frozenset()  # the coordinator's assignment
        self.protocol: str | None = None
        self._cooperative = settings.assignors[0].cooperative
        self._topics: tuple[str, ...] | None = ()  # None while the topics of a pattern are not known
        self._joined_with: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._heartbeat_at = 0.0
        self._refresh_at = 0.0
        self._reason: str | None = None
        self._leading = Leadership()
        self._previous: tuple[tuple[TopicPartition, ...], int] = ((), NO_GENERATION)

    @property
    def state(self) -> MemberState:
        """The state of the member."""
        state: MemberState = self._machine.state
        return state

    @property
    def rebalancing(self) -> bool:
        """Whether a commit that is sent now may fail because a rebalance is ending."""
        return self.state in states.REBALANCING

    # What the application wants

    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Become a member that reads these topics. This also starts again after a failure."""
        self._subscribe(tuple(sorted(set(topics))), None, now)

    def subscribe_pattern(self, pattern: re.Pattern[str], now: float) -> None:
        """Become a member that reads present and future topics whose whole names match."""
        self._subscribe(None, pattern, now)

    def _subscribe(self, topics: tuple[str, ...] | None, pattern: re.Pattern[str] | None, now: float) -> None:
        if topics is not None and topics == self._topics and self._pattern is None and self.state in states.INSIDE:
            return
        self._topics, self._pattern = topics, pattern
        self._polled_at = now
        self._refresh_at = now if pattern is not None else self._refresh_at
        self._metadata_in_flight = None
        self.error = None
        if self.state in (MemberState.OUT, MemberState.FAILED):
            self._not_before = now
            self._backoff.reset()
        if self.state not in states.LEAVING:  # otherwise when it has left
            self._rejoin("the subscription changed")

    def leave(self, now: float) -> None:
        """Leave the group. The application has given up all partitions, or will not be asked to."""
        self._topics, self._pattern, self.error = (), None, None
        self.owned, self._event = frozenset(), None
        self._send_leave(MemberInput.LEAVE, "the consumer was closed", now)

    def join_again(self, reason: str) -> None:
        """Start a rebalance (KIP-568)."""
        if self.state in states.SETTLED:
            self._rejoin(reason)

    # Events

    def _find_event(self) -> Event | None:
        if self.state in states.SETTLED:
            if gone := self.owned - self.assignment:
                return Revoke(gone)
            if self.state is not MemberState.STABLE:
                return Assign(self.assignment, self.assignment - self.owned)
            return None
        if self.owned and (not self._cooperative or self.state in states.OUTSIDE or self.state in states.LOSING):
            return Revoke(self.owned, self.state in states.LOSING)
        return None if self.error is None else Failed(self.error)

    def _telling(self) -> None:
        self._machine.handle(MemberInput.TOLD)

    def _told(self, event: Assign) -> None:
        if self.state is MemberState.RELEASED:
            self._rejoin("partitions were given up")

    def _gave_up(self, event: Revoke) -> None:
        if self.state is MemberState.ASSIGNED:
            self._machine.handle(MemberInput.REVOKED_SOME)

    # Requests

    def _group_due(self) -> float | None:
        if self.state is MemberState.SYNCING:
            return 0.0
        if self.state is MemberState.JOINING:
            return None if self._topics is None else 0.0
        return self._heartbeat_at if self.state in states.INSIDE and self.generation != NO_GENERATION else None

    def _group_request(self, now: float) -> MemberRequest:
        settings = self.settings
        longest = settings.max_poll_interval + _JOIN_SLACK
        if self.state is MemberState.JOINING:
            self._joined_with = self._topics or ()
            build: Callable[[int], Any] = partial(
                group_requests.join, settings, self.member_id, self._subscription, self._reason
            )
            return MemberRequest(JoinGroupRequest, build, longest, waits=True)
        if self.state is MemberState.SYNCING:
            sync = group_requests.sync(settings, self.generation, self.member_id, self.protocol, self._leading.shares)
            return MemberRequest(SyncGroupRequest, lambda _: sync, longest, waits=True)
        if self.state in states.LEAVING:
            build = partial(group_requests.leave, settings, self.member_id, self._reason)
            return MemberRequest(LeaveGroupRequest, build, settings.request_timeout)
        self._heartbeat_at = now + settings.heartbeat_interval
        # short enough that a second heartbeat may still arrive before the session is over
        timeout = max(settings.heartbeat_interval, settings.session_timeout / 3)
        heartbeat = group_requests.heartbeat(settings, self.generation, self.member_id)
        return MemberRequest(HeartbeatRequest, lambda _: heartbeat, timeout)

    def _subscription(self, assignor: Assignor) -> Subscription:
        owned = tuple(sorted(self.owned))
        before, generation = self._previous
        user_data = assignor.user_data(before, generation)
        return Subscription(self._joined_with, user_data, owned, generation, self.settings.rack)

    # Metadata

    def _metadata_topics(self) -> tuple[str, ...] | None:
        """Return the topics whose metadata the member needs: () for all topics, None for none."""
        if self.state is MemberState.ASSIGNING:
            return self._leading.topics or None
        if self._pattern is not None and self.state in states.INSIDE:
            return ()
        if self.state in states.SETTLED and self._leading:
            return self._leading.topics or None
        return None

    def _metadata_due(self) -> float | None:
        if self._metadata_topics() is None:
            return None
        return 0.0 if self.state is MemberState.ASSIGNING else self._refresh_at

    def _metadata_request(self, now: float) -> MemberRequest | None:
        topics = self._metadata_topics()
        if topics is None or (now < self._refresh_at and self.state is not MemberState.ASSIGNING):
            return None
        build = partial(group_requests.metadata, topics, self.settings.auto_create_topics)
        return MemberRequest(MetadataRequest, build, self.settings.request_timeout, to_coordinator=False)

    def _take_metadata(self, response: Any, now: float) -> None:
        self._refresh_at = now + self.settings.metadata_max_age
        counts = {topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code}
        if self._pattern is not None and len(self._metadata_topics() or ()) == 0:
            usable = (t.name for t in response.topics if not t.error_code and not t.is_internal)
            matching = tuple(sorted(filter(self._pattern.fullmatch, usable)))
            if matching != self._topics:
                self._topics = matching
                self.join_again("the topics that match changed")
        if self._leading.misses(counts):
            self._refresh_at = now + min(_MISSING_TOPIC_SECONDS, self.settings.metadata_max_age)
        if self.state is MemberState.ASSIGNING:
            self._assign_all(counts)
        elif self._leading and self._leading.differs(counts):
            self.join_again("the partitions of a topic changed")

    def _assign_all(self, counts: Mapping[str, int]) -> None:
        """As the leader, assign partitions to all members. `counts` has the number of partitions of each topic."""
        assignor = next(a for a in self.settings.assignors if a.name == self.protocol)
        self._leading.share_out(assignor, counts)
        self._machine.handle(MemberInput.ASSIGNED_ALL)

    # Answers

    def _unanswered(self) -> None:
        if self.state is MemberState.SYNCING:
            self._rejoin("the coordinator was lost")

    def _take_answer(self, request: MemberRequest, response: Any, now: float) -> None:
        self._ANSWERS[request.api](self, response, now)

    def _joined(self, response: JoinGroupResponse, now: float) -> None:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        if code:
            self._apply_error(AFTER_JOIN, code, now)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol = response.protocol_name
        self._heartbeat_at = now + self.settings.heartbeat_interval
        self._leading.end()
        self._leading.shares, self._reason = {}, None
        self._backoff.reset()
        if self.protocol not in [assignor.name for assignor in self.settings.assignors]:
            self._fail(InvalidReply(f"the coordinator chose {self.protocol!r}, which this member did not offer"))
            return
        if response.leader == response.member_id:
            self._leading.begin(response.members)
        if not self._leading or response.skip_assignment:
            self._machine.handle(MemberInput.JOINED)
            return
        self._machine.handle(MemberInput.ELECTED)
        self._metadata_in_flight = None
        if not self._leading.topics:
            self._assign_all({})

    def _synced(self, response: Any, now: float) -> None:
        if response.error_code:
            self._apply_error(AFTER_OTHERS, response.error_code, now, rejoin_on_find=True)
            return
        try:
            self.assignment = frozenset(decode_assignment(response.assignment))
        except InvalidReply as error:
            self._fail(error)
            return
        self._machine.handle(MemberInput.SYNCED)
        self._leading.shares = {}
        self._previous = tuple(sorted(self.assignment)), self.generation
        if self._topics is not None and self._topics != self._joined_with:
            self.join_again("the topics that match changed")

    def _heartbeat_answered(self, response: Any, now: float) -> None:
        if response.error_code:
            self._apply_error(AFTER_OTHERS, response.error_code, now)
        else:
            self._backoff.reset()

    _ANSWERS: ClassVar[Mapping[type[Any], Callable[[ClassicMember, Any, float], None]]] = {
        JoinGroupRequest: _joined,
        SyncGroupRequest: _synced,
        HeartbeatRequest: _heartbeat_answered,
        LeaveGroupRequest: lambda self, _response, _now: self._left(),
    }

    def _commit_refused(self, action: ErrorAction, code: int, identity: GroupMetadata, now: float) -> None:
        current = identity == self.identity and self.state in states.SETTLED_OR_PREPARING
        if action is ErrorAction.REJOIN:
            self.join_again("a commit showed a rebalance")
        elif action in (ErrorAction.RESET, ErrorAction.FENCED) and current:
            self._apply_error(AFTER_OTHERS, code, now)

    # Changes of state

    def _apply_error(
        self, table: Mapping[ErrorCode, ErrorAction], code: int, now: float, *, rejoin_on_find: bool = False
    ) -> None:
        """React to an error code."""
        error = error_for(code)
        action = table.get(error, ErrorAction.RETRY if error.retriable else ErrorAction.FAIL)
        if action in (ErrorAction.RETRY, ErrorAction.FIND):
            self._not_before = now + self._backoff.next()
            if action is ErrorAction.FIND:
                self.coordinator = None
                if rejoin_on_find:
                    self._rejoin("the coordinator moved")
        elif action is ErrorAction.REJOIN:
            self._rejoin("the group rebalances")
        elif action is ErrorAction.RESET:
            self.member_id, self.generation = "", NO_GENERATION
            self._rejoin(f"the coordinator answered {error.name}", MemberInput.LOST)
        else:
            self._fail(KafkaError(error, f"group {self.settings.group_id}: {error.text}"))

    def _join(self, reason: str) -> None:
        self._rejoin(reason)

    def _rejoin(self, reason: str, cause: MemberInput = MemberInput.JOIN) -> None:
        """Join, or join again, once the application has given up the partitions that it must give up."""
        self._reason = reason
        self._leading.end()
        self._metadata_in_flight = None
        if self._in_flight is not None and self._in_flight.api is not FindCoordinatorRequest:
            self._in_flight = None  # the answer will be outdated
        wants = self._topics != () or self._pattern is not None
        self._machine.handle(cause if wants else MemberInput.UNSUBSCRIBED)
        self._join_if_ready()

    def _join_if_ready(self) -> None:
        if self._event is not None or self.state not in (MemberState.PREPARING, MemberState.SURRENDERING):
            return
        if not self.owned or (self._cooperative and self.state is MemberState.PREPARING):
            self._machine.handle(MemberInput.GAVE_UP)

    def _failed(self) -> None:
        self._machine.handle(MemberInput.FAILED)
        self.assignment = frozenset()

    def _not_polled(self, now: float) -> None:
        self._send_leave(MemberInput.NOT_POLLED, "the application does not poll", now)

    def _send_leave(self, cause: MemberInput, reason: str, now: float) -> None:
        """Leave the group. A static member, and one that the coordinator does not know, send no request."""
        self._machine.handle(cause)
        self._reason = reason
        self._in_flight = self._metadata_in_flight = None
        self._not_before = now
        if not self.member_id or self.settings.instance_id is not None:
            self._left()

    def _left(self) -> None:
        self._machine.handle(MemberInput.LEFT)
        self.member_id = "" if self.settings.instance_id is None else self.member_id
        self.generation, self.assignment = NO_GENERATION, frozenset()
        self._leading.end()
        if self.state is MemberState.OUT and (self._topics or self._pattern is not None):
            self._rejoin("the consumer subscribed again")


class Leadership:
    """The members and topics of a group that this member leads. It is false if another member leads the group.

    A member whose subscription can't be decoded gets no partitions. After an assignment the leader watches the topics,
    as long as it leads: partitions that are added later have to be assigned too.
    """

    def __init__(self) -> None:
        """Another member leads."""
        self.shares: dict[str, list[TopicPartition]] = {}
        self._members: dict[str, Subscription] = {}
        self._counts: dict[str, int] = {}  # the number of partitions of each topic at the last assignment

    def __bool__(self) -> bool:
        return bool(self._members)

    def begin(self, members: Iterable[Any]) -> None:
        """Lead these members, from the answer to JoinGroup."""
        self._members = {member.member_id: _read_subscription(member) for member in members}

    def end(self) -> None:
        """End the leadership. `shares` stay, for SyncGroup."""
        self._members = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the members subscribe to."""
        return tuple(sorted({topic for member in self._members.values() for topic in member.topics}))

    def misses(self, counts: Mapping[str, int]) -> bool:
        """Return whether the number of partitions of a topic is missing."""
        return any(topic not in counts for topic in self.topics)

    def differs(self, counts: Mapping[str, int]) -> bool:
        """Return whether the numbers of partitions have changed since the last assignment."""
        return self._of_topics(counts) != self._counts

    def share_out(self, assignor: Assignor, counts: Mapping[str, int]) -> None:
        """Make `shares`, the assignment of each member. `counts` has the number of partitions of each topic."""
        self._counts = self._of_topics(counts)
        self.shares = assignor.assign(self._members, self._counts)

    def _of_topics(self, counts: Mapping[str, int]) -> dict[str, int]:
        wanted = self.topics
        return {topic: count for topic, count in counts.items() if topic in wanted}


def _read_subscription(member: Any) -> Subscription:
    try:
        return decode_subscription(member.metadata, member.group_instance_id)
    except InvalidReply:
        return Subscription((), instance_id=member.group_instance_id)
