"""A Fetch that continues a session is answered as the general handler does, and leaves the session alike.

Two clients fetch from one broker in sessions of their own, with the same requests; one of them has no short way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.broker.api.dispatch import Dispatcher
from pylogd.wire.fast import compiled, known_fetch, known_session
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from pylogd.wire.session import ClientSession
from tests.fakes.parts import RealParts
from tests.fakes.transport import ManualReactor, PairTransport
from tests.property.test_repeated_fetches import BATCHES, TOPICS, Sides

pytestmark = pytest.mark.skipif(compiled.fast is None, reason="there was no compiler")

_MOST = 1 << 20
_SESSION_ID = slice(15, 19)  # in a response
_USUAL: dict[str, Any] = {
    "version": 16, "max_bytes": _MOST, "min_bytes": 1, "isolation": 0, "replica": -1, "client": "a client", "rack": "",
    "wait": 0,
}  # fmt: skip


@contextmanager
def sides_in(folder: Path) -> Iterator[Sides]:
    """Yield a broker on real files."""
    made = Sides(RealParts(folder, log_dirs=str(folder / "logs"), log_index_interval_bytes=0, log_cleaner_enable=False))
    yield made
    made.parts.authorizer = None
    made.parts.close()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with sides_in(tmp_path_factory.mktemp("parts")) as made:
        yield made


class Client:
    """One connection with one session."""

    def __init__(self, sides: Sides, fast: bool) -> None:
        self._sides, self.session_id, self.epoch = sides, 0, 0
        self._protocol: Any = sides.factories[not fast].buildProtocol(None)
        self._transport: Any = PairTransport(self._protocol, ManualReactor(), 1 << 22)
        self._protocol.makeConnection(self._transport)

    def fetch(self, names: list[tuple[str, int]], **fields: Any) -> bytes:
        """Send a request that names partitions at these offsets; return the response, without the session's id."""
        epoch = self.send(names, **fields)
        return self.received(first=not epoch)

    def send(self, names: list[tuple[str, int]], **fields: Any) -> int:
        """Send a request; return the session's epoch in it. ahead: of the next one; epoch: instead of it."""
        given, ahead = fields.pop("epoch", None), fields.pop("ahead", 0)
        epoch: int = self.epoch + ahead if given is None else given
        self._transport.deliver(self._frame(names, epoch, **fields))
        if epoch in (0, self.epoch):
            self.epoch = epoch + 1
        return epoch

    def received(self, first: bool = False) -> bytes:
        """Return what has come, without the session's id. first: whether the id is the client's from now on."""
        reply = bytearray(self._transport.pump())
        if first:
            self.session_id = int.from_bytes(reply[_SESSION_ID], "big")
        at = 0
        while at < len(reply):
            found = slice(at + _SESSION_ID.start, at + _SESSION_ID.stop)
            if int.from_bytes(reply[found], "big") == self.session_id:
                reply[found] = bytes(4)
            at += 4 + int.from_bytes(reply[at : at + 4], "big")
        return bytes(reply)

    @property
    def ended(self) -> bool:
        """Whether the broker has closed the connection."""
        return bool(self._transport.disconnecting or self._transport.disconnected)

    def _frame(self, names: list[tuple[str, int]], epoch: int, **fields: Any) -> bytes:
        known = _USUAL | {"leader_epoch": -1, "last_epoch": -1, "partition_max": _MOST, "gone": []} | fields
        version, replica, ids = known["version"], known["replica"], self._sides.ids
        topics = [
            FetchTopic("", ids.get(name, bytes(range(16))), [
                FetchPartition(
                    0, known["leader_epoch"], offset, known["last_epoch"], partition_max_bytes=known["partition_max"]
                )
            ])
            for name, offset in names
        ]  # fmt: skip
        request = FetchRequest(
            replica_id=replica if version < 15 else -1,
            replica_state=ReplicaState(replica if version >= 15 else -1),
            max_wait_ms=known["wait"], min_bytes=known["min_bytes"], max_bytes=known["max_bytes"],
            isolation_level=known["isolation"], session_id=self.session_id, session_epoch=epoch, topics=topics,
            forgotten_topics_data=[ForgottenTopic("", ids[name], [0]) for name in known["gone"]],
            rack_id=known["rack"],
        )  # fmt: skip
        parts: list[Any] = ClientSession(_MOST, known["client"]).encode_request(request, version)
        return b"".join(parts)

    def state(self) -> object:
        """Return what the session remembers, None if there is none."""
        sessions = self._sides.parts.fetch_sessions
        session: Any = sessions._sessions.get(self.session_id)
        if session is None:
            return None
        entries = [
            (
                entry.topic, entry.wanted, entry.sent_high_watermark, entry.sent_log_start, entry.partition,
                entry.leader_epoch, entry.key, entry in session.dirty,
            )
            for entry in session
        ]  # fmt: skip
        return session.epoch, session.used_ms, session.wait is None, entries

    def close(self) -> None:
        self._transport.loseConnection()
        self._transport.pump()
        self._protocol.connectionLost()
        self._transport.peer.close()


class Authorizer:
    """Allows one topic."""

    version = 1

    def __init__(self, allowed: str) -> None:
        self._allowed = allowed

    def authorize(self, *asked: object) -> bool:
        return asked[-1] == self._allowed


_sizes = st.sampled_from([-1, 0, 1, 300, 41_000, _MOST])
_offsets = st.integers(-1, 2 * BATCHES + 1)
_names = st.sampled_from([*TOPICS, "t", "t", "small", "unknown"])
_fields = st.fixed_dictionaries(
    {},
    optional={
        "leader_epoch": st.sampled_from([-1, 0, 0, 1]), "last_epoch": st.sampled_from([-1, -1, 0]),
        "partition_max": _sizes, "ahead": st.sampled_from([0, 0, 0, 1, -1]),
        "gone": st.sampled_from([[], [], ["t"], ["small"]]), "min_bytes": _sizes, "max_bytes": _sizes,
        "rack": st.sampled_from(["", "", "a"]), "isolation": st.sampled_from([0, 1]),
        "client": st.sampled_from(["a client", "another", None]),
    },
)  # fmt: skip
_STEPS: Any = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.lists(st.tuples(_names, _offsets), max_size=2, unique_by=lambda one: one[0]),
                  st.just({}) | _fields),
        st.tuples(st.just("again"), _offsets, st.just({})),
        st.tuples(st.just("append"), st.sampled_from(["t", "small", "empty"]), st.just(b"v")),
        st.tuples(st.just("allow"), st.sampled_from([None, None, "t", "small"]), st.none()),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
_SHAPES = st.fixed_dictionaries(
    {"version": st.sampled_from([13, 15, 16, known_fetch.LAST]), "isolation": st.sampled_from([0, 1])},
    optional={"replica": st.sampled_from([-1, -1, -1, 5]), "client": st.sampled_from(["a client", None])},
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(names=st.lists(_names, min_size=1, max_size=3, unique=True), offset=_offsets, shape=_SHAPES, steps=_STEPS)
def test_both_answer_alike(
    sides: Sides, names: list[str], offset: int, shape: dict[str, Any], steps: list[Any]
) -> None:
    sides.parts.authorizer = None
    clients = Client(sides, True), Client(sides, False)
    try:
        _check(sides, clients, [(name, offset) for name in names], shape)
        for kind, what, more in steps:
            if kind == "fetch":
                _check(sides, clients, what, shape | more)
            elif kind == "again":  # as a consumer of one partition does
                for ahead in range(3):
                    _check(sides, clients, [(names[0], what + 2 * ahead)], shape)
            elif kind == "append":
                sides.parts.append(what, more)
            else:
                sides.parts.authorizer = None if what is None else cast(Any, Authorizer(what))
    finally:
        for client in clients:
            client.close()


def _check(sides: Sides, clients: tuple[Client, Client], names: list[tuple[str, int]], fields: dict[str, Any]) -> None:
    """Assert that both clients get the same, and that the same is counted and remembered."""
    found = []
    for client in clients:
        before = sides.counts()
        reply = client.fetch(names, **fields)
        counted = [now - then for now, then in zip(sides.counts(), before, strict=True)]
        found.append((reply, counted, client.state()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("fields", "is_fast"),
    [
        ({}, True),
        ({"version": 13}, True),
        ({"version": known_fetch.LAST}, True),
        ({"leader_epoch": 0}, True),
        ({"isolation": 1}, True),
        ({"client": None}, True),
        ({"partition_max": 1}, True),
        ({"name": "transactions"}, True),
        ({"name": "transactions", "isolation": 1}, False),  # some were aborted
        ({"leader_epoch": 1}, False),
        ({"last_epoch": 0}, False),
        ({"replica": 5}, False),
        ({"rack": "a"}, False),
        ({"min_bytes": _MOST}, False),
    ],
)
def test_which_requests_take_the_short_way(sides: Sides, fields: dict[str, Any], is_fast: bool) -> None:
    """All after the first that continues the session, or none."""
    sides.parts.authorizer = None
    name, fields = fields.get("name", "t"), {key: value for key, value in fields.items() if key != "name"}
    client, other = Client(sides, True), Client(sides, False)
    for _ in range(2):
        _check(sides, (client, other), [(name, 0)], fields)
    with patch.object(Dispatcher, "handle", autospec=True, side_effect=Dispatcher.handle) as handle:
        for offset in (2, 4, 6, 0):
            client.fetch([(name, offset % 4)], **fields)
    assert handle.call_count == (0 if is_fast else 4)
    client.close()
    other.close()


def test_others_that_have_changed_are_left_to_the_general_handler(sides: Sides) -> None:
    sides.parts.authorizer = None
    clients = Client(sides, True), Client(sides, False)
    _check(sides, clients, [("t", 0), ("empty", 0)], {})
    _check(sides, clients, [("t", 2)], {})
    sides.parts.append("empty", b"v")
    _check(sides, clients, [("t", 4)], {})
    _check(sides, clients, [("t", 6), ("empty", 1 << 20)], {})  # the end of its log is far before
    _check(sides, clients, [("t", 4)], {})
    sides.parts.authorizer = cast(Any, Authorizer("t"))
    _check(sides, clients, [("t", 6)], {})
    for client in clients:
        client.close()


def test_requests_of_another_shape_are_not_decoded_for_it(sides: Sides) -> None:
    client = Client(sides, True)
    client.fetch([("t", 0)])
    client.fetch([("t", 2)])
    with patch.object(known_session, "decode_frame", side_effect=AssertionError):
        for names in ([], [("t", 0), ("small", 0)], [("t", 4)], []):
            client.fetch(names)
    client.close()
