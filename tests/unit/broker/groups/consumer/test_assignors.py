"""What the coordinator's assignors promise, for any members, subscriptions and earlier assignments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.groups.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    Subscriber,
    Target,
    assign_ranges,
    assign_uniformly,
)
from pylogd.broker.groups.consumer.members import TopicPartition

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def indexes(partitions: set[TopicPartition], topic: bytes) -> list[int]:
    return sorted(index for of, index in partitions if of == topic)


def again(members: Mapping[str, frozenset[bytes]], target: Target) -> dict[str, Subscriber]:
    """Return the members with their topics, and what they had in `target`."""
    return {name: Subscriber(topics, frozenset(target.get(name, ()))) for name, topics in members.items()}


def check(members: Mapping[str, frozenset[bytes]], counts: Mapping[bytes, int], target: Target) -> None:
    """See that each partition of a topic that has subscribers is given to exactly one of them."""
    assert target.keys() == members.keys()
    given_out = sorted(partition for partitions in target.values() for partition in partitions)
    wanted = {topic for topics in members.values() for topic in topics}
    assert given_out == sorted((topic, index) for topic in wanted for index in range(counts[topic]))
    assert all(topic in members[name] for name, partitions in target.items() for topic, _ in partitions)


#: A group at one time: its members before, what they had, and what they are given.
Step = tuple[dict[str, frozenset[bytes]], Target, Target]
Drawn = tuple[dict[bytes, int], list[dict[str, frozenset[bytes]]]]


def assign_again_and_again(assign: Assignor, drawn: Drawn) -> Iterator[Step]:
    """Yield the members at each time, the assignment before, and the one that `assign` makes of it."""
    counts, times = drawn
    before: Target = {}
    for members in times:
        target = assign(again(members, before), counts)
        yield members, before, target
        before = target


TOPICS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 12), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False) -> Drawn:
    """Draw the sizes of topics, and the members of a group at several times."""
    counts = draw(TOPICS)
    topics = st.just(frozenset(counts)) if alike else st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    member = st.sampled_from([f"m{number}" for number in range(8)])
    return counts, draw(st.lists(st.dictionaries(member, topics, min_size=1), min_size=1, max_size=4))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(drawn=groups())
def test_each_partition_has_one_owner(name: str, drawn: Drawn) -> None:
    for members, _, target in assign_again_and_again(ASSIGNORS[name], drawn):
        check(members, drawn[0], target)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(drawn=groups())
def test_nothing_moves_while_nothing_changes(name: str, drawn: Drawn) -> None:
    for members, _, target in assign_again_and_again(ASSIGNORS[name], drawn):
        assert ASSIGNORS[name](again(members, target), drawn[0]) == target


@given(groups(alike=True))
def test_uniform_is_level_and_moves_no_more_than_it_must(drawn: Drawn) -> None:
    for members, before, target in assign_again_and_again(assign_uniformly, drawn):
        sizes = sorted(map(len, target.values()))
        assert sizes[-1] - sizes[0] <= 1
        least, extra = divmod(sum(sizes), len(sizes))
        could_keep = sorted((len(before.get(name, ())) for name in members), reverse=True)
        most = sum(min(had, least + (place < extra)) for place, had in enumerate(could_keep))
        assert sum(len(target[name] & before.get(name, set())) for name in members) == most


@given(groups())
def test_no_single_move_makes_uniform_more_level(drawn: Drawn) -> None:
    for members, _, target in assign_again_and_again(assign_uniformly, drawn):
        for partitions in target.values():
            for topic, _ in partitions:
                assert all(len(target[other]) >= len(partitions) - 1 for other in members if topic in members[other])


@given(groups())
def test_ranges_of_topics_that_can_be_joined_are_the_same(drawn: Drawn) -> None:
    counts = drawn[0]
    for members, _, target in assign_again_and_again(assign_ranges, drawn):
        for one in counts:
            for other in counts:
                readers = [{name for name in members if topic in members[name]} for topic in (one, other)]
                if counts[one] == counts[other] and readers[0] == readers[1]:
                    assert all(indexes(target[name], one) == indexes(target[name], other) for name in members)
            shares = [len(indexes(target[name], one)) for name in members if one in members[name]]
            assert not shares or max(shares) - min(shares) <= 1


def test_ranges_are_neighbours_at_first() -> None:
    members = dict.fromkeys("xyz", frozenset([A]))
    target = assign_ranges(again(members, {}), {A: 8})
    assert [indexes(target[name], A) for name in "xyz"] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_member_that_leaves_moves_only_its_own_partitions() -> None:
    members = {f"m{number:03}": frozenset([A, B]) for number in range(500)}
    counts = {A: 1000, B: 1000}
    before = assign_uniformly(again(members, {}), counts)
    gone = members.pop("m250")
    target = assign_uniformly(again(members, before), counts)
    assert sum(len(target[name] - before[name]) for name in members) == len(before["m250"]) == 4
    members["m250"] = gone
    back = assign_uniformly(again(members, target), counts)
    assert sum(len(back[name] - target.get(name, set())) for name in members) == 4
