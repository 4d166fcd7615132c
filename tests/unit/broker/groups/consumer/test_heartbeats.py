"""What heartbeats change in a consumer group: joining, following a target, leaving, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState, replay
from pylogd.broker.groups.consumer.heartbeats import (
    Change,
    Heartbeat,
    HeartbeatRefused,
    beat,
    check,
    delete,
    leave,
    remove,
)
from pylogd.broker.groups.consumer.members import LEAVING, LEAVING_FOR_A_WHILE, MemberState, TopicPartition
from pylogd.broker.groups.consumer.records import AssignmentEpoch, GroupEpoch, Record, decode, encode
from pylogd.broker.groups.values import LAST_GENERATION
from pylogd.broker.metadata.image import PartitionState, Topic
from tests.fakes.indexes import check_consumer_group

PARTITION = PartitionState(0, (1,), (1,), 1)


def topic(name: str, partitions: int, version: int = 0) -> Topic:
    return Topic(name, f"{name}{version}".encode().ljust(16), (PARTITION,) * partitions, {})


class Members:
    """The members of one group as clients, and the topics."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {"t": topic("t", 6), "u": topic("u", 3)}
        self.group = ConsumerGroup("g")
        self.now_ms, self.interval_ms = 5, 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.epochs: dict[str, int] = {}
        self.has: dict[str, frozenset[TopicPartition]] = {}

    def match(self, expression: str) -> frozenset[str]:
        if expression == "(":
            raise HeartbeatRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, "no")
        return frozenset(name for name in self.topics if re.fullmatch(expression, name))

    def take(self, change: Change) -> Change:
        self.group = change.group
        self.log += map(encode, change.records)
        return change

    def send(self, member_id: str, epoch: int, *, hear: bool = True, **fields: Any) -> Change:
        request = Heartbeat(member_id, epoch, **fields)
        check(request, "g", may_name_itself=False)
        change = self.take(
            beat(
                self.group, request, self.topics.get, self.match, self.now_ms, topics_changed=True,
                interval_ms=self.interval_ms,
            )
        )  # fmt: skip
        if hear:
            assert change.member is not None
            self.epochs[member_id] = change.member.epoch
            if change.assignment is not None:
                self.has[member_id] = frozenset(change.assignment)
        return change

    def join(self, member_id: str, *topics: str, hear: bool = True, **fields: Any) -> Change:
        self.has[member_id] = frozenset()
        names = frozenset(topics or ("t",))
        return self.send(member_id, 0, rebalance_ms=1000, topics=names, owned=frozenset(), hear=hear, **fields)

    def stay(self, member_id: str, **fields: Any) -> Change:
        return self.send(member_id, self.epochs[member_id], owned=self.has[member_id], **fields)

    def settle(self) -> None:
        for _ in range(4):
            for member_id in self.epochs:
                self.stay(member_id)
        assert self.group.state is (ConsumerGroupState.STABLE if self.epochs else ConsumerGroupState.EMPTY)


@pytest.fixture
def members() -> Members:
    return Members()


def test_two_members_share(members: Members) -> None:
    first = members.join("a")
    assert first.member is not None
    assert (first.member.epoch, len(first.assignment or ())) == (1, 6)
    second = members.join("b")
    assert second.member is not None
    assert (second.member.epoch, second.member.state) == (2, MemberState.UNRELEASED_PARTITIONS)
    assert members.has["b"] == frozenset()
    told = members.stay("a")
    assert told.member is not None
    assert (told.member.state, told.member.epoch) == (MemberState.UNREVOKED_PARTITIONS, 1)
    assert len(members.has["a"]) == 3
    assert members.stay("b").records == [], "a has not said that it gave them up"
    members.stay("a")
    members.stay("b")
    assert [len(members.has[name]) for name in "ab"] == [3, 3]
    assert members.group.state is ConsumerGroupState.STABLE


def test_a_group_is_assigned_again_once_the_interval_is_over(members: Members) -> None:
    members.interval_ms = 1000
    members.join("a")
    members.now_ms += 999
    members.join("b")
    assert (members.epochs["b"], members.has["b"], members.group.state) == (
        1,
        frozenset(),
        ConsumerGroupState.ASSIGNING,
    )
    assert members.stay("a").records == [], "the group epoch is 2, and the assignment that of 1"
    assert len(members.has["a"]) == 6
    members.now_ms += 1
    members.settle()
    assert [len(members.has[name]) for name in "ab"] == [3, 3]
    assert members.group.epoch == 2


def test_all_changes_within_an_interval_cost_one_assignment(members: Members) -> None:
    members.interval_ms = 1000
    members.join("a")
    for name in "bcdef":
        members.join(name)
    members.now_ms += 1000
    change = members.stay("f")
    assert [type(record).__name__ for record in change.records].count("AssignmentEpoch") == 1
    assert (members.group.epoch, members.group.assignment_epoch) == (6, 6)
    members.settle()
    assert [len(members.has[name]) for name in "abcdef"] == [1] * 6


def test_an_interval_counts_for_the_next_coordinator_unless_the_clock_of_the_last_one_was_ahead(
    members: Members,
) -> None:
    members.interval_ms = 1000
    members.join("a")
    members.join("b")
    members.group = replay(record for one in members.log if (record := decode(*one)) is not None)["g"]
    assert members.group.assigned_ms == 5
    members.now_ms = 1004
    members.stay("b")
    assert members.group.assignment_epoch == 1
    members.now_ms = 4
    members.stay("b")
    assert members.group.assignment_epoch == 2


def test_a_heartbeat_that_changes_nothing_writes_nothing(members: Members) -> None:
    members.join("a")
    again = members.send("a", 1)
    assert (again.records, again.assignment) == ([], None)
    assert again.group is members.group


def test_a_full_heartbeat_is_told_everything(members: Members) -> None:
    members.join("a")
    full = members.send("a", 1, rebalance_ms=1000, topics=frozenset("t"), owned=members.has["a"])
    assert (len(full.assignment or ()), full.records) == (6, [])


def test_partitions_of_members_that_leave_go_to_others(members: Members) -> None:
    members.join("a")
    members.join("b")
    members.settle()
    gone = members.take(leave(members.group, Heartbeat("a", LEAVING)))
    assert gone.member is None
    del members.epochs["a"]
    members.settle()
    assert len(members.has["b"]) == 6
    members.take(remove(members.group, ["b"]))
    assert members.group.state is ConsumerGroupState.EMPTY
    deleted = members.group.with_records(delete(members.group))
    assert (deleted.epoch, deleted.assignment_epoch, deleted.target, deleted.owners) == (0, 0, {}, {})


def test_a_static_member_comes_back_to_its_partitions(members: Members) -> None:
    members.join("a", instance_id="one")
    members.join("b", instance_id="two")
    members.settle()
    had, epoch = members.has["a"], members.group.epoch
    with pytest.raises(HeartbeatRefused) as early:
        members.join("c", instance_id="one")
    assert early.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
    members.take(leave(members.group, Heartbeat("a", LEAVING_FOR_A_WHILE, instance_id="one")))
    assert members.group.state is ConsumerGroupState.RECONCILING
    back = members.join("c", instance_id="one")
    assert (members.has["c"], members.group.epoch) == (had, epoch)
    assert back.member is not None
    assert back.member.epoch == epoch
    del members.epochs["a"]
    members.settle()
    with pytest.raises(HeartbeatRefused) as fenced:
        members.send("a", epoch, instance_id="one")
    assert fenced.value.code == ErrorCode.FENCED_INSTANCE_ID
    with pytest.raises(HeartbeatRefused) as unknown:
        members.send("c", epoch, instance_id="three")
    assert unknown.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_topics_that_are_made_grow_and_go(members: Members) -> None:
    members.join("a", "t", "new")
    members.topics["new"] = topic("new", 2)
    assert members.stay("a").group.epoch == 2
    members.settle()
    assert len(members.has["a"]) == 8
    members.topics["new"] = topic("new", 4)
    members.settle()
    assert len(members.has["a"]) == 10
    members.topics["new"] = topic("new", 1, version=1)
    members.settle()
    assert len(members.has["a"]) == 7
    del members.topics["new"]
    members.settle()
    assert len(members.has["a"]) == 6


def test_an_answer_that_was_lost(members: Members) -> None:
    members.join("a")
    members.join("b")
    members.stay("a")
    members.stay("a", hear=False)
    assert members.group.members["a"].epoch == 2
    members.stay("a")
    assert members.epochs["a"] == 2
    members.settle()


def test_a_member_that_starts_over(members: Members) -> None:
    members.join("a")
    members.join("a", hear=False)
    assert members.group.members["a"].epoch == 1
    members.join("a")
    members.settle()
    assert len(members.has["a"]) == 6


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "x", "epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "a", "epoch": 9}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_id": "a", "epoch": 1}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_id": "a", "epoch": 1, "owned": frozenset([(bytes(16), 7)])}, ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_epochs_that_are_refused(members: Members, fields: Mapping[str, Any], code: ErrorCode) -> None:
    members.join("a")
    members.join("b")
    members.settle()
    with pytest.raises(HeartbeatRefused) as caught:
        beat(members.group, Heartbeat(**fields), members.topics.get, members.match, 5)
    assert caught.value.code == code


JOIN: Mapping[str, Any] = {
    "member_id": "a", "epoch": 0, "rebalance_ms": 1, "owned": frozenset(), "topics": frozenset("t"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("group_id", "fields"),
    [
        ("", JOIN),
        ("g", {**JOIN, "member_id": ""}),
        ("g", {**JOIN, "epoch": -3}),
        ("g", {**JOIN, "epoch": -2}),
        ("g", {**JOIN, "instance_id": ""}),
        ("g", {**JOIN, "rack_id": ""}),
        ("g", {**JOIN, "rebalance_ms": -1}),
        ("g", {**JOIN, "owned": None}),
        ("g", {**JOIN, "owned": frozenset([(bytes(16), 0)])}),
        ("g", {**JOIN, "topics": None}),
        ("g", {"member_id": "", "epoch": 3}),
    ],
)
def test_heartbeats_that_no_group_takes(group_id: str, fields: Mapping[str, Any]) -> None:
    with pytest.raises(HeartbeatRefused) as caught:
        check(Heartbeat(**fields), group_id, may_name_itself=False)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_regular_expressions(members: Members) -> None:
    members.join("a", "t", regex="u.*")
    assert len(members.has["a"]) == 9
    members.topics["u2"] = topic("u2", 2)
    members.settle()
    assert len(members.has["a"]) == 11
    members.stay("a", regex="v.*")
    members.settle()
    assert (len(members.has["a"]), set(members.group.matched)) == (6, {"v.*"})
    members.stay("a", regex="")
    assert not members.group.matched
    with pytest.raises(HeartbeatRefused):
        members.stay("a", regex="(")


def test_a_member_that_changes_its_instance_id_leaves_the_old_one_to_others(members: Members) -> None:
    members.join("a", instance_id="x")
    members.join("a", instance_id="y")
    assert members.group.instances == {"y": "a"}
    members.join("b", instance_id="x")
    with pytest.raises(HeartbeatRefused, match="still has the instance id 'y'"):
        members.join("c", instance_id="y")
    members.take(leave(members.group, Heartbeat("a", LEAVING_FOR_A_WHILE, "y")))
    members.epochs.pop("a")
    members.join("b", instance_id="y")  # in the place of a: its own instance id becomes free
    assert members.group.instances == {"y": "b"}
    members.join("c", instance_id="x")
    members.settle()
    loaded = replay(record for key, value in members.log if (record := decode(key, value)) is not None)["g"]
    assert loaded.instances == {"x": "c", "y": "b"}


def test_the_last_epoch_is_followed_by_1(members: Members) -> None:
    """As the last generation of a classic group, whose number a group keeps when it changes its protocol."""
    begun: list[Record] = [GroupEpoch("g", LAST_GENERATION - 1), AssignmentEpoch("g", LAST_GENERATION - 1)]
    members.take(Change(members.group.with_records(begun), begun))
    members.join("a")
    assert members.epochs["a"] == LAST_GENERATION
    members.join("b")
    members.settle()
    assert (members.epochs, members.group.epoch) == ({"a": 1, "b": 1}, 1)
    assert [len(members.has[name]) for name in "ab"] == [3, 3]
    with pytest.raises(HeartbeatRefused) as caught:
        members.send("a", LAST_GENERATION, owned=members.has["a"] | {(b"x" * 16, 0)})
    assert caught.value.code == ErrorCode.FENCED_MEMBER_EPOCH


def test_assignors(members: Members) -> None:
    with pytest.raises(HeartbeatRefused) as caught:
        check(Heartbeat(**{**JOIN, "assignor": "sticky"}), "g", may_name_itself=False)
    assert caught.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR
    members.join("a", assignor="range")
    members.join("b", assignor="range")
    members.join("c", assignor="uniform")
    members.settle()
    assert [sorted(index for _, index in members.has[name]) for name in "abc"] == [[0, 1], [3, 4], [2, 5]]


class Histories(RuleBasedStateMachine):
    """Any history: each partition has at most one owner, and a coordinator that loads the group knows the same."""

    names = st.sampled_from("abcd")
    instances = st.sampled_from([None, "x", "y", "z"])

    @initialize(epoch=st.sampled_from([0, LAST_GENERATION - 3]))
    def start(self, epoch: int) -> None:
        self.members = Members()
        if epoch:
            begun: list[Record] = [GroupEpoch("g", epoch), AssignmentEpoch("g", epoch)]
            self.members.take(Change(self.members.group.with_records(begun), begun))

    @rule(name=names, topics=st.sampled_from([("t",), ("t", "u"), ("u",)]), instance=instances, hear=st.booleans())
    def join(self, name: str, topics: tuple[str, ...], instance: str | None, hear: bool) -> None:
        try:
            self.members.join(name, *topics, instance_id=instance, hear=hear)
        except HeartbeatRefused as refused:
            assert refused.code == ErrorCode.UNRELEASED_INSTANCE_ID
            holder = self.members.group.instances[instance or ""]
            assert not self.members.group.members[holder].has_left_for_a_while
            self.members.join(name, *topics, hear=hear)
        if not hear:
            self.members.epochs.setdefault(name, 0)
        for gone in self.members.epochs.keys() - self.members.group.members.keys():
            del self.members.epochs[gone]  # a member with its instance id has come in its place
            self.members.has.pop(gone, None)

    @rule(name=names)
    def leave_for_a_while(self, name: str) -> None:
        member = self.members.group.members.get(name)
        if member is not None and member.instance_id is not None:
            request = Heartbeat(name, LEAVING_FOR_A_WHILE, member.instance_id)
            self.members.take(leave(self.members.group, request))
            self.members.epochs[name], self.members.has[name] = 0, frozenset()

    @rule(name=names, hear=st.booleans())
    def heartbeat(self, name: str, hear: bool) -> None:
        if self.members.epochs.get(name, 0) > 0:
            try:
                self.members.stay(name, hear=hear)
            except HeartbeatRefused as refused:
                assert refused.code == ErrorCode.FENCED_MEMBER_EPOCH
                self.members.join(name)

    @rule(name=names, topics=st.sampled_from([("t",), ("t", "u")]))
    def subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        member = self.members.group.members.get(name)
        if member is not None and member.epoch == self.members.epochs.get(name):
            self.members.stay(name, topics=frozenset(topics))

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.members.group.members:
            self.members.take(leave(self.members.group, Heartbeat(name, LEAVING)))
            self.members.epochs.pop(name, None)
            self.members.has.pop(name, None)

    @rule(count=st.integers(1, 8))
    def resize(self, count: int) -> None:
        self.members.topics["u"] = topic("u", count)

    @invariant()
    def indexes_are_in_step(self) -> None:
        if not hasattr(self, "members"):
            return
        group = self.members.group
        check_consumer_group(group)
        owned = [p for member in group.members.values() for p in (*member.assigned, *member.revoking)]
        assert len(owned) == len(set(owned))

    @invariant()
    def loads_the_same(self) -> None:
        if not hasattr(self, "members"):
            return
        last: dict[bytes, bytes | None] = {}
        for key, value in self.members.log:  # as compaction leaves them
            last.pop(key, None)
            last[key] = value
        for log in (self.members.log, last.items()):
            records = [record for key, value in log if (record := decode(key, value)) is not None]
            self.compare(replay(records).get("g", ConsumerGroup("g")))

    def compare(self, loaded: ConsumerGroup) -> None:
        for name in ConsumerGroup.__slots__[1:]:
            assert getattr(loaded, name) == getattr(self.members.group, name), name

    def teardown(self) -> None:
        if hasattr(self, "members"):
            for name in set(self.members.group.members):
                self.members.join(name)
            self.members.epochs = {name: self.members.epochs[name] for name in self.members.group.members}
            self.members.settle()
            using = [p for partitions in self.members.has.values() for p in partitions]
            assert len(using) == len(set(using))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30)


def test_records_are_what_the_log_has(members: Members) -> None:
    members.join("a")
    records: list[Record | None] = [decode(key, value) for key, value in members.log]
    assert [type(record).__name__ for record in records] == [
        "MemberMetadata", "GroupEpoch", "GroupEpoch", "TargetAssignment", "AssignmentEpoch", "CurrentAssignment",
    ]  # fmt: skip
