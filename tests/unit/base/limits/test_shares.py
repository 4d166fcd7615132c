"""Shares of what all clients share."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from pylogd.base.limits.shares import Crowded, FairWork, KnownShares, Places, Share, share_of


def test_an_ipv6_client_has_one_share_for_all_addresses_of_its_network() -> None:
    assert share_of("10.0.0.1") == "10.0.0.1"
    assert share_of("2001:db8::1") == share_of("2001:db8::ffff:1") != share_of("2001:db8:0:1::1")
    assert share_of("fe80::1%eth0") == "fe80::/64"
    assert share_of("") == ""


def test_known_addresses_are_bounded() -> None:
    known = KnownShares(2)
    for share in ("a", "b", "a", "c"):
        known.add(share)
    assert "a" in known and "c" in known and "b" not in known


def test_the_address_that_holds_most_gives_way() -> None:
    places: Places[str] = Places()
    places.enter("old", "quiet")
    for number in range(3):
        places.enter(f"crowd-{number}", "crowd")
    assert places.gives_way() == "crowd-0"
    places.spoke("crowd-0")
    assert places.gives_way() == "crowd-1"  # it has said nothing
    places.fell_silent("crowd-0")
    places.leave("crowd-1")
    assert places.gives_way() == "crowd-2"


def test_strangers_give_way_to_known_clients_however_many_addresses_they_have() -> None:
    places: Places[int] = Places()
    for number in range(10):
        places.enter(number, "known", known=True)
    for number in range(10, 30):
        places.enter(number, f"stranger-{number}")
    assert places.gives_way() == 10


def test_a_known_address_has_at_most_half_of_the_places_before_strangers() -> None:
    places: Places[int] = Places()
    for number in range(10):
        places.enter(number, "known", known=True)
    places.enter(10, "stranger")
    assert places.gives_way() == 0


_STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "spoke", "silent"]), st.integers(0, 7), st.sampled_from("abc")),
    max_size=60,
)


@given(_STEPS)
def test_places_know_who_has_most(steps: list[tuple[str, int, str]]) -> None:
    places: Places[int] = Places()
    model: dict[int, str] = {}
    for action, one, share in steps:
        if action == "enter" and one not in model:
            places.enter(one, share)
            model[one] = share
        elif action == "leave":
            assert places.leave(one) == (model.pop(one, None) is not None)
        elif action == "spoke":
            places.spoke(one)
        elif action == "silent":
            places.fell_silent(one)
        assert len(places) == len(model)
        if model:
            counts = [list(model.values()).count(share) for share in "abc"]
            assert list(model.values()).count(model[places.gives_way()]) == max(counts)


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abcd"), st.integers(0, 20)), max_size=60))
def test_weights_are_summed_up_by_share(steps: list[tuple[int, str, int]]) -> None:
    """Shares `a` and `b` are known. A step gives a place, or changes a weight, or takes the place back at 0."""
    places: Places[int] = Places()
    model: dict[int, tuple[str, int]] = {}
    for one, share, weight in steps:
        if one not in model:
            places.enter(one, share, known=share in "ab", weight=weight)
            model[one] = share, weight
        elif weight:
            places.weigh(one, weight)
            model[one] = model[one][0], weight
        else:
            places.leave(one)
            del model[one]
        sums = {name: sum(weight for share, weight in model.values() if share == name) for name in "abcd"}
        assert places.weight == sum(sums.values())
        assert all({*places.of(name)} == {one for one, (share, _) in model.items() if share == name} for name in "abcd")
        for name in "abcd":
            _check_who_gives_way(places.share_that_gives_way(Share(name, name in "ab"), 3), name, sums)


def _check_who_gives_way(found: str | None, newcomer: str, sums: dict[str, int]) -> None:
    known, strangers = max(sums["a"], sums["b"]), max(sums["c"], sums["d"])
    if found is None:
        assert newcomer in "cd" or not strangers or 2 * sums[newcomer] > sum(sums.values())
        most = known if newcomer in "ab" or 2 * known > sum(sums.values()) else strangers
        assert not most or most <= sums[newcomer] + 3
        return
    assert found != newcomer
    assert sums[found] == (strangers if found in "cd" else known)
    if found in "ab":
        assert newcomer in "ab" or 2 * known > sum(sums.values())
    assert sums[found] > sums[newcomer] + 3 or (newcomer in "ab" and found in "cd")


class _Threads:
    """Threads whose calls end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Deferred[Any]]] = []

    def call(self, function: Any, *arguments: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        self.calls.append((arguments[0], deferred))
        return deferred

    def end(self) -> Any:
        argument, deferred = self.calls.pop(0)
        deferred.callback(argument)
        return argument


def test_shares_take_turns() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 1, 100)
    for number in range(20):
        work.run("crowd", print, f"crowd-{number}")
    done: list[str] = []
    work.run("one", print, "one").addCallback(done.append)
    assert [threads.end() for _ in range(3)] == ["crowd-0", "crowd-1", "one"]
    assert done == ["one"]


def test_remembered_credentials_go_first_and_one_thread_is_theirs() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 3, 1000)
    for number in range(500):
        work.run(f"stranger-{number}", print, number)
    assert [argument for argument, _ in threads.calls] == [0, 1]  # of three threads
    work.run("known", print, "known", remembered=True)
    assert threads.calls[-1][0] == "known"


def test_known_addresses_have_every_other_turn() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 1, 1000)
    work.known.add("known")
    for number in range(500):
        work.run(f"stranger-{number}", print, "stranger")
    for _ in range(3):
        work.run("known", print, "known")
    assert [threads.end() for _ in range(8)].count("known") == 3


def test_a_full_queue_drops_what_the_largest_share_added_last() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 1, 5)
    crowd = [work.run("crowd", print, number) for number in range(7)]
    failed: list[Any] = []
    for deferred in crowd:
        deferred.addErrback(lambda why: failed.append(why.check(Crowded)))
    assert failed == [Crowded]  # one is being called, five wait
    one = work.run("one", print, "one")
    assert failed == [Crowded, Crowded] and not one.called and work.waiting == 5


def test_nothing_is_called_for_a_client_who_has_left() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 1, 5)
    work.run("a", print, 1)
    work.run("a", print, 2, wanted=lambda: False)
    work.run("a", print, 3)
    assert [threads.end(), threads.end()] == [1, 3]


def test_a_failed_call_fails_its_deferred_and_frees_the_thread() -> None:
    threads = _Threads()
    work = FairWork(threads.call, 1, 5)
    failures: list[Any] = []
    work.run("a", print, 1).addErrback(failures.append)
    work.run("b", print, 2)
    threads.calls.pop(0)[1].errback(ValueError("no"))
    assert failures[0].check(ValueError) and threads.end() == 2
