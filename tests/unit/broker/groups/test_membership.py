"""The membership rules of groups, on a simulated clock."""

from __future__ import annotations

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.base.machine import UnexpectedEvent
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.records import StoredGroup, StoredMember
from pylogd.broker.groups.states import GroupEvent, GroupState
from pylogd.broker.groups.values import LAST_GENERATION, LeavingMember
from tests.fakes.groups import DELAY, REBALANCE, SESSION, GroupFixture

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID


class TestFirstMembers:
    def test_a_new_group_waits_for_more_members_and_longer_while_they_join(self) -> None:
        parts = GroupFixture()
        first = parts.join()
        parts.time.advance(DELAY - 1)
        second = parts.join()
        parts.time.advance(1)
        assert first.waits
        parts.time.advance(DELAY)
        assert (first.answer.generation, second.answer.generation) == (1, 1)
        assert parts.group.state is GroupState.COMPLETING
        assert first.answer.leader == second.answer.leader == first.answer.member_id
        assert {member.member_id for member in first.answer.members} == set(parts.group.members)
        assert second.answer.members == ()

    def test_a_new_group_waits_no_longer_than_the_rebalance_timeout(self) -> None:
        parts = GroupFixture()
        first = parts.join(rebalance=4.0)
        parts.time.advance(2)
        parts.join(rebalance=4.0)
        parts.time.advance(1)
        assert first.waits
        parts.time.advance(1)
        assert not first.waits

    def test_without_an_initial_delay_the_first_generation_begins_at_once(self) -> None:
        assert GroupFixture(delay=0).join().answer.generation == 1

    def test_members_that_leave_during_a_rebalance_leave_no_state(self) -> None:
        parts = GroupFixture()
        joins = [parts.join(), parts.join(instance_id="i")]
        for join in joins:
            join.disconnect()
        assert parts.group.state is GroupState.DEAD
        assert parts.forgotten == [parts.group]
        assert parts.idle
        assert not parts.stored


def test_the_last_generation_is_followed_by_1() -> None:
    parts = GroupFixture(delay=0)
    parts.group.generation = LAST_GENERATION - 1
    member_id = ""
    for expected in (LAST_GENERATION, 1, 2):
        joined = parts.join(member_id).answer  # a leader that joins again begins another generation
        assert (joined.error, joined.generation) == (NONE, expected)
        assert parts.sync(joined, {joined.member_id: b"share"}).answer.error == NONE
        assert parts.heartbeat(joined) == NONE
        member_id = joined.member_id


class TestKnownIds:
    def test_a_new_member_is_given_its_id_first(self) -> None:
        parts = GroupFixture(delay=0)
        told = parts.join(known=True).answer
        assert told.error == ErrorCode.MEMBER_ID_REQUIRED
        assert told.member_id.startswith("c-")
        assert not parts.group.members
        assert parts.join(told.member_id, known=True).answer.error == NONE

    def test_an_unused_member_id_expires(self) -> None:
        parts = GroupFixture(delay=0)
        told = parts.join(known=True).answer
        parts.time.advance(SESSION)
        assert parts.group.state is GroupState.DEAD
        assert parts.idle
        assert parts.join(told.member_id, known=True).answer.error == UNKNOWN

    def test_concurrent_joins_keep_their_ids(self) -> None:
        """A rebalance of members that joined faster does not invalidate the id of a slower one."""
        parts = GroupFixture()
        told = [parts.join(known=True).answer.member_id for _ in range(10)]
        joins = [parts.join(member_id, known=True) for member_id in told[:5]]
        parts.time.advance(DELAY)
        parts.time.advance(DELAY)
        assert {join.answer.error for join in joins} == {NONE}
        late = [parts.join(member_id, known=True) for member_id in told[5:]]
        again = [parts.join(join.answer.member_id) for join in joins]
        assert {join.answer.generation for join in late + again} == {2}

    def test_a_rebalance_waits_for_clients_that_were_given_an_id(self) -> None:
        parts = GroupFixture()
        (answer,) = parts.form(1)
        told = parts.join(known=True).answer.member_id
        again = parts.join(answer.member_id)
        assert again.waits
        late = parts.join(told, known=True)
        assert again.answer.generation == late.answer.generation == 2

    def test_an_unknown_id_is_refused(self) -> None:
        parts = GroupFixture()
        assert parts.join("nobody").answer.error == UNKNOWN
        assert parts.group.state is GroupState.DEAD


class TestRebalance:
    def test_members_learn_of_a_rebalance_from_heartbeats_and_join_again(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        assert parts.heartbeat(leader) == parts.heartbeat(follower) == NONE
        late = parts.join()
        assert parts.heartbeat(leader) == parts.heartbeat(follower) == AGAIN
        joins = [parts.join(leader.member_id), parts.join(follower.member_id), late]
        answers = [join.answer for join in joins]
        assert {answer.generation for answer in answers} == {2}
        parts.settle(answers)
        assert parts.group.state is GroupState.STABLE
        assert parts.stored[-1][0] == 2
        assert parts.heartbeat(leader) == ErrorCode.ILLEGAL_GENERATION

    def test_a_member_that_does_not_join_in_time_is_removed(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        again = parts.join(follower.member_id, protocols=(("range", b"new"),))
        for _ in range(int(REBALANCE // SESSION) * 2):
            assert again.waits
            parts.heartbeat(leader)
            parts.time.advance(SESSION / 2)
        assert again.answer.leader == follower.member_id
        assert parts.heartbeat(leader) == UNKNOWN

    def test_a_follower_that_missed_the_answer_gets_it_again(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        again = parts.join(follower.member_id).answer
        assert (again.generation, again.members) == (1, ())
        assert parts.group.state is GroupState.STABLE
        assert parts.join(leader.member_id).waits  # the leader may want to compute another assignment
        assert parts.state() is GroupState.PREPARING

    def test_a_second_join_of_a_member_replaces_the_first(self) -> None:
        parts = GroupFixture()
        leader, _ = parts.form(2)
        first = parts.join(leader.member_id)
        second = parts.join(leader.member_id)
        assert first.answer.error == AGAIN
        assert second.waits

    def test_a_connection_lost_in_a_rebalance_leaves_one_session_timeout(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        lost = parts.join(leader.member_id)
        lost.disconnect()
        again = parts.join(follower.member_id)
        assert again.waits
        parts.time.advance(SESSION)
        assert again.answer.generation == 2
        assert list(parts.group.members) == [follower.member_id]

    def test_a_join_before_the_assignment_begins_another_rebalance(self) -> None:
        parts = GroupFixture()
        joins = [parts.join(), parts.join()]
        parts.time.advance(DELAY)
        parts.time.advance(DELAY)
        leader, follower = (join.answer for join in joins)
        waiting = parts.sync(follower)
        third = parts.join()
        assert waiting.answer.error == AGAIN
        assert parts.sync(leader, {}).answer.error == AGAIN
        assert third.waits

    def test_an_assignment_stored_after_the_next_rebalance_has_no_effect(self) -> None:
        parts = GroupFixture()
        join = parts.join()
        parts.time.advance(DELAY)
        parts.hold = True
        sync = parts.sync(join.answer, {join.answer.member_id: b"old"})
        assert sync.waits
        parts.join()
        assert sync.answer.error == AGAIN
        parts.release()
        assert parts.group.state is GroupState.PREPARING
        assert {member.assignment for member in parts.group.members.values()} == {b""}

    def test_an_assignment_that_can_not_be_stored_causes_a_rebalance(self) -> None:
        parts = GroupFixture()
        join = parts.join()
        parts.time.advance(DELAY)
        parts.fails = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert parts.sync(join.answer).answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert parts.heartbeat(join.answer) == AGAIN

    def test_a_member_that_never_syncs_is_removed(self) -> None:
        parts = GroupFixture()
        joins = [parts.join(), parts.join()]
        parts.time.advance(DELAY)
        parts.time.advance(DELAY)
        leader, silent = (join.answer for join in joins)
        parts.sync(leader, {})
        for _ in range(int(REBALANCE // SESSION) * 2 + 1):
            for answer in (leader, silent):
                parts.heartbeat(answer)
            parts.time.advance(SESSION / 2)
        assert parts.heartbeat(silent) == UNKNOWN
        assert parts.heartbeat(leader) == AGAIN


class TestProtocols:
    def test_the_protocol_that_most_members_prefer_is_chosen(self) -> None:
        parts = GroupFixture()
        a, b, both = (("range", b"1"), ("rr", b"2")), (("rr", b"3"), ("range", b"4")), (("x", b""), ("rr", b"5"))
        joins = [parts.join(protocols=protocols) for protocols in (a, b, both)]
        parts.time.advance(DELAY)
        parts.time.advance(DELAY)
        assert {join.answer.protocol for join in joins} == {"rr"}
        assert [member.metadata for member in joins[0].answer.members] == [b"2", b"3", b"5"]

    @pytest.mark.parametrize(
        ("kind", "protocols"),
        [("connect", (("range", b""),)), ("consumer", (("rr", b""),)), ("consumer", ()), ("", ())],
    )
    def test_members_without_a_common_protocol_are_refused(
        self, kind: str, protocols: tuple[tuple[str, bytes], ...]
    ) -> None:
        parts = GroupFixture()
        parts.form(1)
        assert parts.join(kind=kind, protocols=protocols).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert parts.group.state is GroupState.STABLE

    def test_a_sync_for_another_protocol_is_refused(self) -> None:
        parts = GroupFixture()
        (answer,) = parts.form(1)
        assert parts.sync(answer._replace(protocol="rr")).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert parts.sync(answer._replace(protocol_type="x")).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert parts.sync(answer._replace(protocol=None, protocol_type=None)).answer.error == NONE
        assert parts.sync(answer._replace(generation=7)).answer.error == ErrorCode.ILLEGAL_GENERATION

    def test_no_more_members_than_allowed(self) -> None:
        parts = GroupFixture(most_members=2)
        parts.form(1)
        assert parts.join(known=True).answer.error == ErrorCode.MEMBER_ID_REQUIRED
        assert parts.join().answer.error == ErrorCode.GROUP_MAX_SIZE_REACHED


class TestEnds:
    def test_a_silent_member_is_removed_after_its_session_timeout(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        parts.time.advance(SESSION - 1)
        assert parts.heartbeat(leader) == NONE
        parts.time.advance(1)
        assert list(parts.group.members) == [leader.member_id]
        assert parts.heartbeat(leader) == AGAIN
        assert parts.heartbeat(follower) == UNKNOWN

    def test_heartbeats_set_no_timer(self) -> None:
        parts = GroupFixture()
        (answer,) = parts.form(1)
        (timer,) = parts.time.getDelayedCalls()
        due = timer.getTime()
        parts.time.advance(1)
        parts.heartbeat(answer)
        (same,) = parts.time.getDelayedCalls()
        assert (same, same.getTime()) == (timer, due)

    def test_members_that_leave(self) -> None:
        parts = GroupFixture()
        leader, follower = parts.form(2)
        leavers = [LeavingMember(leader.member_id, None), LeavingMember("nobody", None)]
        assert parts.rules.leave(parts.group, leavers) == [NONE, UNKNOWN]
        assert parts.join(follower.member_id).answer.leader == follower.member_id
        assert parts.rules.leave(parts.group, [LeavingMember(follower.member_id, None)]) == [NONE]
        assert parts.group.state is GroupState.EMPTY
        assert parts.stored[-1] == (3, {})  # an empty group is known as empty after a restart too
        parts.time.advance(SESSION)  # the timer has nothing to do
        assert parts.idle

    def test_a_waiting_member_that_leaves_is_answered(self) -> None:
        parts = GroupFixture()
        leader, _follower = parts.form(2)
        again = parts.join(leader.member_id)
        assert parts.rules.leave(parts.group, [LeavingMember(leader.member_id, None)]) == [NONE]
        assert again.answer.error == UNKNOWN

    def test_unloading_a_group_answers_waiting_requests(self) -> None:
        parts = GroupFixture()
        leader, _follower = parts.form(2)
        again = parts.join(leader.member_id)
        parts.rules.unload(parts.group, ErrorCode.NOT_COORDINATOR)
        assert again.answer.error == ErrorCode.NOT_COORDINATOR
        assert parts.idle

    def test_only_the_transitions_in_the_table_are_possible(self) -> None:
        group = ClassicGroup("g", 0, 0)
        with pytest.raises(UnexpectedEvent, match="Classic consumer group: no transition from EMPTY by ASSIGNED"):
            group.handle(GroupEvent.ASSIGNED, 1)
        assert (group.state, group.since_ms) == (GroupState.EMPTY, 0)


class TestStaticMembers:
    def form(self, parts: GroupFixture) -> tuple[str, str]:
        """Form a Stable group of the static members a, the leader, and b; return their member ids."""
        joins = [parts.join(instance_id=name) for name in "ab"]
        parts.time.advance(DELAY)
        parts.time.advance(DELAY)
        answers = [join.answer for join in joins]
        parts.sync(answers[1], instance_id="b")
        parts.sync(answers[0], {answer.member_id: answer.member_id.encode() for answer in answers}, "a")
        return answers[0].member_id, answers[1].member_id

    def test_a_static_member_that_returns_causes_no_rebalance(self) -> None:
        parts = GroupFixture()
        leader, old = self.form(parts)
        back = parts.join(instance_id="b").answer
        assert (back.error, back.generation, back.leader, back.members) == (NONE, 1, leader, ())
        assert parts.group.state is GroupState.STABLE
        assert parts.sync(back, instance_id="b").answer.assignment == old.encode()
        assert parts.stored[-1] == (1, {leader: leader.encode(), back.member_id: old.encode()})

    def test_the_former_member_id_is_fenced(self) -> None:
        parts = GroupFixture()
        _, old = self.form(parts)
        back = parts.join(instance_id="b").answer
        assert parts.heartbeat(back._replace(member_id=old), "b") == FENCED
        assert parts.sync(back._replace(member_id=old), instance_id="b").answer.error == FENCED
        assert parts.join(old, instance_id="b").answer.error == FENCED
        assert parts.rules.leave(parts.group, [LeavingMember(old, "b")]) == [FENCED]
        assert parts.heartbeat(back, "b") == NONE

    def test_a_waiting_join_of_the_former_member_id_is_fenced(self) -> None:
        parts = GroupFixture()
        _, old = self.form(parts)
        waiting = parts.join(old, instance_id="b", protocols=(("range", b"other"),))
        assert waiting.waits
        assert parts.join(instance_id="b").waits
        assert waiting.answer.error == FENCED

    def test_a_returning_leader_need_not_assign(self) -> None:
        parts = GroupFixture()
        self.form(parts)
        back = parts.join(instance_id="a").answer
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert len(back.members) == 2

    def test_a_returning_leader_with_an_older_client_is_sent_another_leader(self) -> None:
        parts = GroupFixture()
        old, _ = self.form(parts)
        back = parts.join(instance_id="a", can_skip=False).answer
        assert (back.skip_assignment, back.leader, back.members) == (False, old, ())

    def test_a_static_member_is_told_if_its_id_can_not_be_stored(self) -> None:
        parts = GroupFixture()
        self.form(parts)
        parts.fails = ErrorCode.NOT_COORDINATOR
        assert parts.join(instance_id="b").answer.error == ErrorCode.NOT_COORDINATOR
        parts.hold = True
        waiting = parts.join(instance_id="b")
        assert waiting.waits
        parts.release()
        assert waiting.answer.error == ErrorCode.NOT_COORDINATOR

    def test_a_static_member_stays_through_a_rebalance_that_it_misses(self) -> None:
        parts = GroupFixture()
        self.form(parts)
        dynamic = parts.join()
        parts.join(next(iter(parts.group.members)), instance_id="a")
        for _ in range(20):
            if dynamic.answers:
                break
            for member in parts.group.members.values():
                parts.rules.heartbeat(parts.group, member.member_id, member.instance_id, parts.group.generation)
            parts.time.advance(SESSION / 2)
        assert dynamic.answer.generation == 2
        assert len(parts.group.members) == 3

    def test_a_static_member_is_removed_after_its_session_timeout(self) -> None:
        parts = GroupFixture()
        self.form(parts)
        parts.time.advance(SESSION)
        assert parts.state() is GroupState.EMPTY
        assert not parts.group.instances

    def test_an_administrator_removes_a_static_member_by_its_instance_id(self) -> None:
        parts = GroupFixture()
        self.form(parts)
        leavers = [LeavingMember("", "b"), LeavingMember("", "nobody")]
        assert parts.rules.leave(parts.group, leavers) == [NONE, UNKNOWN]
        assert list(parts.group.instances) == ["a"]


class TestStored:
    def test_a_group_is_restored_from_its_record(self) -> None:
        member = StoredMember("m-1", "i", "c", "/h", 60_000, 10_000, b"t", b"share")
        stored = StoredGroup("consumer", 4, "range", "m-1", 7, (member,))
        parts = GroupFixture()
        parts.group = ClassicGroup.from_stored("g", 0, stored, 9)
        parts.rules.renew_sessions(parts.group)
        assert parts.group.state is GroupState.STABLE
        assert parts.group.to_stored({"m-1": b"share"}) == stored
        assert parts.rules.heartbeat(parts.group, "m-1", "i", 4) == NONE
        parts.time.advance(SESSION)
        assert parts.state() is GroupState.EMPTY

    def test_an_empty_group_keeps_its_generation(self) -> None:
        group = ClassicGroup.from_stored("g", 0, StoredGroup("consumer", 4, None, None, 7, ()), 9)
        assert (group.state, group.generation, group.since_ms) == (GroupState.EMPTY, 4, 7)
