"""A Fetch that repeats the last one of its connection is answered as the general handler does, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.api.fast import fetch as fast_fetch
from pylogd.broker.api.registry import served_versions
from pylogd.broker.api.statistics import FETCH, STATISTICS
from pylogd.broker.log.files import RealFileSystem
from pylogd.broker.net.hangups import HangupWatch
from pylogd.broker.net.server import BrokerFactory, ServerLimits
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast import compiled, known_fetch
from pylogd.wire.fast.known_fetch import END
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.session import ClientSession
from tests.fakes.parts import Parts, RealParts, batch
from tests.fakes.transport import ManualReactor, PairTransport
from tests.property.test_fast_fetch import mark, write

pytestmark = pytest.mark.skipif(compiled.fast is None, reason="there was no compiler")

_COMPILED = fast_fetch._repeated
BATCHES = 12
_SIZES = (20, 200, 20_000)  # so that ranges are copied, or sent from the file
_LIMITS = ServerLimits(1 << 20, 100, 1 << 20, 1 << 20, -1)
_MOST = 1 << 20
_SESSION_AT = 63, 55  # where a request names its session, from the end: ids of new sessions are random
_STATES: dict[str, dict[str, Any]] = {
    "other": {"replicas": (1, 2), "isr": (1, 2), "leader": 2, "leader_epoch": 1},
    "waits": {"replicas": (1, 2), "isr": (1, 2)},
}
TOPICS = ("t", "small", "transactions", *_STATES, "empty")


class Sides:
    """One broker, with connections that have the fast path and others that don't."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        parts.create("t")
        parts.create("small", internal_segment_bytes="1000")
        for at in range(BATCHES):
            parts.append("t", b"v" * _SIZES[at % len(_SIZES)], b"w")
            parts.append("small", b"v" * 100)
        parts.create("transactions")
        for producer in (1, 2, 3, -1, 2):
            write(parts, producer)
        mark(parts, 2, committed=False)
        write(parts, -1)
        for name, state in _STATES.items():
            parts.create(name)
            parts.append(name, b"v")
            parts.set_state(name, **state)
            parts.partitions.by_name[name, 0].log.append(batch(b"not committed"), leader_epoch=0)
        parts.create("empty")
        self.ids = {name: parts.partitions.by_name[name, 0].topic_id for name in TOPICS}
        self.fast, general = Dispatcher(parts), Dispatcher(parts)
        general.repeated = frozenset()
        warm: Any = None
        self.factories = [BrokerFactory(parts.clock, one, warm, _LIMITS) for one in (self.fast, general)]
        for factory in self.factories:
            factory.hangups = HangupWatch(ManualReactor())

    def answers(
        self, reads: list[bytes], *, fast: bool, direct: bool = False, buffer_bytes: int = 1 << 22
    ) -> tuple[bytes, list[int]]:
        """Return what a new connection answers to these reads, and what was counted.

        direct: whether it may read the socket itself; otherwise the bytes are passed to its protocol. buffer_bytes: how
        many the socket takes, or fewer than it is sent.
        """
        protocol: Any = self.factories[not fast].buildProtocol(None)
        transport: Any = PairTransport(protocol, ManualReactor(), buffer_bytes)
        protocol.makeConnection(transport)
        before, got = self.counts(), b""
        for data in reads:
            (transport.arrive if direct else transport.deliver)(data)
            got += transport.pump()
        counts = [now - then for now, then in zip(self.counts(), before, strict=True)]
        transport.loseConnection()
        got += transport.pump()
        protocol.connectionLost()
        transport.peer.close()
        return got, counts

    def counts(self) -> list[int]:
        """Return how many requests, fetches and bytes of each partition were counted."""
        partitions = [self.parts.partitions.by_name[name, 0] for name in TOPICS]
        return [STATISTICS.requests[FETCH], *(p.fetches for p in partitions), *(p.fetched_bytes for p in partitions)]


@pytest.fixture(scope="module", params=["in memory", "on files", "on files, in Python"])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder: Path = tmp_path_factory.mktemp("parts")
    kind, dirs = (Parts, "/data") if request.param == "in memory" else (RealParts, str(folder / "logs"))
    # "in Python": as where `_repeated.c` could not be compiled
    with patch.object(fast_fetch, "_repeated", None) if request.param.endswith("Python") else nullcontext():
        made = Sides(kind(folder, log_dirs=dirs, log_index_interval_bytes=0, log_cleaner_enable=False))
        yield made
        made.parts.time.advance(0)
        made.parts.close()


def frames(sides: Sides, offsets: list[int], **fields: Any) -> list[bytes]:
    """Return requests that differ in offset and correlation id, each with its length."""
    known: dict[str, Any] = {
        "name": "t", "version": 16, "index": 0, "leader_epoch": -1, "last_epoch": -1, "partition_max": _MOST,
        "max_bytes": _MOST, "min_bytes": 1, "isolation": 0, "replica": -1, "client": "a client",
        "session_epoch": -1,
    }  # fmt: skip
    known.update(fields)
    version, replica = known["version"], known["replica"]
    session = ClientSession(_MOST, known["client"])
    found = []
    for offset in offsets:
        wanted = FetchPartition(
            known["index"],
            known["leader_epoch"],
            offset,
            known["last_epoch"],
            partition_max_bytes=known["partition_max"],
        )
        request = FetchRequest(
            replica_id=replica if version < 15 else -1,
            replica_state=ReplicaState(replica if version >= 15 else -1),
            max_wait_ms=0,
            min_bytes=known["min_bytes"],
            max_bytes=known["max_bytes"],
            isolation_level=known["isolation"],
            session_epoch=known["session_epoch"],
            topics=[FetchTopic("", sides.ids.get(known["name"], bytes(range(16))), [wanted])],
        )
        parts: list[Any] = session.encode_request(request, version)
        found.append(b"".join(parts))
    return found


sizes = st.sampled_from([-1, 0, 1, 300, 700, 41_000, 70_000, _MOST])
_SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([*TOPICS, "unknown"]),
        "version": st.integers(12, 18).filter(lambda version: version > 12),
        "index": st.sampled_from([0, 0, 0, 1]),
        "leader_epoch": st.sampled_from([-1, 0, 0, 1]),
        "last_epoch": st.sampled_from([-1, -1, 0]),
        "partition_max": sizes,
        "max_bytes": sizes,
        "min_bytes": sizes,
        "isolation": st.sampled_from([0, 1]),
        "replica": st.sampled_from([-1, -1, 5]),
        "client": st.sampled_from(["a client", "another", None]),
    },
)
_RUNS = st.tuples(_SHAPES, st.lists(st.integers(-1, 2 * BATCHES + 1), min_size=1, max_size=6))
_DAMAGE = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 120), st.integers(0, 255)), max_size=2)


def damaged(reads: list[bytes], damage: list[tuple[int, int, int]]) -> list[bytes]:
    """Return the requests with other bytes, but the same lengths and sessions."""
    changed = list(reads)
    for number, place, byte in damage:
        if number < len(reads):
            data = bytearray(changed[number])
            at = 4 + place % (len(data) - 4)
            if not len(data) - _SESSION_AT[0] <= at < len(data) - _SESSION_AT[1]:
                data[at] = byte
            changed[number] = bytes(data)
    return changed


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    runs=st.lists(_RUNS, min_size=1, max_size=3),
    damage=_DAMAGE,
    joined=st.booleans(),
    reading=st.fixed_dictionaries(
        {"direct": st.booleans(), "buffer_bytes": st.sampled_from((1 << 22, 1 << 22, 1 << 14))}
    ),
)
def test_both_answer_alike(
    sides: Sides,
    runs: list[tuple[dict[str, Any], list[int]]],
    damage: list[tuple[int, int, int]],
    joined: bool,
    reading: dict[str, Any],
) -> None:
    reads = damaged([data for shape, offsets in runs for data in frames(sides, offsets, **shape)], damage)
    if joined and len(reads) > 2:
        reads[1:3] = [reads[1] + reads[2]]
    elif len(reads) > 2:  # one request arrives in two reads
        reads[2:3] = [reads[2][:50], reads[2][50:]]
    assert sides.answers(reads, fast=True, **reading) == sides.answers(reads, fast=False, **reading)


@pytest.mark.parametrize("place", range(8, 120))
def test_any_changed_byte_is_noticed(sides: Sides, place: int) -> None:
    """Change one byte of a request behind two that are the same, and then ask for the usual again."""
    reads = frames(sides, [0, 2, 4, 6, 8])
    for byte in (0, 129):
        changed = damaged(reads, [(2, place - 4, byte)])
        direct = bool(byte)
        assert sides.answers(changed, fast=True, direct=direct) == sides.answers(changed, fast=False, direct=direct)


@pytest.mark.parametrize(
    ("shape", "is_fast"),
    [
        ({}, True),
        ({"version": 13}, True),
        ({"version": known_fetch.LAST}, True),
        ({"leader_epoch": 0}, True),
        ({"isolation": 1}, True),
        ({"name": "waits"}, True),
        ({"client": None}, True),
        ({"partition_max": 1}, True),
        ({"leader_epoch": 1}, False),
        ({"last_epoch": 0}, False),
        ({"replica": 5}, False),
        ({"index": 1}, False),
        ({"name": "other"}, False),
        ({"name": "empty"}, False),
        ({"name": "transactions", "isolation": 1}, False),  # some were aborted
        ({"min_bytes": _MOST}, False),
    ],
)
def test_which_requests_take_the_fast_path(sides: Sides, shape: dict[str, Any], is_fast: bool) -> None:
    """All after the first of the connection, or none."""
    reads = frames(sides, [0] * 4, **shape)
    with patch.object(Dispatcher, "handle", autospec=True, side_effect=Dispatcher.handle) as handle:
        answers = sides.answers(reads, fast=True)
    assert handle.call_count == (1 if is_fast else 4)
    assert answers == sides.answers(reads, fast=False)


@pytest.mark.skipif(_COMPILED is None, reason="there was no compiler")
@pytest.mark.parametrize("allowed", [None, True, False])
def test_the_compiled_function_asks_for_permission(tmp_path: Path, allowed: bool | None) -> None:
    """Python is asked only once for a connection, until the request is known."""
    answer, asked = fast_fetch.answer_repeated, 0
    permissions: list[tuple[object, ...]] = []

    def ask(*arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        return answer(*arguments, **named)

    class _Authorizer:
        def authorize(self, *request: object) -> bool:
            permissions.append(request)
            return bool(allowed)

    with patch.multiple(fast_fetch, answer_repeated=ask, _repeated=_COMPILED):
        sides = Sides(RealParts(tmp_path, log_dirs=str(tmp_path / "logs")))
    reads = frames(sides, [0, 4, 0, 0])
    before = sides.answers(reads, fast=True)
    if allowed is not None:
        sides.parts.authorizer = cast(Any, _Authorizer())
    after = sides.answers(reads, fast=True)
    assert asked == 2
    assert (after == before) is (allowed is not False)
    assert {request[2:] for request in permissions} <= {(AclOperation.READ, ResourceType.TOPIC, "t")}
    assert len(permissions) >= 4 or allowed is None
    assert after == sides.answers(reads, fast=False)
    sides.parts.close()


@pytest.mark.parametrize("version", [13, 15, known_fetch.LAST])
def test_a_request_of_a_session_is_not_decoded_twice(sides: Sides, version: int) -> None:
    (plain,), (with_session,) = (frames(sides, [5], version=version, session_epoch=epoch) for epoch in (-1, 1))
    assert known_fetch.decode_fetch(plain) is not None
    with patch.object(known_fetch, "read_request_header", side_effect=AssertionError):
        assert known_fetch.decode_fetch(with_session) is None


def test_a_sampled_request_is_measured(sides: Sides) -> None:
    reads = frames(sides, [0] * 5)
    sides.fast.watch()
    sides.answers(reads[:2], fast=True)
    sides.fast.sample()
    before = sum(STATISTICS.durations[FETCH].counts)
    with patch.object(Dispatcher, "handle", autospec=True, side_effect=Dispatcher.handle) as handle:
        sides.answers(reads[1:], fast=True)
    assert handle.call_count == 2  # the first of its connection, and one behind it
    assert sum(STATISTICS.durations[FETCH].counts) == before + 1


def test_the_end_of_a_response_is_sent_with_the_records(tmp_path: Path) -> None:
    """If the file goes on with zeros, as a batch does."""
    sides = Sides(RealParts(tmp_path, log_dirs=str(tmp_path / "logs"), log_index_interval_bytes=0))
    reads = frames(sides, [0, 4, 4], partition_max=41_000)
    sent: list[int] = []
    plain = RealFileSystem.send_resident

    def send(socket: int, head: bytes, fd: int, position: int, length: int) -> int:
        sent.append(length)
        return plain(socket, head, fd, position, length)

    with patch.object(RealFileSystem, "send_resident", staticmethod(send)):
        answers = sides.answers(reads, fast=True)
    assert answers == sides.answers(reads, fast=False)
    assert answers[0].endswith(END)
    assert len(sent) == 2
    assert len(set(sent)) == 1
    sides.parts.close()


def test_every_version_that_is_served_is_known() -> None:
    assert served_versions()[FetchRequest.API_KEY][1] == known_fetch.LAST
