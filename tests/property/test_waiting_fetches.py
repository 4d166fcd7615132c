"""A Fetch that waits on the short way ends when the general one does, with the same answer, and leaves the same behind.

Two clients fetch from one broker with the same requests, with or without sessions of their own; one of them has no
short way. In between, records are appended, time passes, and what the answers depend on changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.api.fast.waiting_fetch import WaitingFetch
from pylogd.broker.api.fetch_wait import FetchWait
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.log.log import Log
from pylogd.wire.fast import compiled
from tests.property.test_fast_fetch import mark, write
from tests.property.test_repeated_fetches import Sides
from tests.property.test_session_fetches import Authorizer, Client, sides_in

pytestmark = pytest.mark.skipif(compiled.fast is None, reason="there was no compiler")

_NAMES = ("t", "small", "empty", "transactions")
_WAIT_MS = 500


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with sides_in(tmp_path_factory.mktemp("parts")) as made:
        yield made
        made.parts.time.advance(0)


class _Pair:
    """Two clients, of which the first has the short way, and where both read each partition."""

    def __init__(self, sides: Sides, names: list[str], in_session: bool, shape: dict[str, Any]) -> None:
        self.sides, self._names, self._in_session = sides, names, in_session
        self._shape = {"wait": _WAIT_MS, **shape}
        self.clients = Client(sides, True), Client(sides, False)
        self.ends = {name: sides.parts.partitions.by_name[name, 0].log.log_end_offset for name in names}
        for client in self.clients:
            client.fetch([(name, self.ends[name]) for name in names], **self._shape | {"wait": 0, "epoch": self._first})
        self._agree()

    @property
    def _first(self) -> int | None:
        return None if self._in_session else -1

    def ask(self, named: list[str], **fields: Any) -> None:
        """Fetch from the log ends; partitions of a session only if they are named."""
        names = [name for name in self._names if name in named] if self._in_session else self._names[:1]
        wanted = [(name, self.sides.parts.partitions.by_name[name, 0].log.log_end_offset) for name in names]
        for client in self.clients:
            client.send(wanted, **self._shape | {"epoch": self._first} | fields)
        self._agree()

    def _agree(self) -> None:
        found = [(client.received(), client.state()) for client in self.clients]
        assert found[0] == found[1]

    def happens(self, change: Any) -> None:
        """Let something happen, and assert that both clients are told the same of it."""
        change()
        self._agree()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.sides.parts.authorizer = None


def _set_epoch(sides: Sides, name: str) -> None:
    partition = sides.parts.partitions.by_name[name, 0]
    sides.parts.set_state(name, leader_epoch=partition.leader_epoch + 1)


def _abort(sides: Sides) -> None:
    write(sides.parts, 3)
    mark(sides.parts, 3, committed=False)


def _authorize(sides: Sides, allowed: str | None) -> None:
    sides.parts.authorizer = None if allowed is None else cast(Any, Authorizer(allowed))


def _delete(sides: Sides, name: str) -> None:
    """Move the start of a log to its end."""
    partition = sides.parts.partitions.by_name[name, 0]
    partition.log.delete_records_before(partition.high_watermark)
    sides.parts.replicas.became_visible(partition)


def _turns(sides: Sides, name: str, seconds: float) -> dict[str, Any]:
    """Return what may happen, by name."""
    return {
        "append": lambda: sides.parts.append(name, b"v" * 10),
        "more": lambda: sides.parts.append(name, b"v" * 300, b"w"),
        "time": lambda: sides.parts.time.advance(seconds),
        "epoch": lambda: _set_epoch(sides, name),
        "write": lambda: write(sides.parts, 2),
        "mark": lambda: mark(sides.parts, 2, committed=True),
        "abort": lambda: _abort(sides),
        "allow": lambda: _authorize(sides, name),
        "allow all": lambda: _authorize(sides, None),
        "delete": lambda: _delete(sides, name),
    }


_STEPS: Any = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.lists(st.sampled_from(_NAMES), max_size=2), st.just({})),
        st.tuples(st.just("ask"), st.lists(st.sampled_from(_NAMES), max_size=2), st.fixed_dictionaries({}, optional={
            "min_bytes": st.sampled_from([0, 1, 200]), "wait": st.sampled_from([0, 100, _WAIT_MS]),
            "leader_epoch": st.sampled_from([-1, 0]), "partition_max": st.sampled_from([0, 100, 1 << 20]),
        })),
        st.tuples(
            st.sampled_from(["append"] * 6 + ["more", "time", "time", "epoch", "write", "mark", "abort", "allow",
                                             "allow all", "delete"]),
            st.sampled_from(_NAMES), st.sampled_from([0.1, 0.5, 0.6]),
        ),
    ),
    min_size=2, max_size=14,
)  # fmt: skip
_SHAPES = st.fixed_dictionaries(
    {"version": st.sampled_from([13, 15, 16, 18]), "isolation": st.sampled_from([0, 0, 1])},
    optional={"client": st.sampled_from(["a client", None]), "max_bytes": st.sampled_from([300, 1 << 20])},
)


_REVOKED = [("ask", [], {}), ("append", "t", 0.1), ("ask", ["t"], {}), ("allow", "t", 0.1), ("append", "t", 0.1)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(names=["t", "small"], in_session=True, shape={"version": 13, "isolation": 0}, steps=_REVOKED)
@given(
    names=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True), in_session=st.booleans(),
    shape=_SHAPES, steps=_STEPS,
)  # fmt: skip
def test_both_wait_alike(
    sides: Sides, names: list[str], in_session: bool, shape: dict[str, Any], steps: list[Any]
) -> None:
    sides.parts.authorizer = None
    pair = _Pair(sides, names, in_session, shape)
    try:
        for kind, what, more in steps:
            if kind == "ask":
                pair.ask(what, **more)
            else:
                pair.happens(_turns(sides, what, more)[kind])
    finally:
        pair.close()
    sides.parts.time.advance(1)  # no timer is left
    assert not len(sides.parts.fetch_waits)


@pytest.mark.parametrize("in_session", [True, False])
def test_the_usual_wait_takes_the_short_way(sides: Sides, in_session: bool) -> None:
    """Behind the first request of the connection, all that wait, however they end."""
    pair = _Pair(sides, ["t", "small"], in_session, {})
    pair.ask(["t"])
    pair.happens(lambda: sides.parts.append("t", b"v"))
    with (
        patch.object(Dispatcher, "handle", autospec=True, side_effect=Dispatcher.handle) as handle,
        patch.object(WaitingFetch, "ended", autospec=True, side_effect=WaitingFetch.ended) as ended,
    ):
        for _ in range(5):
            pair.ask(["t"])
            pair.happens(lambda: sides.parts.append("t", b"v"))
        pair.ask(["t"])
        pair.happens(lambda: sides.parts.time.advance(1))
        if in_session:
            pair.ask([])
            pair.happens(lambda: sides.parts.append("small", b"v"))
    short = [call for call in ended.call_args_list if isinstance(call.args[0], WaitingFetch)]
    assert len(short) == handle.call_count == (7 if in_session else 6)  # the other client's are handled
    pair.close()


def test_an_error_at_the_end_of_a_wait_closes_the_connection(sides: Sides) -> None:
    """As for a wait of the general handler."""
    pair = _Pair(sides, ["t"], True, {})
    for _ in range(2):
        pair.ask(["t"])
        pair.happens(lambda: sides.parts.append("t", b"v"))
    pair.ask(["t"])
    with patch.object(Log, "read", side_effect=ZeroDivisionError), patch.object(Log, "read_again", return_value=None):
        sides.parts.append("t", b"v")
    assert [client.ended for client in pair.clients] == [True, True]
    pair.close()


def test_records_that_are_cold_at_the_end_of_a_wait_are_read_in_a_thread(sides: Sides) -> None:
    pair = _Pair(sides, ["t"], False, {})
    for _ in range(2):
        pair.ask(["t"])
        pair.happens(lambda: sides.parts.append("t", b"v"))
    pair.ask(["t"])
    read = Log.read

    def coldly(log: Log, offset: int, size: int, **how: Any) -> Any:
        if not how.get("allow_cold"):
            raise ColdRead("not in memory")
        return read(log, offset, size, **how)

    with patch.object(Log, "read", coldly), patch.object(Log, "read_again", return_value=None):
        pair.happens(lambda: sides.parts.append("t", b"v"))
    pair.close()


def test_a_connection_that_is_lost_leaves_no_wait_behind(sides: Sides) -> None:
    pair = _Pair(sides, ["t"], True, {})
    for _ in range(3):
        pair.ask(["t"])
        pair.happens(lambda: sides.parts.append("t", b"v"))
    pair.ask(["t"])
    kinds = {type(wait).__mro__[1] for wait in sides.parts.fetch_waits._waiting}
    assert WaitingFetch in kinds
    assert {type(wait) for wait in sides.parts.fetch_waits._waiting} > {FetchWait}
    pair.close()
    assert not len(sides.parts.fetch_waits)
