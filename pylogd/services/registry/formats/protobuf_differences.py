"""Find the changes of a Protobuf file after which earlier messages can't be read.

Strategy: fields are compared by their number in the whole message, whatever `oneof` they are in. Types of fields are
compared by their encoding on the wire. The rules and the names of the changes are those of Confluent's registry; only
incompatible changes are reported. Stricter than Confluent, this refuses a number without a label that becomes repeated,
and a field that becomes required.
Source: Protocol Buffers language guide, "Updating A Message Type"; the tables of Confluent's tests
(`tests/unit/services/registry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File

from pylogd.services.registry.formats import Changes

_F: Final = FieldDescriptorProto
#: Groups of types that can read each other.
_WIRE: Final = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM), "int"),
    **dict.fromkeys((_F.TYPE_SINT32, _F.TYPE_SINT64), "sint"),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((_F.TYPE_FIXED32, _F.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_F.TYPE_FIXED64, _F.TYPE_SFIXED64), "fixed64"),
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
}
_TEXT: Final = "string or bytes"


class _Named(NamedTuple):
    """A type: the package of its file, its name in the package, and the index of the file; the schema's own file is
    last.
    """

    package: str
    name: str
    type: DescriptorProto | EnumDescriptorProto
    own: bool


def incompatibilities(old: Sequence[File], new: Sequence[File]) -> list[str]:
    """Return the incompatible changes from one Protobuf file to another, each with its place in the file.

    old, new: a file preceded by the files that it imports.
    """
    comparison = _Comparison(old, new)
    comparison.files(old[-1], new[-1])
    return comparison.once()


class _Comparison(Changes):
    """One comparison of two sets of files."""

    def __init__(self, old: Sequence[File], new: Sequence[File]) -> None:
        super().__init__()
        self._old, self._new = _types(old), _types(new)
        self._running: set[tuple[str, str]] = set()

    def files(self, old: File, new: File) -> None:
        """Compare two files, and report."""
        if old.package != new.package:
            self.report("PACKAGE_CHANGED")
        self._messages(old.message_type, new.message_type)

    def _messages(self, old: Sequence[DescriptorProto], new: Sequence[DescriptorProto]) -> None:
        later = {message.name: message for message in new}
        for message in old:
            if message.options.map_entry:
                continue
            with self.at(message.name):
                if message.name not in later:
                    self.report("MESSAGE_REMOVED")
                else:
                    self._message(message, later[message.name])

    def _message(self, old: DescriptorProto, new: DescriptorProto) -> None:
        self._oneofs(old, new)
        mine = {field.number: field for field in old.field}
        theirs = {field.number: field for field in new.field}
        gone = _deleted_oneofs(old, new)
        for number in sorted({*mine, *theirs}):
            before, after = mine.get(number), theirs.get(number)
            if before is None and after is not None:
                if after.label == _F.LABEL_REQUIRED:
                    self.report("REQUIRED_FIELD_ADDED", number)
            elif before is not None and after is None:
                self._removed(before, _oneof(old, before), gone)
            elif before is not None and after is not None:
                group = _oneof(new, after)
                with self.at(*(name for name in (group, number) if name is not None)):
                    self._field(before, after)
        self._messages(old.nested_type, new.nested_type)

    def _removed(self, field: FieldDescriptorProto, oneof: str | None, gone: set[str]) -> None:
        if oneof is not None:
            if oneof not in gone:
                self.report("ONEOF_FIELD_REMOVED", oneof, field.number)
        elif field.label == _F.LABEL_REQUIRED:
            self.report("REQUIRED_FIELD_REMOVED", field.number)

    def _oneofs(self, old: DescriptorProto, new: DescriptorProto) -> None:
        """Report fields that could be set together and now exclude each other."""
        origins = {field.number: _oneof(old, field) for field in old.field}
        groups: dict[str, list[int]] = {}
        for field in new.field:
            group = _oneof(new, field)
            if group is not None and field.number in origins:
                groups.setdefault(group, []).append(field.number)
        for group, numbers in groups.items():
            alone = [number for number in numbers if origins[number] is None]
            together = {origins[number] for number in numbers} - {None}
            if len(alone) + len(together) > 1:
                several = len(alone) > 1
                self.report("MULTIPLE_FIELDS_MOVED_TO_ONEOF" if several else "FIELD_MOVED_TO_EXISTING_ONEOF", group)

    def _field(self, old: FieldDescriptorProto, new: FieldDescriptorProto) -> None:
        before, after = self._map(self._old, old), self._map(self._new, new)
        if before is not None and after is not None:
            for one, other in zip(before.field, after.field, strict=True):
                self._value(one, other)
        elif before is not None or after is not None:
            self.report("FIELD_KIND_CHANGED")
        else:
            self._value(old, new)

    def _map(self, types: dict[str, _Named], field: FieldDescriptorProto) -> DescriptorProto | None:
        """Return the entry type of a map; None for other fields."""
        found = types.get(field.type_name)
        if found is None or not isinstance(found.type, DescriptorProto) or not found.type.options.map_entry:
            return None
        return found.type

    def _value(self, old: FieldDescriptorProto, new: FieldDescriptorProto) -> None:
        before, after = _WIRE.get(old.type), _WIRE.get(new.type)
        if (before is None) != (after is None):
            self.report("FIELD_KIND_CHANGED")
        elif before is None:
            self._named(old, new)
        elif before != after:
            self.report("FIELD_SCALAR_KIND_CHANGED")
        elif _F.LABEL_REPEATED in (old.label, new.label) and old.label != new.label and before != _TEXT:
            self.report("FIELD_NUMERIC_LABEL_CHANGED")
        if new.label == _F.LABEL_REQUIRED != old.label:
            self.report("REQUIRED_FIELD_ADDED")

    def _named(self, old: FieldDescriptorProto, new: FieldDescriptorProto) -> None:
        before, after = self._old[old.type_name], self._new[new.type_name]
        if before.name != after.name or old.type != new.type:
            self.report("FIELD_NAMED_TYPE_CHANGED")
            return
        pair = old.type_name, new.type_name
        if (before.own and after.own) or pair in self._running or before.type == after.type:
            return  # it is the same, is being compared, or is compared with the file's other messages
        assert isinstance(before.type, DescriptorProto) and isinstance(after.type, DescriptorProto)
        self._running.add(pair)
        path, self._path = self._path, before.name.split(".")
        known = len(self.found)
        self._message(before.type, after.type)
        self._path = path
        self._running.remove(pair)
        if len(self.found) > known:
            self.report("FIELD_NAMED_TYPE_CHANGED")


def _types(files: Sequence[File]) -> dict[str, _Named]:
    """Return all types of these files by full name, which begins with a dot."""
    found: dict[str, _Named] = {}

    def add(file: File, types: Sequence[DescriptorProto | EnumDescriptorProto], outer: str) -> None:
        for each in types:
            name = outer + each.name
            full = f".{file.package}.{name}" if file.package else f".{name}"
            found[full] = _Named(file.package, name, each, file is files[-1])
            if isinstance(each, DescriptorProto):
                add(file, [*each.nested_type, *each.enum_type], name + ".")

    for file in files:
        add(file, [*file.message_type, *file.enum_type], "")
    return found


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str | None:
    """Return the name of the `oneof` that contains a field; None if none does."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    return str(message.oneof_decl[field.oneof_index].name)


def _deleted_oneofs(old: DescriptorProto, new: DescriptorProto) -> set[str]:
    """Return the `oneof`s that were removed with all of their fields."""
    kept = {field.number for field in new.field}
    names = {_oneof(new, field) for field in new.field}
    alive = {_oneof(old, field) for field in old.field if field.number in kept}
    return {oneof.name for oneof in old.oneof_decl} - alive - names
