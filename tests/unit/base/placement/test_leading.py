"""Preferred leaders: maintenance and its end, beside other brokers that are cordoned or dead. Nothing is copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.placement.brokers import Brokers, Candidate
from pylogd.base.placement.layout import Assigned, Layout
from pylogd.base.placement.leading import leads_again, led_by_others
from pylogd.base.placement.moves import spread

REPLICAS = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)
Partition = tuple[str, int]


def layout(
    replicas: Sequence[tuple[int, ...]], nodes: Collection[int] = range(1, 6), cordoned: Collection[int] = ()
) -> Layout[Partition]:
    """Return the layout of a topic on these live brokers."""
    brokers = Brokers(Candidate(node, cordoned=node in cordoned) for node in nodes)
    return Layout(brokers, {("t", number): Assigned(one) for number, one in enumerate(replicas)})


@given(st.lists(REPLICAS, max_size=20), st.integers(1, 5))
def test_a_broker_in_maintenance_is_the_last_replica_of_what_it_was_preferred_for(
    replicas: list[tuple[int, ...]], broker: int
) -> None:
    targets = led_by_others(layout(replicas), broker)
    assert {at[1] for at in targets} == {
        number for number, one in enumerate(replicas) if one[0] == broker and len(one) > 1
    }
    for at, nodes in targets.items():
        assert nodes[-1] == broker and sorted(nodes) == sorted(replicas[at[1]]), "nothing is copied"


def test_after_its_maintenance_a_broker_leads_its_share() -> None:
    before = layout([(1 + number % 2, 3) for number in range(9)])
    targets = leads_again(before, 3)
    assert len(targets) == 3 and all(nodes[0] == 3 for nodes in targets.values())
    assert all(set(nodes) == set(before.current[at]) for at, nodes in targets.items()), "nothing is copied"


def test_preferred_leaders_are_spread_evenly_without_a_copy() -> None:
    before = layout([(1, 2, 3)] * 9, nodes=(1, 2, 3))
    planned = spread(before)
    assert sorted(nodes[0] for nodes in planned.values()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_maintenance_does_not_undo_that_of_another_broker() -> None:
    before = layout([(1, 2, 3)] * 6, nodes=(1, 2, 3), cordoned=[2])
    assert set(led_by_others(before, 1).values()) == {(3, 2, 1)}
    assert {nodes[0] for nodes in led_by_others(layout([(1, 2, 3)] * 6, nodes=(1, 3)), 1).values()} == {3}, "2 is dead"
    alone = led_by_others(layout([(1, 2)], nodes=(1, 2), cordoned=[2]), 1)
    assert alone == {("t", 0): (2, 1)}, "there is no better one"


def test_after_a_maintenance_brokers_that_are_still_in_one_have_no_share() -> None:
    before = layout([(1, 2, 3)] * 6, nodes=(1, 2, 3), cordoned=[2])
    assert len(leads_again(before, 3)) == 3
    assert len(leads_again(before, 2)) == 2, "the broker itself is cordoned until its maintenance has ended"
    assert not any(nodes[0] == 2 for nodes in spread(before).values())
