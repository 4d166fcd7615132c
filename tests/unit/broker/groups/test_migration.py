"""Groups that change protocol with members in them: what is refused, what is kept, what the log says."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import assignment_for, read_assignment, read_subscription
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.consumer.members import LEAVING, LEAVING_FOR_A_WHILE
from pylogd.broker.groups.consumer.records import decode
from pylogd.broker.groups.records import Committed, group_key
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, LeavingMember, SyncAnswer, SyncRequest
from pylogd.broker.replica.internal_records import InvalidRecord
from tests.fakes.group_histories import World, subscription
from tests.fakes.groups import PendingResult
from tests.unit.broker.groups.consumer.test_heartbeats import topic

NONE = ErrorCode.NONE
POLICY = "group.consumer.migration.policy"


class Fixture(World):
    """A group with one topic of four partitions."""

    def __init__(self, **settings: str) -> None:
        super().__init__({"t": topic("t", 4)}, **settings)
        self.load()

    def ask_join(self, member_id: str = "", instance_id: str | None = None, **fields: Any) -> PendingResult:
        metadata = subscription(fields.pop("topics", ["t"]), fields.pop("owned", ()), cooperative=True)
        wanted = {
            "client_id": "c", "client_host": "/h", "session": 10.0, "rebalance": 20.0, "protocol_type": "consumer",
            "protocols": (("range", metadata), ("other", metadata)), "needs_known_id": False, "can_skip": True,
        }  # fmt: skip
        return PendingResult(self.coordinator.join("g", JoinRequest(member_id, instance_id, **{**wanted, **fields})))

    def ask_sync(self, joined: JoinAnswer, *, instance: str | None = None, **fields: Any) -> PendingResult:
        wanted = {"protocol_type": "consumer", "protocol": "range", "assignments": {}, **fields}
        request = SyncRequest(joined.member_id, instance, joined.generation, **wanted)
        return PendingResult(self.coordinator.sync("g", request))

    def form(self, user_data: bytes = b"", **fields: Any) -> JoinAnswer:
        """Form a Stable classic group of one member that has all partitions."""
        joined: JoinAnswer = self.ask_join(**fields).answer
        assert joined.leader == joined.member_id
        share = assignment_for({"t": [0, 1, 2, 3]}, b"\0\0")
        if user_data:
            share = share[:-4] + len(user_data).to_bytes(4, "big") + user_data
        told = {"protocol": joined.protocol, "assignments": {joined.member_id: share}}
        assert self.ask_sync(joined, instance=fields.get("instance_id"), **told).answer
        return joined

    def beat(self, member_id: str, epoch: int, owned: Any = None, **fields: Any) -> Any:
        ids = None if owned is None else frozenset((self.topics["t"].topic_id, index) for index in owned)
        request = Heartbeat(member_id, epoch, owned=ids, **fields)
        return PendingResult(self.coordinator.consumer_heartbeat("g", request, lambda _: frozenset())).answer

    def arrive(self, member_id: str = "new", **fields: Any) -> Any:
        """Have a member of the newer protocol join."""
        return self.beat(member_id, 0, (), rebalance_ms=20_000, topics=frozenset("t"), **fields)

    def rejoin(self, joined: JoinAnswer, owned: Any, instance_id: str | None = None) -> JoinAnswer:
        """Have a classic member join again, which has these partitions, and sync; return what it is told."""
        again: JoinAnswer = self.ask_join(joined.member_id, instance_id, owned=[("t", at) for at in owned]).answer
        assert not again.error
        return again

    def share(self, joined: JoinAnswer, instance_id: str | None = None) -> set[int]:
        answer: SyncAnswer = self.ask_sync(joined, instance=instance_id).answer
        assert not answer.error
        return {index for _, index in read_assignment(answer.assignment)[0]}

    def heartbeat(self, joined: JoinAnswer, instance_id: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat("g", joined.member_id, instance_id, joined.generation)

    @property
    def classic_state(self) -> GroupState:
        return self.coordinator._groups["g"].state

    @property
    def group(self) -> Any:
        return self.coordinator._consumers.get("g")

    def mix(self) -> JoinAnswer:
        """Make a group of a classic member and one of the newer protocol, each with its half; return the first."""
        joined = self.form()
        assert self.arrive().assignment == frozenset()
        again = self.rejoin(joined, range(4))
        kept = self.share(again)
        again = self.rejoin(again, kept)
        assert self.share(again) == kept
        assert len(self.beat("new", 2, ()).assignment) == 2
        return again


@pytest.fixture
def world() -> Fixture:
    return Fixture()


def test_classic_members_of_a_mixed_group_join_again_once_the_interval_is_over() -> None:
    world = Fixture(**{"group.consumer.assignment.interval.ms": "5000"})
    joined = world.mix()
    other = world.ask_join(topics=["t"]).answer
    assert not other.error
    assert world.share(other) == set(), "it is told nothing else before, and need not join again and again"
    assert [world.heartbeat(one) for one in (joined, other)] == [NONE, NONE]
    world.clock.advance(5.0)
    assert [world.heartbeat(one) for one in (joined, other)] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    assert world.rejoin(other, ()).generation > other.generation


def test_an_empty_group_is_in_one_form_also_if_its_first_newer_member_is_refused_by_the_log(world: Fixture) -> None:
    joined = world.form()
    world.coordinator.leave("g", [LeavingMember(joined.member_id, None)])
    assert world.classic_state is GroupState.EMPTY
    world.log.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.arrive().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.refuses = NONE
    assert not world.arrive().error
    keys = [key for key, value in world.log.records if value is None]
    assert keys == [group_key("g")], "the classic group is deleted in the batch with the newer one"
    world.load()
    assert set(world.coordinator._consumers.get("g").members) == {"new"}  # type: ignore[union-attr]


class TestUpgrade:
    def test_members_keep_what_they_have_until_they_give_it_up(self, world: Fixture) -> None:
        joined = world.form()
        assert world.arrive().assignment == frozenset()
        assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
        assert world.ask_sync(joined).answer.error == ErrorCode.REBALANCE_IN_PROGRESS
        again = world.rejoin(joined, range(4))
        assert (again.generation, again.leader, again.members, again.protocol) == (1, "", (), "range")
        kept = world.share(again)
        assert len(kept) == 2
        assert world.beat("new", 2, ()).assignment is None
        again = world.rejoin(again, kept)
        assert (again.generation, world.share(again)) == (2, kept)
        assert world.heartbeat(again) == NONE
        found = world.beat("new", 2, ()).assignment
        assert {index for _, index in found} == set(range(4)) - kept
        assert world.group.state.value == "Stable"

    def test_a_group_that_rebalances_is_told_to_begin_anew(self, world: Fixture) -> None:
        joined = world.form()
        late = world.ask_join()
        assert late.waits
        world.arrive()
        assert late.answer.error == ErrorCode.REBALANCE_IN_PROGRESS
        assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
        assert len(world.group.members) == 3

    @pytest.mark.parametrize("policy", ["disabled", "downgrade"])
    def test_the_policy_may_forbid_it(self, policy: str) -> None:
        world = Fixture(**{POLICY: policy})
        joined = world.form()
        answer = world.arrive()
        assert (answer.error, POLICY in answer.text) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
        assert world.heartbeat(joined) == NONE

    def test_a_group_that_is_no_group_of_consumers_stays(self, world: Fixture) -> None:
        joined = world.form(protocol_type="connect")
        assert world.arrive().error == ErrorCode.GROUP_ID_NOT_FOUND
        assert world.heartbeat(joined) == NONE

    def test_a_group_whose_assignor_keeps_data_stays(self, world: Fixture) -> None:
        metadata = subscription(["t"], (), cooperative=True)
        joined = world.form(user_data=b"mine", protocols=(("my own", metadata),))
        assert "data of its own" in world.arrive().text
        assert world.heartbeat(joined) == NONE

    def test_what_librdkafka_sends_back_of_subscriptions_is_no_data_of_an_assignor(self, world: Fixture) -> None:
        world.form(user_data=b"mine")
        assert world.arrive().error == NONE

    def test_a_group_whose_members_cannot_be_read_stays(self, world: Fixture) -> None:
        joined = world.form(protocols=(("range", b"\0\1\0\0"),))
        assert "can't be read" in world.arrive().text
        assert world.heartbeat(joined) == NONE

    def test_a_group_that_is_too_large_stays(self) -> None:
        world = Fixture(**{"group.consumer.max.size": "1"})
        joined = world.form()
        assert world.arrive().error == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert world.heartbeat(joined) == NONE

    def test_a_log_that_refuses_leaves_the_group_as_it_was(self, world: Fixture) -> None:
        joined = world.form()
        world.log.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.arrive().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (world.group, world.heartbeat(joined)) == (None, NONE)
        world.log.refuses = NONE
        world.clock.advance(11)
        assert world.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID, "its session has gone on"

    def test_requests_wait_while_the_group_is_being_moved(self, world: Fixture) -> None:
        joined = world.form()
        world.log.waits = True
        arriving = Heartbeat("new", 0, rebalance_ms=1000, topics=frozenset("t"), owned=frozenset())
        first = PendingResult(world.coordinator.consumer_heartbeat("g", arriving, lambda _: frozenset()))
        again, sync = world.ask_join(joined.member_id), world.ask_sync(joined)
        leaves = PendingResult(world.coordinator.leave("g", [LeavingMember(joined.member_id, None)]))
        assert first.waits and again.waits and sync.waits and leaves.waits
        assert world.heartbeat(joined) == NONE
        world.log.go_on()
        assert (first.answer.error, again.answer.error) == (NONE, NONE)
        assert sync.answer.error == ErrorCode.ILLEGAL_GENERATION, "it has joined again meanwhile"
        assert leaves.answer == (NONE, [NONE])

    def test_the_records_of_a_classic_member_are_kafkas(self, world: Fixture) -> None:
        world.form()
        world.arrive()
        keys = [key for key, _ in world.log.records]
        assert (group_key("g"), None) in world.log.records
        value = dict(world.log.records)[
            next(key for key in keys if key.startswith(b"\0\5\0\1g\0") and b"new" not in key)
        ]
        assert value is not None
        metadata = subscription(["t"], (), cooperative=True)
        protocols = b"".join(
            bytes((len(name) + 1,)) + name + bytes((len(metadata) + 1,)) + metadata + b"\0"
            for name in (b"range", b"other")
        )
        tag = b"\1" + (10_000).to_bytes(4, "big") + b"\3" + protocols + b"\0"
        assert value.endswith(b"\1\0" + bytes((len(tag),)) + tag)


class TestMixed:
    def test_offsets_are_kept_and_committed_in_the_generation(self, world: Fixture) -> None:
        joined = world.form()

        def commit(member: JoinAnswer, generation: int, offset: int) -> object:
            committed = Committed(offset, -1, "", 7)
            return world.coordinator.commit("g", member.member_id, None, generation, [(("t", 0), committed)])

        assert commit(joined, 1, 5) == NONE
        world.arrive()
        assert commit(joined, 1, 6) == NONE
        assert commit(joined, 2, 7) == ErrorCode.ILLEGAL_GENERATION
        assert world.coordinator.fetch("g", joined.member_id, 2) == ErrorCode.ILLEGAL_GENERATION
        world.load()
        world.beat("new", LEAVING)
        found = world.coordinator.fetch("g")
        assert not isinstance(found, ErrorCode) and found["t", 0].offset == 6

    def test_what_classic_members_are_refused(self, world: Fixture) -> None:
        joined = world.mix()
        other = joined._replace(member_id="nobody")
        newer = joined._replace(member_id="new", generation=2)
        assert world.heartbeat(other) == world.heartbeat(newer) == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.heartbeat(joined._replace(generation=1)) == ErrorCode.ILLEGAL_GENERATION
        assert world.ask_sync(newer).answer.error == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.ask_sync(joined, protocol="other").answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert world.ask_sync(joined, protocol_type="x").answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        metadata = subscription(["t"], (), cooperative=True)
        for fields in ({"protocol_type": "x"}, {"protocols": (("z", metadata),)}, {"protocols": (("range", b"\0"),)}):
            assert world.ask_join(**fields).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        asked = world.ask_join(needs_known_id=True).answer
        assert (asked.error, bool(asked.member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, True)
        leavers = [LeavingMember("nobody", None), LeavingMember("new", None), LeavingMember("", "i")]
        answer = PendingResult(world.coordinator.leave("g", leavers)).answer
        assert answer == (NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * 3)

    def test_a_session_ends(self, world: Fixture) -> None:
        joined = world.mix()
        world.clock.advance(9)
        assert world.heartbeat(joined) == NONE
        world.clock.advance(9)
        assert world.heartbeat(joined) == NONE
        world.clock.advance(11)
        assert set(world.group.members) == {"new"}

    def test_a_member_that_does_not_join_again_is_removed(self, world: Fixture) -> None:
        joined = world.form()
        world.arrive()
        for _ in range(3):
            assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
            world.clock.advance(9)
        assert world.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_member_that_does_not_sync_is_removed(self, world: Fixture) -> None:
        joined = world.form()
        world.arrive()
        again = world.rejoin(joined, ())
        for _ in range(3):
            world.heartbeat(again)
            world.clock.advance(9)
        assert world.heartbeat(again) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_coordinator_that_takes_over_goes_on(self, world: Fixture) -> None:
        joined = world.mix()
        before = world.group
        world.load()
        after = world.group
        assert all(getattr(before, name) == getattr(after, name) for name in type(before).__slots__[1:])
        assert world.heartbeat(joined) == NONE
        assert len(world.share(joined)) == 2

    def test_a_static_member_comes_back_by_the_other_protocol(self, world: Fixture) -> None:
        world.form(instance_id="i")
        world.arrive("other")
        moved = world.arrive("moved", instance_id="i")
        assert not moved.error
        assert world.group.instances["i"] == "moved"
        assert world.group.members["moved"].classic is None
        back = world.ask_join("", "i").answer
        assert not back.error
        assert world.group.instances["i"] == back.member_id
        assert world.beat("moved", moved.epoch, instance_id="i").error == ErrorCode.FENCED_INSTANCE_ID
        assert world.heartbeat(back._replace(member_id="moved"), "i") == ErrorCode.FENCED_INSTANCE_ID

    def test_a_member_that_goes_on_by_the_newer_protocol_needs_not_sync(self, world: Fixture) -> None:
        """Under the same member id: what was expected of it as a classic member is not any more."""
        joined = world.form()
        world.arrive("other")
        again = world.rejoin(joined, ())  # a SyncGroup should follow within the rebalance timeout
        moved = world.arrive(again.member_id)
        for _ in range(5):
            assert not moved.error
            world.clock.advance(9)
            world.beat("other", world.group.members["other"].epoch)
            moved = world.beat(again.member_id, world.group.members[again.member_id].epoch)
        assert set(world.group.members) == {"other", again.member_id}


class TestDowngrade:
    def test_the_group_goes_back_when_the_last_newer_member_leaves(self, world: Fixture) -> None:
        joined = world.mix()
        assert not world.beat("new", LEAVING).error
        assert (world.group, world.classic_state) == (None, GroupState.PREPARING)
        assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
        again = world.rejoin(joined, range(2))
        assert again.generation > joined.generation
        assert again.leader == again.member_id

    def test_it_goes_back_when_the_last_newer_member_is_late(self, world: Fixture) -> None:
        joined = world.mix()
        for _ in range(6):
            world.heartbeat(joined)
            world.clock.advance(9)
        assert (world.group, world.classic_state) == (None, GroupState.PREPARING)

    @pytest.mark.parametrize("policy", ["disabled", "upgrade"])
    def test_the_policy_may_forbid_it(self, world: Fixture, policy: str) -> None:
        joined = world.mix()
        world.settings.set_dynamic({POLICY: policy}, {})
        world.beat("new", LEAVING)
        assert set(world.group.members) == {joined.member_id}
        again = world.rejoin(joined, range(2))
        assert world.share(again) == {0, 1, 2, 3}

    def test_a_group_that_is_too_large_stays(self) -> None:
        world = Fixture(**{"group.max.size": "1"})
        world.mix()
        second = world.ask_join().answer
        world.beat("new", LEAVING)
        assert second.member_id in world.group.members

    def test_a_coordinator_that_takes_over_has_it_rebalance(self, world: Fixture) -> None:
        joined = world.mix()
        world.beat("new", LEAVING)
        world.load()
        assert (world.group, world.classic_state) == (None, GroupState.PREPARING)
        assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
        again = world.rejoin(joined, range(2))
        share = assignment_for({"t": [0, 1, 2, 3]}, b"\0\0")
        assert world.ask_sync(again, assignments={again.member_id: share}).answer.assignment == share
        world.load()
        assert (world.classic_state, world.heartbeat(again)) == (GroupState.STABLE, NONE)

    def test_nothing_of_the_other_form_is_left_in_the_log(self, world: Fixture) -> None:
        world.mix()
        world.beat("new", LEAVING)
        left = {key: value for key, value in world.log.records if value is not None or key == group_key("g")}
        last = dict(world.log.records)
        assert [key for key in left if last[key] is not None] == [group_key("g")]
        assert decode(b"\0\3\0\1g", last[b"\0\3\0\1g"]) is not None

    def test_a_static_member_that_takes_the_last_ones_place(self, world: Fixture) -> None:
        world.arrive("new", instance_id="i")
        assert not world.beat("new", LEAVING_FOR_A_WHILE, instance_id="i").error
        back = world.ask_join("", "i").answer
        assert (back.error, world.group) == (NONE, None)
        assert back.leader == back.member_id
        assert back.generation == 2
        assert world.beat("new", 1, instance_id="i").error == ErrorCode.GROUP_ID_NOT_FOUND

    def test_a_log_that_refuses_leaves_the_group_as_it_was(self, world: Fixture) -> None:
        joined = world.mix()
        world.log.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.beat("new", LEAVING).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (set(world.group.members), world.heartbeat(joined)) == ({joined.member_id, "new"}, NONE)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff\xff", b"\0\1\0\0\0\5", b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff\0\0\0\0"]
)
def test_malformed_subscriptions(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        read_subscription(data)


def test_subscriptions_of_all_versions() -> None:
    head = b"\0\0\0\1\0\1t\xff\xff\xff\xff"
    owned = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\7"
    assert read_subscription(b"\0\0" + head).topics == {"t"}
    assert read_subscription(b"\0\1" + head + owned).owned == {("t", 7)}
    assert read_subscription(b"\0\3" + head + owned + b"\0\0\0\5\0\2r1").rack == "r1"
    assert read_subscription(b"\0\4" + head + owned + b"\0\0\0\5\xff\xff" + b"new").rack is None
    assert read_assignment(assignment_for({"t": [1, 2]}, b"\0\4")) == (frozenset({("t", 1), ("t", 2)}), b"")
