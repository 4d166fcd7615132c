"""What a member of the newer group protocol says with its heartbeats, and what it does about each answer."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.errors import BrokerUnavailable, GroupProtocolUnsupported, UnsupportedByBroker
from pylogd.client.core.group.assignors import find_assignors
from pylogd.client.core.group.consumer_member import ConsumerMember
from pylogd.client.core.group.consumer_states import ConsumerState
from pylogd.client.core.group.member_model import Assign, Failed, GroupMetadata, MemberRequest, MemberSettings, Revoke
from pylogd.client.core.group.requests import re2_text
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import metadata
from pylogd.wire.messages.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.metadata import MetadataRequest
from tests.fakes.group_coordinator import FakeGroups

T, U = b"t" * 16, b"u" * 16
NAMES = {T: "t", U: "u"}
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Bench:
    """A member, the time, and the answers that it is given."""

    def __init__(self, **settings: Any) -> None:
        given = {"protocol": "consumer", "max_poll_interval": 60.0, **settings}
        self.member = ConsumerMember(MemberSettings("g", find_assignors(["range"]), **given), random.Random(1))
        self.now = 100.0
        self.beating: list[MemberRequest] = []  # heartbeats that were taken and not looked at yet

    def requests(self) -> list[MemberRequest]:
        found = []
        while (request := self.member.next_request(self.now)) is not None:
            found.append(request)
        return found

    def heartbeat(self, version: int = 1) -> tuple[MemberRequest, ConsumerGroupHeartbeatRequest]:
        """The heartbeat that is due, once the coordinator is found and names are known."""
        while True:
            if self.beating:
                request = self.beating.pop()
                return request, request.build(version)
            when = self.member.next_time()
            assert when is not None
            self.now = max(self.now, when)
            self.resolve()

    def answer_other(self, request: MemberRequest) -> None:
        if request.api is ConsumerGroupHeartbeatRequest:
            self.beating.append(request)
            return
        if request.api is FindCoordinatorRequest:
            self.member.answered(request, FakeGroups().find(request.build(4), 1, "here", 1), self.now)
            return
        assert request.api is MetadataRequest
        found = [
            metadata.MetadataResponseTopic(
                ErrorCode.NONE if t.topic_id in NAMES else ErrorCode.UNKNOWN_TOPIC_ID, NAMES.get(t.topic_id), t.topic_id
            )
            for t in request.build(12).topics
        ]
        self.member.answered(request, metadata.MetadataResponse(topics=found), self.now)

    def accept(self, request: MemberRequest, epoch: int, *assigned: tuple[bytes, int] | None) -> None:
        """Answer a heartbeat. With None for `assigned`, what is assigned has not changed."""
        topics: dict[bytes, list[int]] = {}
        for partition in assigned:
            if partition is not None:
                topics.setdefault(partition[0], []).append(partition[1])
        found = HeartbeatAssignment([AssignedTopicPartitions(topic, indexes) for topic, indexes in topics.items()])
        answer = ConsumerGroupHeartbeatResponse(
            member_id=self.member.member_id, member_epoch=epoch, heartbeat_interval_ms=3000,
            assignment=None if None in assigned else found,
        )  # fmt: skip
        self.member.answered(request, answer, self.now)

    def refuse(self, request: MemberRequest, code: ErrorCode, text: str | None = None) -> None:
        self.member.answered(request, ConsumerGroupHeartbeatResponse(error_code=code, error_message=text), self.now)

    def handle(self) -> Any:
        """Let the application carry out the next event."""
        event = self.member.next_event()
        assert event is not None
        self.member.done(event, self.now)
        return event

    def join(self, *assigned: tuple[bytes, int]) -> None:
        """Become a member in epoch 1, with partitions that the application has taken on and the coordinator knows."""
        self.member.subscribe(["t"], self.now)
        request, _ = self.heartbeat()
        self.accept(request, 1, *assigned)
        self.resolve()
        event = self.handle()
        assert isinstance(event, Assign)
        request, _ = self.heartbeat()
        self.accept(request, 1, None)

    def resolve(self) -> None:
        for request in self.requests():
            self.answer_other(request)


def owned(message: ConsumerGroupHeartbeatRequest) -> set[tuple[bytes, int]] | None:
    topics = message.topic_partitions
    return None if topics is None else {(topic.topic_id, index) for topic in topics for index in topic.partitions}


def test_it_joins_with_everything_and_then_says_what_has_changed() -> None:
    bench = Bench(rack="r1", remote_assignor="range", instance_id="i")
    bench.member.subscribe(["t", "u", "t"], bench.now)
    request, joins = bench.heartbeat()
    assert (joins.group_id, joins.member_epoch, joins.instance_id, joins.rack_id) == ("g", 0, "i", "r1")
    assert (joins.rebalance_timeout_ms, joins.server_assignor) == (60_000, "range")
    assert (joins.subscribed_topic_names, joins.subscribed_topic_regex, owned(joins)) == (["t", "u"], None, set())
    assert len(joins.member_id) == 36
    bench.accept(request, 4, (T, 0), (T, 1))
    bench.resolve()
    at = bench.now
    request, tells = bench.heartbeat()
    assert bench.now == at, "what the application may take on is told at once"
    event = bench.handle()
    assert (event.partitions, event.added) == ({ZERO, ONE}, {ZERO, ONE})
    assert (tells.member_id, tells.member_epoch, tells.instance_id) == (joins.member_id, 4, "i")
    assert (tells.rack_id, tells.server_assignor, tells.rebalance_timeout_ms) == (None, None, -1)
    assert (tells.subscribed_topic_names, owned(tells)) == (None, {(T, 0), (T, 1)})
    bench.accept(request, 5, None)
    assert bench.member.state is ConsumerState.STABLE
    request, idle = bench.heartbeat()
    assert bench.now == at + 3.0, "the coordinator told the interval"
    assert (idle.member_epoch, idle.subscribed_topic_names, owned(idle)) == (5, None, None)
    assert bench.member.identity == GroupMetadata("g", 5, joins.member_id, "i")
    assert bench.member.reader == (joins.member_id, 5)
    bench.member.subscribe(["u"], bench.now)
    bench.accept(request, 5, None)
    _, changed = bench.heartbeat()
    assert (changed.member_epoch, changed.subscribed_topic_names, owned(changed)) == (5, ["u"], None)


def test_what_is_taken_away_is_confirmed_once_the_application_has_given_it_up() -> None:
    bench = Bench()
    bench.join((T, 0), (T, 1))
    request, _ = bench.heartbeat()
    bench.accept(request, 1, (T, 0))
    event = bench.member.next_event()
    assert isinstance(event, Revoke)
    assert (set(event.partitions), event.lost) == ({ONE}, False)
    assert bench.member.holds == {ZERO, ONE}, "it may still commit"
    request, meanwhile = bench.heartbeat()
    assert owned(meanwhile) is None
    bench.accept(request, 1, None)
    bench.member.done(event, bench.now)
    request, confirms = bench.heartbeat()
    assert (confirms.member_epoch, owned(confirms)) == (1, {(T, 0)})
    bench.accept(request, 2, (T, 0), (U, 0))
    bench.resolve()
    event = bench.handle()
    assert (event.partitions, event.added) == ({ZERO, TopicPartition("u", 0)}, {TopicPartition("u", 0)})
    assert bench.member.topic_ids == {"t": T, "u": U}


def test_after_an_error_it_says_everything_again() -> None:
    bench = Bench()
    bench.join((T, 0))
    request, _ = bench.heartbeat()
    bench.member.failed(request, BrokerUnavailable("gone"), bench.now)
    request, full = bench.heartbeat()
    assert (full.member_epoch, full.subscribed_topic_names, owned(full)) == (1, ["t"], {(T, 0)})
    assert full.rebalance_timeout_ms == 60_000
    bench.refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert bench.member.coordinator is not None
    request, full = bench.heartbeat()
    assert full.subscribed_topic_names == ["t"]
    bench.refuse(request, ErrorCode.NOT_COORDINATOR)
    assert bench.member.coordinator is None
    request, full = bench.heartbeat()
    bench.accept(request, 1, (T, 0))
    assert bench.member.state is ConsumerState.STABLE, "it had that already"


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_its_partitions_and_joins_anew(code: ErrorCode) -> None:
    bench = Bench()
    bench.join((T, 0))
    member_id = bench.member.member_id
    request, _ = bench.heartbeat()
    bench.refuse(request, code)
    assert bench.member.identity == GroupMetadata("g")
    bench.now += 30.0
    assert not bench.requests(), "nothing is joined while the application reads"
    event = bench.handle()
    assert (event.partitions, event.lost) == ({ZERO}, True)
    _, joins = bench.heartbeat()
    assert (joins.member_id, joins.member_epoch, owned(joins)) == (member_id, 0, set())


def test_a_topic_made_anew_is_another_topic() -> None:
    bench = Bench()
    bench.join((T, 0))
    NAMES[b"v" * 16] = "t"
    try:
        request, _ = bench.heartbeat()
        bench.accept(request, 2, (b"v" * 16, 0))
        bench.resolve()
        event = bench.handle()
        assert isinstance(event, Revoke)
        assert event.partitions == {ZERO}
        event = bench.handle()
        assert isinstance(event, Assign)
        assert event.added == {ZERO}
        request, tells = bench.heartbeat()
        assert owned(tells) == {(T, 0), (b"v" * 16, 0)}, "sent before that"
        bench.accept(request, 2, None)
        _, tells = bench.heartbeat()
        assert owned(tells) == {(b"v" * 16, 0)}
    finally:
        del NAMES[b"v" * 16]


def test_a_topic_that_no_broker_knows_is_taken_on_once_one_does() -> None:
    bench = Bench()
    unknown = b"w" * 16
    bench.join((T, 0))
    request, _ = bench.heartbeat()
    bench.accept(request, 2, (T, 0), (unknown, 3))
    bench.resolve()
    assert not bench.member.has_event
    asked = bench.now
    NAMES[unknown] = "w"
    try:
        while not bench.member.has_event:
            request, _ = bench.heartbeat()
            bench.accept(request, 2, None)
            bench.resolve()
        assert bench.now - asked < 5.0
        assert bench.handle().added == {TopicPartition("w", 3)}
    finally:
        del NAMES[unknown]


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaving(instance: str | None, epoch: int) -> None:
    bench = Bench(instance_id=instance)
    bench.join((T, 0))
    bench.member.leave(bench.now)
    assert not bench.member.is_out
    request, leaves = bench.heartbeat()
    assert (leaves.member_epoch, leaves.instance_id, leaves.subscribed_topic_names) == (epoch, instance, None)
    bench.member.failed(request, BrokerUnavailable("gone"), bench.now)
    assert bench.member.is_out, "the session ends by itself"
    assert bench.member.next_time() is None


def test_leaving_before_the_coordinator_knew_of_it_needs_no_request() -> None:
    bench = Bench()
    bench.member.subscribe(["t"], bench.now)
    bench.member.leave(bench.now)
    assert bench.member.is_out


def test_an_application_that_does_not_poll() -> None:
    bench = Bench(max_poll_interval=10.0)
    bench.join((T, 0))
    bench.now += 10.0
    request, leaves = bench.heartbeat()
    assert leaves.member_epoch == -1
    bench.accept(request, -1, None)
    assert bench.member.is_away
    assert bench.member.next_time() is None
    bench.member.polled(bench.now)
    event = bench.handle()
    assert (event.partitions, event.lost) == ({ZERO}, True)
    bench.member.polled(bench.now)
    _, joins = bench.heartbeat()
    assert joins.member_epoch == 0


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, "stop it, or wait"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.consumer.max.size"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "group_remote_assignor"),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, "RE2"),
        (ErrorCode.GROUP_ID_NOT_FOUND, 'group_protocol="classic"'),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "why"),
    ],
)
def test_errors_for_the_application(code: ErrorCode, advice: str) -> None:
    bench = Bench()
    bench.member.subscribe(["t"], bench.now)
    request, _ = bench.heartbeat()
    bench.refuse(request, code, "why")
    event = bench.handle()
    assert isinstance(event, Failed)
    assert isinstance(event.error, KafkaError)
    assert event.error.code is code
    assert "group g: why" in str(event.error)
    assert advice in str(event.error)
    _, again = bench.heartbeat()
    assert again.member_epoch == 0, "the application polls again"


def test_another_member_with_its_instance_id_is_left_in_peace() -> None:
    bench = Bench(instance_id="i")
    bench.join((T, 0))
    request, _ = bench.heartbeat()
    bench.refuse(request, ErrorCode.FENCED_INSTANCE_ID)
    assert bench.handle().lost
    assert isinstance(bench.handle(), Failed)
    assert bench.member.next_time() is None


@pytest.mark.parametrize("by_answer", [True, False])
def test_a_cluster_without_the_protocol(by_answer: bool) -> None:
    bench = Bench()
    bench.member.subscribe(["t"], bench.now)
    request, _ = bench.heartbeat()
    if by_answer:
        bench.refuse(request, ErrorCode.UNSUPPORTED_VERSION, "group.version is 0")
    else:
        bench.member.failed(request, UnsupportedByBroker("no version of it"), bench.now)
    event = bench.handle()
    assert isinstance(event.error, GroupProtocolUnsupported)
    assert 'use group_protocol="classic"' in str(event.error)
    bench.member.leave(bench.now)
    assert bench.member.is_out


def test_patterns() -> None:
    bench = Bench()
    bench.member.subscribe_pattern(re.compile("t.*", re.IGNORECASE), bench.now)
    request, joins = bench.heartbeat()
    assert (joins.subscribed_topic_names, joins.subscribed_topic_regex) == ([], "(?i)t.*")
    bench.accept(request, 1)
    assert bench.handle().partitions == frozenset()
    bench.member.subscribe(["u"], bench.now)
    request, changed = bench.heartbeat()
    assert (changed.subscribed_topic_names, changed.subscribed_topic_regex) == (["u"], "")
    bench.refuse(request, ErrorCode.UNKNOWN_MEMBER_ID)
    _, joins = bench.heartbeat()
    assert joins.subscribed_topic_regex is None
    old = Bench()
    old.member.subscribe_pattern(re.compile("t"), old.now)
    with pytest.raises(UnsupportedByBroker, match="by name"):
        old.heartbeat(version=0)


def test_flags_of_patterns() -> None:
    assert re2_text(re.compile("a", re.ASCII)) == "a"
    assert re2_text(re.compile("a", re.DOTALL | re.MULTILINE)) in ("(?ms)a", "(?sm)a")
    with pytest.raises(ValueError, match="VERBOSE"):
        re2_text(re.compile("a", re.VERBOSE))


def test_refused_commits() -> None:
    bench = Bench()
    bench.join((T, 0))
    member = bench.member
    former = GroupMetadata("g", 0, member.member_id)
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH):
        member.commit_refused(code, former, bench.now)
    assert member.state is ConsumerState.STABLE
    at = bench.now
    member.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, member.identity, bench.now)
    _, full = bench.heartbeat()
    assert (bench.now, owned(full)) == (at, {(T, 0)})
    member.commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, member.identity, bench.now)
    assert member.identity == GroupMetadata("g")
    member.commit_refused(ErrorCode.NOT_COORDINATOR, member.identity, bench.now)
    assert member.coordinator is None


def test_an_answer_to_what_was_given_up_is_ignored() -> None:
    bench = Bench()
    bench.join((T, 0))
    request, _ = bench.heartbeat()
    bench.member.leave(bench.now)
    bench.accept(request, 7, (T, 1))
    assert bench.member.generation == -1
    assert not bench.member.has_event
