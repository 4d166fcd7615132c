"""Reassignment plans: each partition gets its replicas, the load is even, and no more replicas move than needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pylogd.base.placement.brokers import Brokers, Candidate
from pylogd.base.placement.errors import TooFewBrokers
from pylogd.base.placement.layout import Assigned, Layout
from pylogd.base.placement.moves import empty, spread

Plan = dict[tuple[str, int], tuple[int, ...]]


def plan(
    current: Mapping[tuple[str, int], Sequence[int]],
    racks: Mapping[int, str | None],
    factor: int | None = None,
    hosts: Mapping[int, str] = MappingProxyType({}),
) -> Plan:
    """Plan over brokers in these racks, on these machines."""
    brokers = Brokers(Candidate(node, rack, hosts.get(node)) for node, rack in racks.items())
    return spread(Layout(brokers, {at: Assigned(tuple(nodes)) for at, nodes in current.items()}), factor=factor)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[tuple[str, int], tuple[int, ...]], dict[int, str | None], int]:
    """Generate the present assignment, the brokers to use, and the number of replicas."""
    brokers: dict[int, str | None] = dict.fromkeys(draw(st.sets(st.integers(1, 6), min_size=1)))
    if draw(st.booleans()):
        brokers = {node: draw(st.sampled_from("abc")) for node in brokers}
    factor = draw(st.integers(1, len(brokers)))
    replicas = st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True).map(tuple)
    found = draw(st.lists(replicas, min_size=1, max_size=12))
    return {("t", index): nodes for index, nodes in enumerate(found)}, brokers, factor


@given(clusters())
def test_a_plan(found: tuple[dict[tuple[str, int], tuple[int, ...]], dict[int, str | None], int]) -> None:
    current, brokers, factor = found
    planned = plan(current, brokers, factor)
    assert planned.keys() == current.keys()
    for nodes in planned.values():
        assert len(nodes) == len(set(nodes)) == factor
        assert set(nodes) <= brokers.keys()
    load = [sum(node in nodes for nodes in planned.values()) for node in brokers]
    if len(set(brokers.values())) == 1:
        assert max(load) - min(load) <= 1
    # The plan is stable: a second plan moves nothing.
    again = plan(planned, brokers, factor)
    assert {place: set(nodes) for place, nodes in again.items()} == {p: set(nodes) for p, nodes in planned.items()}


def test_new_brokers_get_their_share_with_the_fewest_moves() -> None:
    current = {("t", index): (1 + index % 3, 1 + (index + 1) % 3) for index in range(12)}
    planned = plan(current, dict.fromkeys(range(1, 5)))
    moves = sum(len(set(planned[place]) - set(nodes)) for place, nodes in current.items())
    assert moves == 6  # a quarter of the 24 replicas
    preferred = [nodes[0] for nodes in planned.values()]
    assert all(2 <= preferred.count(node) <= 4 for node in range(1, 5))


def test_no_leader_has_to_change_where_followers_can_move() -> None:
    current = {("t", index): (1 + index % 3, 1 + (index + 1) % 3) for index in range(8)}
    planned = plan(current, dict.fromkeys(range(1, 5)))
    assert sum(len(set(planned[place]) - set(nodes)) for place, nodes in current.items()) == 4
    assert all(nodes[0] in planned[place] for place, nodes in current.items())
    alone = {("t", index): (1,) for index in range(4)}
    assert sorted(plan(alone, dict.fromkeys((1, 2))).values()) == [(1,), (1,), (2,), (2,)]


def test_racks_are_kept_apart() -> None:
    current = {("t", index): (1, 2) for index in range(4)}
    planned = plan(current, {1: "a", 2: "a", 3: "b", 4: "b"}, 2)
    moved = [nodes for nodes in planned.values() if nodes not in {(1, 2), (2, 1)}]
    assert all({node <= 2 for node in nodes} == {True, False} for nodes in moved)


@given(clusters(), st.lists(st.sampled_from("xyz"), min_size=6, max_size=6))
@example(  # of two replicas in one rack only the first can move without a loss of machines
    found=({("t", index): (1,) for index in range(5)}, {**dict.fromkeys(range(1, 6), "a"), 6: "b"}, 2),
    names=["x", "x", "x", "y", "y", "x"],
)
def test_replicas_share_a_machine_only_if_there_are_too_few(
    found: tuple[dict[tuple[str, int], tuple[int, ...]], dict[int, str | None], int], names: list[str]
) -> None:
    current, brokers, factor = found
    hosts = {node: names[node - 1] for node in brokers}
    planned = plan(current, brokers, factor, hosts=hosts)
    for nodes in planned.values():
        assert len({hosts[node] for node in nodes}) == min(factor, len(set(hosts.values())))
    again = plan(planned, brokers, factor, hosts=hosts)
    assert {place: set(nodes) for place, nodes in again.items()} == {p: set(nodes) for p, nodes in planned.items()}


def test_a_replica_that_leaves_goes_to_another_machine() -> None:
    current = {("t", index): (1, 3) for index in range(4)}
    hosts = {1: "x", 2: "x", 4: "y"}
    brokers = Brokers(Candidate(node, None, hosts.get(node)) for node in (1, 2, 3, 4))
    planned = empty(Layout(brokers, {at: Assigned(nodes) for at, nodes in current.items()}), 3)
    assert all(set(nodes) == {1, 4} for nodes in planned.values())


def test_too_few_brokers() -> None:
    with pytest.raises(TooFewBrokers, match="3 replicas need as many brokers, there are 2"):
        plan({("t", 0): (1, 2, 3)}, {1: None, 2: None})
