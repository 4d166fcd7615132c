"""Protobuf messages in columns, compared with what google.protobuf reads from the same bytes."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.lake.typed.errors import Misfit, NotColumns
from pylogd.lake.typed.protobuf import ProtobufFile, ProtobufReader
from pylogd.lake.typed.registry import Definition, Registered
from pylogd.services.registry.formats.protobuf import rendered
from pylogd.services.registry.model import Definition as Named
from tests.fakes.registered import protobuf

EVENT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Color { RED = 0; BLUE = 1; }
message Item { string name = 1; uint32 count = 2; }
message Nothing {}
message Event {
  int32 i = 1;
  uint64 u = 2;
  optional sint64 maybe = 3;
  Color color = 4;
  Item item = 5;
  repeated Item items = 6;
  map<string, Item> by_name = 7;
  oneof choice { string text = 8; bytes raw = 9; }
  google.protobuf.Timestamp at = 10;
  google.protobuf.Duration took = 11;
  google.protobuf.StringValue wrapped = 12;
  google.protobuf.Struct free = 13;
  repeated google.protobuf.Value values = 14;
  Event parent = 15;
  Nothing nothing = 16;
  repeated double numbers = 17;
  map<int32, uint64> counts = 18;
  fixed32 offset = 19;
  message Inner { bool flag = 1; }
  Inner inner = 20;
}
"""


def reader(schema: Registered, *indexes: int, reserved: Any = ()) -> ProtobufReader:
    return ProtobufFile(schema).reader(indexes or (0,), reserved)


def message_class(schema: Registered, name: str) -> Any:
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text))
    mine = descriptor_pool.DescriptorPool()
    for needed in file.dependency:
        mine.AddSerializedFile(pool.FindFileByName(needed).serialized_pb)
    mine.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(mine.FindMessageTypeByName(name))


SCHEMA = protobuf(EVENT)
READER = reader(SCHEMA, 2, reserved={"offset"})
Event = message_class(SCHEMA, "shop.Event")


def rows(*messages: Any) -> list[Any]:
    built = READER.node.applied(READER.array([READER.read(each.SerializeToString()) for each in messages]))
    assert built.type == READER.node.logical
    found: list[Any] = built.to_pylist()
    return found


def test_types() -> None:
    item = pa.struct({"name": pa.string(), "count": pa.int64()})
    assert READER.node.logical == pa.struct(
        {
            "i": pa.int32(), "u": pa.decimal128(20, 0), "maybe": pa.int64(), "color": pa.string(), "item": item,
            "items": pa.list_(item), "by_name": pa.map_(pa.string(), item), "text": pa.string(), "raw": pa.binary(),
            "at": pa.timestamp("us", "UTC"), "took": pa.int64(), "wrapped": pa.string(), "free": pa.string(),
            "values": pa.list_(pa.string()), "parent": pa.string(), "nothing": pa.string(),
            "numbers": pa.list_(pa.float64()), "counts": pa.map_(pa.int32(), pa.decimal128(20, 0)),
            "value_offset": pa.int64(), "inner": pa.struct({"flag": pa.bool_()}),
        }
    )  # fmt: skip


def test_values() -> None:
    event = Event(i=-1, u=2**64 - 1, color=1, raw=b"\xff", numbers=[0.5], counts={1: 2**63}, offset=2**32 - 1)
    event.item.name = "pen"
    event.items.add(name="cup", count=2**32 - 1)
    event.by_name["a"].count = 3
    event.at.FromJsonString("2026-11-21T12:00:00.123456789Z")
    event.took.FromJsonString("-1.5s")
    event.wrapped.value = ""
    event.free.update({"a": [1, None]})
    event.values.add(string_value="x")
    event.values.add(null_value=0)
    event.parent.parent.i = 7
    event.nothing.SetInParent()
    event.inner.SetInParent()
    (found,) = rows(event)
    assert found == {
        "i": -1, "u": Decimal(2**64 - 1), "maybe": None, "color": "BLUE", "item": {"name": "pen", "count": 0},
        "items": [{"name": "cup", "count": 2**32 - 1}], "by_name": [("a", {"name": "", "count": 3})],
        "text": None, "raw": b"\xff", "at": datetime.datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=datetime.UTC),
        "took": -1_500_000, "wrapped": "", "free": '{"a":[1.0,null]}', "values": ['"x"', "null"],
        "parent": '{"parent":{"i":7}}', "nothing": "{}", "numbers": [0.5], "counts": [(1, Decimal(2**63))],
        "value_offset": 2**32 - 1, "inner": {"flag": False},
    }  # fmt: skip


def test_what_is_not_set() -> None:
    (found,) = rows(Event())
    set_ = {name: value for name, value in found.items() if value not in (None, [])}
    assert set_ == {"i": 0, "u": Decimal(0), "color": "RED", "value_offset": 0}


def test_an_unknown_enum_value_is_its_number_and_unknown_fields_are_left_out() -> None:
    assert READER.array([b"\x20\x07\xfa\x7f\x01x"]).field("color").to_pylist() == ["7"]


@pytest.mark.parametrize("body", [b"\xff", b"\x42\x05ab", b"\x42\x01\xff", b"\x2a\x02\xff\xff"])
def test_bytes_that_do_not_match(body: bytes) -> None:
    with pytest.raises(ValueError):  # the library's own
        READER.array([Event(i=1).SerializeToString(), body])


@pytest.mark.parametrize("field", ["at", "took"])
def test_times_out_of_bounds_do_not_fit(field: str) -> None:
    event = Event()
    getattr(event, field).seconds = 1 << 62
    with pytest.raises((Misfit, pa.ArrowInvalid)):
        rows(event)


def test_a_value_that_is_not_json_does_not_fit() -> None:
    event = Event()
    event.free.fields["a"].SetInParent()  # a Value of no kind
    event.values.add(number_value=float("nan"))
    with pytest.raises(Misfit):
        rows(event)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "i": st.integers(-(2**31), 2**31 - 1), "maybe": st.integers(-(2**63), 2**63 - 1), "text": st.text(),
                "numbers": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
                "item": st.fixed_dictionaries({}, optional={"name": st.text(), "count": st.integers(0, 2**32 - 1)}),
                "items": st.lists(st.fixed_dictionaries({}, optional={"name": st.text()}), max_size=3),
            },
        ),
        min_size=1,
        max_size=5,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_columns_are_what_google_protobuf_reads(documents: list[dict[str, Any]]) -> None:
    events = [json_format.ParseDict(each, Event()) for each in documents]
    for event, found in zip(events, rows(*events), strict=True):
        assert found["i"] == event.i
        assert found["maybe"] == (event.maybe if event.HasField("maybe") else None)
        assert found["text"] == (event.text if event.HasField("text") else None)
        assert found["numbers"] == list(event.numbers)
        item = {"name": event.item.name, "count": event.item.count} if event.HasField("item") else None
        assert found["item"] == item
        assert found["items"] == [{"name": each.name, "count": each.count} for each in event.items]


@given(st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        built = READER.node.applied(READER.array([body]))
    except (ValueError, TypeError, OverflowError):
        return
    assert len(built) == 1


def test_message_types_are_found_by_index_and_by_name() -> None:
    file = ProtobufFile(SCHEMA)
    assert file.indexes_of("shop.Item") == (0,)
    assert [field.name for field in file.reader((0,)).node.logical] == ["name", "count"]
    inner = file.indexes_of("shop.Event.Inner")
    assert [field.name for field in file.reader(inner).node.logical] == ["flag"]
    for wrong in ((9,), (0, 0), (-1,)):
        with pytest.raises(NotColumns, match="no message type"):
            file.reader(wrong)
    with pytest.raises(NotColumns, match="no message type"):
        file.indexes_of("shop.Nobody")


def test_imports_come_from_references_and_from_well_known_files() -> None:
    text = 'syntax = "proto3"; import "lib/a.proto"; import "google/type/date.proto";'
    text += "message M { lib.A a = 1; google.type.Date day = 2; }"
    other = 'syntax = "proto3"; package lib; import "lib/b.proto"; message A { B b = 1; }'
    date = 'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
    schema = protobuf(
        text,
        {
            "lib/a.proto": other,
            "lib/b.proto": 'syntax = "proto3"; package lib; message B { int32 x = 1; }',
            "google/type/date.proto": date,
        },
    )
    known = tuple(used for used in schema.references if used.name.startswith("lib"))
    found = reader(Registered(schema.kind, schema.text, known))
    assert found.node.logical == pa.struct({"a": pa.struct({"b": pa.struct({"x": pa.int32()})}), "day": pa.date32()})
    with pytest.raises(NotColumns, match=r"imports lib/a\.proto"):
        reader(Registered(schema.kind, schema.text))


def test_confluents_files_need_no_references() -> None:
    meta = """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; } extend google.protobuf.FieldOptions { Meta field_meta = 1088; }"""
    decimal = 'syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; }'
    schema = protobuf(
        """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
        message M { confluent.type.Decimal price = 1 [(confluent.field_meta).doc = "a price"]; }""",
        {"confluent/meta.proto": meta, "confluent/type/decimal.proto": decimal},
    )
    price = pa.struct({"value": pa.binary(), "precision": pa.int64(), "scale": pa.int32()})
    assert reader(Registered(schema.kind, schema.text)).node.logical == pa.struct({"price": price})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('syntax = "proto2"; message M { optional group G = 1 { optional int32 x = 1; } }', "group"),
        ('syntax = "proto3"; message M {}', "no fields"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 A = 2; }', "SQL"),
    ],
)
def test_schemas_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(NotColumns, match=why):
        reader(protobuf(text))


@pytest.mark.parametrize("text", ["", "syntax = 'proto3';", base64.b64encode(b"\xff\xff").decode()])
def test_what_is_no_descriptor_is_refused(text: str) -> None:
    with pytest.raises(NotColumns):
        reader(Registered("PROTOBUF", text))


def test_a_small_schema_that_expands_without_end_is_refused() -> None:
    """Each message has the next one twice: 2 to the 30th fields."""
    messages = [f"message M{at} {{ M{at + 1} a = 1; M{at + 1} b = 2; }}" for at in range(30)]
    text = 'syntax = "proto3"; ' + " ".join(messages) + " message M30 { int32 x = 1; }"
    with pytest.raises(NotColumns, match="more than 2000 fields"):
        reader(protobuf(text))


def test_proto2_fields_that_are_not_set_are_null_whatever_their_default() -> None:
    schema = protobuf('syntax = "proto2"; message M { required int32 a = 1; optional int32 b = 2 [default = 7]; }')
    found = reader(schema)
    assert found.node.applied(found.array([b""])).to_pylist() == [{"a": None, "b": None}]


def test_the_text_of_a_recursive_message_is_json() -> None:
    event = Event()
    event.parent.text = "é"
    assert json.loads(rows(event)[0]["parent"]) == {"text": "é"}


def test_what_the_registry_serialises_can_be_read() -> None:
    """The registry compiles the text that was registered; a reference has the name of its import."""
    carrier = 'syntax = "proto3"; package air; message Carrier { string code = 1; }'
    flight = """syntax = "proto3"; package air; import "air/carrier.proto"; import "confluent/meta.proto";
        message Unused { int32 x = 1; }
        message Air { map<string, sint32> delays = 3; message Flight { Carrier carrier = 1; } }"""
    used = Definition("air/carrier.proto", rendered((Named("", carrier),), "serialized"))
    text = rendered((Named("air/carrier.proto", carrier), Named("", flight)), "serialized")
    file = ProtobufFile(Registered("PROTOBUF", text, (used,)))
    assert file.indexes_of("air.Air.Flight") == (1, 1)
    found = file.reader((1, 1))
    assert found.node.applied(found.array([b"\x0a\x04\x0a\x02UA"])).to_pylist() == [{"carrier": {"code": "UA"}}]
