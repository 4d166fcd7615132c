"""Encode a struct around an array of encoded elements, so that encoded elements can be kept and reused.

Strategy: the struct is encoded with an empty array. What is before the array's length, and what is after it, are the
same for any elements. `ArrayCodec` puts a length and the encoded elements in between.

Rules: the array is not nullable. All fields after it have a fixed size, or all before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from pylogd.wire import schema
from pylogd.wire.schema import Codec
from pylogd.wire.stream import unsigned_varint
from pylogd.wire.structs import MessageStruct
from pylogd.wire.types import Array, Fixed

_LENGTH = struct.Struct(">i")


class Around(NamedTuple):
    """The bytes of a struct before its array's length, and after its elements."""

    before: bytes
    after: bytes


class ArrayCodec:
    """Encodes structs of one type and version around the elements of one of their arrays.

    elements: the codec of the array's elements.
    """

    def __init__(self, construct: MessageStruct, name: str, version: int) -> None:
        """`name` is the field with the array."""
        kinds = {field.name: kind for field, kind in construct.regular}
        array = kinds[name]
        assert isinstance(array, Array) and isinstance(array.element, MessageStruct)
        at = list(kinds).index(name)
        before, after = list(kinds.values())[:at], list(kinds.values())[at + 1 :]
        self._compact = construct.flexible
        self._empty = len(self._length(0))
        #: The position of the array's length: from the start, or from the end if it is negative.
        self._at = sum(kind.minimum for kind in before)
        if all(isinstance(kind, Fixed) for kind in after):
            self._at = -sum(kind.minimum for kind in after) - construct.flexible - self._empty
        else:
            assert all(isinstance(kind, Fixed) for kind in before)
        self._whole = Codec(version, construct)
        self.element = array.element
        self.elements = Codec(version, array.element)

    def around(self, value: Any) -> Around:
        """Return the bytes around the elements of a struct with an empty array. Raises the errors of `Codec.encode`."""
        return self.split(_encode(self._whole, value))

    def split(self, encoded: bytes) -> Around:
        """Return the bytes around the elements of an encoded struct with an empty array."""
        begin = self._at if self._at >= 0 else len(encoded) + self._at
        return Around(encoded[:begin], encoded[begin + self._empty :])

    def encode(self, element: Any) -> bytes:
        """Return an encoded element. Raises the errors of `Codec.encode`."""
        return _encode(self.elements, element)

    def join(self, around: Around, elements: Sequence[bytes], count: int | None = None) -> bytes:
        """Return the encoded struct with these elements.

        count: the number of elements, if one of the byte strings may have several.
        """
        length = self._length(len(elements) if count is None else count)
        return b"".join((around.before, length, *elements, around.after))

    def _length(self, count: int) -> bytes:
        return unsigned_varint(count + 1) if self._compact else _LENGTH.pack(count)


@cache
def response_array(api_key: int, version: int, *path: str) -> ArrayCodec:
    """Return the codec of an array in an API's responses.

    path: the names of the arrays on the way from the response to this array.
    """
    construct = schema.response_codec(api_key, version).construct
    for name in path[:-1]:
        construct = ArrayCodec(construct, name, version).element
    return ArrayCodec(construct, path[-1], version)


def _encode(codec: Codec, value: Any) -> bytes:
    (encoded,) = codec.encode(value)
    assert isinstance(encoded, bytes)
    return encoded
