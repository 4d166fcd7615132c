"""Batches that mix schemas, languages and faults: each message is a row or has a reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.lake.typed.decoding import Decoder, Readers
from pylogd.lake.typed.errors import NotColumns, UnknownSchema
from pylogd.lake.typed.evolution import evolved
from pylogd.lake.typed.registry import Registered, SchemaId
from tests.fakes.registered import MemoryLookup, avro, avro_body, framed, json_schema, protobuf, record

OLD = record(("id", "int"), ("price", "float"))
NEW = record(("id", "long"), ("price", "double"), ("note", ["null", "string"]))
WRONG = record(("id", "string"))
JSON = {"properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "additionalProperties": False}
PROTO = protobuf(
    'syntax = "proto3"; message Other { bool b = 1; } message M { int64 id = 1; optional string note = 2; }'
)
SCHEMAS: dict[SchemaId, Registered] = {
    1: avro(OLD), 2: avro(NEW), 3: avro(WRONG), 4: json_schema(JSON), 5: PROTO,
    6: avro(record(("id", "int"), ("more", "int"))), 7: avro(record(("next", ["null", "Event"]))),
    8: Registered("THRIFT", ""),
}  # fmt: skip
COLUMNS = pa.schema({"id": pa.int64(), "price": pa.float64(), "note": pa.string()})
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def old(number: int) -> bytes:
    return framed(1, avro_body(OLD, {"id": number, "price": 0.5}))


def new(number: int, note: str | None = None) -> bytes:
    return framed(2, avro_body(NEW, {"id": number, "price": 0.1, "note": note}))


def decoded(*values: bytes | None, headers: list[Any] | None = None) -> list[tuple[Any, Any]]:
    decoder = Decoder(COLUMNS, Readers(MemoryLookup(SCHEMAS)))
    given = None if headers is None else pa.array(headers, HEADERS)
    found = decoder.decode(pa.array(values, pa.binary()), given)
    assert found.rows.type == pa.struct(list(COLUMNS))
    return list(zip(found.rows.to_pylist(), found.reasons.to_pylist(), strict=True))


def row(number: int, price: float | None = None, note: str | None = None) -> dict[str, Any]:
    return {"id": number, "price": price, "note": note}


def test_a_batch_of_all_languages_comes_back_in_order() -> None:
    found = decoded(
        new(1, "a"),
        old(2),
        framed(4, b'{"id": 3, "note": "j"}'),
        framed(5, b"\x02\x02" + b"\x08\x04\x12\x01p"),
        None,
        old(5),
        new(6),
    )
    assert found == [
        (row(1, 0.1, "a"), None), (row(2, 0.5), None), (row(3, None, "j"), None), (row(4, None, "p"), None),
        (None, None), (row(5, 0.5), None), (row(6, 0.1), None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"{}", "no schema id: the value begins with the byte 0x7b, not with 0x00 or 0x01"),
        (framed(99, b""), "the registry has no schema with the id 99"),
        (framed(1, b"\xff"), "schema 1: the bytes do not match the Avro schema: IndexError"),
        (old(1) + b"x", "schema 1: 1 bytes follow the Avro value"),
        (framed(3, b"\x02a"), "schema 3 does not fit the table: column id is int64 in the table, and string in the"),
        (framed(6, b"\2\2"), "schema 6 does not fit the table: adds column more (int32)"),
        (framed(7, b"\0"), "schema 7 can't be columns: the schema contains itself: Event"),
        (framed(8, b""), "schema 8 can't be columns: its type THRIFT is not AVRO, JSON or PROTOBUF"),
        (framed(4, b'{"id": "x"}'), 'schema 4: not valid by the JSON Schema: id: "x" is not of type "integer"'),
        (framed(4, b'{"id": 9223372036854775808}'), "schema 4: "),
        (framed(5, b""), "the schema id is not followed by the indexes of a Protobuf message type"),
        (framed(5, b"\0"), "schema 5 does not fit the table: adds column b (bool)"),
        (framed(5, b"\x02\x08"), "schema 5 can't be columns: the schema has no message type with the indexes [4]"),
        (framed(5, b"\x02\x02\xff"), "schema 5: "),
    ],
)
def test_what_does_not_fit_has_a_reason_and_disturbs_nobody(message: bytes, reason: str) -> None:
    before, bad, after = decoded(old(1), message, new(2))
    assert before == (row(1, 0.5), None)
    assert after == (row(2, 0.1), None)
    assert bad[0] is None
    assert bad[1].startswith(reason)


def test_ids_in_headers() -> None:
    plain = avro_body(OLD, {"id": 1, "price": 0.5})
    header = [("__value_schema_id", b"\0\0\0\0\x01")]
    type_ = [("__value_schema_id", b"\0\0\0\0\x05\x02\x02")]
    found = decoded(plain, old(2), b"\x08\x03", headers=[header, [], type_])
    assert [each["id"] for each, _ in found] == [1, 2, 3]


def test_values_that_lose_something_do_not_fit() -> None:
    lookup = MemoryLookup({1: avro(record(("n", "long"), ("t", "bytes")))})
    decoder = Decoder(pa.schema({"n": pa.float64(), "t": pa.string()}), Readers(lookup))
    schema = record(("n", "long"), ("t", "bytes"))
    values = [(1, b"a"), (2**53 + 1, b"a"), (3, b"\xff"), (2**53, b"b")]
    messages = [framed(1, avro_body(schema, {"n": number, "t": text})) for number, text in values]
    found = decoder.decode(pa.array(messages))
    assert found.rows.to_pylist() == [{"n": 1.0, "t": "a"}, None, None, {"n": 2.0**53, "t": "b"}]
    assert found.reasons.is_valid().to_pylist() == [False, True, True, False]


def test_a_schema_is_looked_up_once() -> None:
    lookup = MemoryLookup(SCHEMAS)
    readers = Readers(lookup)
    decoder = Decoder(COLUMNS, readers)
    for _ in range(3):
        decoder.decode(pa.array([old(1), framed(7, b"")]))
    assert readers.reader(1) is readers.reader(1)
    with pytest.raises(NotColumns):
        readers.reader(7)


def test_a_registry_that_fails_is_no_reason() -> None:
    class Down(MemoryLookup):
        def schema(self, schema_id: SchemaId) -> Registered:
            raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        Decoder(COLUMNS, Readers(Down({}))).decode(pa.array([old(1)]))


def test_the_columns_of_a_schema() -> None:
    readers = Readers(MemoryLookup(SCHEMAS), {"id"})
    assert readers.columns(5) == pa.struct({"b": pa.bool_()})
    assert readers.columns(5, "M") == pa.struct({"value_id": pa.int64(), "note": pa.string()})
    assert readers.columns(1, "ignored") == pa.struct({"value_id": pa.int32(), "price": pa.float32()})
    with pytest.raises(UnknownSchema):
        readers.columns(99)


def test_an_empty_batch_and_one_of_nulls() -> None:
    assert decoded() == []
    assert decoded(None, None) == [(None, None), (None, None)]


MESSAGES = st.one_of(
    st.integers(0, 1000).map(old),
    st.integers(0, 1000).map(new),
    st.none(),
    st.binary(max_size=12),
    st.tuples(st.sampled_from([*SCHEMAS, 99]), st.binary(max_size=12)).map(lambda pair: framed(int(pair[0]), pair[1])),
    st.integers(-(2**70), 2**70).map(lambda number: framed(4, json.dumps({"id": number}).encode())),
)


@given(st.lists(MESSAGES, max_size=12))
@settings(max_examples=150, deadline=None)
def test_each_message_is_a_row_or_has_a_reason_whatever_is_beside_it(messages: list[bytes | None]) -> None:
    together = decoded(*messages)
    assert len(together) == len(messages)
    for message, found in zip(messages, together, strict=True):
        assert [found] == decoded(message)
        if message is None:
            assert found == (None, None)
        elif found[1] is not None:
            assert found[0] is None


def test_an_evolved_table_takes_old_and_new_messages() -> None:
    readers = Readers(MemoryLookup(SCHEMAS))
    columns = pa.schema([])
    for schema_id in (1, 2, 4):
        columns = evolved(columns, readers.columns(schema_id)).columns
    assert columns == COLUMNS
    found = Decoder(columns, readers).decode(pa.array([old(1), new(2), framed(4, b'{"id": 3}')]))
    assert found.rows.field("id").to_pylist() == [1, 2, 3]
