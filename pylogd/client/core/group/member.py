"""A member of a consumer group by the classic protocol: the state machine, without I/O (KIP-62, 134, 345, 394, 429).

Strategy: whoever drives it, a thread or an event loop, sends the requests that it has, and reports their answers or
errors; reports when the application polls; and passes one event at a time to the application, which carries it out. All
faces of the client drive this one.

    while (request := member.next_request(now)) is not None:  # send request.build(version), then
        member.answered(request, response, now)               # or member.failed(request, error, now)
    event = member.next_event()                               # Revoke, Assign or Failed, or None; carry it out, then
    member.done(event, now)
    member.next_time()                                        # when to call `next_request` if nothing happens before

The states, and what leads from one to the next, are the table in `member_states`. In every state the member may have
lost the coordinator and be looking for it.

Rules: one request to the coordinator at a time, and one for metadata beside it. An answer to a request that was given
up is ignored. Nothing is joined while the application holds, or is just being told of, partitions that it has to give
up. What an error code means is in `member_model` and nowhere else. No clock, no socket, no thread; the caller sees to
it that only one thread is in here at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import InvalidReply, is_retriable
from pylogd.client.core.group import member_states as states
from pylogd.client.core.group import requests as group_requests
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import NO_GENERATION, Subscription, decode_assignment
from pylogd.client.core.group.leader import Leadership
from pylogd.client.core.group.member_model import (
    AFTER_JOIN,
    AFTER_OTHERS,
    Assign,
    Coordinator,
    ErrorAction,
    Event,
    Failed,
    GroupMetadata,
    MemberRequest,
    MemberSettings,
    Revoke,
    is_fenced,
)
from pylogd.client.core.group.member_states import MEMBER, MemberInput, MemberState
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from pylogd.wire.messages.leave_group import LeaveGroupRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest

_JOIN_SLACK = 5.0  # seconds beyond the rebalance time-out that an answer may take
_MISSING_TOPIC_SECONDS = 2.0  # after which a topic that does not exist is looked up again


class Membership:
    """A member of a group, or a consumer that only needs to know the group's coordinator to commit."""

    def __init__(self, settings: MemberSettings, rng: random.Random | None = None) -> None:
        """Not in the group. `rng` is for tests that must know the jitter of retries."""
        self.settings = settings
        self.coordinator: Coordinator | None = None
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment: frozenset[TopicPartition] = frozenset()  # by the coordinator
        self.owned: frozenset[TopicPartition] = frozenset()  # what the application has been told to read
        self.protocol: str | None = None
        self.error: PylogdError | None = None  # the reason of FAILED
        self._machine = MEMBER.machine()
        self._cooperative = settings.assignors[0].cooperative
        self._topics: tuple[str, ...] | None = ()  # None while a pattern's topics are not known
        self._joined_with: tuple[str, ...] = ()
        self._pattern: Callable[[str], bool] | None = None
        self._backoff = Backoff(rng=rng)
        self._in_flight: MemberRequest | None = None
        self._metadata_in_flight: MemberRequest | None = None
        self._not_before = 0.0
        self._metadata_not_before = 0.0
        self._heartbeat_at = 0.0
        self._polled_at = 0.0
        self._refresh_at = 0.0
        self._event: Event | None = None  # that the application is carrying out
        self._wants_coordinator = False  # somebody wants to commit
        self._reason: str | None = None
        self._leading = Leadership()
        self._previous: tuple[tuple[TopicPartition, ...], int] = ((), NO_GENERATION)

    @property
    def state(self) -> MemberState:
        """Where the member stands."""
        return self._machine.state

    # What the application wants

    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Be a member that reads these topics. Also starts again after a failure."""
        self._subscribe(tuple(sorted(set(topics))), None, now)

    def subscribe_pattern(self, matches: Callable[[str], bool], now: float) -> None:
        """Be a member that reads the topics whose names match, now and later."""
        self._subscribe(None, matches, now)

    def _subscribe(self, topics: tuple[str, ...] | None, pattern: Callable[[str], bool] | None, now: float) -> None:
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
        if self.state not in states.LEAVING:  # else once it has left
            self._rejoin("the subscription changed")

    def leave(self, now: float) -> None:
        """Leave the group. The application has given up all its partitions, or is not told to."""
        self._topics, self._pattern, self.error = (), None, None
        self.owned, self._event = frozenset(), None
        self._send_leave(MemberInput.LEAVE, "the consumer was closed", now)

    def find_coordinator(self) -> None:
        """Look up the coordinator, as a member or not: somebody wants to commit."""
        self._wants_coordinator = True

    def coordinator_lost(self, now: float) -> None:
        """Record that a request of somebody else showed that the coordinator has moved or can't be reached."""
        if self.coordinator is not None:
            self.coordinator = None
            self._not_before = max(self._not_before, now + self._backoff.next())

    def polled(self, now: float) -> None:
        """Record that the application polls, and is ready for events."""
        self._polled_at = now
        if self.state is MemberState.AWAY and not self.owned and self._event is None:
            self._rejoin("the application polls again")

    def join_again(self, reason: str) -> None:
        """Start a rebalance (KIP-568)."""
        if self.state in states.SETTLED:
            self._rejoin(reason)

    @property
    def identity(self) -> GroupMetadata:
        """In whose name to commit at the moment: no member's while there is no generation."""
        if self.generation == NO_GENERATION:
            return GroupMetadata(self.settings.group_id)
        return GroupMetadata(self.settings.group_id, self.generation, self.member_id, self.settings.instance_id)

    @property
    def holds(self) -> frozenset[TopicPartition]:
        """The partitions that the application reads or is just being told to read: those it may commit."""
        return self.owned | self._event.added if isinstance(self._event, Assign) else self.owned

    # Events

    @property
    def has_event(self) -> bool:
        """Whether `next_event` would return one."""
        return self._event is None and self._find_event() is not None

    def next_event(self) -> Event | None:
        """Return what the application has to do now, or None. The next event comes after `done` with this one."""
        if self._event is not None:
            return None
        self._event = self._find_event()
        if isinstance(self._event, Assign):
            self._machine.handle(MemberInput.TOLD)
        return self._event

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

    def done(self, event: Event, now: float) -> None:
        """Record that the application has carried out an event."""
        if event is not self._event:  # it left the group meanwhile
            return
        self._event = None
        if isinstance(event, Failed):
            if self.error is event.error and not is_fenced(event.error):
                self.error = None
                self._not_before = now + self._backoff.next()
                self._rejoin("trying again after an error")
        elif isinstance(event, Assign):
            self.owned |= event.added
            if self.state is MemberState.RELEASED:
                self._rejoin("partitions were given up")
        else:
            self.owned -= event.partitions
            if self.state is MemberState.ASSIGNED:
                self._machine.handle(MemberInput.REVOKED_SOME)
        self._join_if_ready()

    # Requests

    def next_request(self, now: float) -> MemberRequest | None:
        """Return the next request to send, or None until an answer comes or `next_time` is reached."""
        if self.state in states.INSIDE and now >= self._polled_at + self.settings.max_poll_interval:
            self._send_leave(MemberInput.NOT_POLLED, "the application does not poll", now)
        if self._metadata_in_flight is None and now >= self._metadata_not_before:
            self._metadata_in_flight = self._metadata_request(now)
            if self._metadata_in_flight is not None:
                return self._metadata_in_flight
        if self._in_flight is None and now >= self._not_before:
            self._in_flight = self._group_request(now)
            return self._in_flight
        return None

    def next_time(self) -> float | None:
        """When `next_request` may have a request if nothing happens before; None if never."""
        times = []
        if self._in_flight is None and (due := self._group_due()) is not None:
            times.append(max(due, self._not_before))
        if self._metadata_in_flight is None and self._metadata_topics() is not None:
            due = self._metadata_not_before
            times.append(due if self.state is MemberState.ASSIGNING else max(due, self._refresh_at))
        if self.state in states.INSIDE:
            times.append(self._polled_at + self.settings.max_poll_interval)
        return min(times) if times else None

    def _group_due(self) -> float | None:
        """When the next request to the coordinator, or the look-up of the coordinator, is due."""
        if self.coordinator is None:
            return 0.0 if self._wants_coordinator or self.state in states.ACTIVE else None
        if self.state is MemberState.SYNCING or self.state in states.LEAVING:
            return 0.0
        if self.state is MemberState.JOINING:
            return None if self._topics is None else 0.0
        return self._heartbeat_at if self.state in states.INSIDE and self.generation != NO_GENERATION else None

    def _group_request(self, now: float) -> MemberRequest | None:
        due = self._group_due()
        if due is None or now < due:
            return None
        settings = self.settings
        if self.coordinator is None:
            build: Callable[[int], Any] = partial(group_requests.find_coordinator, settings.group_id)
            return MemberRequest(FindCoordinatorRequest, build, settings.request_timeout, to_coordinator=False)
        longest = settings.max_poll_interval + _JOIN_SLACK
        if self.state is MemberState.JOINING:
            self._joined_with = self._topics or ()
            build = partial(group_requests.join, settings, self.member_id, self._subscription, self._reason)
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
        """Return the topics whose partitions it has to know or to watch: () for all topics, None for none."""
        if self.state is MemberState.ASSIGNING:
            return self._leading.topics or None
        if self._pattern is not None and self.state in states.INSIDE:
            return ()
        if self.state in states.SETTLED and self._leading:
            return self._leading.topics or None
        return None

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
            matching = tuple(sorted(filter(self._pattern, usable)))
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

    def reset(self, error: PylogdError, now: float) -> None:
        """Fail the requests in flight, since the connection is gone and they will not be answered."""
        for request in (self._in_flight, self._metadata_in_flight):
            if request is not None:
                self.failed(request, error, now)

    def answered(self, request: MemberRequest, response: Any, now: float) -> None:
        """Take in the response to a request."""
        if request is self._metadata_in_flight:
            self._metadata_in_flight = None
            self._take_metadata(response, now)
        elif request is self._in_flight:
            self._in_flight = None
            self._ANSWERS[request.api](self, response, now)

    def failed(self, request: MemberRequest, error: PylogdError, now: float) -> None:
        """Take in that a request got no response: no connection, no answer, no common version."""
        if request is self._metadata_in_flight:
            self._metadata_in_flight = None
            self._metadata_not_before = now + self._backoff.next()
            if not is_retriable(error):
                self._fail(error)
        elif request is self._in_flight:
            self._in_flight = None
            self._not_before = now + self._backoff.next()
            if request.to_coordinator:
                self.coordinator = None
            if self.state in states.LEAVING:
                self._left()
            elif not is_retriable(error):
                self._fail(error)
            elif self.state is MemberState.SYNCING:
                self._rejoin("the coordinator was lost")

    def _coordinator_found(self, response: Any, now: float) -> None:
        answer = response.coordinators[0] if response.coordinators else response
        if not answer.error_code:
            self.coordinator = Coordinator(answer.node_id, answer.host, answer.port)
            self._wants_coordinator = False
        elif self.state in states.LEAVING:
            self._left()
        elif (code := error_for(answer.error_code)).retriable:
            self._not_before = now + self._backoff.next()
        else:
            text = answer.error_message or f"group {self.settings.group_id}: {code.text}"
            self._fail(KafkaError(code, text))

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

    _ANSWERS: ClassVar[Mapping[type[Any], Callable[[Membership, Any, float], None]]] = {
        FindCoordinatorRequest: _coordinator_found,
        JoinGroupRequest: _joined,
        SyncGroupRequest: _synced,
        HeartbeatRequest: _heartbeat_answered,
        LeaveGroupRequest: lambda self, _response, _now: self._left(),
    }

    def commit_refused(self, code: int, identity: GroupMetadata, now: float) -> None:
        """Take in the error code of a commit in the name of `identity`, which may concern the membership."""
        action = AFTER_OTHERS.get(error_for(code))
        current = identity == self.identity and self.state in states.SETTLED_OR_PREPARING
        if action is ErrorAction.FIND:
            self.coordinator_lost(now)
        elif action is ErrorAction.REJOIN:
            self.join_again("a commit showed a rebalance")
        elif action in (ErrorAction.RESET, ErrorAction.FENCED) and current:
            self._apply_error(AFTER_OTHERS, code, now)

    # Changes of state

    def _apply_error(
        self, table: Mapping[ErrorCode, ErrorAction], code: int, now: float, *, rejoin_on_find: bool = False
    ) -> None:
        """Do what an error code asks for."""
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

    def _rejoin(self, reason: str, cause: MemberInput = MemberInput.JOIN) -> None:
        """Join, or join again, once the application has given up what it must."""
        self._reason = reason
        self._leading.end()
        self._metadata_in_flight = None
        if self._in_flight is not None and self._in_flight.api is not FindCoordinatorRequest:
            self._in_flight = None  # its answer is about the past
        wants = self._topics != () or self._pattern is not None
        self._machine.handle(cause if wants else MemberInput.UNSUBSCRIBED)
        self._join_if_ready()

    def _join_if_ready(self) -> None:
        if self._event is not None or self.state not in (MemberState.PREPARING, MemberState.SURRENDERING):
            return
        if not self.owned or (self._cooperative and self.state is MemberState.PREPARING):
            self._machine.handle(MemberInput.GAVE_UP)

    def _fail(self, error: PylogdError) -> None:
        self.error = error
        self._wants_coordinator = False
        self._machine.handle(MemberInput.FAILED)
        self.generation, self.assignment = NO_GENERATION, frozenset()
        self._in_flight = self._metadata_in_flight = None

    def _send_leave(self, cause: MemberInput, reason: str, now: float) -> None:
        """Leave the group, unless it does not know the member, or is to wait for it to come back (static members)."""
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
