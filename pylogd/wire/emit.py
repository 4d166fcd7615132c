"""The writers of Python source that the wire types use when construct compiles them.

Strategy: one message becomes one function, with its structs and arrays inlined as plain statements. Consecutive fields
of fixed size, and the length that stands in front of a string or an array, are read or written by a single call of
`struct`: a type *defers* such a field, and a *flush* emits the call for all that are pending. So a value is available
only after the flush that follows it.

In the source, `view`, `at` and `end` are the frame, the position and its length, `room` is how many array elements the
message may still have, and `write` takes the next part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HELPERS = """
    from struct import Struct, pack, unpack_from
    from pylogd.wire.exceptions import UnsupportedVersion
    from pylogd.wire.headers import read_unsigned_varint
    from pylogd.wire.stream import SHORT_VARINTS, Opaque, check_uuid, read_tags, unsigned_varint
    from pylogd.wire.stream import refuse_count, refuse_length, refuse_tag_size
    from pylogd.wire.values import ZERO_UUID
"""


class Emitter:
    """Lines of one function, and what is pending. `code` is construct's code generator, which holds the module."""

    def __init__(self, code: Any) -> None:
        self.code = code
        self.lines: list[str] = []
        self.indent = 1
        self._formats = ""
        self._pending: list[str] = []
        code.append(_HELPERS)

    def line(self, text: str) -> None:
        """Add a statement."""
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a compound statement around what is added within. Nothing stays pending across its borders."""
        self.flush()
        self.line(head)
        self.indent += 1
        before = len(self.lines)
        yield
        self.flush()
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def name(self, hint: str) -> str:
        """A variable that no other field uses."""
        return f"{hint}_{self.code.allocateId()}"

    def flush(self) -> None:
        """Emit the pending fields."""
        if self._pending:
            self._emit_fixed(self._formats, self._pending)
            self._formats, self._pending = "", []

    def _defer(self, form: str, what: str) -> None:
        self._formats += form
        self._pending.append(what)

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        raise NotImplementedError


class ReadEmitter(Emitter):
    """Emits the function that parses."""

    def fixed(self, form: str, hint: str) -> str:
        """Defer a field of fixed size; the variable that will hold it."""
        target = self.name(hint)
        self._defer(form, target)
        return target

    def length(self, form: str, hint: str) -> str:
        """A variable with the length that comes next, -1 for null. `form` is that of the length, "" if compact."""
        target = self.fixed(form or "B", hint)
        self.flush()
        if not form:
            with self.block(f"if {target} > 127:"):
                self.line(f"{target}, at = read_unsigned_varint(view, at - 1)")
            self.line(f"{target} -= 1")
        return target

    def function(self, value: str) -> str:
        """Close the function that returns the expression `value`; its name."""
        self.flush()
        name = self.name("parse")
        head = f"def {name}(io, this):\n    view = io.view\n    at = io.at\n    end = io.end\n    room = io.room\n"
        self.code.append(head + "\n".join(self.lines) + f"\n    io.at = at\n    return {value}")
        return name

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        self.code.append(f"read_{_identifier(formats)} = Struct('>{formats}').unpack_from")
        self.line(f"{', '.join(pending)}, = read_{_identifier(formats)}(view, at)")
        self.line(f"at += {struct.calcsize('>' + formats)}")


class WriteEmitter(Emitter):
    """Emits the function that builds."""

    def fixed(self, form: str, expression: str) -> None:
        """Defer a field of fixed size with the value of `expression`."""
        self._defer(form, expression)

    def length(self, form: str, expression: str) -> None:
        """Write a length, where `expression` is -1 for null. `form` is that of the length, "" if compact."""
        if form:
            self.fixed(form, expression)
            return
        size = self.name("size")
        self.line(f"{size} = {expression} + 1")
        self.part(f"SHORT_VARINTS[{size}] if {size} < 128 else unsigned_varint({size})")

    def part(self, expression: str) -> None:
        """Write the bytes, or the Opaque, that `expression` is."""
        self.flush()
        self.line(f"write({expression})")

    def function(self) -> str:
        """Close the function; its name."""
        self.flush()
        name = self.name("build")
        self.code.append(f"def {name}(obj, io, this):\n    write = io.write\n" + "\n".join(self.lines))
        return name

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        self.code.append(f"pack_{_identifier(formats)} = Struct('>{formats}').pack")
        self.line(f"write(pack_{_identifier(formats)}({', '.join(pending)}))")


def _identifier(formats: str) -> str:
    return formats.replace("?", "t")
