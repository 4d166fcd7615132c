"""Check every codec: what is encoded decodes to the same message, and any bytes give a message or a CodecError.

Each compiled codec is compared with the same construct, interpreted. They must produce the same bytes and messages, and
refuse the same bytes.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.wire import types
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages import APIS
from pylogd.wire.schema import Codec, request_codec, response_codec
from pylogd.wire.structs import MessageStruct, NullableStruct

FAST = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BOUNDS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
FORM_BOUNDS = {types.FIXED_FORMATS[kind]: bits for kind, bits in BOUNDS.items()}
CODECS = [
    pytest.param(make, key, id=f"{info.name}-{role}")
    for key, info in APIS.items()
    for role, make in (("request", request_codec), ("response", response_codec))
]


def values(kind: types.WireType) -> st.SearchStrategy[Any]:
    """Generate values of a type."""
    if isinstance(kind, types.Fixed):
        if kind.form == "?":
            return st.booleans()
        if kind.form == "16s":
            return st.binary(min_size=16, max_size=16)
        if kind.form == "d":
            return st.floats(allow_nan=False)  # which does not equal itself
        bound = 1 << FORM_BOUNDS[kind.form]
        return st.integers(-bound, bound - 1)
    if isinstance(kind, NullableStruct):
        return st.none() | values(kind.inner)
    if isinstance(kind, MessageStruct):
        return structs(kind)
    assert isinstance(kind, types.Prefixed)
    inner: st.SearchStrategy[Any]
    if isinstance(kind, types.Array):
        inner = st.lists(values(kind.element), max_size=3)
    elif isinstance(kind, types.String):
        inner = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.just("ä" * 100)
    else:
        inner = st.binary(max_size=200)
    return st.none() | inner if kind.nullable else inner


@functools.cache
def structs(kind: MessageStruct) -> st.SearchStrategy[Any]:
    """Generate messages, with values in the fields that exist at the version.

    Preparing a strategy takes as long as its examples: each is made once for all tests.
    """
    return st.builds(kind.cls, **{field.name: values(field.type) for field in kind.fields if field.type is not None})


def any_version(make: Any, key: int) -> st.SearchStrategy[Codec]:
    """Generate codecs of an API, of all its versions."""
    info = APIS[key]
    return st.integers(info.min_version, info.max_version).map(lambda version: make(key, version))


def uncompiled(codec: Codec) -> Codec:
    """Return the codec that interprets its construct instead of compiling it."""
    twin = copy.copy(codec)
    twin._parse = lambda cursor, _: codec.construct._parse(cursor, None, "")
    twin._build = lambda message, writer, _: codec.construct._build(message, writer, None, "")
    return twin


def encode(codec: Codec, message: Any) -> bytes:
    """Encode a message and join the parts."""
    return b"".join(bytes(part) for part in codec.encode(message))  # type: ignore[call-overload]


def read(codec: Codec, data: bytes) -> Any:
    """Return the message, or None if the codec refuses the bytes. Any other exception is a failure."""
    try:
        return codec.decode(data)
    except RemoteProtocolError:
        return None


@pytest.mark.parametrize(("make", "key"), CODECS)
@FAST
@given(data=st.data())
def test_round_trip(make: Any, key: int, data: st.DataObject) -> None:
    codec = data.draw(any_version(make, key))
    message = data.draw(structs(codec.construct))
    written = encode(codec, message)
    assert written == encode(uncompiled(codec), message)
    assert codec.decode(written) == message
    assert uncompiled(codec).decode(written) == message


@pytest.mark.parametrize(("make", "key"), CODECS)
@FAST
@given(data=st.data())
def test_any_bytes_are_a_message_or_an_error(make: Any, key: int, data: st.DataObject) -> None:
    codec = data.draw(any_version(make, key))
    raw = data.draw(st.binary(max_size=80) | st.lists(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])).map(bytes))
    check_agreement(codec, raw)


@pytest.mark.parametrize(("make", "key"), CODECS)
@FAST
@given(data=st.data())
def test_damaged_messages_are_messages_or_errors(make: Any, key: int, data: st.DataObject) -> None:
    codec = data.draw(any_version(make, key))
    raw = bytearray(encode(codec, data.draw(structs(codec.construct))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    check_agreement(codec, bytes(raw))


def check_agreement(codec: Codec, raw: bytes) -> None:
    """Check that both forms of the codec decode the same or refuse, and that what they decode survives a round trip."""
    message = read(codec, raw)
    assert message == read(uncompiled(codec), raw)
    if message is not None:
        assert codec.decode(encode(codec, message)) == message
