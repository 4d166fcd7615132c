"""Schema ids in front of values and in headers, as confluent-kafka writes them."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer, prefix_schema_id_serializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from pylogd.lake.typed.framing import Frame, Reasons, frames, message_types

GUID = uuid.UUID(int=77)
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def divided(values: list[Any], headers: list[Any] | None = None) -> tuple[dict[Any, list[Any]], Reasons]:
    """Return (row, body) pairs by schema id, and the reasons."""
    reasons: Reasons = {}
    found: dict[Any, list[Any]] = {}
    given = None if headers is None else pa.array(headers, HEADERS)
    for frame in frames(pa.array(values, pa.binary()), given, reasons):
        pairs = zip(frame.rows.to_pylist(), frame.bodies.to_pylist(), strict=True)
        found.setdefault(frame.schema_id, []).extend(pairs)
    return found, reasons


def test_a_batch_is_divided_by_id() -> None:
    values = [b"\0\0\0\0\1a", b"\0\0\0\1\0b", None, b"\0\0\0\0\1", b"\1" + GUID.bytes + b"c", b"\0\xff\xff\xff\xffd"]
    found, reasons = divided(values)
    assert found == {
        1: [(0, b"a"), (3, b"")],
        256: [(1, b"b")],
        str(GUID): [(4, b"c")],
        2**32 - 1: [(5, b"d")],
    }
    assert reasons == {}


def test_values_without_an_id() -> None:
    found, reasons = divided([b"", b"\0\0\0\0", b"{}", b"\1abc"])
    assert found == {}
    assert reasons == {
        0: "no schema id: the value has 0 bytes",
        1: "no schema id: the value has 4 bytes",
        2: "no schema id: the value begins with the byte 0x7b, not with 0x00 or 0x01",
        3: "no schema id: the value has 4 bytes",
    }


def confluents(headers: bool, indexes: list[int] | None = None) -> tuple[bytes, list[Any]]:
    """Return what Confluent's serializers make of the payload `body`, and the headers they add."""
    context = SerializationContext("topic", MessageField.VALUE, headers=[])
    schema_id = SchemaId("AVRO", 5, str(GUID), indexes)
    serialize = header_schema_id_serializer if headers else prefix_schema_id_serializer
    return serialize(b"body", context, schema_id), list(context.headers or [])


@pytest.mark.parametrize(("headers", "schema_id"), [(False, 5), (True, str(GUID))])
def test_what_confluents_clients_write(headers: bool, schema_id: Any) -> None:
    value, written = confluents(headers)
    found, reasons = divided([value, value], [written, [("other", b"x"), *written]])
    assert found == {schema_id: [(0, b"body"), (1, b"body")]}
    assert not reasons


def test_headers_count_before_values_and_the_first_one_counts() -> None:
    value, written = confluents(True)
    number = ("__value_schema_id", b"\0\0\0\0\x09")
    key = ("__key_schema_id", b"\0\0\0\0\x08")
    bad = ("__value_schema_id", b"nonsense")
    found, reasons = divided(
        [b"\0\0\0\0\1a", value, b"\0\0\0\0\1b", b"x", None, b"c"],
        [None, written, [key], [number, *written], [number], [bad]],
    )
    assert found == {1: [(0, b"a"), (2, b"b")], str(GUID): [(1, b"body")], 9: [(3, b"x")]}
    assert reasons == {5: "no schema id: the header __value_schema_id begins with the byte 0x6e, not with 0x00 or 0x01"}


def types_of(frame: Frame) -> tuple[dict[Any, list[Any]], Reasons]:
    reasons: Reasons = {}
    found = {
        indexes: list(zip(rows.to_pylist(), bodies.to_pylist(), strict=True))
        for indexes, rows, bodies in message_types(frame, reasons)
    }
    return found, reasons


def frame_of(*bodies: bytes, heads: list[bytes] | None = None) -> Frame:
    rows = pa.array(range(10, 10 + len(bodies)), pa.int64())
    return Frame(1, rows, pa.array(bodies, pa.binary()), None if heads is None else pa.array(heads, pa.binary()))


def test_the_first_message_type_is_a_zero_byte() -> None:
    assert types_of(frame_of(b"\0a", b"\0")) == ({(0,): [(10, b"a"), (11, b"")]}, {})
    assert types_of(frame_of(b"a", b"", heads=[b"\0", b"\0"])) == ({(0,): [(10, b"a"), (11, b"")]}, {})


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("indexes", [[0], [1], [2, 0, 300], [1, 2, 3]])
def test_message_indexes_that_confluents_clients_write(headers: bool, indexes: list[int]) -> None:
    value, written = confluents(headers, indexes)
    (frame,) = frames(pa.array([value, value]), pa.array([written, written], HEADERS), {})
    assert types_of(frame) == ({tuple(indexes): [(0, b"body"), (1, b"body")]}, {})


def test_different_types_and_no_types_in_one_batch() -> None:
    found, reasons = types_of(frame_of(b"\0a", b"\2\2b", b"", b"\2", b"\1x", b"\xff\xff\xff\xff\xff\1", b"\x80\x80\1x"))
    assert found == {(0,): [(10, b"a")], (1,): [(11, b"b")]}
    assert list(reasons) == [12, 13, 14, 15, 16]
    assert set(reasons.values()) == {"the schema id is not followed by the indexes of a Protobuf message type"}
