"""The membership of a consumer in a group: the interface of both protocols, and the code that they share.

Strategy: the driver of a membership, a thread or an event loop, sends its requests, and reports answers, errors and
polls of the application. It passes one event at a time to the application, which carries it out. All faces of the
client drive it in this way.

    while (request := member.next_request(now)) is not None:  # send request.build(version), then
        member.answered(request, response, now)               # or member.failed(request, error, now)
    event = member.next_event()                               # Revoke, Assign or Failed, or None; carry it out, then
    member.done(event, now)
    member.next_time()                                        # when to call `next_request` if nothing happens before

`classic_member` and `consumer_member` are the two protocols. Each has its states, requests and meanings of error codes.
This module has the look-up of the coordinator, the requests in flight, and the event that the application carries out.

Rules: one request to the coordinator at a time, and one for metadata beside it. An answer to an abandoned request is
ignored. The member does not join while the application holds, or is being told of, partitions that it has to give up.
No clock, no socket, no thread; the caller sees to it that only one thread is in here at a time.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NamedTuple

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.base.machine import MachineTable
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import is_retriable
from pylogd.client.core.group import requests as group_requests
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.group.member_model import (
    NO_IDS,
    NOBODY,
    Assign,
    Coordinator,
    ErrorAction,
    Event,
    Failed,
    GroupMetadata,
    MemberRequest,
    MemberSettings,
    Revoke,
)
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest


class Standing(NamedTuple):
    """The states of one protocol, in groups that both protocols have.

    out: the member is not in the group, and does not want to be.
    away: the member is not in the group until the application polls again.
    inside: the member has an assignment or wants one.
    leaving: the member is telling the coordinator that it leaves.
    """

    out: Enum
    away: Enum
    inside: Set[Enum]
    leaving: Set[Enum]


class GroupMember(ABC):
    """A member of a group, or a consumer that only needs to know the group's coordinator to commit.

    generation: the generation (classic protocol) or member epoch (newer protocol); NO_GENERATION outside the group.
    owned: the partitions that the application has been told to read.
    error: the reason why it can't be a member.
    """

    #: The reaction to each error code of the protocol.
    errors: ClassVar[Mapping[ErrorCode, ErrorAction]]
    #: The groups of the protocol's states.
    standing: ClassVar[Standing]

    def __init__(
        self, settings: MemberSettings, machine: MachineTable[Any, Any], rng: random.Random | None = None
    ) -> None:
        """Not in the group. Tests pass `rng` to know the jitter of retries."""
        self.settings = settings
        self._machine = machine.machine()
        self.coordinator: Coordinator | None = None
        self.member_id = ""
        self.generation = NO_GENERATION
        self.owned: frozenset[TopicPartition] = frozenset()
        self.error: PylogdError | None = None
        self._backoff = Backoff(rng=rng)
        self._in_flight: MemberRequest | None = None
        self._metadata_in_flight: MemberRequest | None = None
        self._not_before = 0.0
        self._metadata_not_before = 0.0
        self._polled_at = 0.0
        self._event: Event | None = None  # the event that the application is carrying out
        self._wants_coordinator = False  # whether a commit waits for the coordinator

    # The state

    @property
    def is_out(self) -> bool:
        """Whether the member is not in the group, and does not want to be."""
        return self._machine.state is self.standing.out

    @property
    def is_away(self) -> bool:
        """Whether the member has left the group until the application polls again."""
        return self._machine.state is self.standing.away

    @property
    def _is_inside(self) -> bool:
        return self._machine.state in self.standing.inside

    @property
    def _is_leaving(self) -> bool:
        return self._machine.state in self.standing.leaving

    @property
    @abstractmethod
    def rebalancing(self) -> bool:
        """Whether a commit has to wait, because the coordinator is about to decide which partitions the member has."""

    @property
    def identity(self) -> GroupMetadata:
        """The member and generation with which offsets are committed; without a generation there is no member."""
        if self.generation == NO_GENERATION:
            return GroupMetadata(self.settings.group_id)
        return GroupMetadata(self.settings.group_id, self.generation, self.member_id, self.settings.instance_id)

    @property
    def reader(self) -> tuple[str | None, int]:
        """The member id and epoch with which committed offsets are looked up; the classic protocol names no member."""
        return NOBODY

    @property
    def holds(self) -> frozenset[TopicPartition]:
        """The partitions whose offsets the application may commit: those that it reads or is being assigned."""
        return self.owned | self._event.added if isinstance(self._event, Assign) else self.owned

    @property
    def topic_ids(self) -> Mapping[str, bytes]:
        """The ids of the topics with assigned partitions, by name, if the coordinator assigns by id."""
        return NO_IDS

    # What the application wants

    @abstractmethod
    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Become a member that reads these topics. This also starts again after a failure."""

    @abstractmethod
    def subscribe_pattern(self, pattern: re.Pattern[str], now: float) -> None:
        """Become a member that reads present and future topics whose whole names match."""

    @abstractmethod
    def leave(self, now: float) -> None:
        """Leave the group. The application has given up all partitions, or will not be asked to."""

    def find_coordinator(self) -> None:
        """Look up the coordinator for a commit, whether or not this is a member."""
        self._wants_coordinator = True

    def coordinator_lost(self, now: float) -> None:
        """Record that another request has shown that the coordinator moved or can't be reached."""
        if self.coordinator is not None:
            self.coordinator = None
            self._not_before = max(self._not_before, now + self._backoff.next())

    def polled(self, now: float) -> None:
        """Record that the application polls, and is ready for events."""
        self._polled_at = now
        if self.is_away and not self.owned and self._event is None:
            self._join("the application polls again")

    def commit_refused(self, code: int, identity: GroupMetadata, now: float) -> None:
        """Handle the error code of a commit in the name of `identity`, which may concern the membership."""
        action = self.errors.get(error_for(code))
        if action is ErrorAction.FIND:
            self.coordinator_lost(now)
        elif action is not None:
            self._commit_refused(action, code, identity, now)

    # Events

    @property
    def has_event(self) -> bool:
        """Whether `next_event` would return one."""
        return self._event is None and self._find_event() is not None

    def next_event(self) -> Event | None:
        """Return the next event for the application, or None.

        There is no further event until `done` is called with this one.
        """
        if self._event is not None:
            return None
        self._event = self._find_event()
        if isinstance(self._event, Assign):
            self._telling()
        return self._event

    def done(self, event: Event, now: float) -> None:
        """Record that the application has carried out an event."""
        if event is not self._event:  # the member left the group meanwhile
            return
        self._event = None
        if isinstance(event, Failed):
            if self.error is event.error and not self._is_final(event.error):
                self.error = None
                self._not_before = now + self._backoff.next()
                self._join("trying again after an error")
        elif isinstance(event, Assign):
            self.owned |= event.added
            self._told(event)
        else:
            self.owned -= event.partitions
            self._gave_up(event)
        self._join_if_ready()

    def _is_final(self, error: PylogdError) -> bool:
        """Return whether another process has joined as this static member: a retry would fence that process."""
        return isinstance(error, KafkaError) and self.errors.get(error.code) is ErrorAction.FENCED

    # Requests

    def next_request(self, now: float) -> MemberRequest | None:
        """Return the next request to send, or None until an answer comes or `next_time` is reached."""
        if self._is_inside and now >= self._polled_at + self.settings.max_poll_interval:
            self._not_polled(now)
        if self._metadata_in_flight is None and now >= self._metadata_not_before:
            self._metadata_in_flight = self._metadata_request(now)
            if self._metadata_in_flight is not None:
                return self._metadata_in_flight
        if self._in_flight is None and now >= self._not_before:
            due = self._due()
            if due is not None and now >= due:
                self._in_flight = self._find_request() if self.coordinator is None else self._group_request(now)
            return self._in_flight
        return None

    def next_time(self) -> float | None:
        """Return when to call `next_request`, unless an event comes first; None if never."""
        times = []
        if self._in_flight is None and (due := self._due()) is not None:
            times.append(max(due, self._not_before))
        if self._metadata_in_flight is None and (due := self._metadata_due()) is not None:
            times.append(max(due, self._metadata_not_before))
        if self._is_inside:
            times.append(self._polled_at + self.settings.max_poll_interval)
        return min(times) if times else None

    def _due(self) -> float | None:
        """Return when the next request to the coordinator, or the look-up of the coordinator, is due."""
        if self.coordinator is None:
            return 0.0 if self._wants_coordinator or self._is_inside or self._is_leaving else None
        return 0.0 if self._is_leaving else self._group_due()

    def _find_request(self) -> MemberRequest:
        build: Callable[[int], Any] = partial(group_requests.find_coordinator, self.settings.group_id)
        return MemberRequest(FindCoordinatorRequest, build, self.settings.request_timeout, to_coordinator=False)

    # Answers

    def reset(self, error: PylogdError, now: float) -> None:
        """Fail the requests in flight: the connection was lost, and they will not be answered."""
        for request in (self._in_flight, self._metadata_in_flight):
            if request is not None:
                self.failed(request, error, now)

    def answered(self, request: MemberRequest, response: Any, now: float) -> None:
        """Handle the response to a request."""
        if request is self._metadata_in_flight:
            self._metadata_in_flight = None
            self._take_metadata(response, now)
        elif request is self._in_flight:
            self._in_flight = None
            if request.api is FindCoordinatorRequest:
                self._coordinator_found(response, now)
            else:
                self._take_answer(request, response, now)

    def failed(self, request: MemberRequest, error: PylogdError, now: float) -> None:
        """Handle a request without a response: no connection, no answer, or no common version."""
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
            if self._is_leaving:
                self._left()
            elif not is_retriable(error):
                self._fail(self._explain(request, error))
            else:
                self._unanswered()

    def _coordinator_found(self, response: Any, now: float) -> None:
        answer = response.coordinators[0] if response.coordinators else response
        if not answer.error_code:
            self.coordinator = Coordinator(answer.node_id, answer.host, answer.port)
            self._wants_coordinator = False
        elif self._is_leaving:
            self._left()
        elif (code := error_for(answer.error_code)).retriable:
            self._not_before = now + self._backoff.next()
        else:
            text = answer.error_message or f"group {self.settings.group_id}: {code.text}"
            self._fail(KafkaError(code, text))

    def _fail(self, error: PylogdError) -> None:
        self.error = error
        self._wants_coordinator = False
        self.generation = NO_GENERATION
        self._in_flight = self._metadata_in_flight = None
        self._failed()

    # What a protocol adds

    @abstractmethod
    def _join(self, reason: str) -> None:
        """Join, or join again, once the application has given up the partitions that it must give up."""

    @abstractmethod
    def _join_if_ready(self) -> None:
        """Continue to join if the application has given up the partitions that it must give up."""

    @abstractmethod
    def _find_event(self) -> Event | None:
        """Return the next event for the application, or None."""

    @abstractmethod
    def _telling(self) -> None:
        """Record that the application is being told of its assignment."""

    @abstractmethod
    def _told(self, event: Assign) -> None:
        """Record that the application reads the added partitions."""

    @abstractmethod
    def _gave_up(self, event: Revoke) -> None:
        """Record that the application has given up partitions."""

    @abstractmethod
    def _group_due(self) -> float | None:
        """Return when the next request to the known coordinator is due; None if none is."""

    @abstractmethod
    def _group_request(self, now: float) -> MemberRequest:
        """Return the request to the coordinator that is due."""

    @abstractmethod
    def _metadata_due(self) -> float | None:
        """Return when the next request for metadata is due; None if none is."""

    @abstractmethod
    def _metadata_request(self, now: float) -> MemberRequest | None:
        """Return the request for metadata that is due, or None."""

    @abstractmethod
    def _take_metadata(self, response: Any, now: float) -> None:
        """Handle an answer to a request for metadata."""

    @abstractmethod
    def _take_answer(self, request: MemberRequest, response: Any, now: float) -> None:
        """Handle an answer of the coordinator."""

    @abstractmethod
    def _unanswered(self) -> None:
        """Handle a missing answer of the coordinator: the request may or may not have taken effect."""

    @abstractmethod
    def _not_polled(self, now: float) -> None:
        """Leave until the application polls, since it has not polled for `max_poll_interval`."""

    @abstractmethod
    def _left(self) -> None:
        """Handle the end of leaving: the coordinator was told, or need not be told."""

    @abstractmethod
    def _failed(self) -> None:
        """Wait until the application has been told of an error."""

    @abstractmethod
    def _commit_refused(self, action: ErrorAction, code: int, identity: GroupMetadata, now: float) -> None:
        """React to the error code of a commit."""

    def _explain(self, request: MemberRequest, error: PylogdError) -> PylogdError:
        """Return the error to raise to the application for an error that is not retriable."""
        return error
