"""JSON messages in columns: the types, and what is not a message of its schema."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from pylogd.lake.typed.errors import Misfit, NotColumns
from pylogd.lake.typed.json_schema import JsonReader
from pylogd.lake.typed.registry import JSON, Registered
from tests.fakes.registered import json_schema

NOON = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)
TEXT = pa.string()
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def rows(reader: JsonReader, *messages: Any) -> list[Any]:
    values = [reader.node.prepared(reader.read(json.dumps(each).encode())) for each in messages]
    built = reader.node.applied(reader.array(values))
    assert built.type == reader.node.logical
    found: list[Any] = built.to_pylist()
    return found


@pytest.mark.parametrize(
    ("schema", "value", "type_", "expected"),
    [
        ({"type": "boolean"}, True, pa.bool_(), True),
        ({"type": "integer"}, 1 << 62, pa.int64(), 1 << 62),
        ({"type": "integer"}, 2.0, pa.int64(), 2),
        ({"type": "number"}, 2, pa.float64(), 2.0),
        ({"type": ["integer", "number", "null"]}, 2.5, pa.float64(), 2.5),
        ({"type": "string"}, "é", TEXT, "é"),
        ({"type": ["null", "string"]}, None, TEXT, None),
        ({"type": "string", "nullable": True}, "x", TEXT, "x"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, 3, pa.int64(), 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, pa.int64(), None),
        ({"allOf": [{"type": "integer"}]}, 3, pa.int64(), 3),
        ({"enum": ["a", "b", None]}, "a", TEXT, "a"),
        ({"const": 7}, 7, pa.int64(), 7),
        ({"type": "string", "format": "date-time"}, "2026-11-21T13:00:00.0000009+01:00",
         pa.timestamp("us", "UTC"), NOON),
        ({"type": "string", "format": "date"}, "2026-11-21", pa.date32(), NOON.date()),
        ({"type": "string", "format": "email"}, "no", TEXT, "no"),
        ({"type": "array", "items": POINT}, [{"x": 1}, {}], pa.list_(pa.struct({"x": pa.int64()})),
         [{"x": 1}, {"x": None}]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, pa.map_(TEXT, pa.int64()),
         [("a", 1)]),
        (POINT, {"x": 1}, pa.struct({"x": pa.int64()}), {"x": 1}),
        ({"$ref": "#/definitions/p~1q"}, {"x": 1}, pa.struct({"x": pa.int64()}), {"x": 1}),
        ({"$ref": "lib.json#/definitions/n"}, 4, pa.int64(), 4),
        ({"allOf": [POINT | {"additionalProperties": True}, {"properties": {"y": {"type": "string"}}}]},
         {"x": 1, "y": "z", "w": 0}, pa.struct({"x": pa.int64(), "y": TEXT, "additional_properties": TEXT}),
         {"x": 1, "y": "z", "additional_properties": '{"w":0}'}),
    ],
)  # fmt: skip
def test_types(schema: Any, value: Any, type_: pa.DataType, expected: Any) -> None:
    registered = json_schema(
        of({"f": schema}, definitions={"p/q": POINT}), lib_json={"definitions": {"n": {"type": "integer"}}}
    )
    reader = JsonReader(registered)
    assert reader.node.logical == pa.struct({"f": type_})
    assert rows(reader, {"f": value}) == [{"f": expected}]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, [1, {"a": None}]),
        (True, 5),
        ({"type": ["string", "integer"]}, 5),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "x"),
        ({"type": "object"}, {"a": 1}),
        ({"type": "array"}, [1, "a"]),
        ({"type": "array", "items": [{"type": "integer"}]}, [1]),
        ({"enum": [1, "a"]}, "a"),
        ({"$ref": "#"}, {"f": {"f": {}}}),
    ],
)
def test_what_has_no_type_is_json_text(schema: Any, value: Any) -> None:
    reader = JsonReader(json_schema(of({"f": schema})))
    assert reader.node.logical == pa.struct({"f": TEXT})
    assert json.loads(rows(reader, {"f": value})[0]["f"]) == value
    assert rows(reader, {}) == [{"f": None}]


def test_properties_that_are_not_in_the_schema_are_kept_as_text() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "o": {"type": "object", "properties": {"b": {}}}},
    }
    reader = JsonReader(json_schema(schema))
    found = rows(reader, {"a": 1, "more": [1], "o": {"c": 2}}, {"a": 2})
    assert found[0] == {
        "a": 1,
        "o": {"b": None, "additional_properties": '{"c":2}'},
        "additional_properties": '{"more":[1]}',
    }
    assert found[1] == {"a": 2, "o": None, "additional_properties": None}


def test_an_own_property_of_that_name_stays() -> None:
    reader = JsonReader(json_schema({"properties": {"Additional_Properties": {"type": "integer"}}}))
    assert rows(reader, {"Additional_Properties": 1, "b": 2}) == [
        {"Additional_Properties": 1, "additional_properties_": '{"b":2}'}
    ]


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {}])
def test_what_is_no_object_is_one_column(schema: Any) -> None:
    reader = JsonReader(json_schema(schema))
    value = [5] if schema.get("type") == "array" else 5
    assert [field.name for field in reader.node.logical] == ["value"]
    assert rows(reader, value)[0]["value"] in (value, "5")


def test_names_that_columns_can_not_have() -> None:
    reader = JsonReader(json_schema(of({"a b": {"type": "integer"}, "$x.y": {"type": "integer"}, "Key": {}})), {"key"})
    assert [field.name for field in reader.node.logical] == ["a_b", "_x_y", "value_Key"]
    assert rows(reader, {"a b": 1, "$x.y": 2}) == [{"a_b": 1, "_x_y": 2, "value_Key": None}]
    with pytest.raises(NotColumns, match="SQL"):
        JsonReader(json_schema(of({"a b": {}, "a_b": {}})))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"[" * 5000, "not JSON"), (b'"\xff"', "not JSON"),
        (b"{}", "required"), (b'{"a": "x"}', "a: .*integer"), (b'{"a": 1, "s": "no"}', "s: .*match"),
        (b'{"a": 1, "b": 2}', "not allowed"), (b"[]", "object"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(message: bytes, why: str) -> None:
    schema = of({"a": {"type": "integer"}, "s": {"type": "string", "pattern": "^x+$"}}, required=["a"])
    with pytest.raises(Misfit, match=why):
        JsonReader(json_schema(schema)).read(message)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1 << 63),
        ({"type": "number"}, (1 << 53) + 1),
        ({"type": "string", "format": "date-time"}, "yesterday"),
        ({"type": "string", "format": "date-time"}, "2026-11-21T12:00:00"),
        ({"type": "string", "format": "date"}, "2026-02-30"),
    ],
)
def test_values_that_do_not_fit_their_column(schema: Any, value: Any) -> None:
    reader = JsonReader(json_schema(of({"f": schema})))
    with pytest.raises((pa.ArrowException, ValueError, OverflowError)):
        rows(reader, {"f": value})


@pytest.mark.parametrize(
    "text", ["", "{", "5", '{"type": "nothing"}', '{"$ref": "missing.json"}', '{"properties": {"a": {"pattern": "("}}}']
)
def test_schemas_that_are_refused(text: str) -> None:
    with pytest.raises(NotColumns):
        JsonReader(Registered(JSON, text))


def test_a_regular_expression_can_not_take_for_ever() -> None:
    reader = JsonReader(json_schema(of({"s": {"type": "string", "pattern": "^(a|a)*(?=b)$"}})))
    with pytest.raises(Misfit):
        reader.read(json.dumps({"s": "a" * 2000}).encode())


def test_a_small_schema_that_expands_without_end_is_refused() -> None:
    definitions = {
        f"d{at}": {"type": "object", "properties": {name: {"$ref": f"#/definitions/d{at + 1}"} for name in "ab"}}
        for at in range(30)
    }
    definitions["d30"] = {"type": "integer"}
    with pytest.raises(NotColumns, match="more than 2000 fields"):
        JsonReader(json_schema({"$ref": "#/definitions/d0", "definitions": definitions}))


@pytest.mark.parametrize(
    "number",
    [
        "123456789012345678901234567890", "-123456789012345678901234567890", "18446744073709551615",
        "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "0.12345678901234567890123",
        "12345678901234567.5", "1" + "0" * 300, "0", "-0.0", "1.0000000000000000000000000001E-20",
    ],
)  # fmt: skip
def test_json_text_keeps_all_digits_of_numbers(number: str) -> None:
    """As it was found: 123456789012345678901234567890 became 1.2345678901234568e+29."""
    schema = {"type": "object", "properties": {"any": {}, "list": {"type": "array", "items": {}}}}
    reader = JsonReader(json_schema(schema))
    more = f'{{"é\\\\":[{number},"{number}"]}}'
    value = reader.node.prepared(reader.read(f'{{"more":{more},"any":{number},"list":[{number}]}}'.encode()))
    (found,) = reader.node.applied(reader.array([value])).to_pylist()
    assert found == {"additional_properties": f'{{"more":{more}}}', "any": number, "list": [number]}


def test_numbers_with_many_digits_are_doubles_in_columns_of_numbers() -> None:
    reader = JsonReader(json_schema(of({"n": {"type": "number"}})))
    numbers = ["0.12345678901234567890123", "123456789012345678901234567890", "1.5"]
    values = [reader.read(f'{{"n": {number}}}'.encode()) for number in numbers]
    assert [row["n"] for row in reader.array(values).to_pylist()] == [float(number) for number in numbers]


def test_integers_of_more_than_64_bits_do_not_fit_columns_of_integers() -> None:
    reader = JsonReader(json_schema(of({"i": {"type": "integer"}})))
    value = reader.read(b'{"i": 123456789012345678901234567890}')
    with pytest.raises((pa.ArrowException, OverflowError)):
        reader.array([value])
