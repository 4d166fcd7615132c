"""Avro messages in columns: the types, and what is not a message of its schema."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pylogd.lake.typed.avro import AvroReader
from pylogd.lake.typed.errors import Misfit, NotColumns
from tests.fakes.registered import avro, avro_body, record

NOON = datetime.datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=datetime.UTC)
POINT = record(("x", "int"), name="Point")


def column(kind: Any, value: Any) -> tuple[pa.DataType, Any]:
    """Return the type of a column, and what becomes of a value in it."""
    schema = record(("f", kind))
    reader = AvroReader(avro(schema))
    read = reader.node.prepared(reader.read(avro_body(schema, {"f": value})))
    rows = reader.node.applied(reader.array([read]))
    assert rows.type == reader.node.logical
    return reader.node.logical.field("f").type, rows.to_pylist()[0]["f"]


@pytest.mark.parametrize(
    ("kind", "value", "type_", "expected"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", -5, pa.int32(), -5),
        ("long", 1 << 60, pa.int64(), 1 << 60),
        ("float", 1.5, pa.float32(), 1.5),
        ("double", 0.1, pa.float64(), 0.1),
        ("string", "é", pa.string(), "é"),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        (["null", "int"], None, pa.int32(), None),
        (["int", "null"], 3, pa.int32(), 3),
        (["int"], 3, pa.int32(), 3),
        ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32()), [1, None]),
        ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (POINT, {"x": 1}, pa.struct({"x": pa.int32()}), {"x": 1}),
        (["null", POINT], None, pa.struct({"x": pa.int32()}), None),
        (record(name="Empty"), {}, pa.string(), "{}"),
    ],
)
def test_types(kind: Any, value: Any, type_: pa.DataType, expected: Any) -> None:
    assert column(kind, value) == (type_, expected)


@pytest.mark.parametrize(
    ("kind", "logical", "value", "type_", "expected"),
    [
        ("int", "date", datetime.date(2026, 11, 21), pa.date32(), datetime.date(2026, 11, 21)),
        ("long", "timestamp-micros", NOON, pa.timestamp("us", "UTC"), NOON),
        ("long", "timestamp-millis", NOON, pa.timestamp("us", "UTC"), NOON.replace(microsecond=123000)),
        ("long", "timestamp-nanos", -1, pa.timestamp("us", "UTC"),
         datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC)),
        ("long", "local-timestamp-micros", NOON.replace(tzinfo=None), pa.timestamp("us"), NOON.replace(tzinfo=None)),
        ("int", "time-millis", 5, pa.int32(), 5),
        ("long", "time-micros", 5, pa.int64(), 5),
        ("string", "uuid", uuid.UUID(int=7), pa.string(), str(uuid.UUID(int=7))),
        ("string", "made-up", "x", pa.string(), "x"),
    ],
)  # fmt: skip
def test_logical_types(kind: str, logical: str, value: Any, type_: pa.DataType, expected: Any) -> None:
    assert column({"type": kind, "logicalType": logical}, value) == (type_, expected)


def test_a_uuid_of_16_bytes_is_text() -> None:
    kind = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert column(kind, uuid.UUID(int=7).bytes) == (pa.string(), str(uuid.UUID(int=7)))


@pytest.mark.parametrize("kind", [{"type": "bytes"}, {"type": "fixed", "name": "D", "size": 9}])
def test_decimals(kind: dict[str, Any]) -> None:
    kind = {**kind, "logicalType": "decimal", "precision": 12, "scale": 3}
    for value in ("-12.345", "999999999.999", "0.000"):
        assert column(kind, Decimal(value)) == (pa.decimal128(12, 3), Decimal(value))


@pytest.mark.parametrize(("scale", "text"), [(2, "-0.07"), (0, "-7"), (1, "-0.7")])
def test_decimals_beyond_38_digits_are_text(scale: int, text: str) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": scale}
    assert column(kind, Decimal(text)) == (pa.string(), text)


def test_a_union_of_several_types_is_a_struct_with_a_member_for_each() -> None:
    kind = ["null", "int", "long", "string", {"type": "array", "items": "int"}, {**POINT, "namespace": "a.b"}]
    type_, found = column(kind, {"x": 3})
    assert [field.name for field in type_] == ["int", "long", "string", "array", "Point"]
    assert found == {"int": None, "long": None, "string": None, "array": None, "Point": {"x": 3}}
    assert column(kind, "a")[1]["string"] == "a"
    assert column(kind, [1, 2])[1]["array"] == [1, 2]
    assert column(kind, 1)[1]["int"] == 1
    assert column(kind, None)[1] is None


def test_a_named_type_may_be_used_again_and_come_from_a_reference() -> None:
    schema = record(("a", "Point"), ("b", ["null", "string", "Point"]), ("c", {"type": "array", "items": "Point"}))
    reader = AvroReader(avro(schema, POINT))
    value = {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]}
    rows = reader.node.applied(reader.array([reader.read(avro_body(schema, value, POINT))]))
    assert rows.to_pylist() == [{"a": {"x": 1}, "b": {"string": None, "Point": {"x": 2}}, "c": [{"x": 3}]}]


@pytest.mark.parametrize(("schema", "value"), [("long", 5), ({"type": "map", "values": "int"}, {"a": 1}), (["int"], 5)])
def test_what_is_no_record_is_one_column(schema: Any, value: Any) -> None:
    reader = AvroReader(avro(schema))
    read = reader.read(avro_body(schema, value))
    assert [field.name for field in reader.node.logical] == ["value"]
    assert reader.array([read]).field(0).to_pylist()[0] in (value, [("a", 1)])


def test_reserved_names_get_a_prefix_and_fields_of_null_have_no_column() -> None:
    reader = AvroReader(avro(record(("Offset", "int"), ("n", "null"), ("offsets", "int"))), {"offset"})
    assert [field.name for field in reader.node.logical] == ["value_Offset", "offsets"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("next", ["null", "Event"])), "contains itself"),
        (record(("a", {"type": "array", "items": "null"})), "take no bytes"),
        (record(("a", {"type": "array", "items": record(("n", "null"), name="N")})), "take no bytes"),
        (record(("a", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})), "take no bytes"),
        (record(("a", "int"), ("A", "int")), "does not tell apart|SQL"),
        (record(("n", "null")), "no fields"),
        (record(("a", "Missing")), "not an Avro schema"),
        ("null", "no values"),
        (record(*((f"f{at}", "int") for at in range(2001))), "more than 2000 fields"),
    ],
)  # fmt: skip
def test_schemas_that_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(NotColumns, match=why):
        AvroReader(avro(schema))


def test_a_small_schema_that_expands_without_end_is_refused() -> None:
    """Each record has the next one twice: 2 to the 30th fields."""
    inner: Any = "int"
    for at in range(30):
        name = f"R{at}"
        inner = record(("a", inner), ("b", inner if isinstance(inner, str) else inner["name"]), name=name)
    with pytest.raises(NotColumns, match="more than 2000 fields"):
        AvroReader(avro(inner))


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    inner: Any = "int"
    for _ in range(60):
        inner = {"type": "array", "items": inner}
    with pytest.raises(NotColumns, match="nested"):
        AvroReader(avro(record(("a", inner))))


@pytest.mark.parametrize("body", [b"", b"\x02", b"\xff" * 30, b"\x02\x04a", b"\x02\x02\xff", b"\x02\x02ab"])
def test_bytes_that_do_not_match(body: bytes) -> None:
    reader = AvroReader(avro(record(("i", "int"), ("s", "string"))))
    with pytest.raises(Misfit):
        reader.read(body)


@pytest.mark.parametrize(
    ("logical", "kind"), [("timestamp-millis", "long"), ("timestamp-micros", "long"), ("date", "int")]
)
def test_times_beyond_the_year_9999_do_not_fit(logical: str, kind: str) -> None:
    reader = AvroReader(avro(record(("t", {"type": kind, "logicalType": logical}))))
    most = (1 << 31 if kind == "int" else 1 << 63) - 1
    read = reader.read(avro_body(record(("t", kind)), {"t": most}))
    with pytest.raises((Misfit, pa.ArrowInvalid)):
        reader.node.applied(reader.array([read]))


@pytest.mark.parametrize(
    ("logical", "kind", "day"), [("time-millis", "int", 86_400_000), ("time-micros", "long", 86_400_000_000)]
)
@pytest.mark.parametrize("of_day", [-1, 0, 1])
def test_times_of_day_are_within_a_day(logical: str, kind: str, day: int, of_day: int) -> None:
    reader = AvroReader(avro(record(("t", {"type": kind, "logicalType": logical}))))
    read = [reader.read(avro_body(record(("t", kind)), {"t": each})) for each in (of_day, day - of_day)]
    if of_day > 0:
        assert reader.node.applied(reader.array(read)).to_pylist() == [{"t": 1}, {"t": day - 1}]
        return
    with pytest.raises(Misfit, match="a time of day lies outside of a day"):
        reader.node.applied(reader.array(read))


def test_a_decimal_with_too_many_digits_does_not_fit() -> None:
    reader = AvroReader(avro(record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}))))
    read = reader.node.prepared(reader.read(b"\x06\x7f\xff\xff"))
    with pytest.raises(pa.ArrowInvalid):
        reader.node.applied(reader.array([read]))
