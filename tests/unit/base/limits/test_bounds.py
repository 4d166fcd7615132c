"""How many things that stay clients may make: in all, of one client, and of strangers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.limits.bounds import Bound
from pylogd.base.limits.shares import NOBODY, Share

_ALICE, _BOB = Share("User:alice", True), Share("User:bob", True)


def test_a_client_may_make_as_many_as_its_bound() -> None:
    bound = Bound("group", "groups.max", lambda: 100, lambda: 3)
    assert [bound.admits(str(number), _ALICE, number) for number in range(5)] == [True] * 3 + [False] * 2
    assert bound.admits("b", _BOB, 3) and bound.admits("n", NOBODY, 4)
    bound.gone("0")
    assert bound.admits("5", _ALICE, 4) and not bound.admits("6", _ALICE, 5)


def test_strangers_leave_half_to_known_clients() -> None:
    bound = Bound("group", "groups.max", lambda: 10, lambda: 100)
    made = [bound.admits(str(number), Share(f"10.0.0.{number}", False), number) for number in range(8)]
    assert made == [True] * 5 + [False] * 3
    assert [bound.admits(f"a{number}", _ALICE, 5 + number) for number in range(6)] == [True] * 5 + [False]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=80))
def test_counts_are_those_of_what_there_is(steps: list[tuple[bool, int, int]]) -> None:
    bound = Bound("group", "groups.max", lambda: 6, lambda: 2)
    made: dict[str, Share] = {}
    for makes, name, owner in steps:
        share = Share(str(owner), owner % 2 == 0)
        if not makes:
            made.pop(str(name), None)
            bound.gone(str(name))
        elif str(name) not in made and bound.admits(str(name), share, len(made)):
            made[str(name)] = share
        owners = list(made.values())
        assert len(made) <= 6 and all(owners.count(one) <= 2 for one in owners)
        assert sum(not one.known for one in owners) <= 3
        assert bound._counts == {one: owners.count(one) for one in owners}
