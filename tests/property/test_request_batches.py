"""The fast path of Produce responds and appends as the general handler does, for one request or many together."""

from __future__ import annotations

import errno
import random
import struct
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.api.fast import produce as fast_produce
from pylogd.broker.api.registry import served_versions
from pylogd.broker.net.hangups import HangupWatch
from pylogd.broker.net.server import BrokerFactory, ServerLimits
from pylogd.wire.fast import compiled
from pylogd.wire.fast.produce import FIRST, LAST
from pylogd.wire.fast.request_batch import parse_request
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import HEADER_SIZE
from pylogd.wire.schema import response_codec
from pylogd.wire.session import ClientSession
from tests.fakes.parts import NOW_MS, Parts, batch
from tests.fakes.storage import fix_crc, with_header
from tests.fakes.transport import ManualReactor, PairTransport

LONG = "n" * 249  # too long for the fast path from version 9 on
#: Topics for each case that the fast path refuses. Names and client ids have equal lengths, so only bytes differ.
TOPICS: dict[str, dict[str, str]] = {
    "usual": {},
    "rolls": {"internal_segment_bytes": "3000"},
    "index": {"index_interval_bytes": "0", "segment_index_bytes": "480"},
    "stamp": {"message_timestamp_type": "LogAppendTime"},
    "small": {"max_message_bytes": "300"},
    "twain": {"min_insync_replicas": "2"},  # with one replica in sync
    "waits": {},  # for a follower
    "other": {},  # broker leads
    "epoch": {},  # created just now
    "keyed": {"cleanup_policy": "compact"},
    "codec": {"compression_type": "zstd"},
    "plain": {"compression_type": "uncompressed"},
    "aging": {"message_timestamp_before_max_ms": "1000000000"},
    "synced": {"flush_visible": "true", "flush_messages": "5"},
    "empty": {},
    LONG: {},
}
_STATES: dict[str, dict[str, Any]] = {
    "twain": {"replicas": (1, 2), "isr": (1,)},
    "waits": {"replicas": (1, 2), "isr": (1, 2)},
    "other": {"replicas": (1, 2), "isr": (1, 2), "leader": 2, "leader_epoch": 1},
    "epoch": {"leader_epoch": 1},
}
CLIENTS = ("a client", "b client", None)
_LIMITS = ServerLimits(1 << 20, 100, 1 << 20, 2 << 20, -1)
_FITS = 1 << 16  # bytes that a socket holds
_ONE = batch(b"v" * 20)
_TWICE = batch(b"", b"")  # ends with a length, attributes, time stamp, offset, no key, an empty value, no headers
#: The kinds of requests, by name.
BATCHES: dict[str, bytes | None] = {
    "several": batch(b"one", b"two", b"three"),
    "two batches": _ONE + _ONE,
    "bad CRC": _ONE[:-1] + b"?",
    "garbage": fix_crc(_ONE[:HEADER_SIZE] + b"?" * (len(_ONE) - HEADER_SIZE)),
    "the same offset twice": fix_crc(_TWICE[:-4] + b"\0" + _TWICE[-3:]),
    "uncompressed under zstd": with_header(_ONE, attributes=4),
    "zstd": batch(b"v" * 200, compression=4),
    "two of zstd": batch(b"v" * 200, compression=4) * 2,  # inspected in a thread
    "a largest time stamp that lies": with_header(_ONE, max_timestamp=NOW_MS + 5),
    "transactional": with_header(_ONE, attributes=0x10),
    "too old for its record": batch(b"v", now_ms=-5),
    "of tomorrow": batch(b"v", now_ms=NOW_MS + 86_400_000),
    "none": None,
    "empty": b"",
}
_USUAL_VERSION = 10
_USUAL = ("usual", 0, _USUAL_VERSION, -1, None, CLIENTS[0])


def _odd(field: int, value: Any) -> tuple[Any, ...]:
    """Return the usual request with one field changed: topic, partition, version, acks, transactional or client id."""
    return (*_USUAL[:field], value, *_USUAL[field + 1 :])


_ODD = [_odd(0, name) for name in [*TOPICS, "rolls", "rolls", "index", "index", "abcde"]]
_ODD += [_odd(1, 1), _odd(2, 6), _odd(2, 9), _odd(2, 13), _odd(3, 0), _odd(3, 1), _odd(3, 2), _odd(4, "id")]
_ODD += [_odd(5, CLIENTS[1]), _odd(5, None)]
_SHAPES = st.sampled_from([_USUAL] * 12 + _ODD)
#: One version for each layout of requests and responses, and for each rule about zstd.
_VERSIONS = (3, 5, 7, 8, 10, 13)
_SIZES = st.sampled_from([0, 20, 20, 20, 50, 60, 200, 200, 5000, 20_000])


def _numbered(producer: int, first: int, steps: list[int]) -> list[tuple[int, int]]:
    """Return (producer id, sequence number) pairs of an idempotent producer, with the given distance."""
    return [(producer, (first + step) % (1 << 31)) for step in accumulate(steps, initial=0)]


_NUMBERED = st.builds(
    _numbered,
    st.integers(1, 50),
    st.sampled_from([0, 0, (1 << 31) - 3]),
    st.lists(st.sampled_from([1] * 9 + [0, 2]), max_size=12),
)
_MIXED = st.lists(st.one_of(_SIZES, _SIZES, _SIZES, st.sampled_from(list(BATCHES))), min_size=1, max_size=12)
_RECORDS = st.one_of(_MIXED, st.lists(_SIZES, min_size=2, max_size=12), _NUMBERED)
_REQUESTS = st.lists(st.one_of(*[st.tuples(_SHAPES, _RECORDS)] * 5, st.just("offsets")), min_size=1, max_size=5)
#: A changed byte: in which request, counted from its start or its end, at which distance, and its new value.
_CHANGES = st.lists(
    st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 50), st.sampled_from([0, 1, 2, 3, 128, 255])),
    max_size=2,
)


class Side:
    """A broker on a file system in memory, with or without the fast path, and new connections to it on request.

    kind: other parts, such as those with real files.
    """

    def __init__(self, directory: Path, *, fast: bool, kind: type[Parts] = Parts, **settings: object) -> None:
        directory.mkdir()
        self.parts = kind(directory, **settings)
        configs: Any
        for name, configs in TOPICS.items():
            self.parts.create(name, **configs)
            if name not in ("twain", "empty", "keyed", "codec"):
                self.parts.append(name, b"v")
            if name in _STATES:
                self.parts.set_state(name, **_STATES[name])
        self.parts.create("__consumer_offsets", cleanup_policy="delete")
        self.ids = {name: self.parts.partitions.by_name[name, 0].topic_id for name in TOPICS}
        dispatcher = Dispatcher(self.parts)
        if not fast:
            dispatcher.batched = frozenset()
        warm: Any = None
        self._factory = BrokerFactory(self.parts.clock, dispatcher, warm, _LIMITS)
        self._factory.hangups = HangupWatch(ManualReactor())

    def frames(self, asked: list[Any], usual: int = _USUAL_VERSION) -> list[bytes]:
        """Return the requests, each as a client sends it. usual: their version, unless they have one of their own."""
        sessions = {name: ClientSession(1 << 20, name) for name in CLIENTS}
        found: list[bytes] = []
        for item in asked:
            if item == "offsets":  # shows the high watermark when its turn comes
                topics = [ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1)]) for name in TOPICS]
                found.append(_joined(sessions[CLIENTS[1]].encode_request(ListOffsetsRequest(topics=topics), 7)))
                continue
            (name, index, version, acks, transactional, client), contents = item
            version = usual if version == _USUAL_VERSION else version
            for one in contents:
                records = BATCHES[one] if isinstance(one, str) else _batch(one)
                topic_id = self.ids.get(name, bytes(range(16)))
                rows = [PartitionProduceData(index, records)]
                topic = TopicProduceData("" if version >= 13 else name, topic_id if version >= 13 else bytes(16), rows)
                request = ProduceRequest(transactional, acks, 1000, [topic])
                found.append(_joined(sessions[client].encode_request(request, version)))
        return found

    def answers(self, reads: list[bytes], direct: bool = False) -> bytes:
        """Return all responses to what one connection receives in the given number of reads.

        direct: whether it reads them from its socket, as far as they fit into it.
        """
        protocol, transport = self.connect()
        for data in reads:
            (transport.arrive if direct and len(data) < _FITS else transport.deliver)(data)
        got: bytes = transport.pump()
        self.parts.time.advance(0)  # the turn that a connection with many requests has asked for
        got += transport.pump()
        transport.loseConnection()
        transport.pump()
        protocol.connectionLost()
        transport.peer.close()
        return got

    def connect(self) -> tuple[Any, Any]:
        """Return a new connection and its transport."""
        protocol: Any = self._factory.buildProtocol(None)
        transport: Any = PairTransport(protocol, ManualReactor(), 4 << 20)
        protocol.makeConnection(transport)
        return protocol, transport

    def state(self) -> dict[str, Any]:
        """Return the contents of the logs, and what the broker knows of them."""
        found: dict[str, Any] = {}
        for name in TOPICS:
            partition = self.parts.partitions.by_name[name, 0]
            log = partition.log
            active = log.active
            assert active.indexes is not None
            found[name] = (
                partition.high_watermark,
                log.log_end_offset,
                [(segment.base_offset, segment.size, segment.full) for segment in log.segments],
                active.indexes.offsets.pairs(),
                active.indexes.times.to_bytes(),
                active.largest_timestamp(allow_cold=True),
                bytes(self.parts.fs._file(active.file.fd)[1].data),  # type: ignore[union-attr]
                log.producers.to_snapshot(),
            )
        return found


def _batch(one: int | tuple[int, int]) -> bytes:
    """Return a batch of that size, or of that producer with that sequence number."""
    if isinstance(one, int):
        return batch(b"v" * one)
    return batch(b"v", producer_id=one[0], producer_epoch=0, base_sequence=one[1])


def _joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


@pytest.fixture(scope="module", params=["compiled", "appended in Python", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The fast path with the compiled functions, without the one that appends, and without any."""
    name: str = request.param
    if name == "python":
        with patch.object(compiled, "fast", None):
            yield name
    else:
        if compiled.fast is None:
            pytest.skip("there was no compiler")
        with patch.object(fast_produce, "_repeated", None) if name != "compiled" else nullcontext():
            yield name


@pytest.fixture(scope="module")
def sides(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("sides")
    made = []
    for name in ("fast", "general"):
        chance = random.Random(1)  # so that both give the same ids to their topics
        with patch.object(uuid, "uuid4", lambda chance=chance: uuid.UUID(int=chance.getrandbits(128), version=4)):
            made.append(Side(folder / name, fast=name == "fast"))
    yield made[0], made[1]
    for side in made:
        side.parts.time.advance(0)  # a connection with many requests has asked for its next turn
        side.parts.close()


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=60, deadline=None)
@given(
    requests=_REQUESTS,
    changes=_CHANGES,
    cuts=st.lists(st.integers(0, 20_000), max_size=2),
    one_by_one=st.booleans(),
    direct=st.booleans(),
)
def test_both_paths_answer_and_append_alike(
    sides: tuple[Side, Side],
    version: int,
    requests: list[Any],
    changes: list[tuple[int, bool, int, int]],
    cuts: list[int],
    one_by_one: bool,
    direct: bool,
) -> None:
    fast, general = sides
    frames = [_changed(side.frames(requests, version), changes) for side in sides]
    data = b"".join(frames[0])
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    reads = frames[0] if one_by_one else [data[start:end] for start, end in pairwise(places)]
    assert fast.answers(reads, direct) == general.answers(frames[1])
    assert fast.state() == general.state()


def _changed(frames: list[bytes], changes: list[tuple[int, bool, int, int]]) -> list[bytes]:
    frames = list(frames)
    for number, first, far, byte in changes:
        if number < len(frames):
            data = bytearray(frames[number])
            place = far % (len(data) - 4)  # the length stays, since it says where the next request starts
            data[4 + place if first else len(data) - 1 - place] = byte
            frames[number] = bytes(data)
    return frames


@pytest.mark.parametrize("version", [3, 8, 10])
@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("sizes", [[200] * 60, [20, 200, 50, 60, 1000] * 12, [8000] * 10])
def test_a_long_batch_is_answered_alike(sides: tuple[Side, Side], name: str, sizes: list[int], version: int) -> None:
    fast, general = sides
    requests = [((name, 0, version, *_USUAL[3:]), sizes)]
    for _ in range(3):
        assert fast.answers([b"".join(fast.frames(requests))]) == general.answers(general.frames(requests))
        assert fast.state() == general.state()


@pytest.mark.parametrize("version", [3, 8, 10])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("altered", [1, 2])
def test_any_changed_byte_is_handled_alike(
    sides: tuple[Side, Side], altered: int, together: bool, version: int
) -> None:
    """Change each byte of the first request of a batch, and of one behind it, to several values, one at a time."""
    requests = [(("usual", 0, version, 1, None, CLIENTS[0]), [60] * 4)]
    frames = [side.frames(requests) for side in sides]
    for place in range(len(frames[0][altered]) - 4):
        for byte in (0, 1, 128, 255):
            fast, general = (_changed(sent, [(altered, True, place, byte)]) for sent in frames)
            reads = [b"".join(fast)] if together else fast
            assert sides[0].answers(reads) == sides[1].answers(general), (place, byte)
    assert sides[0].state() == sides[1].state()


def _alike(side: Side, count: int, version: int = _USUAL_VERSION) -> list[bytes]:
    return side.frames([(_USUAL, [200] * count)], version)


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_batch_is_one_write(sides: tuple[Side, Side], version: int) -> None:
    fast, general = sides
    fast.parts.fs.calls.clear()
    assert fast.answers([b"".join(_alike(fast, 40, version))]) == general.answers(_alike(general, 40, version))
    assert len([call for call in fast.parts.fs.calls if call.startswith("pwritev")]) == 2  # the first is by itself
    assert fast.state() == general.state()


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_compiled_function_takes_requests_without_parsing(way: str, sides: tuple[Side, Side], version: int) -> None:
    fast, general = sides
    frames = _alike(fast, 42, version)
    with patch("pylogd.broker.api.fast.produce.parse_request", side_effect=parse_request) as parse:
        replies = fast.answers([*frames[:2], b"".join(frames[2:])])
    assert parse.call_count == (2 if way == "python" else 1)  # the second request, whose shape is kept
    assert replies == general.answers(_alike(general, 42, version))
    assert fast.state() == general.state()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("shape", "is_fast"),
    [
        (_USUAL, True),
        (_odd(3, 1), True),
        *[(_odd(2, version), True) for version in range(FIRST, LAST + 1)],
        (_odd(0, "stamp"), True),
        (_odd(0, "empty"), True),
        (_odd(0, "epoch"), True),
        (("waits", *_USUAL[1:3], 1, None, CLIENTS[0]), True),
        (_odd(0, "waits"), False),
        (_odd(0, "other"), False),
        (_odd(0, "synced"), False),
        (("synced", *_USUAL[1:3], 1, None, CLIENTS[0]), True),
        (_odd(0, "__consumer_offsets"), False),
        (_odd(1, 1), False),
        (_odd(3, 0), False),
        (_odd(4, "id"), False),
    ],
)
def test_which_requests_take_the_fast_path(
    sides: tuple[Side, Side], shape: tuple[Any, ...], is_fast: bool, together: bool
) -> None:
    """All requests after the first one of the connection, or none."""
    fast, general = sides
    frames = [side.frames([(_USUAL, [20]), (shape, [20] * 5)]) for side in sides]
    with patch.object(Dispatcher, "handle", autospec=True, side_effect=Dispatcher.handle) as handle:
        replies = fast.answers([b"".join(frames[0])] if together else frames[0])
    assert handle.call_count == (1 if is_fast else 6)
    assert replies == general.answers(frames[1])
    assert fast.state() == general.state()


def test_the_fast_path_knows_every_version_that_is_served() -> None:
    assert served_versions()[ProduceRequest.API_KEY] == (FIRST, LAST)


@pytest.mark.parametrize("version", [3, 8, 10])
def test_a_full_disk_is_reported_to_each(way: str, tmp_path: Path, version: int) -> None:
    fast, general = Side(tmp_path / "fast", fast=True), Side(tmp_path / "general", fast=False)
    before = fast.state()
    answered = []
    for side, reads in ((fast, [b"".join(_alike(fast, 9, version))]), (general, _alike(general, 9, version))):
        with side.parts.fs.failing("pwritev", errno.ENOSPC, lasting=True):
            answered.append(side.answers(reads))
        assert side.state() == before
    assert answered[0] == answered[1]
    assert fast.answers([b"".join(_alike(fast, 9))]) == general.answers(_alike(general, 9))  # there is space again
    assert fast.state() == general.state() != before
    for side in (fast, general):
        side.parts.close()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_failed_write_is_not_tried_again(way: str, tmp_path: Path, together: bool, repeated: bool) -> None:
    """Half of a write reaches the disk, which is full for this one write: its requests get an error and can be sent
    again.
    """
    side = Side(tmp_path / "fast", fast=True)
    frames, before = _alike(side, 9), side.state()
    first = _alike(side, 2 if repeated else 1)
    calls, rest = side.parts.fs.calls, b"".join(frames[1:])
    with side.parts.fs.failing("pwritev", errno.ENOSPC, after=len(first), partial=700):
        calls.clear()
        reads = [*first, rest] if repeated else [b"".join(first) + rest]
        got = side.answers(reads if together else [*first, *frames[1:]])
        writes = len([call for call in calls if call.startswith("pwritev")])
    answered = [_error_of(reply) for reply in _replies(got)]
    refused = 8 if together else 1
    assert answered == [0] * len(first) + [ErrorCode.KAFKA_STORAGE_ERROR] * refused + [0] * (8 - refused)
    assert writes == len(first) + (1 if together else 8)
    ends = [state["usual"][1] for state in (before, side.state())]
    assert ends[1] - ends[0] == len(first) + 8 - refused
    again = side.answers([b"".join(frames[1:])])
    assert [_error_of(reply) for reply in _replies(again)] == [0] * 8
    assert side.state()["usual"][1] == ends[1] + 8
    side.parts.close()


def _replies(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack_from(">i", data)
        yield data[4 : 4 + length]
        data = data[4 + length :]


def _error_of(reply: bytes) -> int:
    response = response_codec(ProduceRequest.API_KEY, _USUAL[2]).decode(memoryview(reply)[5:])
    code: int = response.responses[0].partition_responses[0].error_code
    return code
