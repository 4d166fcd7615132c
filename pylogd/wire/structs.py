"""Structs of the protocol as `construct` subclasses that read into a message class and write from it.

A struct has all fields of its class, including those that do not exist at the version. Reading leaves these at their
defaults; writing raises UnsupportedVersion if one is set, unless the schema declares it ignorable.
At flexible versions a struct ends with its tagged fields. Unknown tags are skipped when reading, and fields that have
their default value are not written.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pylogd.wire.emit import ReadEmitter, WriteEmitter
from pylogd.wire.exceptions import UnsupportedVersion
from pylogd.wire.stream import Cursor, GatherWriter, read_tags, refuse_tag_size, unsigned_varint
from pylogd.wire.types import WireType
from pylogd.wire.values import ZERO_UUID, Message

_MARKER = struct.Struct(">b")


class Field(NamedTuple):
    """A field of a struct at one version. `type` is None if the field does not exist at that version."""

    name: str
    type: WireType | None
    default: Any
    ignorable: bool = False
    tag: int | None = None


class MessageStruct(WireType):
    """A struct whose value is an instance of `cls`."""

    def __init__(self, where: str, cls: type, fields: list[Field], flexible: bool) -> None:
        super().__init__(where)
        self.cls = cls
        self.fields = fields
        self.flexible = flexible
        self.absent = [field for field in fields if field.type is None]
        self.regular = [(field, field.type) for field in fields if field.type is not None and field.tag is None]
        self.tagged = sorted(
            ((field.tag, field, field.type) for field in fields if field.type is not None and field.tag is not None),
            key=lambda entry: entry[0],
        )
        self.minimum = sum(kind.minimum for _, kind in self.regular) + (1 if flexible else 0)

    def _parse(self, stream: Cursor, context: Any, path: str) -> Any:
        values = {field.name: kind._parse(stream, None, "") for field, kind in self.regular}
        if self.flexible:
            found, behind = read_tags(stream.view, stream.at, stream.elements_left)
            stream.elements_left -= len(found)
            for tag, field, kind in self.tagged:
                if tag in found:
                    stream.at, stop = found[tag]
                    start = stream.at
                    values[field.name] = kind._parse(stream, None, "")
                    if stream.at != stop:
                        refuse_tag_size(kind.where, stop - start, stream.at - start)
            stream.at = behind
        return self.cls(**values)

    def _build(self, obj: Any, stream: GatherWriter, context: Any, path: str) -> None:
        for field in self.absent:
            if not field.ignorable and getattr(obj, field.name) != field.default:
                raise UnsupportedVersion(f"{self.where}.{field.name} is set, but does not exist at this version")
        for field, kind in self.regular:
            kind._build(getattr(obj, field.name), stream, None, "")
        if self.flexible:
            self._build_tagged(obj, stream)

    def _build_tagged(self, obj: Any, stream: GatherWriter) -> None:
        written = []
        for tag, field, kind in self.tagged:
            value = getattr(obj, field.name)
            if value != field.default:
                inner = GatherWriter()
                kind._build(value, inner, None, "")
                content = b"".join(part for part in inner if isinstance(part, bytes))
                written.append(unsigned_varint(tag) + unsigned_varint(len(content)) + content)
        stream.write(unsigned_varint(len(written)) + b"".join(written))

    def emit_read(self, out: ReadEmitter) -> str:
        values = {field.name: kind.emit_read(out) for field, kind in self.regular}
        if self.flexible:
            tags = out.fixed("B", "tags")
            out.flush()
            for _, field, kind in self.tagged:
                values[field.name] = out.name(field.name)
                out.line(f"{values[field.name]} = {self._fresh_default(out, field, kind)}")
            with out.block(f"if {tags}:"):
                self._emit_read_tagged(out, values)
        return f"{self._class(out)}({self._arguments(out, values)})"

    def _emit_read_tagged(self, out: ReadEmitter, values: dict[str, str]) -> None:
        if not self.tagged:
            out.line("unknown, at = read_tags(view, at - 1, elements_left)")
            out.line("elements_left -= len(unknown)")
            return
        found, behind = out.name("found"), out.name("behind")
        out.line(f"{found}, {behind} = read_tags(view, at - 1, elements_left)")
        out.line(f"elements_left -= len({found})")
        for tag, field, kind in self.tagged:
            with out.block(f"if {tag} in {found}:"):
                start, stop = out.name("start"), out.name("stop")
                out.line(f"{start}, {stop} = {found}[{tag}]")
                out.line(f"at = {start}")
                value = kind.emit_read(out)
                out.flush()
                out.line(f"{values[field.name]} = {value}")
                with out.block(f"if at != {stop}:"):
                    out.line(f"refuse_tag_size({kind.where!r}, {stop} - {start}, at - {start})")
        out.line(f"at = {behind}")

    def _arguments(self, out: ReadEmitter, values: dict[str, str]) -> str:
        """Return the arguments of the class: by position up to the first missing field, by name after that."""
        arguments = []
        skipped = False
        for field in self.fields:
            if field.name not in values:
                skipped = True
            else:
                arguments.append((f"{field.name}=" if skipped else "") + values[field.name])
        return ", ".join(arguments)

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        for field in self.absent:
            if not field.ignorable:
                message = f"{self.where}.{field.name} is set, but does not exist at this version"
                differs = _differs(field.default, f"{value}.{field.name}")
                out.line(f"if {differs}: raise UnsupportedVersion({message!r})")
        for field, kind in self.regular:
            kind.emit_write(out, f"{value}.{field.name}")
        if not self.flexible:
            return
        if not self.tagged:
            out.fixed("B", "0")
            return
        out.flush()
        written = out.name("written")
        out.line(f"{written} = []")
        for tag, field, kind in self.tagged:
            differs = _differs(field.default, f"{value}.{field.name}")
            with out.block(f"if {differs}:"):
                self._emit_write_tagged(out, written, tag, kind, f"{value}.{field.name}")
        out.line(f"write(unsigned_varint(len({written})) + b''.join({written}))")

    def _emit_write_tagged(self, out: WriteEmitter, written: str, tag: int, kind: WireType, value: str) -> None:
        outer, content = out.name("outer"), out.name("content")
        out.line(f"{outer} = write")
        out.line(f"{content} = []")
        out.line(f"write = {content}.append")
        kind.emit_write(out, value)
        out.flush()
        out.line(f"write = {outer}")
        out.line(f"{content} = b''.join({content})")
        out.line(f"{written}.append({unsigned_varint(tag)!r} + unsigned_varint(len({content})) + {content})")

    def _class(self, out: ReadEmitter | WriteEmitter) -> str:
        out.code.append(f"from {self.cls.__module__} import {self.cls.__name__}")
        return self.cls.__name__

    def _fresh_default(self, out: ReadEmitter, field: Field, kind: WireType) -> str:
        """Return an expression for the field's default: a new object each time if it is mutable."""
        if isinstance(kind, MessageStruct) and field.default is not None:
            return f"{kind._class(out)}()"
        return _literal(field.default)


class NullableStruct(WireType):
    """A struct that may be null. It is preceded by an int8, which is -1 for null."""

    minimum = 1

    def __init__(self, where: str, inner: MessageStruct) -> None:
        super().__init__(where)
        self.inner = inner

    def _parse(self, stream: Cursor, context: Any, path: str) -> Any:
        return None if stream.fixed(_MARKER) < 0 else self.inner._parse(stream, None, "")

    def _build(self, obj: Any, stream: GatherWriter, context: Any, path: str) -> None:
        if obj is None:
            stream.write(_MARKER.pack(-1))
        else:
            stream.write(_MARKER.pack(1))
            self.inner._build(obj, stream, None, "")

    def emit_read(self, out: ReadEmitter) -> str:
        marker = out.fixed("b", "marker")
        target = out.name(self._hint())
        with out.block(f"if {marker} < 0:"):
            out.line(f"{target} = None")
        with out.block("else:"):
            value = self.inner.emit_read(out)
            out.flush()
            out.line(f"{target} = {value}")
        return target

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        with out.block(f"if {value} is None:"):
            out.fixed("b", "-1")
        with out.block("else:"):
            out.fixed("b", "1")
            self.inner.emit_write(out, value)


def _differs(default: Any, value: str) -> str:
    """Return an expression that is true if `value` differs from its default."""
    if isinstance(default, Message):
        return " or ".join(_differs(part, f"{value}.{name}") for name, part in default.field_values().items())
    return f"{value} is not None" if default is None else f"{value} != {_literal(default)}"


def _literal(value: Any) -> str:
    return "ZERO_UUID" if value == ZERO_UUID else repr(value)
