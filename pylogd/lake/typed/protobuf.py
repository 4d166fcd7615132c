"""Protobuf: `ptars` reads messages straight into columns, with descriptors of `google.protobuf`.

| Protobuf | column |
| --- | --- |
| bool, float, double, string, bytes | boolean, float, double, string, binary |
| int32, int64 (and sint, sfixed) | int32, int64 |
| uint32, uint64 (and fixed) | int64, decimal(20, 0) |
| enum | string: the name, or the number where the schema has no name |
| message, repeated, map | struct, list, map |
| oneof | a column for each field, all null but one |
| `google.protobuf.Timestamp`, `google.type.Date` | timestamp with UTC (digits beyond microseconds are left out), date |
| `google.protobuf.Duration`, `google.type.TimeOfDay` | int64 microseconds |
| `google.protobuf.*Value` | the value, or null |
| `google.type.DateTime`, `Money`, `LatLng`, `Interval` and others | struct |
| `google.protobuf.Struct`, `Value`, `ListValue`; a message that contains itself, or has no fields | JSON text |

A field with presence (`optional`, `oneof`, messages, all of proto2) is null if it is not set. A field without presence
then has its default. Fields that the schema does not know, and extensions, are left out.

Parts of well-known types that are out of range make the message a misfit (`well_known`).

Strategy: fields that become JSON text are declared as `bytes` in ptars' descriptor, which have the same encoding in
messages; only these bytes are then parsed one by one. Columns have the fields' names: a renamed field gets a new
column.

ptars was chosen because it makes columns without an object for each message (bench/EARLIER.md). It silently leaves out
groups, so schemas with groups are refused.
Source: protobuf.dev, "Encoding" and "Field presence".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from ptars import HandlerPool, PtarsConfig

from pylogd.lake.typed import nodes
from pylogd.lake.typed.errors import Misfit, NotColumns
from pylogd.lake.typed.nodes import Budget, Member, Node
from pylogd.lake.typed.registry import Registered
from pylogd.lake.typed.well_known import CHECKED, JOINED, is_joined, parts_of, renamed

#: Files that Confluent's clients include, and of which google.protobuf has no module.
_META: Final = "confluent/meta.proto"
_DECIMAL: Final = ("confluent/type/decimal.proto", "confluent/types/decimal.proto")
_JSON_TYPES: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_CONFIG: Final = PtarsConfig(
    timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="string", list_nullable=True, map_nullable=True,
    list_value_nullable=True, map_value_nullable=True,
)  # fmt: skip
_UINT64: Final = pa.decimal128(20, 0)


class ProtobufFile:
    """The message types of a registered schema."""

    def __init__(self, schema: Registered) -> None:
        """Raises NotColumns if the schema is not valid, or imports a file that it does not refer to."""
        files = {used.name: _file(used.text, used.name) for used in schema.references}
        self._main = _file(schema.text, "")
        self._main.name = self._main.name or "schema.proto"
        self._files = _with_imports(self._main, files)
        self._pool = _pool(self._files)

    def indexes_of(self, name: str) -> tuple[int, ...]:
        """Return the indexes of a message type, given its full name. Raises NotColumns."""
        for indexes, found in _message_names(self._main):
            if found == name:
                return indexes
        raise NotColumns(f"the schema has no message type {name!r}")

    def reader(self, indexes: tuple[int, ...], reserved: Collection[str] = ()) -> ProtobufReader:
        """Return the reader of a message type. Raises NotColumns.

        reserved: see `nodes.column_name`.
        """
        for found, name in _message_names(self._main):
            if found == indexes:
                files = renamed(self._files, self._pool)
                return ProtobufReader(self._pool.FindMessageTypeByName(name), files, reserved)
        raise NotColumns(f"the schema has no message type with the indexes {list(indexes)}")


class ProtobufReader:
    """Reads messages of one type. Implements `decoding.Reader`."""

    def __init__(self, message: Descriptor, files: list[FileDescriptorProto], reserved: Collection[str]) -> None:
        """Raises NotColumns.

        files: all files that the message's file imports, `renamed`, and that file as the last one.
        """
        replaced = _Replaced()
        replaced.search(message)
        if not message.fields:
            raise NotColumns(f"{message.full_name} has no fields")
        pool = _pool([_with_bytes(file, replaced.fields) for file in files])
        with _no_panic(NotColumns):
            self._handler = HandlerPool([pool.FindFileByName(files[-1].name)], _CONFIG).get_for_message(
                pool.FindMessageTypeByName(message.full_name)
            )
            kind = pa.struct(list(self._handler.schema()))
        self.node = _Columns(replaced.fields, reserved).struct(message, kind)

    def read(self, body: bytes) -> bytes:
        """Return the message unchanged; `array` reads it."""
        return body

    def array(self, values: list[Any]) -> pa.StructArray:
        """Return messages in columns. Raises ValueError if a message is not valid."""
        with _no_panic(Misfit):
            return self._handler.list_to_record_batch(values).to_struct_array()


@contextmanager
def _no_panic(instead: Callable[[str], Exception]) -> Iterator[None]:
    """Raise another error if Rust panics, since the error of a panic is not an `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise instead(f"ptars refuses it: {error}") from error
        raise


def _file(text: str, name: str) -> FileDescriptorProto:
    """Return the file in a registry's descriptor in base64.

    name: the name by which other files import it; "" for its own name.
    """
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise NotColumns(
            f"the registry gave no Protobuf descriptor ({error}): does it know format=serialized?"
        ) from error
    found.name = name or found.name
    return found


def _with_imports(main: FileDescriptorProto, known: dict[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Return a file after all files that it imports, directly or not. Raises NotColumns if one is missing."""
    found: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptorProto) -> None:
        if _META in file.dependency:  # this has only options, which are not read here
            file = _without_import(file, _META)
        for name in file.dependency:
            if name not in found:
                found[name] = file  # so that the recursion ends for files that import each other
                add(known.get(name) or _well_known(name))
        found.pop(file.name, None)
        found[file.name] = file

    add(main)
    return list(found.values())


def _without_import(file: FileDescriptorProto, name: str) -> FileDescriptorProto:
    changed = FileDescriptorProto()
    changed.CopyFrom(file)
    del changed.dependency[:], changed.public_dependency[:], changed.weak_dependency[:]
    changed.dependency.extend(each for each in file.dependency if each != name)
    return changed


def _well_known(name: str) -> FileDescriptorProto:
    if name in _DECIMAL:
        return _decimal(name)
    if name.startswith(("google/protobuf/", "google/type/")) and name.endswith(".proto"):
        try:
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        except ImportError:
            pass
    raise NotColumns(f"the schema imports {name}, which is not among its references")


def _decimal(name: str) -> FileDescriptorProto:
    """Return the file of Confluent's decimals, which its clients never send as a reference."""
    file = FileDescriptorProto(name=name, package="confluent.type", syntax="proto3")
    message = file.message_type.add(name="Decimal")
    kinds = FieldDescriptorProto
    for number, (field, kind) in enumerate(
        [("value", kinds.TYPE_BYTES), ("precision", kinds.TYPE_UINT32), ("scale", kinds.TYPE_INT32)], start=1
    ):
        message.field.add(name=field, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    return file


def _pool(files: list[FileDescriptorProto]) -> DescriptorPool:
    pool = DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError) as error:
        raise NotColumns(f"not a Protobuf schema: {error}") from error
    return pool


def _message_names(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the indexes and the full name of each message type of a file."""
    waiting: list[tuple[tuple[int, ...], str, DescriptorProto]] = [
        ((at,), file.package, message) for at, message in enumerate(file.message_type)
    ]
    while waiting:
        indexes, around, message = waiting.pop()
        name = f"{around}.{message.name}" if around else message.name
        yield indexes, name
        waiting += [((*indexes, at), name, nested) for at, nested in enumerate(message.nested_type)]


class _Replaced:
    """Finds the fields that can't be columns: they become JSON text.

    fields: (message, field) pairs of names.
    """

    def __init__(self) -> None:
        self.fields: dict[tuple[str, str], Descriptor] = {}
        self._budget = Budget()
        self._inside: list[str] = []

    def search(self, message: Descriptor) -> None:
        """Search a message and its nested messages. Raises NotColumns if the message is too large, or has groups."""
        self._inside.append(message.full_name)
        nodes.check_names([field.name for field in message.fields])
        for field in message.fields:
            self._budget.take(len(self._inside))
            if field.type == FieldDescriptor.TYPE_GROUP:
                raise NotColumns(f"{field.full_name} is a group, which can't be a column")
            kind = field.message_type
            if kind is None or (message.full_name, field.name) in self.fields:
                continue
            if kind.full_name in _JSON_TYPES or kind.full_name in self._inside or not kind.fields:
                self.fields[message.full_name, field.name] = kind
            else:
                self.search(kind)
        self._inside.pop()


def _with_bytes(file: FileDescriptorProto, replaced: Collection[tuple[str, str]]) -> FileDescriptorProto:
    """Return a file in which these fields have the type bytes, whose encoding in messages is the same."""
    changed = FileDescriptorProto()
    changed.CopyFrom(file)
    is_proto3 = file.syntax == "proto3"

    def change(message: DescriptorProto, around: str) -> None:
        name = f"{around}.{message.name}" if around else message.name
        for field in message.field:
            if (name, field.name) in replaced:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
                if is_proto3 and not message.options.map_entry:
                    _set_presence(message, field)
        for nested in message.nested_type:
            change(nested, name)

    for message in changed.message_type:
        change(message, changed.package)
    return changed


def _set_presence(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Let a field be null if it is not set, like a message field: in proto3 this needs a separate oneof."""
    if field.label == FieldDescriptorProto.LABEL_REPEATED or field.HasField("oneof_index"):
        return
    field.proto3_optional = True
    field.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name=f"pylogd_{field.number}")


class _Columns:
    """Builds the nodes of a message, from its descriptor and ptars' Arrow type."""

    def __init__(self, replaced: dict[tuple[str, str], Descriptor], reserved: Collection[str]) -> None:
        self._replaced = replaced
        self._reserved = reserved
        self._depth = 0

    def struct(self, message: Descriptor, kind: pa.StructType) -> Node:
        """Return the node of a message."""
        reserved = () if self._depth else self._reserved
        self._depth += 1
        members = [
            Member(each.name, nodes.column_name(each.name, reserved), self._field(message, each)) for each in kind
        ]
        self._depth -= 1
        return nodes.struct(members, rebuild=True)

    def _field(self, message: Descriptor, column: pa.Field) -> Node:
        field = message.fields_by_name[column.name]
        if pa.types.is_map(column.type):
            entry = field.message_type
            return nodes.map_of(_scalar(column.type.key_type), self._single(entry, "value", column.type.item_type))
        if pa.types.is_list(column.type):
            return nodes.list_of(self._single(message, column.name, column.type.value_type))
        return self._single(message, column.name, column.type)

    def _single(self, message: Descriptor, name: str, kind: pa.DataType) -> Node:
        """Return the node of a field, or of one of its elements."""
        replaced = self._replaced.get((message.full_name, name))
        if replaced is not None:
            return nodes.leaf(pa.binary(), pa.string(), partial(_texts, replaced))
        if pa.types.is_struct(kind):
            return self._message(message.fields_by_name[name].message_type, kind)
        return _scalar(kind)

    def _message(self, message: Descriptor, kind: pa.StructType) -> Node:
        """Return the node of a field that is a message."""
        name, parts = message.full_name, [each.name for each in kind]
        if is_joined(name, parts):
            return nodes.leaf(kind, JOINED[name].logical, JOINED[name].join)
        inner = self.struct(message, kind)
        needed, check = CHECKED.get(name, (frozenset(), None))
        if check is None or not needed <= set(parts):
            return inner

        def convert(array: pa.StructArray) -> pa.Array:
            check(parts_of(array))
            return inner.applied(array)

        return replace(inner, convert=convert)


def _scalar(kind: pa.DataType) -> Node:
    if pa.types.is_uint32(kind):
        return nodes.leaf(kind, pa.int64())
    if pa.types.is_uint64(kind):
        return nodes.leaf(kind, _UINT64)
    return nodes.leaf(kind)


def _texts(kind: Descriptor, array: pa.Array) -> pa.Array:
    """Return messages of a type as JSON text."""
    parse: Callable[[bytes], Any] = message_factory.GetMessageClass(kind).FromString
    return pa.array([None if each is None else _text(parse, each) for each in array.to_pylist()], pa.string())


def _text(parse: Callable[[bytes], Any], message: bytes) -> str:
    try:
        found = json_format.MessageToDict(parse(message), preserving_proto_field_name=True)
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    except (DecodeError, TypeError, ValueError, RecursionError, json_format.Error) as error:
        raise Misfit(f"a {parse.__self__.DESCRIPTOR.full_name} can't be written as JSON: {error}") from error  # type: ignore[attr-defined]
