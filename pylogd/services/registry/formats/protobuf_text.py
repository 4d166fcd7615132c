"""Write a Protobuf file descriptor as a `.proto` file, so that equal descriptors have equal text.

The order is: syntax, package, imports, options, messages, enumerations, services, extensions. Comments become separate
lines that begin with `//`.
Source: Protocol Buffers language specification; google/protobuf/descriptor.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Final

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_INDENT: Final = "  "
_MOST: Final = 536_870_911  # the largest number of a field
_MOST_ENUM: Final = 2**31 - 1
_TYPES: Final = {number: name[5:].lower() for name, number in FieldDescriptorProto.Type.items()}

Path = tuple[int, ...]
# Numbers of fields in descriptor.proto, which make up the paths of comments.
_PACKAGE, _MESSAGE, _ENUM, _SERVICE, _EXTENSION, _SYNTAX = 2, 4, 5, 6, 7, 12
_FIELD, _NESTED, _NESTED_ENUM, _NESTED_EXTENSION, _ONEOF, _VALUE, _METHOD = 2, 3, 4, 6, 8, 2, 2


class ProtoWriter:
    """Writes one file.

    pool: has the imported files, for the names of options.
    comments: whether to keep comments.

    ordered: whether to sort fields by number and imports by name.
    """

    def __init__(
        self, file: FileDescriptorProto, pool: DescriptorPool, *, comments: bool = True, ordered: bool = False
    ) -> None:
        self._file = file
        self._pool = pool
        self._ordered = ordered
        self._comments: dict[Path, str] = {}
        for location in file.source_code_info.location if comments else ():
            self._comments[tuple(location.path)] = location.leading_comments + location.trailing_comments

    def text(self) -> str:
        """Return the file's text."""
        file = self._file
        lines = [*self._about((_SYNTAX,)), self._syntax()]
        if file.package:
            lines += [*self._about((_PACKAGE,)), f"package {file.package};"]
        ways = dict.fromkeys(file.public_dependency, "public ") | dict.fromkeys(file.weak_dependency, "weak ")
        imports = [f'import {ways.get(at, "")}"{name}";' for at, name in enumerate(file.dependency)]
        lines += sorted(imports) if self._ordered else imports
        lines += [f"option {option};" for option in self._options(file.options)]
        for at, message in enumerate(file.message_type):
            lines += ["", *self._message(message, (_MESSAGE, at), "message " + message.name)]
        for at, enum in enumerate(file.enum_type):
            lines += ["", *self._enum(enum, (_ENUM, at))]
        for at, service in enumerate(file.service):
            lines += ["", *self._service(service, (_SERVICE, at))]
        lines += self._extensions(file.extension, {}, (_EXTENSION,))
        return "\n".join(lines) + "\n"

    def _syntax(self) -> str:
        if self._file.syntax == "editions":
            return f'edition = "{Edition.Name(self._file.edition)[8:]}";'
        return f'syntax = "{self._file.syntax or "proto2"}";'

    def _about(self, path: Path) -> Iterator[str]:
        """Return the comment on an element, as lines."""
        for line in self._comments.get(path, "").splitlines():
            yield ("//" + line.rstrip()) if line.strip() else "//"

    # Messages ------------------------------------------------------------------------------------------------------

    def _message(self, message: DescriptorProto, path: Path, head: str) -> list[str]:
        nested = {each.name: (at, each) for at, each in enumerate(message.nested_type)}
        groups = {each.type_name.rpartition(".")[2] for each in (*message.field, *message.extension) if _is_group(each)}
        body = [f"option {option};" for option in self._options(message.options)]
        body += _reserved(message.reserved_range, message.reserved_name, _MOST, self._file.syntax, 1)
        body += self._extension_ranges(message)
        for at, enum in enumerate(message.enum_type):
            body += self._enum(enum, (*path, _NESTED_ENUM, at))
        waiting = self._members(message, nested, path)
        for name, (at, each) in nested.items():  # so that the file keeps the order of types
            if each.options.map_entry or name in groups:
                while any(name in names for names, _ in waiting):
                    body += waiting.pop(0)[1]
            else:
                body += self._message(each, (*path, _NESTED, at), "message " + name)
        for _, lines in waiting:
            body += lines
        body += self._extensions(message.extension, nested, (*path, _NESTED_EXTENSION))
        return [*self._about(path), head + " {", *(_INDENT + line for line in body), "}"]

    def _members(
        self, message: DescriptorProto, nested: Mapping[str, Any], path: Path
    ) -> list[tuple[set[str], list[str]]]:
        """Return the fields and `oneof`s in order, each with the names of its types."""
        members = []
        fields = list(enumerate(message.field))
        if self._ordered and not any(each.options.map_entry for _, each in nested.values()):
            fields.sort(key=lambda pair: pair[1].number)
        written: set[int] = set()
        for at, field in fields:
            if not field.HasField("oneof_index") or field.proto3_optional:
                lines = self._field(field, nested, (*path, _FIELD, at), self._label(field))
                members.append(({field.type_name.rpartition(".")[2]}, lines))
            elif field.oneof_index not in written:
                written.add(field.oneof_index)
                inside = [each for _, each in fields if _is_in(each, field.oneof_index)]
                names = {each.type_name.rpartition(".")[2] for each in inside}
                members.append((names, self._oneof(message, field.oneof_index, fields, nested, path)))
        return members

    def _oneof(
        self,
        message: DescriptorProto,
        index: int,
        fields: Sequence[tuple[int, FieldDescriptorProto]],
        nested: Mapping[str, Any],
        path: Path,
    ) -> list[str]:
        oneof = message.oneof_decl[index]
        body = [f"option {option};" for option in self._options(oneof.options)]
        for at, field in fields:
            if _is_in(field, index):
                body += self._field(field, nested, (*path, _FIELD, at), "")
        return [*self._about((*path, _ONEOF, index)), f"oneof {oneof.name} {{", *(_INDENT + line for line in body), "}"]

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            return "required "
        return "optional " if field.proto3_optional or self._file.syntax in ("", "proto2") else ""

    def _field(self, field: FieldDescriptorProto, nested: Mapping[str, Any], path: Path, label: str) -> list[str]:
        kind = field.type_name or _TYPES[field.type]
        at, entry = nested.get(field.type_name.rpartition(".")[2], (0, None))
        if entry is not None and entry.options.map_entry and field.type == FieldDescriptorProto.TYPE_MESSAGE:
            key, value = entry.field
            label, kind = "", f"map<{_TYPES[key.type]}, {value.type_name or _TYPES[value.type]}>"
        options = []
        if field.HasField("default_value"):
            options.append("default = " + _default(field))
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            options.append(f'json_name = "{_escaped(field.json_name)}"')
        options += self._options(field.options)
        end = f" [{', '.join(options)}]" if options else ""
        if _is_group(field) and entry is not None:
            name = field.type_name.rpartition(".")[2]
            group = self._message(entry, (*path[:-2], _NESTED, at), f"{label}group {name} = {field.number}{end}")
            return [*self._about(path), *group]
        return [*self._about(path), f"{label}{kind} {field.name} = {field.number}{end};"]

    def _extensions(
        self, extensions: Sequence[FieldDescriptorProto], nested: Mapping[str, Any], path: Path
    ) -> list[str]:
        lines: list[str] = []
        for at, field in enumerate(extensions):
            body = self._field(field, nested, (*path, at), self._label(field))
            lines += [f"extend {field.extendee} {{", *(_INDENT + line for line in body), "}"]
        return lines

    def _extension_ranges(self, message: DescriptorProto) -> list[str]:
        lines = []
        for each in message.extension_range:
            options = list(self._options(each.options))
            end = f" [{', '.join(options)}]" if options else ""
            lines.append(f"extensions {_range(each.start, each.end - 1, _MOST)}{end};")
        return lines

    def _enum(self, enum: EnumDescriptorProto, path: Path) -> list[str]:
        body = [f"option {option};" for option in self._options(enum.options)]
        body += _reserved(enum.reserved_range, enum.reserved_name, _MOST_ENUM, self._file.syntax, 0)
        for at, value in enumerate(enum.value):
            options = list(self._options(value.options))
            end = f" [{', '.join(options)}]" if options else ""
            body += [*self._about((*path, _VALUE, at)), f"{value.name} = {value.number}{end};"]
        return [*self._about(path), f"enum {enum.name} {{", *(_INDENT + line for line in body), "}"]

    def _service(self, service: ServiceDescriptorProto, path: Path) -> list[str]:
        body = [f"option {option};" for option in self._options(service.options)]
        for at, method in enumerate(service.method):
            takes, gives = ("stream " * flag for flag in (method.client_streaming, method.server_streaming))
            line = f"rpc {method.name}({takes}{method.input_type}) returns ({gives}{method.output_type})"
            options = [f"{_INDENT}option {option};" for option in self._options(method.options)]
            body += self._about((*path, _METHOD, at))
            body += [line + " {", *options, "}"] if options else [line + ";"]
        return [*self._about(path), f"service {service.name} {{", *(_INDENT + line for line in body), "}"]

    # Options -------------------------------------------------------------------------------------------------------

    def _options(self, options: Any) -> Iterator[str]:
        """Return the options as `name = value`, with the names of extensions that the pool knows."""
        for field, value in known_options(options, self._pool).ListFields():
            if field.full_name == "google.protobuf.MessageOptions.map_entry":
                continue
            name = f"(.{field.full_name})" if field.is_extension else field.name
            for each in value if isinstance(value, MutableSequence) else (value,):
                yield f"{name} = {self._value(field, each)}"

    def _value(self, field: FieldDescriptor, value: Any) -> str:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            text = text_format.MessageToString(value, as_one_line=True, descriptor_pool=self._pool)
            return f"{{ {text} }}"
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return str(field.enum_type.values_by_number[value].name)
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return "true" if value else "false"
        if isinstance(value, str | bytes):
            return f'"{_escaped(value)}"'
        return repr(value)


def known_options(options: Any, pool: DescriptorPool) -> Any:
    """Return options of a descriptor as a message that has the extensions of the pool's files as fields."""
    try:
        known = GetMessageClass(pool.FindMessageTypeByName(options.DESCRIPTOR.full_name))
    except KeyError:
        return options  # no file extends the options
    return known.FromString(options.SerializeToString())


def json_name(name: str) -> str:
    """Return the default name of a field in JSON: in camel case."""
    return re.sub(r"_+([a-zA-Z0-9]?)", lambda match: match.group(1).upper(), name)


def _is_in(field: FieldDescriptorProto, oneof: int) -> bool:
    return bool(field.HasField("oneof_index") and field.oneof_index == oneof)


def _is_group(field: FieldDescriptorProto) -> bool:
    return bool(field.type == FieldDescriptorProto.TYPE_GROUP)


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return f'"{_escaped(field.default_value)}"'
    return f'"{field.default_value}"' if field.type == FieldDescriptorProto.TYPE_BYTES else field.default_value


def _escaped(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return str(text_encoding.CEscape(data, as_utf8=False))


def _range(first: int, last: int, most: int) -> str:
    end = "max" if last >= most else str(last)
    return str(first) if first == last else f"{first} to {end}"


def _reserved(ranges: Sequence[Any], names: Sequence[str], most: int, syntax: str, beyond: int) -> list[str]:
    """Return the lines that reserve numbers and names.

    beyond: 1 if a range's end is the number after its last.
    """
    numbers = [_range(each.start, each.end - beyond, most) for each in ranges]
    words = [name if syntax == "editions" else f'"{name}"' for name in names]
    return [f"reserved {', '.join(found)};" for found in (numbers, words) if found]
