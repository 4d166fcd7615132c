"""Read request headers and the tagged fields of flexible ones (KIP-482), with `struct` for speed.

Request header v1 has API key, version, correlation id, and nullable client id. v2 adds tagged fields after the client
id, whose length is still an int16. Response header v0 has the correlation id. v1 adds tagged fields.
"""

from __future__ import annotations

import struct

from pylogd.wire.exceptions import RemoteProtocolError

_REQUEST = struct.Struct(">hhih")
_REQUEST_SIZE = _REQUEST.size
_unpack_request = _REQUEST.unpack_from
RESPONSE_V0 = struct.Struct(">ii")  # frame length, correlation id
RESPONSE_V1 = struct.Struct(">iib")  # frame length, correlation id, number of tagged fields (0)
MAX_TAGGED_FIELDS = 10_000


def read_request_header(frame: memoryview) -> tuple[int, int, int, str | None, int]:
    """Return (API key, version, correlation id, client id, position after them). Raises RemoteProtocolError.

    At this position are the tagged fields of a header v2, or the body after a header v1.
    """
    if len(frame) < _REQUEST_SIZE:
        raise RemoteProtocolError(f"a request of {len(frame)} bytes is too short for a header")
    api_key, version, correlation_id, length = _unpack_request(frame)
    if length < 0:
        return api_key, version, correlation_id, None, _REQUEST_SIZE
    end = _REQUEST_SIZE + length
    if end > len(frame):
        raise RemoteProtocolError(f"the client id of {length} bytes extends past the end of the request")
    try:
        return api_key, version, correlation_id, str(frame[_REQUEST_SIZE:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("the client id is not UTF-8") from error


def skip_tagged_fields(frame: memoryview, at: int) -> int:
    """Return the position after the tagged fields that begin at `at`. Raises RemoteProtocolError."""
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
            raise RemoteProtocolError("a tagged field extends past the end of the request")
    return at


def read_unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at`, of at most 5 bytes, and the position after it. Raises RemoteProtocolError."""
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
        raise RemoteProtocolError("a varint extends past the end of the request") from None
    if value > 0xFFFFFFFF:
        raise RemoteProtocolError("a varint has more than 32 bits")
    return value, at
