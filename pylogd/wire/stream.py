"""What the codecs read from and write to, in the place of construct's file-like streams.

A `Cursor` is a position in a frame: reading moves it and copies nothing. A `GatherWriter` collects parts: small runs of
bytes are joined at the end, while records (a view of a frame, a slice of a file) pass through as the very objects that
were given, so that the transport may send them without copying.
"""

from __future__ import annotations

import struct
from collections.abc import Sized
from typing import Any, NoReturn

from pylogd.wire.exceptions import InvalidValue, RemoteProtocolError
from pylogd.wire.headers import MAX_TAGGED_FIELDS, read_unsigned_varint

#: elements in all arrays of a message together: a few bytes each on the wire, they are hundreds in memory
MAX_ELEMENTS = 1_000_000
UUID_SIZE = 16


class Cursor:
    """A position in a frame. Every read checks that the bytes are there, or raises RemoteProtocolError.

    `room` is how many array elements the message may still have.
    """

    __slots__ = ("at", "end", "room", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0
        self.end = len(view)
        self.room = MAX_ELEMENTS

    def fixed(self, form: struct.Struct) -> Any:
        """The one value that `form` describes."""
        (value,) = form.unpack_from(self.view, self.at)
        self.at += form.size
        return value

    def unsigned_varint(self) -> int:
        """An unsigned varint."""
        value, self.at = read_unsigned_varint(self.view, self.at)
        return value

    def take(self, size: int, where: str) -> memoryview:
        """The next `size` bytes as a view."""
        stop = self.at + size
        if not self.at <= stop <= self.end:
            refuse_length(where, size, self.end - self.at)
        taken = self.view[self.at : stop]
        self.at = stop
        return taken


class Opaque:
    """A part that must pass through untouched."""

    __slots__ = ("part",)

    def __init__(self, part: Sized) -> None:
        self.part = part


class GatherWriter(list[bytes | Opaque]):
    """Collects the parts of a message in order."""

    __slots__ = ()

    #: takes bytes, or an Opaque
    write = list.append

    def parts(self) -> list[Sized]:
        """The parts, with runs of bytes joined into one."""
        joined: list[Sized] = []
        run: list[bytes] = []
        for part in self:
            if isinstance(part, Opaque):
                if run:
                    joined.append(b"".join(run))
                    run = []
                joined.append(part.part)
            else:
                run.append(part)
        if run:
            joined.append(b"".join(run))
        return joined


#: the varints that are one byte
SHORT_VARINTS = tuple(bytes((value,)) for value in range(0x80))


def unsigned_varint(value: int) -> bytes:
    """A non-negative number as an unsigned varint: 7 bits a byte, the low ones first."""
    if value < 0x80:
        return SHORT_VARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tags(view: memoryview, at: int) -> tuple[dict[int, tuple[int, int]], int]:
    """The tagged fields that begin at `at`, as tag: (start, end), and the position behind them.

    Raises RemoteProtocolError if there are too many, one comes twice, or one runs past the end.
    """
    count, at = read_unsigned_varint(view, at)
    if count > MAX_TAGGED_FIELDS:
        raise RemoteProtocolError(f"{count} tagged fields are over the limit of {MAX_TAGGED_FIELDS}")
    found: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        tag, at = read_unsigned_varint(view, at)
        size, at = read_unsigned_varint(view, at)
        if at + size > len(view):
            refuse_length(f"tagged field {tag}", size, len(view) - at)
        if tag in found:
            raise RemoteProtocolError(f"tagged field {tag} comes twice")
        found[tag] = (at, at + size)
        at += size
    return found, at


def refuse_length(where: str, length: int, left: int) -> NoReturn:
    """Raise for a length that is negative, null where null is not allowed, or more than what is left."""
    if length < 0:
        raise RemoteProtocolError(f"{where}: a length of {length} is not allowed here")
    raise RemoteProtocolError(f"{where}: {length} bytes are announced where {left} are left")


def refuse_count(where: str, count: int, room: int, left: int) -> NoReturn:
    """Raise for a number of elements that is negative, too large, or more than what is left can hold."""
    if count < 0:
        raise RemoteProtocolError(f"{where}: {count} elements are not allowed here")
    if count > room:
        raise RemoteProtocolError(f"{where}: {count} elements are over the limit of {MAX_ELEMENTS} in a message")
    raise RemoteProtocolError(f"{where}: {count} elements are announced where {left} bytes are left")


def refuse_tag_size(where: str, announced: int, used: int) -> NoReturn:
    """Raise for a known tagged field whose content is not as long as it announced."""
    raise RemoteProtocolError(f"{where}: the tagged field announced {announced} bytes, its content takes {used}")


def check_uuid(value: bytes) -> None:
    """Raise InvalidValue unless `value` is as long as a uuid: `struct` would cut it or fill it up."""
    if len(value) != UUID_SIZE:
        raise InvalidValue(f"a uuid has {UUID_SIZE} bytes, not {len(value)}")
