"""Generate the Python source of the functions that read and write messages. The wire types call it when they are
compiled.

Strategy: each message becomes one function, with its structs and arrays inlined as statements. Consecutive fields of
fixed size, including the length of a following string or array, are read or written by a single call of `struct`: a
type *defers* such a field, and a *flush* emits the call for all pending fields. So the variable of a deferred field has
its value only after the next flush.

Variables in the generated source: `view` is the frame, `at` the position in it, `end` its length, `elements_left` how
many array elements the message may still have, and `write` the function that takes the next part.
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
    from pylogd.wire.stream import SHORT_VARINTS, Opaque, check_string, check_uuid, read_tags, unsigned_varint
    from pylogd.wire.stream import refuse_count, refuse_length, refuse_tag_size
    from pylogd.wire.values import ZERO_UUID
"""


class Emitter:
    """Collects the lines of one function, and its pending fields. `code` is construct's code generator."""

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
        """Add a compound statement. The lines that the `with` block adds are its body. Flush before and after it."""
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
        """Return the name of a new variable."""
        return f"{hint}_{self.code.allocateId()}"

    def flush(self) -> None:
        """Emit one call of `struct` for all pending fields."""
        if self._pending:
            self._emit_fixed(self._formats, self._pending)
            self._formats, self._pending = "", []

    def _defer(self, form: str, what: str) -> None:
        self._formats += form
        self._pending.append(what)

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        raise NotImplementedError


class ReadEmitter(Emitter):
    """Generates a function that reads a message."""

    def fixed(self, form: str, hint: str) -> str:
        """Defer a field of fixed size. `form` is the field's letter in `struct`. Return the variable that will hold the
        field.
        """
        target = self.name(hint)
        self._defer(form, target)
        return target

    def length(self, form: str, hint: str, check: str = "") -> str:
        """Read a length, which is -1 for null. `form` is the length's letter in `struct`, "" for a compact length.

        check: a statement, with `%s` for the length plus one, that is executed for compact lengths of two bytes or
        more.

        Returns the variable that holds the length.
        """
        target = self.fixed(form or "B", hint)
        self.flush()
        if not form:
            with self.block(f"if {target} > 127:"):
                self.line(f"{target}, at = read_unsigned_varint(view, at - 1)")
                if check:
                    self.line(check % target)
            self.line(f"{target} -= 1")
        return target

    def function(self, value: str) -> str:
        """Complete the function, which returns the expression `value`. Returns the function's name."""
        self.flush()
        name = self.name("parse")
        head = [f"def {name}(io, this):"]
        head += [f"    {field} = io.{field}" for field in ("view", "at", "end", "elements_left")]
        self.code.append("\n".join([*head, *self.lines, "    io.at = at", f"    return {value}"]))
        return name

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        self.code.append(f"read_{_identifier(formats)} = Struct('>{formats}').unpack_from")
        self.line(f"{', '.join(pending)}, = read_{_identifier(formats)}(view, at)")
        self.line(f"at += {struct.calcsize('>' + formats)}")


class WriteEmitter(Emitter):
    """Generates a function that writes a message."""

    def fixed(self, form: str, expression: str) -> None:
        """Defer a field of fixed size with the value of `expression`."""
        self._defer(form, expression)

    def length(self, form: str, expression: str) -> None:
        """Write the length `expression`, -1 for null. `form` is the length's letter in `struct`, "" for a compact
        length.
        """
        if form:
            self.fixed(form, expression)
            return
        size = self.name("size")
        self.line(f"{size} = {expression} + 1")
        self.part(f"SHORT_VARINTS[{size}] if {size} < 128 else unsigned_varint({size})")

    def part(self, expression: str) -> None:
        """Write the value of `expression`, which is bytes or an Opaque."""
        self.flush()
        self.line(f"write({expression})")

    def function(self) -> str:
        """Complete the function. Returns its name."""
        self.flush()
        name = self.name("build")
        self.code.append(f"def {name}(obj, io, this):\n    write = io.write\n" + "\n".join(self.lines))
        return name

    def _emit_fixed(self, formats: str, pending: list[str]) -> None:
        self.code.append(f"pack_{_identifier(formats)} = Struct('>{formats}').pack")
        self.line(f"write(pack_{_identifier(formats)}({', '.join(pending)}))")


def _identifier(formats: str) -> str:
    return formats.replace("?", "t")
