"""Protobuf descriptors that mean the same are taken, however they are serialized, and are the same in normal form."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import DESCRIPTOR, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.protobuf import canonical, rendered
from pylogd.services.registry.formats.protobuf_meaning import normal_form, resolved
from pylogd.services.registry.model import Definition

_F = FieldDescriptorProto
Change = Callable[[FileDescriptorProto], object]


def example(syntax: str = "proto3") -> FileDescriptorProto:
    """Return a descriptor as protoc writes it."""
    file = FileDescriptorProto(name="x.proto", package="p", syntax=syntax)
    message = file.message_type.add(name="M")
    message.field.add(name="a_b", number=1, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL, json_name="aB")
    message.field.add(name="e", number=2, type=_F.TYPE_ENUM, type_name=".p.E", label=_F.LABEL_OPTIONAL, json_name="e")
    message.field.add(name="n", number=3, type=_F.TYPE_MESSAGE, type_name=".p.M.N", label=_F.LABEL_REPEATED)
    message.field.add(name="many", number=4, type=_F.TYPE_INT32, label=_F.LABEL_REPEATED)
    message.field.add(name="x", number=5, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL, oneof_index=0)
    message.field.add(name="y", number=6, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL, oneof_index=0)
    message.field.add(name="z", number=7, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL, oneof_index=1)
    message.oneof_decl.add(name="first")
    message.oneof_decl.add(name="second")
    message.nested_type.add(name="N").field.add(name="v", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    message.reserved_range.add(start=30, end=31)
    message.reserved_range.add(start=20, end=21)
    enum = file.enum_type.add(name="E")
    enum.value.add(name="Z", number=0)
    enum.value.add(name="O", number=1)
    file.service.add(name="S").method.add(name="do", input_type=".p.M", output_type=".p.M")
    return file


def with_map(file: FileDescriptorProto) -> None:
    """Add a map, its type before the others and its fields in the other order."""
    entry = file.message_type[0].nested_type.add(name="KvEntry")
    entry.options.map_entry = True
    entry.field.add(name="value", number=2, type=_F.TYPE_INT32, label=1)
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=1)
    file.message_type[0].nested_type.insert(0, file.message_type[0].nested_type.pop())
    file.message_type[0].field.add(name="kv", number=9, type=_F.TYPE_MESSAGE, type_name=".p.M.KvEntry", label=3)


def swap_oneofs(file: FileDescriptorProto) -> None:
    message = file.message_type[0]
    message.oneof_decl.reverse()
    for field in message.field[4:]:
        field.oneof_index = 1 - field.oneof_index


def fields(file: FileDescriptorProto, *indexes: int) -> list[FieldDescriptorProto]:
    return [file.message_type[0].field[at] for at in indexes]


def move(file: FileDescriptorProto, source: int, target: int) -> None:
    listed = file.message_type[0].field
    listed.insert(target, listed.pop(source))


def clear(name: str, *indexes: int) -> Change:
    return lambda file: [field.ClearField(name) for field in fields(file, *indexes)]


def rename_type(file: FileDescriptorProto) -> None:
    enum, message = fields(file, 1, 2)
    enum.type_name, message.type_name = "E", "M.N"
    file.service[0].method[0].input_type = "M"


def explicit_options(file: FileDescriptorProto) -> None:
    file.options.java_multiple_files = False
    file.message_type[0].options.deprecated = False
    file.message_type[0].field[0].options.deprecated = False
    file.enum_type[0].options.allow_alias = False
    file.service[0].method[0].client_streaming = False


def empty_options(file: FileDescriptorProto) -> None:
    for part in (file, file.message_type[0], file.message_type[0].field[0], file.enum_type[0], file.service[0]):
        part.options.SetInParent()


#: What leaves the meaning of the example as it is.
SAME: dict[str, Change] = {
    "as protoc writes it": lambda file: None,
    "without labels": clear("label", 0, 1, 4, 5, 6),
    "without types that follow from names": clear("type", 1, 2),
    "without names in JSON": clear("json_name", 0, 1),
    "names of types are relative": rename_type,
    "fields in another order": lambda file: move(file, 0, 3),
    "a field between those of a oneof": lambda file: move(file, 0, 4),
    "oneofs in another order": swap_oneofs,
    "packed, as in proto3 anyway": lambda file: setattr(file.message_type[0].field[3].options, "packed", True),
    "options with their defaults": explicit_options,
    "options without members": empty_options,
    "reserved ranges in another order": lambda file: file.message_type[0].reserved_range.reverse(),
    "with comments": lambda file: file.source_code_info.location.add(path=[4, 0], span=[1, 0, 1]),
    "another name of the file": lambda file: setattr(file, "name", "other.proto"),
}

#: What changes the meaning.
OTHER: dict[str, Change] = {
    "a number": lambda file: setattr(file.message_type[0].field[0], "number", 9),
    "a type": lambda file: setattr(file.message_type[0].field[0], "type", _F.TYPE_INT64),
    "a type that is named": lambda file: setattr(file.message_type[0].field[2], "type_name", ".p.M"),
    "a name": lambda file: setattr(file.message_type[0].field[0], "name", "b"),
    "a name in JSON": lambda file: setattr(file.message_type[0].field[0], "json_name", "b"),
    "a label": lambda file: setattr(file.message_type[0].field[0], "label", _F.LABEL_REPEATED),
    "not packed": lambda file: setattr(file.message_type[0].field[3].options, "packed", False),
    "another oneof": lambda file: setattr(file.message_type[0].field[4], "oneof_index", 1),
    "no oneof": clear("oneof_index", 4),
    "an option": lambda file: setattr(file.message_type[0].field[0].options, "deprecated", True),
    "the order of an enumeration": lambda file: file.enum_type[0].value.add(name="MINUS", number=-1),
    "a reserved range": lambda file: file.message_type[0].reserved_range.add(start=50, end=51),
    "a service": lambda file: setattr(file.service[0].method[0], "server_streaming", True),
    "the package": lambda file: file.message_type.add(name="Q"),
}


def text_of(file: FileDescriptorProto) -> str:
    return canonical((Definition("", base64.b64encode(file.SerializeToString()).decode()),), normalize=False)


def meaning(file: FileDescriptorProto) -> bytes:
    pool = DescriptorPool()
    return normal_form(resolved(file, pool), pool)


@pytest.mark.parametrize("name", SAME)
def test_a_descriptor_is_taken_however_it_is_serialized(name: str) -> None:
    file = example()
    SAME[name](file)
    assert meaning(file) == meaning(example())
    again = FileDescriptorProto.FromString(base64.b64decode(rendered((Definition("", text_of(file)),), "serialized")))
    assert meaning(again) == meaning(example())


@pytest.mark.parametrize("name", OTHER)
def test_another_meaning_has_another_form(name: str) -> None:
    file = example()
    OTHER[name](file)
    assert meaning(file) != meaning(example())


def test_a_map_whose_type_comes_first() -> None:
    file = example()
    with_map(file)
    assert "map<string, int32> kv = 9;" in text_of(file)


@pytest.mark.parametrize("number", ["1.0", "1", "1e0"])
def test_default_values_of_numbers(number: str) -> None:
    file = example("proto2")
    file.message_type[0].field.add(name="d", number=9, type=_F.TYPE_DOUBLE, label=1, default_value=number)
    assert "optional double d = 9 [default = 1];" in text_of(file)


def test_synthetic_oneofs_before_others() -> None:
    file = example()
    message = file.message_type[0]
    for field in message.field[4:]:
        field.oneof_index += 1
    message.oneof_decl.add(name="_q")
    message.oneof_decl.insert(0, message.oneof_decl.pop())
    message.field.add(name="q", number=9, type=_F.TYPE_INT32, label=1, proto3_optional=True, oneof_index=0)
    assert "optional int32 q = 9;" in text_of(file)


def test_imports_in_another_order_and_some_of_them_public() -> None:
    names = ["google/protobuf/timestamp.proto", "google/protobuf/any.proto"]
    made = []
    for order in (names, names[::-1]):
        file = FileDescriptorProto(name="x.proto", syntax="proto3", dependency=order)
        file.public_dependency.append(order.index(names[0]))
        made.append(normal_form(file, DescriptorPool()))
        assert 'import public "google/protobuf/timestamp.proto";' in text_of(file)
    assert made[0] == made[1]
    file.public_dependency[0] = 1 - file.public_dependency[0]
    assert normal_form(file, DescriptorPool()) != made[0]


#: Options of its own in every place that has options.
OWN_OPTIONS = """
syntax = "proto3";
import "google/protobuf/descriptor.proto";
message Own { int32 a = 1; Own in = 2; repeated string many = 3; }
extend google.protobuf.FileOptions { Own of_file = 50000; }
extend google.protobuf.MessageOptions { Own of_message = 50000; int32 number = 49999; }
extend google.protobuf.FieldOptions { Own of_field = 50000; }
extend google.protobuf.OneofOptions { Own of_oneof = 50000; }
extend google.protobuf.EnumOptions { Own of_enum = 50000; }
extend google.protobuf.EnumValueOptions { Own of_value = 50000; }
extend google.protobuf.ServiceOptions { Own of_service = 50000; }
extend google.protobuf.MethodOptions { Own of_method = 50000; }
option (of_file).in.a = 1; option (of_file).a = 2;
message M {
  option (of_message).in.a = 1; option (number) = 3; option (of_message).a = 2;
  string f = 1 [(of_field).in.a = 1, (of_field).a = 2];
  oneof o { option (of_oneof).in.a = 1; option (of_oneof).a = 2; string g = 2; }
}
enum E { option (of_enum).in.a = 1; option (of_enum).a = 2; Z = 0 [(of_value).in.a = 1, (of_value).a = 2]; }
service S {
  option (of_service).in.a = 1; option (of_service).a = 2;
  rpc Do(M) returns (M) { option (of_method).in.a = 1; option (of_method).a = 2; }
}
"""


def in_pieces(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return the file as older compilers write it: each statement about an option is a piece of its own."""
    joined, pieces = (
        b"\x82\xb5\x18\x06\x08\x02\x12\x02\x08\x01",
        b"\x82\xb5\x18\x04\x12\x02\x08\x01\x82\xb5\x18\x02\x08\x02",
    )
    message, enum, service = file.message_type[1], file.enum_type[0], file.service[0]
    parts = [file, message, message.field[0], message.oneof_decl[0], enum, enum.value[0], service, service.method[0]]
    for part in parts:
        options = part.options.SerializeToString()
        assert joined in options
        part.options.Clear()
        part.options.MergeFromString(options.replace(joined, pieces))
    return file


def test_own_options_in_pieces() -> None:
    file = FileDescriptorProto.FromString(base64.b64decode(rendered((Definition("", OWN_OPTIONS),), "serialized")))
    text = text_of(in_pieces(file))
    assert text == canonical((Definition("", OWN_OPTIONS),), normalize=False)
    assert text.count("= { a: 2 in { a: 1 } }") == 8


def test_own_options_of_another_value() -> None:
    made = set()
    for value in (1, 2):
        text = OWN_OPTIONS.replace("(number) = 3", f"(number) = {value}")
        file = FileDescriptorProto.FromString(base64.b64decode(rendered((Definition("", text),), "serialized")))
        pool = DescriptorPool()
        pool.Add(FileDescriptorProto.FromString(DESCRIPTOR.serialized_pb))
        made.add(normal_form(resolved(file, pool), pool))
    assert len(made) == 2


@pytest.mark.parametrize("change", [
    lambda file: setattr(file.message_type[0].field[1], "type_name", ".p.Missing"),
    lambda file: setattr(file.message_type[0].field[1], "number", 1),
    lambda file: setattr(file.message_type[0].field[4], "oneof_index", 7),
])  # fmt: skip
def test_a_descriptor_that_is_not_valid(change: Change) -> None:
    file = example()
    change(file)
    with pytest.raises(InvalidSchema, match="Invalid schema of type PROTOBUF"):
        text_of(file)
