"""How members get to their target: partitions are given up before others get them, whatever is lost on the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.groups.consumer.members import ConsumerMember, MemberState, TopicPartition
from pylogd.broker.groups.consumer.reconciliation import next_step

TOPIC = bytes(16)
Partitions = frozenset[TopicPartition]


def parts(*indexes: int) -> Partitions:
    return frozenset((TOPIC, index) for index in indexes)


def test_a_member_that_joins_gets_what_is_free_and_waits_for_the_rest() -> None:
    joined = next_step(ConsumerMember("m"), parts(0, 1), 3, parts(1), parts())
    assert joined.state is MemberState.UNRELEASED_PARTITIONS
    assert (joined.epoch, joined.previous_epoch, joined.assigned) == (3, 0, {(TOPIC, 0): 3})
    assert next_step(joined, parts(0, 1), 3, parts(0, 1), None) is joined
    complete = next_step(joined, parts(0, 1), 3, parts(0), None)
    assert (complete.state, complete.assigned) == (MemberState.STABLE, {(TOPIC, 0): 3, (TOPIC, 1): 3})


def test_a_member_stays_at_its_epoch_until_it_has_given_up_its_partitions() -> None:
    stable = next_step(ConsumerMember("m"), parts(0, 1), 3, parts(), parts())
    told = next_step(stable, parts(0), 4, parts(0, 1), parts(0, 1))
    assert (told.state, told.epoch) == (MemberState.UNREVOKED_PARTITIONS, 3)
    assert (told.assigned, told.revoking) == ({(TOPIC, 0): 3}, {(TOPIC, 1): 3})
    assert next_step(told, parts(0), 4, parts(0, 1), None) is told, "it has not said that it gave them up"
    assert next_step(told, parts(0), 4, parts(0, 1), parts(0, 1)) is told
    done = next_step(told, parts(0), 4, parts(0, 1), parts(0))
    assert (done.state, done.epoch, done.previous_epoch) == (MemberState.STABLE, 4, 3)
    assert (done.assigned, done.revoking) == ({(TOPIC, 0): 3}, {})


def test_a_partition_that_comes_back_while_it_is_given_up() -> None:
    stable = next_step(ConsumerMember("m"), parts(0, 1), 3, parts(), parts())
    told = next_step(stable, parts(0), 4, parts(0, 1), None)
    again = next_step(told, parts(0, 1), 5, parts(0, 1), parts(0))
    assert (again.state, again.epoch) == (MemberState.STABLE, 5)
    assert again.assigned == {(TOPIC, 0): 3, (TOPIC, 1): 5}


def test_a_member_that_gives_up_partitions_is_told_of_more() -> None:
    stable = next_step(ConsumerMember("m"), parts(0, 1, 2), 3, parts(), parts())
    told = next_step(stable, parts(0, 1), 4, parts(0, 1, 2), None)
    more = next_step(told, parts(0), 5, parts(0, 1, 2), None)
    assert more.epoch == 3 and more.assigned.keys() == parts(0) and more.revoking.keys() == parts(1, 2)


def test_a_topic_that_is_no_longer_subscribed_to_is_given_up_at_once() -> None:
    stable = next_step(ConsumerMember("m"), parts(0, 1), 3, parts(), parts())
    told = next_step(stable, parts(0), 3, parts(0, 1), None)
    assert told.state is MemberState.UNREVOKED_PARTITIONS and told.revoking.keys() == parts(1)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 2**12 - 1)), max_size=60)


@given(STEPS)
def test_no_partition_has_two_owners_and_all_members_arrive(steps: list[tuple[int, bool, int]]) -> None:
    """Members follow changing targets in any order; some heartbeats do not say what the member has."""
    members = {number: ConsumerMember(str(number)) for number in range(4)}
    has: dict[int, Partitions] = dict.fromkeys(members, parts())  # as the members know
    target: dict[int, Partitions] = {number: parts() for number in members}
    epoch = 1

    def heartbeat(number: int, says: bool) -> None:
        taken = {p for member in members.values() for p in (*member.assigned, *member.revoking)}
        before = members[number]
        members[number] = next_step(before, target[number], epoch, taken, has[number] if says else None)
        has[number] = frozenset(members[number].assigned)
        owners = [p for member in members.values() for p in (*member.assigned, *member.revoking)]
        assert len(owners) == len(set(owners)), "a partition has two owners"
        using = [p for partitions in has.values() for p in partitions]
        assert len(using) == len(set(using)), "two members use a partition"

    for number, says, change in steps:
        if change % 3 == 0:
            epoch += 1
            target = {
                one: frozenset((TOPIC, index) for index in range(6) if (change >> 2 * index) % 4 == one)
                for one in members
            }
        heartbeat(number, says)
    for _ in range(4):
        for number in members:
            heartbeat(number, True)
    for number, member in members.items():
        assert (member.state, member.epoch) == (MemberState.STABLE, epoch)
        assert frozenset(member.assigned) == target[number] == has[number]


def test_an_answer_that_is_lost_does_not_change_the_epoch_before() -> None:
    stable = next_step(ConsumerMember("m"), parts(0), 3, parts(), parts())
    assert next_step(replace(stable), parts(0), 3, parts(0), parts(0)).previous_epoch == 0
