"""Protobuf: what is valid, in which form it is kept, and which changes readers can follow."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.protobuf import canonical, conflicts, rendered
from pylogd.services.registry.model import Definition, Definitions


def three(body: str, *, package: str = "", **used: str) -> Definitions:
    """Return a file of proto3. used: files that it imports, by their name without `.proto`."""
    before = [Definition(f"{name}.proto", 'syntax = "proto3";\n' + text) for name, text in used.items()]
    imports = "".join(f'import "{name}.proto";\n' for name in used)
    named = f"package {package};\n" if package else ""
    return (*before, Definition("", f'syntax = "proto3";\n{named}{imports}{body}'))


def two(body: str) -> Definitions:
    return (Definition("", f'syntax = "proto2";\n{body}'),)


def message(body: str) -> Definitions:
    return three(f"message A {{ {body} }}")


HOME, HOME_TEXT = "message Home { int32 n = 1; }", "message Home { string n = 1; }"
#: Changes, and what makes them incompatible, if anything does. As Confluent's registry answers; its table of tests
#: (protobuf-provider, 54 changes) is answered alike.
CHANGES: list[tuple[str, Definitions, Definitions, list[str]]] = [
    ("another package", three("message A {}", package="a"), three("message A {}", package="b"),
     ["PACKAGE_CHANGED at #/"]),
    ("names in full", three("message A { B b = 1; message B {} }", package="p"),
     three("message A { .p.A.B b = 1; message B {} }", package="p"), []),
    ("a field", message("int32 a = 1;"), message("int32 a = 1; string b = 2;"), []),
    ("no field", message("int32 a = 1; string b = 2;"), message("int32 a = 1;"), []),
    ("another name", message("int32 a = 1;"), message("int32 b = 1;"), []),
    ("another number", message("int32 a = 1;"), message("int32 a = 2;"), []),
    ("a required field", two("message A {}"), two("message A { required int32 a = 1; }"),
     ["REQUIRED_FIELD_ADDED at #/A/1"]),
    ("no required field", two("message A { required int32 a = 1; }"), two("message A {}"),
     ["REQUIRED_FIELD_REMOVED at #/A/1"]),
    ("a field becomes required", two("message A { optional string a = 1; }"),
     two("message A { required string a = 1; }"), ["REQUIRED_FIELD_ADDED at #/A/1"]),
    ("types that are the same on the wire", message("int32 a = 1; string b = 2; fixed32 c = 3; sint32 d = 4;"),
     message("bool a = 1; bytes b = 2; sfixed32 c = 3; sint64 d = 4;"), []),
    ("int32 and sint32", message("int32 a = 1;"), message("sint32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED at #/A/1"]),
    ("a number and a text", message("int32 a = 1;"), message("string a = 1;"),
     ["FIELD_SCALAR_KIND_CHANGED at #/A/1"]),
    ("a number becomes an enumeration", message("int32 a = 1;"), message("E a = 1; enum E { X = 0; }"), []),
    ("an enumeration becomes a message", message("E a = 1; enum E { X = 0; }"), message("E a = 1; message E {}"),
     ["FIELD_KIND_CHANGED at #/A/1"]),
    ("names of an enumeration", message("E a = 1; enum E { X = 0; Y = 1; }"), message("E a = 1; enum E { Z = 0; }"),
     []),
    ("a message of another type", message("B a = 1; message B {} message C {}"),
     message("C a = 1; message B {} message C {}"), ["FIELD_NAMED_TYPE_CHANGED at #/A/1"]),
    ("maps", message("map<string, int32> a = 1;"), message("map<string, int64> a = 1;"), []),
    ("maps of other values", message("map<string, int32> a = 1;"), message("map<string, string> a = 1;"),
     ["FIELD_SCALAR_KIND_CHANGED at #/A/1"]),
    ("a map becomes a message", message("map<string, int32> a = 1;"), message("B a = 1; message B {}"),
     ["FIELD_KIND_CHANGED at #/A/1"]),
    ("texts repeated", message("optional string a = 1;"), message("repeated string a = 1;"), []),
    ("messages repeated", message("B a = 1; message B {}"), message("repeated B a = 1; message B {}"), []),
    ("numbers repeated", message("optional int32 a = 1;"), message("repeated int32 a = 1;"),
     ["FIELD_NUMERIC_LABEL_CHANGED at #/A/1"]),
    ("stricter than Confluent: numbers without a label repeated", message("int32 a = 1;"),
     message("repeated int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED at #/A/1"]),
    ("messages in another order", three("message A {} message B {}"), three("message B {} message A {} message C {}"),
     []),
    ("no message", three("message A {} message B {}"), three("message A {}"), ["MESSAGE_REMOVED at #/B"]),
    ("no nested message", message("message B {}"), message(""), ["MESSAGE_REMOVED at #/A/B"]),
    ("a field into a new oneof", message("int32 a = 1;"), message("oneof x { int32 a = 1; int32 b = 2; }"), []),
    ("two fields into a new oneof", message("int32 a = 1; int32 b = 2;"),
     message("oneof x { int32 a = 1; int32 b = 2; }"), ["MULTIPLE_FIELDS_MOVED_TO_ONEOF at #/A/x"]),
    ("a field into an existing oneof", message("int32 a = 1; oneof x { int32 b = 2; }"),
     message("oneof x { int32 a = 1; int32 b = 2; }"), ["FIELD_MOVED_TO_EXISTING_ONEOF at #/A/x"]),
    ("two oneofs become one", message("oneof x { int32 a = 1; } oneof y { int32 b = 2; }"),
     message("oneof z { int32 a = 1; int32 b = 2; }"), ["FIELD_MOVED_TO_EXISTING_ONEOF at #/A/z"]),
    ("a oneof of another name", message("oneof x { int32 a = 1; int32 b = 2; }"),
     message("oneof y { int32 a = 1; int32 b = 2; }"), []),
    ("a field of a oneof less", message("oneof x { int32 a = 1; int32 b = 2; }"), message("oneof x { int32 a = 1; }"),
     ["ONEOF_FIELD_REMOVED at #/A/x/2"]),
    ("a whole oneof less", message("oneof x { int32 a = 1; int32 b = 2; }"), message(""), []),
    ("a field out of a oneof", message("oneof x { int32 a = 1; int32 b = 2; }"),
     message("oneof x { int32 a = 1; } int32 b = 2;"), []),
    ("out of a oneof, of another type", message("oneof x { int32 a = 1; int32 b = 2; }"),
     message("oneof x { int32 a = 1; } string b = 2;"), ["FIELD_SCALAR_KIND_CHANGED at #/A/2"]),
    ("an imported type", three("message A { Home h = 1; }", home=HOME), three("message A { Home h = 1; }", home=HOME),
     []),
    ("an imported type changed", three("message A { Home h = 1; }", home=HOME),
     three("message A { Home h = 1; }", home=HOME_TEXT),
     ["FIELD_SCALAR_KIND_CHANGED at #/Home/1", "FIELD_NAMED_TYPE_CHANGED at #/A/1"]),
    ("a type moves into an import", three(f"{HOME} message A {{ Home h = 1; }}"),
     three("message A { Home h = 1; }", home=HOME), ["MESSAGE_REMOVED at #/Home"]),
    ("a type moves out of an import", three("message A { Home h = 1; }", home=HOME),
     three(f"{HOME} message A {{ Home h = 1; }}"), []),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_changes(old: Definitions, new: Definitions, expected: list[str]) -> None:
    assert conflicts(new, old) == expected
    assert conflicts(old, old) == conflicts(new, new) == [], "a schema is compatible with itself"


ALL = """// Flights of a day.
syntax = "proto3";
// Of the demo.
package air.v1;
import "google/protobuf/descriptor.proto";
import public "google/protobuf/timestamp.proto";
option java_package = "com.example.air";
option (.air.v1.owner) = "ops \\"1\\"";

// A flight.
// It has two lines.
message Flight {
  option deprecated = true;
  reserved 7, 9 to 11, 1000 to max;
  reserved "old", "older";
  // How late it is.
  enum State {
    option allow_alias = true;
    reserved 5 to 6;
    UNKNOWN = 0;
    NONE = 0;
    LATE = -1 [deprecated = true];
  }
  message Leg {
    string from = 1 [json_name = "origin"];
  }
  .air.v1.Flight.State state = 1;
  optional int32 delay = 2 [(.air.v1.unit) = { name: "min" factor: 1.5 }];
  repeated .air.v1.Flight.Leg legs = 3 [(.air.v1.tags) = "a", (.air.v1.tags) = "b"];
  map<string, .air.v1.Flight.Leg> by_name = 4;
  oneof when {
    .google.protobuf.Timestamp at = 5;
    // Text, too.
    string text = 6;
  }
}

message Unit {
  string name = 1;
  double factor = 2;
}

service Flights {
  rpc Watch(stream .air.v1.Unit) returns (stream .air.v1.Flight) {
    option idempotency_level = IDEMPOTENT;
  }
  rpc Get(.air.v1.Unit) returns (.air.v1.Flight);
}
extend .google.protobuf.FileOptions {
  optional string owner = 50001;
}
extend .google.protobuf.FieldOptions {
  optional .air.v1.Unit unit = 50001;
}
extend .google.protobuf.FieldOptions {
  repeated string tags = 50002;
}
"""
OLD = """syntax = "proto2";

message A {
  extensions 100 to 199;
  extensions 500 to max;
  required bytes raw = 1 [default = "\\\\001x"];
  optional group Part = 2 {
    optional string s = 1 [default = "a\\"b"];
  }
  optional double d = 3 [default = inf];
  optional .E e = 4 [default = Y];
  extend .A {
    optional string more = 100;
  }
}

enum E {
  X = 0;
  Y = 1;
}
"""


@pytest.mark.parametrize("text", [ALL, OLD.replace("\\\\", "\\")], ids=["proto3", "proto2"])
def test_every_construct_is_written(text: str) -> None:
    """Reading what was written gives the same text, and so does the descriptor in base64."""
    found = canonical((Definition("", text),), normalize=False)
    assert found.split() == text.split()
    assert canonical((Definition("", found),), normalize=False) == found
    plain = canonical((Definition("", text),), normalize=True)
    assert "//" not in plain
    serialised = rendered((Definition("", text),), "serialized")
    assert canonical((Definition("", serialised),), normalize=True) == plain


def test_extensions_and_own_options_can_be_left_out() -> None:
    text = """syntax = "proto2";

import "google/protobuf/descriptor.proto";

extend google.protobuf.FieldOptions {
  optional string unit = 50000;
}
message A {
  extensions 100 to 199;
  optional int32 delay = 1 [deprecated = true, (unit) = "minutes"];
  message Inner {
    extend A {
      optional int32 more = 100;
    }
  }
}
"""
    found = rendered((Definition("", text),), "ignore_extensions")
    assert "extend" not in found and "unit" not in found
    assert "optional int32 delay = 1 [deprecated = true];" in found
    assert canonical((Definition("", found),), normalize=False) == found


def test_an_edition() -> None:
    field = "int32 a = 1 [features = { field_presence: IMPLICIT }];"
    text = f'edition = "2023";\n\nmessage A {{\n  reserved old;\n  {field}\n}}\n'
    assert canonical((Definition("", text),), normalize=False) == text


@pytest.mark.parametrize("known", ["confluent/meta.proto", "confluent/type/decimal.proto", "google/type/date.proto"])
def test_imports_that_clients_take_for_granted(known: str) -> None:
    assert known in canonical((Definition("", f'syntax = "proto3"; import "{known}";'),), normalize=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('syntax = "proto3"; message A { int32 a = 1 }', 'line 1:44: Expected ";"'),
        ('syntax = "proto3"; message A { B b = 1; }', '"B" is not defined'),
        ('syntax = "proto3"; import "other.proto";', "other.proto"),
        ('syntax = "proto3"; import "/etc/passwd";', "/etc/passwd"),
        ('{"type": "string"}', "Invalid schema of type PROTOBUF"),
        ("\0", "Invalid schema of type PROTOBUF"),
    ],
)
def test_texts_that_are_no_schema(text: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidSchema) as refused:
        canonical((Definition("", text),), normalize=False)
    assert why in refused.value.message
    assert "/tmp" not in refused.value.message, "where the registry has its files is nobody's business"
    assert capfd.readouterr().err == "", "the compiler's errors go to who asked"


@pytest.mark.parametrize("name", ["/etc/x.proto", "../x.proto", "a/../../x.proto"])
def test_names_of_references_outside_of_the_folder(name: str) -> None:
    with pytest.raises(InvalidSchema, match="relative path"):
        canonical((Definition(name, 'syntax = "proto3";'), Definition("", 'syntax = "proto3";')), normalize=False)


# Any descriptor

_SCALARS = [
    number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
]


@st.composite
def files(draw: st.DrawFn) -> FileDescriptorProto:
    """Return a file of proto3 with nested messages of any fields."""
    file = FileDescriptorProto(name="a.proto", syntax="proto3", package=draw(st.sampled_from(["", "p", "p.q"])))
    prefix = f".{file.package}." if file.package else "."

    def fill(made: Any, name: str, depth: int) -> None:
        made.name = name
        full = prefix + name if depth == 0 else outer[-1] + "." + name
        outer.append(full)
        inner = [f"N{at}" for at in range(draw(st.integers(0, 2 if depth < 2 else 0)))]
        for each in inner:
            fill(made.nested_type.add(), each, depth + 1)
        for number in range(1, draw(st.integers(1, 5))):
            field = made.field.add(name=f"f_{number}", number=number, label=draw(st.sampled_from([1, 3])))
            field.type = draw(st.sampled_from(_SCALARS))
            named = draw(st.booleans())
            if inner and named:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f"{full}.{draw(st.sampled_from(inner))}"
            if field.label == 1 and draw(st.booleans()):
                field.options.deprecated = True
        outer.pop()

    outer: list[str] = []
    for at in range(draw(st.integers(1, 3))):
        fill(file.message_type.add(), f"M{at}", 0)
    return file


@settings(max_examples=25, deadline=None)
@given(files())
def test_a_descriptor_and_its_text_are_the_same_schema(file: FileDescriptorProto) -> None:
    text = canonical((Definition("", base64.b64encode(file.SerializeToString()).decode()),), normalize=False)
    assert canonical((Definition("", text),), normalize=False) == text
    assert conflicts((Definition("", text),), (Definition("", text),)) == []
    again = FileDescriptorProto.FromString(base64.b64decode(rendered((Definition("", text),), "serialized")))
    assert [each.name for each in again.message_type] == [each.name for each in file.message_type]
