"""A member of a consumer group by the newer protocol: the state machine, without I/O (KIP-848).

Strategy: the coordinator assigns. A member sends heartbeats. To join, a heartbeat has epoch 0 and all fields; later
ones have only the fields that have changed. After an error all fields are sent again, since it is unknown what the
coordinator has recorded. An answer has the member's epoch, the interval of heartbeats, and the partitions if they have
changed. Partitions that are no longer assigned are given up first; the coordinator is told when the application is done
with them, and only then assigns them to another member. The table of states is in `consumer_states`. `membership`
describes how a member is driven.

Rules: the coordinator assigns by topic ids. Partitions of a topic with an unknown name are taken on once a broker has
told the name. A topic that was deleted and created again is another topic: its partitions are given up and taken on
again. The member makes its own id and never changes it. Only `member_model` says what an error code means. No clock, no
socket, no thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.errors import GroupProtocolUnsupported, UnsupportedByBroker
from pylogd.client.core.group import consumer_states as states
from pylogd.client.core.group import requests as group_requests
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.group.consumer_states import CONSUMER_MEMBER, ConsumerInput, ConsumerState
from pylogd.client.core.group.member_model import (
    ADVICE,
    NOBODY,
    OF_CONSUMERS,
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
from pylogd.client.core.group.requests import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    MemberReport,
    PatternUnsupported,
    TopicIdPartition,
)
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.metadata import MetadataRequest

_MISSING_TOPIC_SECONDS = 2.0  # seconds before an unknown topic id is looked up again
_FIRST_INTERVAL = 5.0  # seconds between heartbeats until the coordinator has told the interval
_LEAST_INTERVAL = 0.05
_LATE_HEARTBEATS = 3  # an answer counts as lost after so many intervals, but not before `_LEAST_PATIENCE`
_LEAST_PATIENCE = 5.0


class ConsumerMember(GroupMember):
    """See the module."""

    errors = OF_CONSUMERS
    standing = Standing(ConsumerState.OUT, ConsumerState.AWAY, states.INSIDE, states.LEAVING)

    def __init__(self, settings: MemberSettings, rng: random.Random | None = None) -> None:
        """Not in the group. Tests pass `rng` to know the jitter of retries."""
        super().__init__(settings, CONSUMER_MEMBER, rng)
        self.member_id = str(uuid4())
        self._report = MemberReport((), None, frozenset())
        self._reporting: MemberReport | None = None  # the fields in the heartbeat in flight
        self._reported: MemberReport | None = None  # the fields that the coordinator knows for certain, or None
        self._introduced = False  # whether the coordinator may know the member
        self._sent_at = 0.0
        self._interval = _FIRST_INTERVAL
        self._refresh_at = 0.0
        self._assigned: frozenset[TopicIdPartition] = frozenset()  # the coordinator's assignment
        self._names: dict[bytes, str] = {}  # the names of topics with assigned partitions
        self._unnamed: list[bytes] = []  # the ids of topics without a known name
        self._resolved: dict[TopicPartition, bytes] = {}  # the assigned partitions whose topic's name is known
        self._held: dict[TopicPartition, bytes] = {}  # `owned`, with topic ids
        self._adding: dict[TopicPartition, bytes] = {}  # partitions that the application is being told of
        self._topic_ids: dict[str, bytes] = {}

    @property
    def state(self) -> ConsumerState:
        """The state of the member."""
        state: ConsumerState = self._machine.state
        return state

    @property
    def rebalancing(self) -> bool:
        """Whether commits have to wait for the member epoch of the next answer."""
        return self.state is ConsumerState.JOINING

    @property
    def reader(self) -> tuple[str | None, int]:
        """The member id and epoch with which committed offsets are looked up."""
        return NOBODY if self.generation == NO_GENERATION else (self.member_id, self.generation)

    @property
    def topic_ids(self) -> Mapping[str, bytes]:
        """The ids of topics with assigned or held partitions, by name."""
        return self._topic_ids

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the coordinator has assigned, without partitions of topics whose names are unknown."""
        return frozenset(self._resolved)

    # What the application wants

    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Become a member that reads these topics. This also starts again after a failure."""
        before = self._report.regex
        self._subscribe(tuple(sorted(set(topics))), None if before is None else "", now)

    def subscribe_pattern(self, pattern: re.Pattern[str], now: float) -> None:
        """Become a member that reads present and future topics that match a pattern, which the broker reads as RE2.

        Raises ValueError for a flag of `re` that RE2 does not have.
        """
        self._subscribe((), group_requests.re2_text(pattern), now)

    def _subscribe(self, topics: tuple[str, ...], regex: str | None, now: float) -> None:
        self._report = self._report._replace(topics=topics, regex=regex)
        self._polled_at = now
        self.error = None
        if self.state in (ConsumerState.OUT, ConsumerState.FAILED):
            self._not_before = now
            self._backoff.reset()
        if not self._is_inside and not self._is_leaving:  # a member sends it with a heartbeat; otherwise it joins later
            self._join("the consumer subscribed")

    def leave(self, now: float) -> None:
        """Leave the group. The application has given up all partitions, or will not be asked to."""
        self._report, self.error = MemberReport((), None, frozenset()), None
        self.owned, self._event = frozenset(), None
        self._held.clear()
        self._send_leave(ConsumerInput.LEAVE, now)

    # Events

    def _find_event(self) -> Event | None:
        state = self.state
        if state is ConsumerState.STABLE:
            return None
        if state is ConsumerState.RECONCILING:
            if gone := self._gone():
                return Revoke(gone)
            return Assign(self.assignment, frozenset(self._resolved.keys() - self._held.keys()))
        if self.owned:
            return Revoke(self.owned, state in states.LOSING)
        return None if self.error is None else Failed(self.error)

    def _gone(self) -> frozenset[TopicPartition]:
        """Return the partitions that the application has to give up, also those of a topic that was created again."""
        wanted = self._resolved
        return frozenset(p for p, topic_id in self._held.items() if wanted.get(p) != topic_id)

    def _telling(self) -> None:
        self._adding = {p: topic_id for p, topic_id in self._resolved.items() if p not in self._held}

    def _told(self, event: Assign) -> None:
        self._held.update(self._adding)
        self._compare()

    def _gave_up(self, event: Revoke) -> None:
        for partition in event.partitions:
            self._held.pop(partition, None)
        self._compare()

    def _compare(self) -> None:
        """Record which partitions the application has, and whether these are all assigned partitions."""
        self._note_owned()
        self._topic_ids = {p.topic: topic_id for p, topic_id in (*self._resolved.items(), *self._held.items())}
        if self.state in states.MEMBERS:
            same = self._held == self._resolved
            self._machine.handle(ConsumerInput.FOLLOWED if same else ConsumerInput.DIFFERS)

    def _note_owned(self) -> None:
        """Choose the partitions to report: the application's, and those that it may get before the answer arrives.

        The coordinator would assign partitions that are not reported to another member at once.
        """
        held = frozenset((topic_id, partition.partition) for partition, topic_id in self._held.items())
        self._report = self._report._replace(owned=held | self._assigned)

    # Requests

    def _group_due(self) -> float | None:
        if self.state is ConsumerState.JOINING:
            return 0.0
        if self.state not in states.MEMBERS:
            return None
        return self._sent_at + self._interval if self._report == self._reported else 0.0

    def _group_request(self, now: float) -> MemberRequest:
        settings = self.settings
        if self._is_leaving:
            epoch = LEAVING if settings.instance_id is None else LEAVING_FOR_A_WHILE
            farewell = group_requests.farewell(settings, self.member_id, epoch)
            return MemberRequest(ConsumerGroupHeartbeatRequest, lambda _: farewell, settings.request_timeout)
        self._sent_at = now
        self._introduced = True
        self._reporting = self._report
        joins = self.state is ConsumerState.JOINING
        build = partial(
            group_requests.consumer_heartbeat, settings, self.member_id, JOINING if joins else self.generation,
            self._report, None if joins else self._reported,
        )  # fmt: skip
        late = max(_LATE_HEARTBEATS * self._interval, _LEAST_PATIENCE)
        timeout = settings.request_timeout if joins else min(late, settings.request_timeout)
        return MemberRequest(ConsumerGroupHeartbeatRequest, build, timeout)

    # Names of topics

    def _metadata_due(self) -> float | None:
        return self._refresh_at if self._unnamed else None

    def _metadata_request(self, now: float) -> MemberRequest | None:
        due = self._metadata_due()
        if due is None or now < due:
            return None
        build = partial(group_requests.topic_names, self._unnamed)
        return MemberRequest(MetadataRequest, build, self.settings.request_timeout, to_coordinator=False)

    def _take_metadata(self, response: Any, now: float) -> None:
        self._refresh_at = now + _MISSING_TOPIC_SECONDS
        found = {bytes(topic.topic_id): topic.name for topic in response.topics if topic.name and not topic.error_code}
        if found:
            self._names.update(found)
            self._resolve()

    def _resolve(self) -> None:
        """Resolve the assigned topic ids whose names are known."""
        assigned = sorted(self._assigned)
        names = self._names = {i: self._names[i] for i, _ in assigned if i in self._names}
        self._unnamed = sorted({i for i, _ in assigned if i not in names})
        self._resolved = {TopicPartition(names[i], index): i for i, index in assigned if i in names}
        self._compare()

    # Answers

    def _take_answer(self, request: MemberRequest, response: Any, now: float) -> None:
        if self._is_leaving:
            self._left()
        elif response.error_code:
            self._refused(error_for(response.error_code), response.error_message, now)
        else:
            self._accepted(response, now)

    def _accepted(self, response: Any, now: float) -> None:
        self._backoff.reset()
        self._reported = self._reporting
        self.generation = response.member_epoch
        self.member_id = response.member_id or self.member_id
        self._interval = max(response.heartbeat_interval_ms / 1000, _LEAST_INTERVAL)
        joined = self.state is ConsumerState.JOINING
        if joined:
            self._machine.handle(ConsumerInput.ACCEPTED)
        if response.assignment is None:
            return
        found = response.assignment.topic_partitions
        self._assigned = frozenset((bytes(topic.topic_id), index) for topic in found for index in topic.partitions)
        if self._assigned or not joined:  # a new member is told even that it has no partitions
            self._refresh_at = now
            self._resolve()

    def _unanswered(self) -> None:
        self._reported = None

    def _refused(self, code: ErrorCode, text: str | None, now: float) -> None:
        """React to an error code."""
        self._reported = None
        action = self.errors.get(code, ErrorAction.RETRY if code.retriable else ErrorAction.FAIL)
        if code is ErrorCode.GROUP_ID_NOT_FOUND and self.state in states.MEMBERS:
            action = ErrorAction.RESET  # the group was empty for a moment, and has been deleted
        self._not_before = now + self._backoff.next()
        if action is ErrorAction.FIND:
            self.coordinator = None
        elif action is ErrorAction.RESET:
            self._lose()
        elif action in (ErrorAction.FAIL, ErrorAction.FENCED):
            self._introduced = self.state is not ConsumerState.JOINING
            self._fail(self._error(code, text))

    def _error(self, code: ErrorCode, text: str | None) -> PylogdError:
        group = f"group {self.settings.group_id}"
        if code is ErrorCode.UNSUPPORTED_VERSION:
            return GroupProtocolUnsupported(f"{group}: {text or code.text}")
        advice = ADVICE.get(code)
        return KafkaError(code, f"{group}: {text or code.text}" + (f" ({advice})" if advice else ""))

    def _explain(self, request: MemberRequest, error: PylogdError) -> PylogdError:
        if request.api is not ConsumerGroupHeartbeatRequest or not isinstance(error, UnsupportedByBroker):
            return error
        self._introduced = False
        group = f"group {self.settings.group_id}"
        if isinstance(error, PatternUnsupported):
            return PatternUnsupported(f"{group}: {error}")
        return GroupProtocolUnsupported(f"{group}: {error}")

    def _commit_refused(self, action: ErrorAction, code: int, identity: GroupMetadata, now: float) -> None:
        if identity != self.identity or self.state not in states.MEMBERS:
            return
        if action is ErrorAction.ASK:
            self._reported = None  # the answer with the new epoch was lost: send all fields, so that it is repeated
        elif action in (ErrorAction.RESET, ErrorAction.FENCED):
            self._refused(error_for(code), None, now)

    # Changes of state

    def _forget(self) -> None:
        """Forget the assignment and all that was reported: the coordinator has forgotten the member."""
        self.generation = NO_GENERATION
        self._reported = self._in_flight = self._metadata_in_flight = None
        self._assigned, self._resolved, self._unnamed = frozenset(), {}, []
        self._report = self._report._replace(regex=self._report.regex or None)
        self._note_owned()

    def _join(self, reason: str) -> None:
        wants = self._report.topics or self._report.regex
        self._machine.handle(ConsumerInput.JOIN if wants else ConsumerInput.UNSUBSCRIBED)
        self._join_if_ready()

    def _join_if_ready(self) -> None:
        if self.state is ConsumerState.SURRENDERING and self._event is None and not self.owned:
            self._machine.handle(ConsumerInput.GAVE_UP)

    def _lose(self) -> None:
        self._introduced = False
        self._forget()
        self._machine.handle(ConsumerInput.LOST)
        self._join_if_ready()

    def _failed(self) -> None:
        self._forget()
        self._machine.handle(ConsumerInput.FAILED)

    def _not_polled(self, now: float) -> None:
        self._send_leave(ConsumerInput.NOT_POLLED, now)

    def _send_leave(self, cause: ConsumerInput, now: float) -> None:
        """Leave the group; a static member says that it will be back."""
        self._machine.handle(cause)
        self._forget()
        self._not_before = now
        if not self._introduced:
            self._left()

    def _left(self) -> None:
        self._introduced = False
        self._machine.handle(ConsumerInput.LEFT)
        if self.state is ConsumerState.OUT and (self._report.topics or self._report.regex):
            self._join("the consumer subscribed again")
