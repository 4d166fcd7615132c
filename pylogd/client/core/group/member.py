"""A member of a consumer group by the classic protocol: the state machine, without I/O (KIP-62, 134, 345, 394, 429).

Strategy: whoever drives it, a thread or a reactor, asks for what is to be sent, sends it, and brings back the answer or
what went wrong; tells when the application polls; and takes one event at a time to the application, which says when it
is done with it. All faces of the client drive this one.

    while (ask := member.next_ask(now)) is not None:        # send ask.at(version) to whom ask.to says; then
        member.answered(ask, response, now)                 # or member.failed(ask, error, now)
    event = member.next_event()                             # Revoke, Assign or Failed, or None; obey it, then
    member.done(event, now)
    member.next_time()                                      # when to ask again if nothing happens before

In words: a member that wants to read *prepares* (the application gives up what it holds, unless the assignor is a
cooperative one), *joins*, *assigns* if the coordinator made it the leader, *syncs*, and is *stable* until a heartbeat
tells of a rebalance. It is *away* while the application does not poll, and *out* when it does not want to read. In
each of these it may have lost the coordinator and be looking for it.

Rules: one request to the coordinator at a time, and one for metadata beside it. An answer to a request that no longer
matters is passed over. Nothing is joined while the application holds, or is just being told of, partitions that it has
to give up. What an error code means is in `member_model` and nowhere else. No clock, no socket, no thread; the caller
sees to it that only one thread is in here at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import InvalidReply, is_retriable
from pylogd.client.core.group import requests as group_requests
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import NO_GENERATION, Subscription, decode_assignment
from pylogd.client.core.group.leader import Leadership
from pylogd.client.core.group.member_model import (
    AFTER_JOIN,
    AFTER_OTHERS,
    IN,
    OUT,
    Ask,
    Assign,
    Coordinator,
    Event,
    Failed,
    Identity,
    MemberSettings,
    Revoke,
    State,
    Step,
    is_fenced,
)
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from pylogd.wire.messages.leave_group import LeaveGroupRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest

_JOIN_SLACK = 5.0  # seconds beyond the rebalance time-out that an answer may take
_MISSING_TOPIC_SECONDS = 2.0  # how soon to look again for a topic that is not there
_SETTLED = (State.STABLE, State.PREPARING)  # no rebalance is under way that may have overtaken a commit


class Membership:
    """A member of a group, or one who only needs to know the group's coordinator to commit."""

    def __init__(self, settings: MemberSettings, rng: random.Random | None = None) -> None:
        """Out of the group. `rng` is for tests that must know the jitter of retries."""
        self.settings = settings
        self.state = State.OUT
        self.coordinator: Coordinator | None = None
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment: frozenset[TopicPartition] = frozenset()  # the member's share by the coordinator
        self.owned: frozenset[TopicPartition] = frozenset()  # what the application has been told to read
        self.protocol: str | None = None
        self.error: PylogdError | None = None  # why it can't be a member, if so
        self._cooperative = settings.assignors[0].cooperative
        self._topics: tuple[str, ...] | None = ()  # None while a pattern's topics are not known
        self._joined_with: tuple[str, ...] = ()
        self._pattern: Callable[[str], bool] | None = None
        self._backoff = Backoff(rng=rng)
        self._asked: Ask | None = None
        self._asked_metadata: Ask | None = None
        self._not_before = 0.0
        self._metadata_not_before = 0.0
        self._heartbeat_at = 0.0
        self._polled_at = 0.0
        self._refresh_at = 0.0
        self._handling: Event | None = None
        self._untold = False  # an assignment that the application has not heard of
        self._lost = False
        self._rejoin = False  # a cooperative member gave something up that others wait for
        self._wants_coordinator = False
        self._reason: str | None = None
        self._after_leaving = State.OUT
        self._leading = Leadership()
        self._previous: tuple[tuple[TopicPartition, ...], int] = ((), NO_GENERATION)

    # What the application wants

    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Be a member that reads these topics. Also starts again after a failure."""
        self._want(tuple(sorted(set(topics))), None, now)

    def subscribe_pattern(self, matches: Callable[[str], bool], now: float) -> None:
        """Be a member that reads the topics whose names match, now and later."""
        self._want(None, matches, now)

    def _want(self, topics: tuple[str, ...] | None, pattern: Callable[[str], bool] | None, now: float) -> None:
        if topics is not None and topics == self._topics and self._pattern is None and self.state in IN:
            return
        self._topics, self._pattern = topics, pattern
        self._polled_at = now
        self._refresh_at = now if pattern is not None else self._refresh_at
        self._asked_metadata = None
        self.error = None
        if self.state is State.OUT or self.state is State.FAILED:
            self._not_before = now
            self._backoff.reset()
        if self.state is not State.LEAVING:
            self._prepare("the subscription changed")

    def leave(self, now: float) -> None:
        """Be a member no more. The application has given up all it had, or is not told to."""
        self._topics, self._pattern, self.error = (), None, None
        self.owned, self._lost, self._handling = frozenset(), False, None
        self._go_out(State.OUT, now)

    def find_coordinator(self) -> None:
        """Look for the coordinator, in or out of the group: somebody wants to commit."""
        self._wants_coordinator = True

    def coordinator_lost(self, now: float) -> None:
        """A request to the coordinator that was not ours shows that it is another one now, or can't be reached."""
        if self.coordinator is not None:
            self.coordinator = None
            self._not_before = max(self._not_before, now + self._backoff.next())

    def polled(self, now: float) -> None:
        """The application is alive and ready for events."""
        self._polled_at = now
        if self.state is State.AWAY and not self.owned and self._handling is None:
            self._prepare("the application polls again")

    def join_again(self, reason: str) -> None:
        """Start a rebalance (KIP-568)."""
        if self.state is State.STABLE:
            self._prepare(reason)

    @property
    def identity(self) -> Identity:
        """What to sign commits with at the moment: as no member while there is no generation."""
        if self.generation == NO_GENERATION:
            return Identity(self.settings.group_id)
        return Identity(self.settings.group_id, self.generation, self.member_id, self.settings.instance_id)

    @property
    def holds(self) -> frozenset[TopicPartition]:
        """What the application reads or is just being told to read: what it may commit."""
        return self.owned | self._handling.added if isinstance(self._handling, Assign) else self.owned

    # Events

    @property
    def has_event(self) -> bool:
        """Whether `next_event` would have one."""
        return self._handling is None and self._find_event() is not None

    def next_event(self) -> Event | None:
        """What the application has to do now, or None. One at a time: the next comes after `done`."""
        if self._handling is not None:
            return None
        self._handling = self._find_event()
        if isinstance(self._handling, Assign):
            self._untold = False
        return self._handling

    def _find_event(self) -> Event | None:
        if self.state is State.STABLE:
            if gone := self.owned - self.assignment:
                return Revoke(gone)
            if self._untold:
                return Assign(self.assignment, self.assignment - self.owned)
            return None
        if self.owned and (self._lost or not self._cooperative or self.state in OUT):
            return Revoke(self.owned, self._lost)
        return None if self.error is None else Failed(self.error)

    def done(self, event: Event, now: float) -> None:
        """The application has obeyed an event."""
        if event is not self._handling:  # it left the group meanwhile
            return
        self._handling = None
        if isinstance(event, Failed):
            if self.error is event.error and not is_fenced(event.error):
                self.error = None
                self._not_before = now + self._backoff.next()
                self._prepare("trying again after an error")
        elif isinstance(event, Assign):
            self.owned |= event.added
            if self._rejoin and self.state is State.STABLE:
                self._rejoin = False
                self._prepare("partitions were given up")
        else:
            self.owned -= event.partitions
            self._lost = False
            self._rejoin = self._rejoin or self.state is State.STABLE
        self._join_if_ready()

    # Asking

    def next_ask(self, now: float) -> Ask | None:
        """The next request to send, or None until something comes back or `next_time` has come."""
        if self.state in IN and now >= self._polled_at + self.settings.max_poll_interval:
            self._go_out(State.AWAY, now, lost=True)
        if self._asked_metadata is None and now >= self._metadata_not_before:
            self._asked_metadata = self._metadata_ask(now)
            if self._asked_metadata is not None:
                return self._asked_metadata
        if self._asked is None and now >= self._not_before:
            self._asked = self._group_ask(now)
            return self._asked
        return None

    def next_time(self) -> float | None:
        """When `next_ask` may have something to say without anything happening; None if never."""
        times = []
        if self._asked is None and (due := self._group_due()) is not None:
            times.append(max(due, self._not_before))
        if self._asked_metadata is None and self._metadata_due() is not None:
            due = self._metadata_not_before
            times.append(due if self.state is State.ASSIGNING else max(due, self._refresh_at))
        if self.state in IN:
            times.append(self._polled_at + self.settings.max_poll_interval)
        return min(times) if times else None

    def _group_due(self) -> float | None:
        """When there is something to ask of the coordinator, or about it."""
        if self.coordinator is None:
            return 0.0 if self._wants_coordinator or self.state in IN or self.state is State.LEAVING else None
        if self.state in (State.SYNCING, State.LEAVING):
            return 0.0
        if self.state is State.JOINING:
            return None if self._topics is None else 0.0
        return self._heartbeat_at if self.state in IN and self.generation != NO_GENERATION else None

    def _group_ask(self, now: float) -> Ask | None:
        due = self._group_due()
        if due is None or now < due:
            return None
        settings = self.settings
        if self.coordinator is None:
            at: Callable[[int], Any] = partial(group_requests.find_coordinator, settings.group_id)
            return Ask(FindCoordinatorRequest, at, settings.request_timeout, to_coordinator=False)
        if self.state is State.JOINING:
            self._joined_with = self._topics or ()
            at = partial(group_requests.join, settings, self.member_id, self._subscription, self._reason)
            return Ask(JoinGroupRequest, at, settings.max_poll_interval + _JOIN_SLACK, waits=True)
        if self.state is State.SYNCING:
            share = group_requests.sync(settings, self.generation, self.member_id, self.protocol, self._leading.shares)
            return Ask(SyncGroupRequest, lambda _: share, settings.max_poll_interval + _JOIN_SLACK, waits=True)
        if self.state is State.LEAVING:
            at = partial(group_requests.leave, settings, self.member_id, self._reason)
            return Ask(LeaveGroupRequest, at, settings.request_timeout)
        self._heartbeat_at = now + settings.heartbeat_interval
        # while a second one may still arrive before the session is over
        timeout = max(settings.heartbeat_interval, settings.session_timeout / 3)
        beat = group_requests.heartbeat(settings, self.generation, self.member_id)
        return Ask(HeartbeatRequest, lambda _: beat, timeout)

    def _subscription(self, assignor: Assignor) -> Subscription:
        owned = tuple(sorted(self.owned))
        before, generation = self._previous
        user_data = assignor.user_data(before, generation)
        return Subscription(self._joined_with, user_data, owned, generation, self.settings.rack)

    # Metadata

    def _metadata_due(self) -> tuple[str, ...] | None:
        """The topics whose partitions it has to know or to watch: none of them means all topics. None: nothing."""
        if self.state is State.ASSIGNING:
            return self._leading.topics or None
        if self._pattern is not None and self.state in IN:
            return ()
        if self.state is State.STABLE and self._leading:
            return self._leading.topics or None
        return None

    def _metadata_ask(self, now: float) -> Ask | None:
        topics = self._metadata_due()
        if topics is None or (now < self._refresh_at and self.state is not State.ASSIGNING):
            return None
        at = partial(group_requests.metadata, topics, self.settings.auto_create_topics)
        return Ask(MetadataRequest, at, self.settings.request_timeout, to_coordinator=False)

    def _metadata_came(self, response: Any, now: float) -> None:
        self._refresh_at = now + self.settings.metadata_max_age
        counts = {topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code}
        if self._pattern is not None and len(self._metadata_due() or ()) == 0:
            usable = (t.name for t in response.topics if not t.error_code and not t.is_internal)
            matching = tuple(sorted(filter(self._pattern, usable)))
            if matching != self._topics:
                self._topics = matching
                self.join_again("the topics that match changed")
        if self._leading.misses(counts):
            self._refresh_at = now + min(_MISSING_TOPIC_SECONDS, self.settings.metadata_max_age)
        if self.state is State.ASSIGNING:
            self._share_out(counts)
        elif self._leading and self._leading.differs(counts):
            self.join_again("the partitions of a topic changed")

    def _share_out(self, counts: Mapping[str, int]) -> None:
        assignor = next(a for a in self.settings.assignors if a.name == self.protocol)
        self._leading.share_out(assignor, counts)
        self.state = State.SYNCING

    def reset(self, error: PylogdError, now: float) -> None:
        """Nothing that was asked will be answered."""
        for ask in (self._asked, self._asked_metadata):
            if ask is not None:
                self.failed(ask, error, now)

    # Answers

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """The response to an ask."""
        if ask is self._asked_metadata:
            self._asked_metadata = None
            self._metadata_came(response, now)
        elif ask is self._asked:
            self._asked = None
            self._ANSWERS[ask.api](self, response, now)

    def failed(self, ask: Ask, error: PylogdError, now: float) -> None:
        """An ask that brought no response: no connection, no answer, no common version."""
        if ask is self._asked_metadata:
            self._asked_metadata = None
            self._metadata_not_before = now + self._backoff.next()
            if not is_retriable(error):
                self._fail(error)
        elif ask is self._asked:
            self._asked = None
            self._not_before = now + self._backoff.next()
            if ask.to_coordinator:
                self.coordinator = None
            if self.state is State.LEAVING:
                self._left()
            elif not is_retriable(error):
                self._fail(error)
            elif self.state is State.SYNCING:
                self._prepare("the coordinator was lost")

    def _found(self, response: Any, now: float) -> None:
        answer = response.coordinators[0] if response.coordinators else response
        if answer.error_code:
            self._retry_or_fail(answer.error_code, answer.error_message, now)
            return
        self.coordinator = Coordinator(answer.node_id, answer.host, answer.port)
        self._wants_coordinator = False

    def _joined(self, response: JoinGroupResponse, now: float) -> None:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        if code:
            self._obey(AFTER_JOIN, code, now)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol = response.protocol_name
        self._heartbeat_at = now + self.settings.heartbeat_interval
        self._leading.end()
        self._leading.shares, self._reason = {}, None
        self.state = State.SYNCING
        self._backoff.reset()
        if self.protocol not in [assignor.name for assignor in self.settings.assignors]:
            self._fail(InvalidReply(f"the coordinator chose {self.protocol!r}, which this member did not offer"))
        elif response.leader == response.member_id:
            self._leading.begin(response.members)
            if self._leading and not response.skip_assignment:
                self.state = State.ASSIGNING
                self._asked_metadata = None
                if not self._leading.topics:
                    self._share_out({})

    def _synced(self, response: Any, now: float) -> None:
        if response.error_code:
            self._obey(AFTER_OTHERS, response.error_code, now, rejoin_on_find=True)
            return
        try:
            self.assignment = frozenset(decode_assignment(response.assignment))
        except InvalidReply as error:
            self._fail(error)
            return
        self.state = State.STABLE
        self._leading.shares = {}
        self._previous = tuple(sorted(self.assignment)), self.generation
        self._untold, self._rejoin = True, False
        if self._topics is not None and self._topics != self._joined_with:
            self.join_again("the topics that match changed")

    def _beat(self, response: Any, now: float) -> None:
        if response.error_code:
            self._obey(AFTER_OTHERS, response.error_code, now)
        else:
            self._backoff.reset()

    _ANSWERS: ClassVar[Mapping[type[Any], Callable[[Membership, Any, float], None]]] = {
        FindCoordinatorRequest: _found,
        JoinGroupRequest: _joined,
        SyncGroupRequest: _synced,
        HeartbeatRequest: _beat,
        LeaveGroupRequest: lambda self, _response, _now: self._left(),
    }

    def commit_refused(self, code: int, identity: Identity, now: float) -> None:
        """A commit, signed with `identity`, was answered with an error code that may concern the membership."""
        step = AFTER_OTHERS.get(error_for(code))
        if step is Step.FIND:
            self.coordinator_lost(now)
        elif step is Step.REJOIN:
            self.join_again("a commit showed a rebalance")
        elif step in (Step.RESET, Step.FENCED) and identity == self.identity and self.state in _SETTLED:
            self._obey(AFTER_OTHERS, code, now)

    # Steps

    def _obey(self, table: Mapping[ErrorCode, Step], code: int, now: float, *, rejoin_on_find: bool = False) -> None:
        """Do what an error code asks for."""
        error = error_for(code)
        step = table.get(error, Step.RETRY if error.retriable else Step.FAIL)
        if step is Step.RETRY or step is Step.FIND:
            self._not_before = now + self._backoff.next()
            if step is Step.FIND:
                self.coordinator = None
                if rejoin_on_find:
                    self._prepare("the coordinator moved")
        elif step is Step.REJOIN:
            self._prepare("the group rebalances")
        elif step is Step.RESET:
            self.member_id, self.generation = "", NO_GENERATION
            self._lost = True
            self._prepare(f"the coordinator answered {error.name}")
        else:
            self._fail(KafkaError(error, f"group {self.settings.group_id}: {error.text}"))

    def _retry_or_fail(self, code: int, message: str | None, now: float) -> None:
        error = error_for(code)
        if self.state is State.LEAVING:
            self._left()
        elif error.retriable:
            self._not_before = now + self._backoff.next()
        else:
            self._fail(KafkaError(error, message or f"group {self.settings.group_id}: {error.text}"))

    def _prepare(self, reason: str) -> None:
        """Join again, once the application has given up what it must."""
        self._reason = reason
        self._untold = self._rejoin = False
        self._leading.end()
        self._asked_metadata = None
        if self._asked is not None and self._asked.api is not FindCoordinatorRequest:
            self._asked = None  # what it answers is about what was
        self.state = State.PREPARING if self._topics != () or self._pattern is not None else State.OUT
        self._join_if_ready()

    def _join_if_ready(self) -> None:
        if self.state is not State.PREPARING or self._handling is not None:
            return
        if not self.owned or (self._cooperative and not self._lost):
            self._lost = False
            self.state = State.JOINING

    def _fail(self, error: PylogdError) -> None:
        self.error = error
        self._lost = True
        self._wants_coordinator = False
        self.state = State.FAILED
        self.generation, self.assignment = NO_GENERATION, frozenset()
        self._asked = self._asked_metadata = None

    def _go_out(self, then: State, now: float, *, lost: bool = False) -> None:
        """Leave the group, if it has us and would not rather wait for us to come back (static members)."""
        self._lost = lost
        self._after_leaving = then
        self._reason = "the application does not poll" if then is State.AWAY else "the consumer was closed"
        self._asked = self._asked_metadata = None
        self._not_before = now
        self.state = State.LEAVING
        if not self.member_id or self.settings.instance_id is not None:
            self._left()

    def _left(self) -> None:
        self.state = self._after_leaving
        self.member_id = "" if self.settings.instance_id is None else self.member_id
        self.generation, self.assignment = NO_GENERATION, frozenset()
        self._leading.end()
        if self.state is State.OUT and (self._topics or self._pattern is not None):
            self._prepare("the consumer subscribed anew")
