"""Decode the fields of a record in the general way: varints of any length, headers.

Rules: malformed input raises InvalidRecordBatch, or IndexError if it ends too early.
"""

from __future__ import annotations

from pylogd.wire.exceptions import InvalidRecordBatch

Header = tuple[str, bytes | None]

_MAX_VARINT_SHIFT = 63


def decode_deltas(data: bytes, position: int) -> tuple[int, int, int, int]:
    """Return a record's end, its time stamp and offset deltas (zig-zag encoded), and the position after them."""
    size = data[position]
    if size < 128:
        position += 2  # skip the attributes, which are unused
    elif (high := data[position + 1]) < 128:
        size += (high << 7) - 128
        position += 3
    else:
        size, position = decode_unsigned(data, position)
        position += 1
    end = position + (size >> 1) - 1
    stamp = data[position]
    if stamp < 128:
        position += 1
    elif (high := data[position + 1]) < 128:
        stamp += (high << 7) - 128
        position += 2
    else:
        stamp, position = decode_unsigned(data, position)
    delta = data[position]
    if delta < 128:
        position += 1
    elif (high := data[position + 1]) < 128:
        delta += (high << 7) - 128
        position += 2
    else:
        delta, position = decode_unsigned(data, position)
    return end, stamp, delta, position


def decode_key_and_value(data: bytes, position: int) -> tuple[bytes | None, bytes | None, int]:
    """Return a record's key and value, and the position after them. Their lengths are zig-zag encoded; 1 is null."""
    key = value = None
    size = data[position]
    position += 1
    if size != 1:
        if size > 127:
            size, position = decode_unsigned(data, position - 1)
        if size & 1:
            raise InvalidRecordBatch("a key has a negative length")
        start, position = position, position + (size >> 1)
        key = data[start:position]
    size = data[position]
    position += 1
    if size != 1:
        if size > 127:
            if (high := data[position]) < 128:
                size += (high << 7) - 128
                position += 1
            else:
                size, position = decode_unsigned(data, position - 1)
        if size & 1:
            raise InvalidRecordBatch("a value has a negative length")
        start, position = position, position + (size >> 1)
        value = data[start:position]
    return key, value, position


def decode_unsigned(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, still zig-zag encoded, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value >> 64:
                raise InvalidRecordBatch("a varint has more than 64 bits")
            return value, position
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise InvalidRecordBatch("a varint has more than ten bytes")


def decode_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    """Return a record's headers and the position after them. Invalid UTF-8 in keys becomes surrogate escapes."""
    count, position = decode_unsigned(data, position)
    if count & 1 or count > len(data) - position:  # a header has at least two bytes, and zig-zag doubles the number
        raise InvalidRecordBatch("a record has an impossible number of headers")
    headers: list[Header] = []
    for _ in range(count >> 1):
        key, position = _decode_sized(data, position)
        if key is None:
            raise InvalidRecordBatch("a header has no key")
        value, position = _decode_sized(data, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _decode_sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Return the bytes, or None, that follow their length as a varint (-1 for null), and the position after them."""
    n, position = decode_unsigned(data, position)
    if n == 1:
        return None, position
    if n & 1 or n >> 1 > len(data) - position:
        raise InvalidRecordBatch("a field extends past the end of its batch")
    end = position + (n >> 1)
    return data[position:end], end
