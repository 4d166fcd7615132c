"""Connections with many requests take turns: another one's request is answered after a bounded number of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.broker.net.turns import AT_ONCE, MORE, SLICE, TURN, Turns
from tests.unit.broker.net.test_pipeline import Rig

_WORK = SLICE / 10  # what a request takes
_IN_A_SLICE = int(SLICE / _WORK) + MORE
_IN_A_TURN = int(TURN / _WORK) + MORE + _IN_A_SLICE


class Working:
    """A clock that each request moves. order: the names of the connections, a letter for each of their requests."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.turns = Turns(self.clock)
        self.order = ""
        self.rigs: list[Rig] = []
        self.waits: dict[str, list[Deferred[bytes]]] = {}  # the requests `X` that are to be answered

    def connect(self, name: str, work: float = _WORK) -> Rig:
        """Return a connection whose requests take so many seconds each."""
        rig = Rig(turns=self.turns)
        handle = rig.handle
        waits = self.waits[name] = []

        def counted(connection: object, event: Any) -> Any:
            self.order += name
            self.clock.rightNow += work
            if event.request != "X":
                return handle(connection, event)
            rig.started += "X"
            waits.append(Deferred())
            return waits[-1]

        rig.handle = counted  # type: ignore[method-assign]
        self.rigs.append(rig)
        return rig

    def turn(self) -> None:
        """Let the reactor turn once: the calls that are due now are made, and not those that they ask for."""
        for call in [one for one in self.clock.getDelayedCalls() if one.getTime() <= self.clock.seconds()]:
            function: Any = call.func  # type: ignore[attr-defined]
            call.cancel()
            function()

    def finish(self) -> None:
        """Let the reactor turn until nobody waits."""
        for _ in range(10_000):
            if not self.turns.waiting:
                return
            self.turn()
        raise AssertionError("somebody waits for ever")


@pytest.fixture
def working() -> Iterator[Working]:
    made = Working()
    yield made
    for rig in made.rigs:
        rig.close()


def test_a_request_behind_2000_of_another_connection_waits_for_a_slice_of_them(working: Working) -> None:
    greedy, other = working.connect("g"), working.connect("o")
    greedy.pipeline.receive(b"x" * 2000)
    assert len(working.order) <= AT_ONCE + _IN_A_SLICE
    assert not greedy.reading
    other.pipeline.receive(b"y")
    assert working.order.endswith("o")
    assert other.transport.pump() == b"y"
    assert other.reading
    working.finish()
    assert greedy.transport.pump() == b"x" * 2000
    assert greedy.reading


def test_later_turns_are_bounded_too(working: Working) -> None:
    for _ in range(20):
        working.connect("g").pipeline.receive(b"x" * 2000)
    before = len(working.order)
    assert before <= AT_ONCE + _IN_A_SLICE + 19
    while working.turns.waiting:
        working.turn()
        assert len(working.order) - before <= _IN_A_TURN
        before = len(working.order)
    assert len(working.order) == 20 * 2000


def test_while_some_wait_another_starts_one_request_at_once(working: Working) -> None:
    working.connect("g").pipeline.receive(b"x" * 2000)
    other = working.connect("o")
    before = working.order
    other.pipeline.receive(b"yyy")
    assert working.order == before + "o"
    working.turn()
    assert working.order.count("o") == 3  # before the slices of the first, but for one
    assert len(working.order) - len(before) <= _IN_A_TURN + 2 * MORE


def test_a_new_one_goes_before_those_that_have_had_a_slice_but_not_before_all(working: Working) -> None:
    names = "abc"
    for name in names:
        working.connect(name).pipeline.receive(b"x" * 2000)
    for _ in range(3):
        working.turn()
    before = len(working.order)
    working.connect("n").pipeline.receive(b"y" * 12)
    working.turn()
    mine = working.order[before:]
    assert mine.index("n", 1) <= _IN_A_SLICE
    assert any(name in mine for name in names)


def test_all_get_the_same(working: Working) -> None:
    for name in "abcd":
        working.connect(name).pipeline.receive(b"x" * 2000)
    while working.turns.waiting:
        working.turn()
        counts = [working.order.count(name) for name in "abcd"]
        if max(counts) < 2000:
            assert max(counts) - min(counts) <= 3 * _IN_A_SLICE
    assert [working.order.count(name) for name in "abcd"] == [2000] * 4


def test_a_single_connection_gets_on_in_each_turn(working: Working) -> None:
    working.connect("g").pipeline.receive(b"x" * 2000)
    turns = 0
    while working.turns.waiting:
        working.turn()
        turns += 1
    assert turns <= 2000 / (TURN / _WORK) + 1


def test_a_request_that_takes_longer_than_a_turn_is_one_of_few(working: Working) -> None:
    slow = working.connect("s", 2 * TURN)
    slow.pipeline.receive(b"x" * 100)
    assert len(working.order) <= AT_ONCE + MORE
    before = len(working.order)
    working.turn()
    assert len(working.order) - before <= 1 + MORE


def test_one_that_has_nothing_left_does_not_wait(working: Working) -> None:
    working.connect("g").pipeline.receive(b"x" * 2000)
    other = working.connect("o")
    other.pipeline.receive(b"y")
    assert other.reading
    other.pipeline.receive(b"")
    assert other.reading


def test_one_that_is_lost_while_it_waits_is_forgotten(working: Working) -> None:
    rig = working.connect("g")
    rig.pipeline.receive(b"x" * 2000)
    before = working.order
    rig.pipeline.lost()
    working.finish()
    assert working.order == before
    assert not working.clock.getDelayedCalls()


def test_one_that_finishes_while_it_waits_starts_no_more(working: Working) -> None:
    rig = working.connect("g")
    rig.pipeline.receive(b"x" * 2000)
    before = working.order
    rig.pipeline.finish()
    working.finish()
    assert working.order == before
    assert rig.transport.pump() == b"x" * len(before)
    assert rig.transport.disconnecting or rig.transport.disconnected


def test_one_that_is_muted_while_it_waits_goes_on_afterwards(working: Working) -> None:
    rig = working.connect("g")
    rig.pipeline.receive(b"x" * 200)
    before = working.order
    rig.pipeline.mute(5.0, working.clock)
    working.finish()
    assert working.order == before
    working.clock.advance(5.0)
    working.finish()
    assert rig.transport.pump() == b"x" * 200


def test_a_broken_frame_behind_many_requests_closes_after_their_replies(working: Working) -> None:
    rig = working.connect("g")
    rig.pipeline.receive(b"x" * 200 + b"!")
    working.finish()
    assert rig.transport.pump() == b"x" * 200
    assert rig.transport.disconnecting or rig.transport.disconnected


_SENT = st.lists(st.tuples(st.integers(0, 2), st.text("apX0", min_size=1, max_size=60)), max_size=12)


@given(_SENT, st.sampled_from([SLICE / 100, SLICE / 3, TURN]), st.integers(0, 5))
def test_replies_keep_the_order_of_the_requests_of_their_connection(
    sent: list[tuple[int, str]], work: float, which: int
) -> None:
    """`X` is answered later, in any order; `0` has no answer."""
    working = Working()
    rigs = [working.connect(str(number), work) for number in range(3)]
    wanted, got = [b"", b"", b""], [b"", b"", b""]
    try:
        for number, text in sent:
            rigs[number].pipeline.receive(text.encode())
            wanted[number] += text.encode()
            working.turn()
        for _ in range(10_000):
            if not working.turns.waiting and not any(working.waits.values()):
                break
            working.turn()
            for number, rig in enumerate(rigs):
                waits = working.waits[str(number)]
                if waits:
                    waits.pop(which % len(waits)).callback(b"X")
                got[number] += rig.transport.pump()
        for number, rig in enumerate(rigs):
            got[number] += rig.transport.pump()
            assert rig.started.encode() == wanted[number]
            assert got[number] == wanted[number].replace(b"0", b"")
    finally:
        for rig in rigs:
            rig.close()
