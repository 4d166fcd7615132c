"""The protocol's types as `construct` subclasses (Kafka protocol guide, "Protocol Primitive Types"; KIP-482).

Each type is implemented twice, and property tests compare both: `_parse` and `_build` define the encoding;
`emit_read` and `emit_write` generate the same as Python source, which `compile_reader` and `compile_writer` make into
the functions that are used. The golden vectors compare them with other implementations.

Rules: an announced length is checked against the rest of the frame before it is used. Null is encoded as the length -1,
or as 0 in compact lengths, which are stored increased by one. Records are neither copied nor decoded.
A reader raises RemoteProtocolError, or struct.error, IndexError or UnicodeDecodeError, which `schema.Codec` converts to
RemoteProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from construct import Construct
from construct.core import CodeGen

from pylogd.wire.emit import ReadEmitter, WriteEmitter
from pylogd.wire.exceptions import InvalidValue
from pylogd.wire.stream import (
    Cursor,
    GatherWriter,
    Opaque,
    check_string,
    check_uuid,
    refuse_count,
    unsigned_varint,
)

#: the letters of `struct` for the types of fixed size
FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_LENGTHS = {form: struct.Struct(">" + form) for form in ("h", "i")}


class WireType(Construct):  # type: ignore[misc]
    """A type of the protocol.

    where: the name of the field, for error messages.
    """

    #: the smallest number of bytes that a value takes
    minimum: int

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def emit_read(self, out: ReadEmitter) -> str:
        """Generate the statements that read a value. Returns an expression for it, valid after the next flush."""
        raise NotImplementedError

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        """Generate the statements that write the value of the expression `value`."""
        raise NotImplementedError

    def compile_reader(self) -> Callable[[Cursor, None], Any]:
        """Compile and return the function that reads a value. Most processes need only one of reader and writer."""
        code = CodeGen()
        out = ReadEmitter(code)
        reader: Callable[[Cursor, None], Any] = _compiled(code, out.function(self.emit_read(out)))
        return reader

    def compile_writer(self) -> Callable[[Any, GatherWriter, None], None]:
        """Compile and return the function that writes a value."""
        code = CodeGen()
        out = WriteEmitter(code)
        self.emit_write(out, "obj")
        writer: Callable[[Any, GatherWriter, None], None] = _compiled(code, out.function())
        return writer

    def _hint(self) -> str:
        return self.where.rpartition(".")[2]


def _compiled(code: CodeGen, name: str) -> Any:
    """Return the function `name` of the generated source.

    The function sees only the names that the source imports; with construct's own `compile` it would see all of
    construct.
    """
    names: dict[str, Any] = {}
    exec(compile(code.toString(), "<codec>", "exec"), names)
    return names[name]


class Fixed(WireType):
    """A type of fixed size: a number, a bool or a uuid."""

    def __init__(self, where: str, kind: str) -> None:
        super().__init__(where)
        self.form = FIXED_FORMATS[kind]
        self.struct = struct.Struct(">" + self.form)
        self.minimum = self.struct.size
        self._is_uuid = kind == "uuid"

    def _parse(self, stream: Cursor, context: Any, path: str) -> Any:
        return stream.fixed(self.struct)

    def _build(self, obj: Any, stream: GatherWriter, context: Any, path: str) -> None:
        if self._is_uuid:
            check_uuid(obj)
        stream.write(self.struct.pack(obj))

    def _sizeof(self, context: Any, path: str) -> int:
        return self.struct.size

    def emit_read(self, out: ReadEmitter) -> str:
        return out.fixed(self.form, self._hint())

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        if self._is_uuid:
            out.line(f"check_uuid({value})")
        out.fixed(self.form, value)


class Prefixed(WireType):
    """A type preceded by its length: a varint of the length plus one if `compact`, else the `struct` form `legacy`."""

    def __init__(self, where: str, legacy: str, compact: bool, nullable: bool) -> None:
        super().__init__(where)
        self.form = "" if compact else legacy
        self.nullable = nullable
        self.minimum = 1 if compact else struct.calcsize(legacy)

    def _parse_length(self, stream: Cursor) -> int:
        return int(stream.fixed(_LENGTHS[self.form])) if self.form else stream.unsigned_varint() - 1

    def _build_length(self, length: int, stream: GatherWriter) -> None:
        stream.write(_LENGTHS[self.form].pack(length) if self.form else unsigned_varint(length + 1))

    def _check_null(self) -> None:
        if not self.nullable:
            raise InvalidValue(f"{self.where} must not be null at this version")

    def _parse(self, stream: Cursor, context: Any, path: str) -> Any:
        length = self._parse_length(stream)
        if length == -1 and self.nullable:
            return None
        return self._parse_content(length, stream)

    def _build(self, obj: Any, stream: GatherWriter, context: Any, path: str) -> None:
        if obj is None:
            self._check_null()
            self._build_length(-1, stream)
        else:
            self._build_content(obj, stream)

    def _parse_content(self, length: int, stream: Cursor) -> Any:
        raise NotImplementedError

    def _build_content(self, obj: Any, stream: GatherWriter) -> None:
        raise NotImplementedError

    def emit_read(self, out: ReadEmitter) -> str:
        length = out.length(self.form, "length", self._emit_check_length())
        target = out.name(self._hint())
        if not self.nullable:
            self._emit_read_content(out, length, target)
            return target
        with out.block(f"if {length} == -1:"):
            out.line(f"{target} = None")
        with out.block("else:"):
            self._emit_read_content(out, length, target)
        return target

    def _emit_check_length(self) -> str:
        return ""

    def _emit_read_content(self, out: ReadEmitter, length: str, target: str) -> None:
        raise NotImplementedError

    def _emit_slice(self, out: ReadEmitter, length: str) -> str:
        """Generate the check that `length` bytes are left. Returns the variable of the position after them."""
        stop = out.name("stop")
        out.line(f"{stop} = at + {length}")
        with out.block(f"if not at <= {stop} <= end:"):
            out.line(f"refuse_length({self.where!r}, {length}, end - at)")
        return stop


class String(Prefixed):
    """A string in UTF-8 of at most `MAX_STRING` bytes."""

    def __init__(self, where: str, compact: bool, nullable: bool) -> None:
        super().__init__(where, "h", compact, nullable)

    def _parse_content(self, length: int, stream: Cursor) -> str:
        check_string(self.where, length)
        return str(stream.take(length, self.where), "utf-8")

    def _emit_check_length(self) -> str:
        return f"check_string({self.where!r}, %s - 1)"

    def _build_content(self, obj: str, stream: GatherWriter) -> None:
        raw = obj.encode()
        self._build_length(len(raw), stream)
        stream.write(raw)

    def _emit_read_content(self, out: ReadEmitter, length: str, target: str) -> None:
        stop = self._emit_slice(out, length)
        out.line(f"{target} = str(view[at:{stop}], 'utf-8')")
        out.line(f"at = {stop}")

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        raw = out.name("raw")
        if self.nullable:
            out.line(f"{raw} = None if {value} is None else {value}.encode()")
            out.length(self.form, f"(-1 if {raw} is None else len({raw}))")
            with out.block(f"if {raw}:"):
                out.part(raw)
        else:
            out.line(f"{raw} = {value}.encode()")
            out.length(self.form, f"len({raw})")
            out.part(raw)


class Bytes(Prefixed):
    """Bytes. Reading copies them."""

    def __init__(self, where: str, compact: bool, nullable: bool) -> None:
        super().__init__(where, "i", compact, nullable)

    def _parse_content(self, length: int, stream: Cursor) -> bytes | memoryview:
        return bytes(stream.take(length, self.where))

    def _build_content(self, obj: Any, stream: GatherWriter) -> None:
        self._build_length(len(obj), stream)
        if len(obj):
            stream.write(self._part(obj))

    def _part(self, obj: Any) -> bytes | Opaque:
        return bytes(obj)

    def _emit_read_content(self, out: ReadEmitter, length: str, target: str) -> None:
        stop = self._emit_slice(out, length)
        out.line(f"{target} = bytes(view[at:{stop}])")
        out.line(f"at = {stop}")

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        content, size = out.name("content"), out.name("content_size")
        out.line(f"{content} = {value}")
        out.line(f"{size} = " + (f"-1 if {content} is None else " if self.nullable else "") + f"len({content})")
        out.length(self.form, size)
        with out.block(f"if {size} > 0:"):
            out.part(self._emit_part(content))

    def _emit_part(self, content: str) -> str:
        return f"bytes({content})"


class Records(Bytes):
    """Record batches. Reading returns a view of the frame; writing passes on any sized object unchanged."""

    def _parse_content(self, length: int, stream: Cursor) -> memoryview:
        return stream.take(length, self.where)

    def _part(self, obj: Any) -> Opaque:
        return Opaque(obj)

    def _emit_read_content(self, out: ReadEmitter, length: str, target: str) -> None:
        stop = self._emit_slice(out, length)
        out.line(f"{target} = view[at:{stop}]")
        out.line(f"at = {stop}")

    def _emit_part(self, content: str) -> str:
        return f"Opaque({content})"


class Array(Prefixed):
    """A list of values of one type."""

    def __init__(self, where: str, element: WireType, compact: bool, nullable: bool) -> None:
        super().__init__(where, "i", compact, nullable)
        self.element = element

    def _parse_content(self, length: int, stream: Cursor) -> list[Any]:
        left = stream.end - stream.at
        if not 0 <= length <= stream.elements_left or length * self.element.minimum > left:
            refuse_count(self.where, length, stream.elements_left, left, stream.most_elements)
        stream.elements_left -= length
        return [self.element._parse(stream, None, "") for _ in range(length)]

    def _build_content(self, obj: list[Any], stream: GatherWriter) -> None:
        self._build_length(len(obj), stream)
        for value in obj:
            self.element._build(value, stream, None, "")

    def _emit_read_content(self, out: ReadEmitter, length: str, target: str) -> None:
        minimum = self.element.minimum
        with out.block(f"if not 0 <= {length} <= elements_left or {length} * {minimum} > end - at:"):
            out.line(f"refuse_count({self.where!r}, {length}, elements_left, end - at, io.most_elements)")
        out.line(f"elements_left -= {length}")
        if isinstance(self.element, Fixed) and len(self.element.form) == 1:
            out.line(f"{target} = list(unpack_from('>%d{self.element.form}' % {length}, view, at))")
            out.line(f"at += {length} * {minimum}")
            return
        out.line(f"{target} = []")
        with out.block(f"for _ in range({length}):"):
            value = self.element.emit_read(out)
            out.flush()
            out.line(f"{target}.append({value})")

    def emit_write(self, out: WriteEmitter, value: str) -> None:
        items = out.name("items")
        out.line(f"{items} = {value}")
        out.length(self.form, (f"(-1 if {items} is None else len({items}))") if self.nullable else f"len({items})")
        with out.block(f"if {items}:"):
            if isinstance(self.element, Fixed) and len(self.element.form) == 1:
                out.part(f"pack('>%d{self.element.form}' % len({items}), *{items})")
                return
            item = out.name("item")
            with out.block(f"for {item} in {items}:"):
                self.element.emit_write(out, item)
