"""Request and response headers (KIP-482 for the flexible ones), read with `struct`: every request has one.

Request header v1: api key, version, correlation id, nullable client id. v2 adds tagged fields behind the client id,
which keeps its old 2-byte length. Response header v0: correlation id. v1 adds tagged fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pylogd.wire.exceptions import RemoteProtocolError

_REQUEST = struct.Struct(">hhih")
RESPONSE_V0 = struct.Struct(">ii")  # length of the frame, correlation id
RESPONSE_V1 = struct.Struct(">iib")  # and an empty tag section
MAX_TAGGED_FIELDS = 10_000


class RequestHeader(NamedTuple):
    """What stands in front of a request. `body_at` is where the body begins in the frame, for a header of v1."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the fields that header versions 1 and 2 share. Raises RemoteProtocolError."""
    if len(frame) < _REQUEST.size:
        raise RemoteProtocolError(f"a request of {len(frame)} bytes is too short for its header")
    api_key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    at = _REQUEST.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None, at)
    end = at + length
    if end > len(frame):
        raise RemoteProtocolError(f"the client id of {length} bytes runs past the end of the request")
    try:
        client_id = str(frame[at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("the client id is not UTF-8") from error
    return RequestHeader(api_key, version, correlation_id, client_id, end)


def skip_tagged_fields(frame: memoryview, at: int) -> int:
    """The position behind the tag section that begins at `at`. Raises RemoteProtocolError."""
    if at < len(frame) and frame[at] == 0:
        return at + 1
    count, at = read_unsigned_varint(frame, at)
    if count > MAX_TAGGED_FIELDS:
        raise RemoteProtocolError(f"{count} tagged fields are over the limit of {MAX_TAGGED_FIELDS}")
    for _ in range(count):
        _tag, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        at += size
        if at > len(frame):
            raise RemoteProtocolError("a tagged field runs past the end of the request")
    return at


def read_unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 5 bytes and the position behind it. Raises RemoteProtocolError."""
    value = shift = 0
    try:
        while True:
            byte = frame[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise RemoteProtocolError("a varint is longer than 5 bytes")
    except IndexError:
        raise RemoteProtocolError("a varint runs past the end of the request") from None
    if value > 0xFFFFFFFF:
        raise RemoteProtocolError("a varint is over 32 bits")
    return value, at
