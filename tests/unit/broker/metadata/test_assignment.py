"""The assignment of replicas to brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.placement.brokers import Brokers, Candidate
from pylogd.broker.metadata.assignment import assign_replicas, check_assignment
from pylogd.broker.metadata.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor


def test_kafkas_own_example() -> None:
    """Five brokers, ten partitions, three replicas: the example in Kafka's AdminUtils."""
    assignment = assign_replicas(live(dict.fromkeys(range(5))), 10, 3)
    assert assignment == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def live(racks: Mapping[int, str | None], hosts: Mapping[int, str] = MappingProxyType({})) -> Brokers:
    """Return live brokers in these racks, on these machines."""
    return Brokers(Candidate(node, rack, hosts.get(node)) for node, rack in racks.items())


@st.composite
def clusters(draw: st.DrawFn) -> dict[int, str | None]:
    brokers = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True))
    racks = draw(st.sampled_from([None, ["a"], ["a", "b"], ["a", "b", "c"]]))
    return {broker: None if racks is None else draw(st.sampled_from(racks)) for broker in brokers}


@given(clusters(), st.integers(1, 60), st.data())
def test_any_assignment(racks: dict[int, str | None], partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    start = data.draw(st.integers(0, 2**32))
    first = data.draw(st.integers(0, 20))
    assignment = assign_replicas(live(racks), partitions, factor, start=start, first=first)
    assert len(assignment) == partitions
    check_assignment(dict(enumerate(assignment, first)), live(racks), first=first)
    leaders = Counter(replicas[0] for replicas in assignment)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in racks) <= 1
    distinct = len({rack for rack in racks.values() if rack is not None})
    for replicas in assignment:
        assert len(replicas) == factor
        if distinct:
            assert len({racks[broker] for broker in replicas}) == min(factor, distinct)


@given(clusters(), st.integers(1, 20), st.data())
def test_replicas_share_a_machine_only_if_there_are_more_than_machines(
    racks: dict[int, str | None], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    hosts = {broker: data.draw(st.sampled_from("xyz")) for broker in data.draw(st.sets(st.sampled_from(sorted(racks))))}
    count = len({hosts.get(broker, broker) for broker in racks})
    start = data.draw(st.integers(0, 100))
    for replicas in assign_replicas(live(racks, hosts), partitions, factor, start=start):
        assert len(replicas) == len(set(replicas)) == factor
        assert len({hosts.get(broker, broker) for broker in replicas}) == min(factor, count)


@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 30), st.integers(0, 100))
def test_adding_partitions_goes_on_where_the_topic_ended(brokers: int, have: int, more: int, start: int) -> None:
    racks = live(dict.fromkeys(range(brokers)))
    whole = assign_replicas(racks, have + more, min(brokers, 3), start=start)
    assert assign_replicas(racks, more, min(brokers, 3), start=start, first=have) == whole[have:]


def test_some_brokers_without_a_rack_mean_no_racks() -> None:
    mixed: dict[int, str | None] = {1: "a", 2: None, 3: "b"}
    assert assign_replicas(live(mixed), 6, 2) == assign_replicas(live(dict.fromkeys(mixed)), 6, 2)


def test_impossible_numbers() -> None:
    with pytest.raises(InvalidPartitions):
        assign_replicas(live({1: None}), 0, 1)
    for factor in (0, -2, 2):
        with pytest.raises(InvalidReplicationFactor):
            assign_replicas(live({1: None}), 1, factor)


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ({0: [1], 2: [1]}, "gaps"),
        ({1: [1]}, "gaps"),
        ({0: []}, "no replicas"),
        ({0: [1, 1]}, "twice"),
        ({0: [1], 1: [1, 2]}, "differ"),
        ({0: [9]}, "not alive"),
        ({0: [1, 3]}, "broker 3 is cordoned"),
    ],
)
def test_impossible_assignments(assignment: dict[int, list[int]], reason: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=reason):
        check_assignment(assignment, Brokers([Candidate(1), Candidate(2), Candidate(3, cordoned=True)]))


def test_brokers_without_room_or_with_a_full_volume_get_nothing_while_others_suffice() -> None:
    brokers = Brokers([Candidate(1), Candidate(2, full=True), Candidate(3, room=1), Candidate(4)])
    assert {node for nodes in assign_replicas(brokers, 6, 2) for node in nodes} == {1, 4}
    with pytest.raises(InvalidPartitions, match="broker 3 has room for 1 more partitions, not for 6"):
        assign_replicas(brokers, 6, 4)
    with pytest.raises(InvalidReplicationFactor, match="more than the 0 brokers"):
        assign_replicas(Brokers([Candidate(1, cordoned=True)]), 1, 1)
