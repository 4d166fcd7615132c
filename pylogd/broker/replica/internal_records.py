"""Encode and decode the fields of records in internal topics: big-endian numbers, length-prefixed strings.

Keys and the older values are plain: the length of a string is an int16, of bytes an int32. Newer values are flexible,
like the protocol's newer messages. A length is encoded as a varint of the length plus one, with 0 for null, and each
structure ends with its tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from pylogd.base.errors import PylogdError

T = TypeVar("T")

SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
#: The encoding of "no tagged fields".
NO_TAGS: Final = b"\0"
_MOST_VARINT_BITS: Final = 35
#: Varints of one byte.
_SMALL: Final = tuple(bytes((value,)) for value in range(128))


class InvalidRecord(PylogdError):
    """A record of an internal topic is malformed."""


class RecordCursor:
    """Reads the fields of a record in order. Its methods raise InvalidRecord."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        """Whether nothing is left to read."""
        return self._at >= len(self._data)

    def number(self, form: struct.Struct) -> int:
        """Return the next number."""
        try:
            value = form.unpack_from(self._data, self._at)[0]
        except struct.error as error:
            raise InvalidRecord(f"the record ends at byte {len(self._data)}, in the middle of a field") from error
        self._at += form.size
        return int(value)

    def text(self) -> str:
        """Return the next string."""
        value = self.nullable_text()
        if value is None:
            raise InvalidRecord("a string is null that must not be")
        return value

    def nullable_text(self) -> str | None:
        """Return the next string, which may be null."""
        raw = self.take(self.number(SHORT))
        return None if raw is None else self._decoded(raw)

    @staticmethod
    def _decoded(raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecord("a string is not UTF-8") from error

    def sized(self) -> bytes:
        """Return the next bytes; null is returned as empty bytes."""
        return self.take(self.number(INT)) or b""

    def take(self, length: int) -> bytes | None:
        """Return the next `length` bytes; None for -1."""
        if length == -1:
            return None
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise InvalidRecord(f"a field of {length} bytes does not fit in the {len(self._data) - self._at} left")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def unsigned(self) -> int:
        """Return the next varint."""
        value = 0
        for shift in range(0, _MOST_VARINT_BITS, 7):
            byte = self.exactly(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise InvalidRecord("a length has more than 5 bytes")

    def exactly(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        taken = self.take(length)
        if taken is None:
            raise InvalidRecord("a field is null that must not be")
        return taken

    def compact_text(self) -> str:
        """Return the next flexible string."""
        value = self.compact_nullable_text()
        if value is None:
            raise InvalidRecord("a string is null that must not be")
        return value

    def compact_nullable_text(self) -> str | None:
        """Return the next flexible string, which may be null."""
        raw = self.take(self.unsigned() - 1)
        return None if raw is None else self._decoded(raw)

    def compact_bytes(self) -> bytes:
        """Return the next flexible bytes."""
        return self.exactly(self.unsigned() - 1)

    def compact_array(self, read: Callable[[RecordCursor], T]) -> list[T]:
        """Return the elements of the next flexible array; `read` returns one."""
        count = self.unsigned() - 1
        if not 0 <= count <= len(self._data):
            raise InvalidRecord(f"an array of {count} elements does not fit in {len(self._data)} bytes")
        return [read(self) for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields that follow, by tag."""
        return {self.unsigned(): self.exactly(self.unsigned()) for _ in range(self.unsigned())}


def text_field(value: str | None) -> bytes:
    """Encode a string with its length as int16."""
    if value is None:
        return SHORT.pack(-1)
    raw = value.encode("utf-8")
    return SHORT.pack(len(raw)) + raw


def bytes_field(value: bytes) -> bytes:
    """Encode bytes with their length as int32."""
    return INT.pack(len(value)) + value


def unsigned_field(value: int) -> bytes:
    """Encode a varint."""
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_text_field(value: str | None) -> bytes:
    """Encode a flexible string."""
    if value is None:
        return unsigned_field(0)
    raw = value.encode("utf-8")
    return unsigned_field(len(raw) + 1) + raw


def compact_bytes_field(value: bytes) -> bytes:
    """Encode flexible bytes."""
    return unsigned_field(len(value) + 1) + value


def compact_int_array_field(values: Collection[int]) -> bytes:
    """Encode a flexible array of int32."""
    return unsigned_field(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def compact_array_field(items: Collection[T], encode: Callable[[T], bytes]) -> bytes:
    """Encode a flexible array."""
    return unsigned_field(len(items) + 1) + b"".join(map(encode, items))


def tags_field(fields: Mapping[int, bytes]) -> bytes:
    """Encode tagged fields, by tag."""
    if not fields:
        return NO_TAGS
    parts = (unsigned_field(tag) + unsigned_field(len(data)) + data for tag, data in sorted(fields.items()))
    return unsigned_field(len(fields)) + b"".join(parts)
