"""Decode and encode runs of similar records fast, in Python: a substitute for `_speedups` if it could not be compiled.

Strategy: the records of a batch mostly have the same *shape*: the size in bytes of each varint before the value. A
`struct` of that shape reads all varints of a record at once, and tables decode varints of one and two bytes. The
records of a run become `Record`s all together. A run ends before the first record that has another shape, or is in any
way unusual or wrong; the caller decodes that record in the general way (`record_fields`).

Rules: a run decodes only records that the general way decodes too, and to the same values; property tests prove it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, count, repeat
from typing import Any, NamedTuple

from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.record_fields import Header, decode_headers

_FORMATS = {1: "B", 2: "H"}
_NULL = 1  # the zig-zag encoded length of a null key
_INVALID = -(1 << 62)  # in tables: not a varint of this size, or below zero

#: Makes records from their fields: topic, partition, offset, time stamp, key, value, headers.
MakeRecords = Callable[[Iterable[tuple[Any, ...]]], Iterable[Any]]


class BatchFields(NamedTuple):
    """The common fields of a batch's records.

    timestamp: the time stamp of all records; None if each has its own.
    """

    topic: str
    partition: int
    base_offset: int
    base_timestamp: int
    timestamp: int | None


class _Shape(NamedTuple):
    """The sizes in bytes of a record's varints: its size, its two deltas, and its value's length if it has no key.

    value_length: 0 for records with keys.
    """

    size: int
    stamp: int
    delta: int
    value_length: int


class Run:
    """Decode the records of one batch, run by run. `position` and `last_delta` belong to the last record."""

    __slots__ = ("_data", "_make", "_records", "fields", "last_delta", "position")

    def __init__(self, data: bytes, fields: BatchFields, records: list[Any], make: MakeRecords) -> None:
        """`make` makes the records that are added to `records`."""
        self._data = data
        self.fields = fields
        self._records = records
        self._make = make
        self.position = 0
        self.last_delta = -1

    def decode(self, most: int) -> None:
        """Decode up to `most` records that have the shape of the next one. May raise IndexError if data is missing."""
        shape = _shape_at(self._data, self.position)
        if shape is None:
            return
        if shape.value_length:
            self._decode_without_keys(shape, most)
        else:
            self._decode_with_keys(shape, most)

    def _decode_without_keys(self, shape: _Shape, most: int) -> None:
        data, position, base = self._data, self.position, self.fields.base_timestamp
        unpack, head = _struct_of(shape)
        sizes, stamps, deltas, lengths = (_tables()[size] for size in shape)
        first = self.last_delta + 1
        values: list[bytes] = []
        times: list[int] = []
        add_value, add_time = values.append, times.append
        try:
            for expected in range(first, first + most):
                size, _, stamp, delta, key, length = unpack(data, position)
                start = position + head
                stop = start + lengths[length]
                end = position + shape.size + sizes[size]
                stamp = stamps[stamp]
                if stop + 1 != end or key != _NULL or deltas[delta] != expected or stamp < 0 or data[stop]:
                    break
                add_value(data[start:stop])
                add_time(base + stamp)
                position = end
        except (IndexError, struct.error):
            pass  # the general way raises the right error
        self.position = position
        self._add(times, repeat(None), values, repeat(()))

    def _decode_with_keys(self, shape: _Shape, most: int) -> None:
        data, position, base = self._data, self.position, self.fields.base_timestamp
        unpack, head = _struct_of(shape)
        sizes, stamps, deltas, _ = (_tables()[size or 1] for size in shape)
        first = self.last_delta + 1
        times: list[int] = []
        rest: list[tuple[bytes, bytes, tuple[Header, ...]]] = []
        headers: tuple[Header, ...]
        try:
            for expected in range(first, first + most):
                size, _, stamp, delta, key_size = unpack(data, position)
                start = position + head
                key_end = start + (key_size >> 1)
                length, at = data[key_end], key_end + 1
                if length > 127:
                    length += (data[at] << 7) - 128
                    at += 1
                end = position + shape.size + sizes[size]
                stop = at + (length >> 1)
                stamp = stamps[stamp]
                if stop >= end or (key_size | length) & 1 or key_size > 127:
                    break
                if deltas[delta] != expected or stamp < 0:
                    break
                headers, stop_at = ((), stop + 1) if not data[stop] else decode_headers(data, stop)
                if stop_at != end:
                    break
                rest.append((data[start:key_end], data[at:stop], headers))
                times.append(base + stamp)
                position = end
        except (IndexError, struct.error, InvalidRecordBatch):
            pass
        self.position = position
        if rest:
            self._add(times, *zip(*rest, strict=True))

    def _add(
        self, times: Iterable[int], keys: Iterable[bytes | None], values: Sequence[bytes],
        headers: Iterable[tuple[Header, ...]],
    ) -> None:  # fmt: skip
        """Make records from their fields. Their offsets follow the offset of the last record."""
        topic, partition, base_offset, _, timestamp = self.fields
        first = base_offset + self.last_delta + 1
        offsets = range(first, first + len(values))
        stamps = times if timestamp is None else repeat(timestamp)
        self._records.extend(
            self._make(zip(repeat(topic), repeat(partition), offsets, stamps, keys, values, headers, strict=False))
        )
        self.last_delta += len(values)


def _shape_at(data: bytes, position: int) -> _Shape | None:
    """Return the shape of the record at `position`, or None if it has a varint of more than two bytes."""
    size = _varint_size(data, position)
    stamp = _varint_size(data, position + size + 1)
    delta = _varint_size(data, position + size + 1 + stamp)
    key = position + size + 1 + stamp + delta
    value = _varint_size(data, key + 1) if data[key] == _NULL else 0
    return None if max(size, stamp, delta, value) > 2 else _Shape(size, stamp, delta, value)


def _varint_size(data: bytes, position: int) -> int:
    size = 1
    while data[position] > 127:
        position += 1
        size += 1
    return size


@cache
def _struct_of(shape: _Shape) -> tuple[Callable[[bytes, int], tuple[int, ...]], int]:
    """Return a function that unpacks the fields before a record's value or key, and the size of these fields in bytes.

    The fields are: size, attributes, time stamp delta, offset delta, length of the key, and, if there is no key, length
    of the value. Fields of two bytes are little-endian integers.
    """
    size, stamp, delta, value = shape
    fields = _FORMATS[size] + "B" + _FORMATS[stamp] + _FORMATS[delta] + "B" + _FORMATS.get(value, "")
    codec = struct.Struct("<" + fields)
    return codec.unpack_from, codec.size


@cache
def _tables() -> dict[int, list[int]]:
    """Return tables that decode varints of one and of two bytes, as `_struct_of` gives them, to numbers from 0 on."""
    one = [_INVALID] * 256
    one[0:128:2] = range(64)
    two = [_INVALID] * (1 << 15)
    for number in range(64, 8192):
        zigzag = number << 1
        two[zigzag & 0x7F | 0x80 | zigzag >> 7 << 8] = number
    return {1: one, 2: two}


def varint(value: int) -> bytes:
    """Encode a signed number as a varint with zig-zag, like Protocol Buffers' sint64."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


NULL = varint(-1)  # the length of a null value
_TABLED = 8192  # the smallest number whose varint has three bytes
_SHORT = _TABLED - 32  # records with shorter values and no key are shorter than `_TABLED`


class _ValueHeads(dict[int, bytes]):
    """The bytes before a value of a given length in a record without a key: both lengths."""

    def __missing__(self, size: int) -> bytes:
        head = self[size] = NULL + varint(size)
        return head


_value_heads = _ValueHeads()


@cache
def _varints() -> list[bytes]:
    """Return the varints of small numbers. They are computed when records are first encoded in Python."""
    return [varint(n) for n in range(_TABLED)]


def encode_run(
    records: Sequence[tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]],
    base_timestamp: int,
    encode_headers: Callable[[Sequence[Header]], bytes],
) -> bytes:
    """Encode the records of a batch, without header and compression.

    records: tuples with the fields of `NewRecord`.
    """
    parts: list[bytes] = []
    extend = parts.extend
    ready, heads = _varints(), _value_heads
    last_timestamp, stamp = None, b""
    for (key, value, timestamp, headers), offset in zip(
        records, chain(ready, map(varint, count(_TABLED))), strict=False
    ):
        if timestamp != last_timestamp:
            last_timestamp, delta = timestamp, timestamp - base_timestamp
            stamp = b"\0" + (ready[delta] if 0 <= delta < _TABLED else varint(delta))
        if key is None and not headers and value is not None and (length := len(value)) < _SHORT:
            head = heads[length]
            size = ready[len(stamp) + len(offset) + len(head) + length + 1]
            extend((size, stamp, offset, head, value, b"\0"))
            continue
        if key is None:
            key_size, k = NULL, b""
        else:
            key_size, k = ready[len(key)] if len(key) < _TABLED else varint(len(key)), key
        if value is None:
            value_size, v = NULL, b""
        else:
            value_size, v = ready[len(value)] if len(value) < _TABLED else varint(len(value)), value
        tail = b"\0" if not headers else headers if isinstance(headers, bytes) else encode_headers(headers)
        total = len(stamp) + len(offset) + len(key_size) + len(k) + len(value_size) + len(v) + len(tail)
        size = ready[total] if total < _TABLED else varint(total)
        extend((size, stamp, offset, key_size, k, value_size, v, tail))
    return b"".join(parts)
