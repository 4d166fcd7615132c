"""Assignors: balanced, complete, sticky; and the members' metadata, compared with another implementation."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.client import TopicPartition
from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group.assignors import ASSIGNORS, Assignment, Members, find_assignors
from pylogd.client.core.group.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_data,
    encode_subscription,
)

TOPICS = ["a", "b", "c"]
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(8)]), st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))


def members(topics: dict[str, set[str]], before: Assignment | None = None, generation: int = 1) -> Members:
    """Return subscriptions that name the owned partitions in both fields."""
    found = {}
    for name, wanted in topics.items():
        owned = (before or {}).get(name, [])
        data = encode_sticky_data(owned, generation)
        found[name] = Subscription(tuple(wanted), data, tuple(owned), generation if owned else -1)
    return found


@pytest.mark.parametrize("name", list(ASSIGNORS))
@settings(deadline=None)
@given(topics=SUBSCRIPTIONS, counts=COUNTS)
def test_every_partition_goes_to_one_who_wants_it(
    name: str, topics: dict[str, set[str]], counts: dict[str, int]
) -> None:
    assignment = ASSIGNORS[name].assign(members(topics), counts)
    assert assignment.keys() == topics.keys()
    given_out = Counter(partition for share in assignment.values() for partition in share)
    wanted = {t for subscribed in topics.values() for t in subscribed}
    assert given_out == Counter(TopicPartition(t, i) for t in wanted for i in range(counts.get(t, 0)))
    assert all(p.topic in topics[member] for member, share in assignment.items() for p in share)


@settings(deadline=None)
@given(topics=SUBSCRIPTIONS, counts=COUNTS, later=SUBSCRIPTIONS, grown=COUNTS)
def test_sticky_is_fair_and_moves_nothing_without_need(
    topics: dict[str, set[str]], counts: dict[str, int], later: dict[str, set[str]], grown: dict[str, int]
) -> None:
    sticky = ASSIGNORS["sticky"]
    before = sticky.assign(members(topics), counts)
    assert sticky.assign(members(topics, before), counts) == before
    after = sticky.assign(members(later, before), grown)
    for one, other in itertools.permutations(after, 2):
        if len(after[one]) > len(after[other]) + 1:
            assert not any(p.topic in later[other] for p in after[one])


@settings(deadline=None)
@given(names=st.sets(st.integers(0, 20), min_size=1), gone=st.sets(st.integers(0, 20)), count=st.integers(0, 60))
def test_when_members_leave_the_others_keep_theirs(names: set[int], gone: set[int], count: int) -> None:
    sticky = ASSIGNORS["sticky"]
    everybody = {f"m{n}": {"a"} for n in names}
    before = sticky.assign(members(everybody), {"a": count})
    left = {name: topics for name, topics in everybody.items() if int(name[1:]) not in gone}
    after = sticky.assign(members(left, before), {"a": count}) if left else {}
    for name in left:
        assert set(before[name]) <= set(after[name])


@settings(deadline=None)
@given(topics=SUBSCRIPTIONS, counts=COUNTS, later=SUBSCRIPTIONS)
def test_cooperative_assignment_settles_in_one_more_round(
    topics: dict[str, set[str]], counts: dict[str, int], later: dict[str, set[str]]
) -> None:
    assignor = ASSIGNORS["cooperative-sticky"]
    before = assignor.assign(members(topics), counts)
    held = {partition: name for name, share in before.items() for partition in share}
    for generation in (1, 2, 3):
        after = assignor.assign(members(later, before, generation), counts)
        for name, share in after.items():  # no partition is assigned that another member still owns
            assert all(held.get(p, name) in (name, None) or held[p] not in later for p in share)
        held = {p: name for name, share in after.items() for p in share}
        before = after
    everything = sorted(p for share in after.values() for p in share)
    wanted = {t for subscribed in later.values() for t in subscribed}
    assert everything == sorted(TopicPartition(t, i) for t in wanted for i in range(counts.get(t, 0)))


def test_range_and_roundrobin_as_clients_know_them() -> None:
    both = {"m1": {"a", "b"}, "m2": {"a", "b"}}
    assert ASSIGNORS["range"].assign(members(both), {"a": 3, "b": 3}) == {
        "m1": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        "m2": [("a", 2), ("b", 2)],
    }
    assert ASSIGNORS["roundrobin"].assign(members(both), {"a": 3, "b": 3}) == {
        "m1": [("a", 0), ("a", 2), ("b", 1)],
        "m2": [("a", 1), ("b", 0), ("b", 2)],
    }


def test_static_members_keep_their_places() -> None:
    first = {"x": Subscription(("a",), instance_id="1"), "y": Subscription(("a",), instance_id="2")}
    again = {"z": Subscription(("a",), instance_id="1"), "y": Subscription(("a",), instance_id="2")}
    assert ASSIGNORS["range"].assign(first, {"a": 2})["y"] == ASSIGNORS["range"].assign(again, {"a": 2})["y"]


def test_two_members_that_claim_the_same_partition() -> None:
    part = TopicPartition("a", 0)
    claims = {
        "old": Subscription(("a",), encode_sticky_data([part], 3)),
        "new": Subscription(("a",), encode_sticky_data([part], 4)),
    }
    assert ASSIGNORS["sticky"].assign(claims, {"a": 1}) == {"old": [], "new": [part]}
    claims["old"] = Subscription(("a",), b"not what it should be")
    assert ASSIGNORS["sticky"].assign(claims, {"a": 1})["new"] == [part]


def test_names() -> None:
    assert [assignor.name for assignor in find_assignors(["range", ASSIGNORS["sticky"]])] == ["range", "sticky"]
    for wrong in (["x"], [], ["range", "cooperative-sticky"]):
        with pytest.raises(ValueError, match="assignor"):
            find_assignors(wrong)


# The metadata that members exchange

PARTITIONS = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 50)), unique=True).map(sorted)
WHOLE = st.builds(
    Subscription,
    st.lists(st.text(max_size=5)).map(tuple),
    st.none() | st.binary(max_size=10),
    PARTITIONS.map(tuple),
    st.integers(-1, 9),
    st.none() | st.text(max_size=5),
)


@settings(deadline=None)
@given(WHOLE)
def test_subscriptions_come_back(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@settings(deadline=None)
@given(PARTITIONS, st.integers(-1, 9))
def test_assignments_and_sticky_data_come_back(partitions: list[TopicPartition], generation: int) -> None:
    assert decode_assignment(encode_assignment(partitions)) == partitions
    assert decode_sticky_data(encode_sticky_data(partitions, generation)) == (partitions, generation)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment, decode_sticky_data):
        try:
            decode(data)
        except InvalidReply:
            continue


def test_another_implementation_reads_ours_and_we_read_its() -> None:
    assert decode_subscription(ConsumerProtocolMemberMetadata(0, ["a"], b"x").encode()) == Subscription(("a",), b"x")
    owned = (TopicPartition("a", 1), TopicPartition("a", 2))
    ours = encode_subscription(Subscription(("a", "b"), b"data", owned, 5))
    theirs = ConsumerProtocolMemberMetadata.decode(ours)
    assert (list(theirs.subscription), theirs.user_data) == (["a", "b"], b"data")
    assignment = ConsumerProtocolMemberAssignment.decode(encode_assignment(owned))
    assert [(topic, list(indexes)) for topic, indexes in assignment.assignment] == [("a", [1, 2])]


def test_formats_of_java_and_librdkafka() -> None:
    version_0 = bytes.fromhex("0000 00000001 0001 61 ffffffff")
    assert decode_subscription(version_0) == Subscription(("a",))
    version_1 = bytes.fromhex("0001 00000001 0001 61 00000000 00000001 0001 61 00000001 00000003")
    assert decode_subscription(version_1) == Subscription(("a",), b"", (TopicPartition("a", 3),))
    newer = encode_subscription(Subscription(("a",)))
    assert decode_subscription(b"\0\x09" + newer[2:] + b"more") == Subscription(("a",))
    assert decode_assignment(b"") == []
