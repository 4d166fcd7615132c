"""Convert Protobuf file descriptors with the same meaning to the same form.

Compilers and libraries write descriptors differently: names of types are relative or complete; types and labels that
follow from others are present or not; members of a `oneof` are together or between other fields; options may be present
with their default values; and an option that is a message is in one piece or in several. `resolved` completes a
descriptor, so that it can be written as a `.proto` file; `normal_form` is equal for descriptors of equal meaning.
Source: google/protobuf/descriptor.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool

from pylogd.services.registry.formats.protobuf_text import json_name, known_options

_F: Final = FieldDescriptorProto
#: Types whose repeated fields can't be packed.
_NOT_PACKED: Final = (_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE, _F.TYPE_GROUP)


def resolved(file: FileDescriptorProto, imports: DescriptorPool) -> FileDescriptorProto:
    """Return a descriptor with complete names, types and labels. Raises TypeError if it is not valid.

    imports: has the files that it imports; the descriptor is added to it.
    """
    file = _copy(file)
    for message in _messages(file):
        _order_oneofs(message, lambda at, synthetic: (synthetic, at))
        if message.options.map_entry:
            _sort(message.field, lambda field: field.number)
    for enum in _enums(file):
        if not enum.options.allow_alias:
            enum.options.ClearField("allow_alias")  # protoc refuses a file with this option
    imports.Add(file)
    found = FileDescriptorProto()
    imports.FindFileByName(file.name).CopyToProto(found)
    return found


def normal_form(file: FileDescriptorProto, pool: DescriptorPool) -> bytes:
    """Return bytes that are equal for resolved descriptors with the same meaning, apart from names and comments.

    pool: has the files that define the descriptor's own options.
    """
    file = _copy(file)
    file.name = ""
    file.ClearField("source_code_info")
    if file.syntax == "proto2":
        file.ClearField("syntax")
    if not file.package:
        file.ClearField("package")
    public = sorted(file.dependency[at] for at in file.public_dependency)
    weak = sorted(file.dependency[at] for at in file.weak_dependency)
    _sort(file.dependency, str)
    for places, names in ((file.public_dependency, public), (file.weak_dependency, weak)):
        places[:] = [list(file.dependency).index(name) for name in names]
    for message in _messages(file):
        _normalize_message(message)
    for field in _fields(file):
        _normalize_field(field, packed=file.syntax == "proto3")
    for enum in _enums(file):
        _sort(enum.reserved_range, lambda each: each.start)
        _sort(enum.reserved_name, str)
    _drop_default_options(file)
    _join_own_options(file, pool)
    return bytes(file.SerializeToString(deterministic=True))


def _normalize_message(message: DescriptorProto) -> None:
    _order_oneofs(message, lambda at, _: message.oneof_decl[at].name)
    _sort(message.field, lambda field: field.number)
    _sort(message.nested_type, lambda nested: (nested.options.map_entry, nested.options.map_entry and nested.name))
    for ranges in (message.extension_range, message.reserved_range):
        _sort(ranges, lambda each: each.start)
    _sort(message.reserved_name, str)


def _normalize_field(field: FieldDescriptorProto, *, packed: bool) -> None:
    """Normalize a field. `packed` is whether repeated numbers are packed by default."""
    if field.json_name == json_name(field.name):
        field.ClearField("json_name")
    if field.label == _F.LABEL_OPTIONAL:
        field.ClearField("label")
    if field.HasField("default_value") and field.type in (_F.TYPE_FLOAT, _F.TYPE_DOUBLE):
        field.default_value = repr(float(field.default_value))
    repeated = field.label == _F.LABEL_REPEATED and field.type not in _NOT_PACKED
    if repeated and field.options.HasField("packed") and field.options.packed == packed:
        field.options.ClearField("packed")


def _order_oneofs(message: DescriptorProto, key: Any) -> None:
    """Order the declarations of a message.

    key: called with the index of each declaration, and whether it is synthetic.
    """
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    order = sorted(range(len(message.oneof_decl)), key=lambda at: key(at, at in synthetic))
    for field in message.field:
        if field.HasField("oneof_index") and field.oneof_index < len(order):
            field.oneof_index = order.index(field.oneof_index)
    declared = [type(each).FromString(each.SerializeToString()) for each in message.oneof_decl]
    del message.oneof_decl[:]
    message.oneof_decl.extend(declared[at] for at in order)


def _drop_default_options(part: Any) -> None:
    """Remove options with their default values, in a part of a descriptor and everything below it."""
    for field, value in part.ListFields():
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        for each in value if isinstance(value, MutableSequence) else (value,):
            if field.name == "options":
                for option, chosen in each.ListFields():
                    if _has_default(option) and chosen == option.default_value:
                        each.ClearField(option.name)
            else:
                _drop_default_options(each)
        if field.name == "options" and not value.ByteSize():
            part.ClearField("options")


def _join_own_options(part: Any, pool: DescriptorPool) -> None:
    """Join the pieces of options that are extensions, in a part of a descriptor and everything below it.

    Older compilers write `option (a).b = 1; option (a).c = 2;` as two pieces of (a), newer ones as one. For a
    descriptor's own classes the pieces are unknown fields; the pool's classes read them as one message.
    """
    for field, value in part.ListFields():
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        for each in value if isinstance(value, MutableSequence) else (value,):
            if field.name != "options":
                _join_own_options(each, pool)
                continue
            known = known_options(each, pool).SerializeToString(deterministic=True)
            each.Clear()
            each.MergeFromString(known)


def _has_default(option: FieldDescriptor) -> bool:
    """Return whether a missing option means the same as its default value."""
    plain = option.has_presence and option.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE
    return plain and not option.is_extension and option.name not in ("packed", "map_entry")


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        yield message


def _fields(file: FileDescriptorProto) -> Iterator[FieldDescriptorProto]:
    yield from file.extension
    for message in _messages(file):
        yield from message.field
        yield from message.extension


def _enums(file: FileDescriptorProto) -> Iterator[EnumDescriptorProto]:
    yield from file.enum_type
    for message in _messages(file):
        yield from message.enum_type


def _sort(values: Any, key: Any) -> None:
    """Sort a repeated field. Equal values keep their order."""
    values.sort(key=key)


def _copy(file: FileDescriptorProto) -> FileDescriptorProto:
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    return copy
