"""The input and output of codecs, which replace construct's file-like streams.

A `Cursor` is a position in a frame; reading moves it and copies nothing. A `GatherWriter` collects the parts of a
message: consecutive bytes are joined at the end, while records (a view of a frame, a slice of a file) stay the objects
that were passed in, so that the transport can send them without copying.
"""

from __future__ import annotations

import struct
from collections.abc import Sized
from typing import Any, NoReturn

from pylogd.base.limits.elements import MAX_ELEMENTS
from pylogd.wire.exceptions import InvalidValue, RemoteProtocolError, TooManyElements
from pylogd.wire.headers import MAX_TAGGED_FIELDS, read_unsigned_varint

#: the longest string in bytes, also for compact strings, as in Kafka's generated readers
MAX_STRING = (1 << 15) - 1
UUID_SIZE = 16


class Cursor:
    """A position in a frame. Reading past the end raises RemoteProtocolError, struct.error or IndexError.

    most_elements: the most array elements and tagged fields that the message may have.
    elements_left: how many more it may have.
    """

    __slots__ = ("at", "elements_left", "end", "most_elements", "view")

    def __init__(self, view: memoryview, most_elements: int = MAX_ELEMENTS) -> None:
        self.view = view
        self.at = 0
        self.end = len(view)
        self.most_elements = self.elements_left = most_elements

    def fixed(self, form: struct.Struct) -> Any:
        """Read the value that `form` describes."""
        (value,) = form.unpack_from(self.view, self.at)
        self.at += form.size
        return value

    def unsigned_varint(self) -> int:
        """Read an unsigned varint."""
        value, self.at = read_unsigned_varint(self.view, self.at)
        return value

    def take(self, size: int, where: str) -> memoryview:
        """Return a view of the next `size` bytes. `where` names the field in the error."""
        stop = self.at + size
        if not self.at <= stop <= self.end:
            refuse_length(where, size, self.end - self.at)
        taken = self.view[self.at : stop]
        self.at = stop
        return taken


class Opaque:
    """A part that is passed on unchanged, such as a slice of a file."""

    __slots__ = ("part",)

    def __init__(self, part: Sized) -> None:
        self.part = part


class GatherWriter(list[bytes | Opaque]):
    """Collects the parts of a message in order."""

    __slots__ = ()

    #: adds bytes, or an Opaque
    write = list.append

    def parts(self) -> list[Sized]:
        """Return the parts, with consecutive bytes joined."""
        joined: list[Sized] = []
        pieces: list[bytes] = []
        for part in self:
            if isinstance(part, Opaque):
                if pieces:
                    joined.append(b"".join(pieces))
                    pieces = []
                joined.append(part.part)
            else:
                pieces.append(part)
        if pieces:
            joined.append(b"".join(pieces))
        return joined


#: the encodings of all values that fit in a varint of one byte
SHORT_VARINTS = tuple(bytes((value,)) for value in range(0x80))


def unsigned_varint(value: int) -> bytes:
    """Encode a non-negative number as an unsigned varint: 7 bits in each byte, the low ones first."""
    if value < 0x80:
        return SHORT_VARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tags(view: memoryview, at: int, most: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Read the tagged fields that begin at `at`, at most `most`.

    Returns the start and end position of each field by its tag, and the position after all fields. Raises
    RemoteProtocolError if there are too many, a tag occurs twice, or a field extends past the end.
    """
    count, at = read_unsigned_varint(view, at)
    if count > min(most, MAX_TAGGED_FIELDS):
        text = f"{count} tagged fields are over the limit of {min(most, MAX_TAGGED_FIELDS)}"
        raise RemoteProtocolError(text) if count > MAX_TAGGED_FIELDS else TooManyElements(text, count)
    found: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        tag, at = read_unsigned_varint(view, at)
        size, at = read_unsigned_varint(view, at)
        if at + size > len(view):
            refuse_length(f"tagged field {tag}", size, len(view) - at)
        if tag in found:
            raise RemoteProtocolError(f"tagged field {tag} occurs twice")
        found[tag] = (at, at + size)
        at += size
    return found, at


def refuse_length(where: str, length: int, left: int) -> NoReturn:
    """Raise RemoteProtocolError for a length that is negative, a null that is not allowed, or more than `left`."""
    if length < 0:
        raise RemoteProtocolError(f"{where}: a length of {length} is not allowed here")
    raise RemoteProtocolError(f"{where}: {length} bytes are announced, but only {left} are left")


def check_string(where: str, length: int) -> None:
    """Raise RemoteProtocolError if a string is too long."""
    if length > MAX_STRING:
        raise RemoteProtocolError(f"{where}: a string of {length} bytes is over the limit of {MAX_STRING}")


def refuse_count(where: str, count: int, elements_left: int, left: int, most: int) -> NoReturn:
    """Raise RemoteProtocolError for a number of elements that is negative, too large, or does not fit in the frame.

    most: the limit of the message; more elements raise TooManyElements.
    """
    if count < 0:
        raise RemoteProtocolError(f"{where}: {count} elements are not allowed here")
    if elements_left < count <= left:
        total = most - elements_left + count
        raise TooManyElements(f"{where}: {count} elements are over the limit of {most} in a message", total)
    raise RemoteProtocolError(f"{where}: {count} elements are announced, but only {left} bytes are left")


def refuse_tag_size(where: str, announced: int, used: int) -> NoReturn:
    """Raise RemoteProtocolError for a known tagged field whose content does not have the announced size."""
    raise RemoteProtocolError(f"{where}: the tagged field announced {announced} bytes, its content takes {used}")


def check_uuid(value: bytes) -> None:
    """Raise InvalidValue unless `value` has the length of a uuid: `struct` would truncate or pad it."""
    if len(value) != UUID_SIZE:
        raise InvalidValue(f"a uuid has {UUID_SIZE} bytes, not {len(value)}")
