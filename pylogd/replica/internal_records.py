"""The fields of the records in internal topics: numbers are big-endian, strings have their length in front."""

from __future__ import annotations

import struct
from typing import Final

from pylogd.errors import PylogdError

SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")


class InvalidRecord(PylogdError):
    """A record of an internal topic is malformed."""


class RecordCursor:
    """Reads the fields of a record in order. Its methods raise InvalidRecord."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

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
        try:
            return None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecord("a string is not UTF-8") from error

    def sized(self) -> bytes:
        """Return the next bytes; null counts as none."""
        return self.take(self.number(INT)) or b""

    def take(self, length: int) -> bytes | None:
        """Return so many bytes; None for -1."""
        if length == -1:
            return None
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise InvalidRecord(f"a field of {length} bytes does not fit in the {len(self._data) - self._at} left")
        taken = self._data[self._at : end]
        self._at = end
        return taken


def text_field(value: str | None) -> bytes:
    """Encode a string with its length as int16."""
    if value is None:
        return SHORT.pack(-1)
    raw = value.encode("utf-8")
    return SHORT.pack(len(raw)) + raw


def bytes_field(value: bytes) -> bytes:
    """Encode bytes with their length as int32."""
    return INT.pack(len(value)) + value
