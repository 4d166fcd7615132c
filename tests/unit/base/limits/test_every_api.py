"""Every API, with as many elements in each of its arrays as fit into 1 MB: refused, or answered within the bounds.

The requests are made from the schemas, so the tests cover new APIs and fields too.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection
from pylogd.base.limits.elements import ElementBounds
from pylogd.broker.api import served_versions
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.wire import schema
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages import APIS
from pylogd.wire.session import RequestReceived, ServerSession
from pylogd.wire.structs import MessageStruct, NullableStruct
from pylogd.wire.types import Array, Fixed, String, WireType
from tests.fakes.parts import Parts
from tests.rawclient import frame, header

REQUEST_BYTES = 1_000_000
#: What a request of 1 MB may cost. Most of the memory is the objects of its elements.
MOST_ANSWER = 4_000_000
MOST_MEMORY = 64_000_000
TURNS = 10_000


def arrays_of(kind: WireType) -> Iterator[Array]:
    """Yield all arrays in a type, outer ones first."""
    if isinstance(kind, Array):
        yield kind
        yield from arrays_of(kind.element)
    elif isinstance(kind, NullableStruct):
        yield from arrays_of(kind.inner)
    elif isinstance(kind, MessageStruct):
        for _, inner in kind.regular:
            yield from arrays_of(inner)
        for _, _, inner in kind.tagged:
            yield from arrays_of(inner)


CASES = [
    pytest.param(key, last, at, id=f"{array.where}-v{last}")
    for key, (_, last) in served_versions().items()
    for at, array in enumerate(arrays_of(schema.request_codec(key, last).construct))
]


def made(kind: WireType, target: Array, count: int) -> Any:
    """Return a value of a type with `count` elements in the array `target`, and only what that needs elsewhere."""
    if isinstance(kind, MessageStruct):
        fields = [(field, inner) for field, inner in kind.regular] + [(field, inner) for _, field, inner in kind.tagged]
        return kind.cls(**{field.name: made(inner, target, count) for field, inner in fields})
    leads = target in arrays_of(kind)
    if isinstance(kind, NullableStruct):
        return made(kind.inner, target, count) if leads else None
    if isinstance(kind, Array):
        if kind is target:
            return [made(kind.element, target, count)] * count
        return [made(kind.element, target, count)] if leads else []
    if isinstance(kind, Fixed):
        return bytes(16) if kind.form == "16s" else 0
    return "t" if isinstance(kind, String) else b""


def encoded(api_key: int, version: int, at: int) -> bytes:
    codec = schema.request_codec(api_key, version)
    target = list(arrays_of(codec.construct))[at]
    one = len(b"".join(map(bytes, codec.encode(made(codec.construct, target, 1)))))  # type: ignore[arg-type]
    two = len(b"".join(map(bytes, codec.encode(made(codec.construct, target, 2)))))  # type: ignore[arg-type]
    count = (REQUEST_BYTES - one) // (two - one)
    return b"".join(map(bytes, codec.encode(made(codec.construct, target, count))))  # type: ignore[arg-type]


def answer(parts: Parts, session: ServerSession, dispatcher: Dispatcher) -> int:
    """Process the next request; return the size of its response, 0 if it is refused or waits."""
    try:
        event = session.next_event()
        assert isinstance(event, RequestReceived)
        result = dispatcher.handle(parts.connection, event)  # type: ignore[arg-type]
    except (RemoteProtocolError, CloseConnection):
        return 0
    got = [result]
    if isinstance(result, Deferred):
        got = []
        result.addCallback(got.append)
        for _ in range(TURNS):
            if got:
                break
            parts.time.advance(0.001)
        else:
            result.cancel()
    return sum(map(len, session.encode_reply(event, got[0]))) if got and got[0] is not None else 0


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = Parts(tmp_path_factory.mktemp("every-api"))
    made.connection.context = None  # type: ignore[attr-defined]
    made.create("t")
    yield made
    made.time.advance(4000)  # members expire
    made.close()


@pytest.mark.parametrize(("api_key", "version", "at"), CASES)
def test_many_elements_cost_a_bounded_answer_and_memory(parts: Parts, api_key: int, version: int, at: int) -> None:
    dispatcher = Dispatcher(parts)
    bounds = ElementBounds(parts.settings.integer("request.max.elements"))
    session = ServerSession(2 * REQUEST_BYTES, dispatcher.versions, elements=bounds)
    data = frame(header(api_key, version) + encoded(api_key, version, at))
    assert len(data) > REQUEST_BYTES // 2
    tracemalloc.start()
    try:
        session.receive_data(data)
        size = answer(parts, session, dispatcher)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size <= MOST_ANSWER
    assert peak <= MOST_MEMORY


@pytest.mark.parametrize("api_key", served_versions())
def test_more_elements_than_the_bound_are_refused_before_they_are_built(api_key: int) -> None:
    """The frame is full of elements, so a decoder that checked the frame's size alone would create them all."""
    last = APIS[api_key].max_version
    codec = schema.request_codec(api_key, last)
    bound = ElementBounds(2000).of(api_key)
    for target in arrays_of(codec.construct):
        message = made(codec.construct, target, bound + 1)
        body = b"".join(map(bytes, codec.encode(message)))  # type: ignore[arg-type]
        session = ServerSession(1 << 24, {api_key: (0, last)}, elements=ElementBounds(2000))
        session.receive_data(frame(header(api_key, last) + body))
        with pytest.raises(RemoteProtocolError, match="over the limit of"):
            session.next_event()


def test_tagged_fields_count_as_elements() -> None:
    codec = schema.request_codec(18, 3)  # ApiVersions
    bound = ElementBounds(50_000).of(18)
    tags = b"".join(struct.pack("BBB", tag & 0x7F | 0x80, tag >> 7, 0) for tag in range(bound + 1))
    count = struct.pack("BB", (bound + 1) & 0x7F | 0x80, (bound + 1) >> 7)
    with pytest.raises(RemoteProtocolError, match="tagged fields are over the limit of 1000"):
        codec.decode_leniently(b"\x02n\x02v" + count + tags, bound)


def test_a_compact_string_is_bounded_like_any_other() -> None:
    session = ServerSession(1 << 24, {10: (0, 6)})
    key = b"k" * 8_000_000
    size = len(key) + 1
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    session.receive_data(frame(header(10, 6) + b"\x00\x02" + length + key + b"\x00"))
    with pytest.raises(RemoteProtocolError, match="a string of 8000000 bytes is over the limit of 32767"):
        session.next_event()
