"""Check that the records of a batch are well-formed and agree with the batch's header.

Strategy: the compiled loop in `_speedups` walks over uncompressed records. For compressed records only the codec's
magic number is compared; raw snappy has none, so the structure of the block is checked. The functions in Python give
the same results more slowly: they are the specification, and are used where the loop could not be compiled. A property
test compares both.

Rules: records accepted here can be read by this project's decoder and by the Java client, which reads no varints of
more than five bytes for lengths and offsets. Invalid bytes give a result; they raise nothing.

Source: Kafka documentation, "Record Batch" and "Record"; the frame formats of gzip (RFC 1952), LZ4, Zstandard
(RFC 8878) and Snappy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pylogd.wire.compression import CODECS, XERIAL_MAGIC, CompressionType, decompress
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER, HEADER_SIZE, BatchHeader, Buffer, speedups

#: The size of a batch, in bytes, up to which a walk over uncompressed records takes at most about a millisecond.
INLINE_BYTES = (1 << 20) + 12 if speedups is not None else 1 << 14
#: The most rejected records that a result names, for each reason.
MAX_INDEXES = 1000

_INT_BYTES, _LONG_BYTES = 5, 10  # the largest sizes of varints of 32 and 64 bits
_MIN_RECORD = 7
_MAX_STAMP, _MIN_STAMP = (1 << 63) - 1, -(1 << 63)
_NO_STAMP = -1
_CODEC_MASK = 7
_ATTRIBUTES_LOW_BYTE = 22
_count_of: Callable[[Buffer], tuple[int]] = struct.Struct(">57xi").unpack_from
_SNAPPY_EXPANSION = 22  # an upper bound: an element of three bytes expands to at most 64

# How a record is malformed, after "record 3 of 5 ..."; the same texts are in `_speedups.c`.
_OVER_BATCH = "extends past the end of its batch"
_OVER_RECORD = "has fields that extend past its end"
_LONG_NUMBER = "has a varint of too many bytes"
_BAD_DELTA = "has a wrong offset delta"
_BAD_LENGTH = "has a negative length"
_BAD_HEADERS = "has an impossible number of headers"
_NO_HEADER_KEY = "has a header without a key"
_BAD_END = "has another length than its fields"
_BAD_STAMP = "has a time stamp of more than 64 bits"
_BAD_COUNT = "is missing"
_TRAILING = "is followed by other bytes"


class Inspection(NamedTuple):
    """The result of a walk over the records of a batch.

    valid: the number of valid records before the first malformed one.
    problem: how record number `valid` is malformed, or the last one if all are valid; None if nothing is wrong.
    min_timestamp: the smallest time stamp that is not negative, or -1.
    max_timestamp: the largest time stamp.
    keyless: the number of records without a key.
    mistimed: the number of records whose time stamp is outside the allowed range; negative ones are not counted.
    keyless_indexes, mistimed_indexes: the indexes in the batch of the first MAX_INDEXES such records.
    """

    valid: int
    problem: str | None
    min_timestamp: int
    max_timestamp: int
    keyless: int
    keyless_indexes: list[int]
    mistimed: int
    mistimed_indexes: list[int]


def inspect_records(data: Buffer, count: int, base_timestamp: int, earliest: int, latest: int) -> Inspection:
    """Walk over the `count` records that fill `data`, decompressed and without the batch header.

    earliest, latest: the range of allowed time stamps, in milliseconds since 1970. The compiled loop releases the
    interpreter lock if `data` is large.
    """
    if speedups is not None:
        return Inspection(*speedups.inspect_records(data, count, base_timestamp, earliest, latest))
    return inspect_slowly(data, count, base_timestamp, earliest, latest)


def inspect_slowly(data: Buffer, count: int, base_timestamp: int, earliest: int, latest: int) -> Inspection:
    """Do what `inspect_records` does, in Python."""
    data = bytes(data)
    keyless: list[int] = []
    mistimed: list[int] = []
    largest, smallest, valid, position = _MIN_STAMP, _MAX_STAMP, 0, 0
    problem = None
    try:
        if not 1 <= count <= len(data) // _MIN_RECORD:
            raise _Bad(_BAD_COUNT)
        for index in range(count):
            position, stamp, without_key = _inspect_record(data, position, index, base_timestamp)
            largest = max(largest, stamp)
            if without_key:
                keyless.append(index)
            if stamp >= 0:
                smallest = min(smallest, stamp)
                if not earliest <= stamp <= latest:
                    mistimed.append(index)
            valid += 1
        if position != len(data):
            raise _Bad(_TRAILING)
    except _Bad as bad:
        problem = bad.args[0]
    return Inspection(
        valid, problem, smallest if smallest != _MAX_STAMP else _NO_STAMP, largest if valid else _NO_STAMP,
        len(keyless), keyless[:MAX_INDEXES], len(mistimed), mistimed[:MAX_INDEXES],
    )  # fmt: skip


def batch_is_valid_slowly(batch: Buffer, earliest: int) -> bool:
    """Do what `batch_is_valid` does, in Python."""
    if not frame_is_valid(batch, earliest):
        return False
    header = BatchHeader._make(HEADER.unpack_from(batch))
    payload = memoryview(batch)[HEADER_SIZE:]
    if header.compression == CompressionType.SNAPPY:
        try:
            size = len(decompress(CompressionType.SNAPPY, payload, _SNAPPY_EXPANSION * len(payload)))
            return size // _MIN_RECORD >= header.record_count > 0
        except InvalidRecordBatch:
            return False
    if header.compression:
        return True
    found = inspect_slowly(payload, header.record_count, header.base_timestamp, 0, 0)
    return (
        found.problem is None
        and found.max_timestamp == header.max_timestamp
        and (found.min_timestamp == _NO_STAMP or found.min_timestamp >= earliest)
    )


def frame_is_valid(batch: Buffer, _earliest: int = 0) -> bool:
    """Return whether compressed records begin with their codec's magic number. For uncompressed records, return whether
    the batch has space for the number of records in the header.
    """
    codec = batch[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK
    if not codec:
        return _MIN_RECORD * _count_of(batch)[0] <= len(batch) - HEADER_SIZE
    start = bytes(batch[HEADER_SIZE : HEADER_SIZE + len(XERIAL_MAGIC)])
    return len(start) >= _INT_BYTES and codec in CODECS and CODECS[codec].begins(start)


#: Takes a whole batch and the earliest allowed time stamp. Returns whether the records are well-formed and agree with
#: the header, as far as that can be checked without decompression. Of uncompressed records it checks the number,
#: offsets, structure and time stamps (the largest must be the header's); of compressed records the magic number.
batch_is_valid: Callable[[Buffer, int], bool] = (
    speedups.batch_is_valid if speedups is not None else batch_is_valid_slowly
)


def record_larger_than(data: Buffer, count: int, most: int) -> int | None:
    """Return the index of the first of `count` valid records that has more than `most` bytes; None if none has."""
    view, position = bytes(data), 0
    for index in range(count):
        length, position = _number(view, position, len(view), _INT_BYTES)
        if length >> 1 > most:
            return index
        position += length >> 1
    return None


class _Bad(Exception):
    """A record is malformed. The argument is the reason."""


def _inspect_record(data: bytes, position: int, index: int, base_timestamp: int) -> tuple[int, int, bool]:
    """Return the position after the record at `position`, its time stamp, and whether it has no key. Raises _Bad."""
    try:
        length, position = _number(data, position, len(data), _INT_BYTES)
    except _Bad as bad:
        raise _Bad(_OVER_BATCH if bad.args[0] == _OVER_RECORD else bad.args[0]) from None
    if length & 1:
        raise _Bad(_BAD_LENGTH)
    if length >> 1 > len(data) - position:
        raise _Bad(_OVER_BATCH)
    if not length:
        raise _Bad(_OVER_RECORD)
    end = position + (length >> 1)
    stamp, position = _number(data, position + 1, end, _LONG_BYTES)  # after the attributes, which are unused
    delta, position = _number(data, position, end, _INT_BYTES)
    if delta != index << 1:
        raise _Bad(_BAD_DELTA)
    stamp = base_timestamp + (stamp >> 1 if not stamp & 1 else -(stamp >> 1) - 1)
    if not _MIN_STAMP <= stamp <= _MAX_STAMP:
        raise _Bad(_BAD_STAMP)
    position, without_key = _skip_sized(data, position, end)
    position, _ = _skip_sized(data, position, end)
    headers, position = _number(data, position, end, _INT_BYTES)
    if headers & 1 or headers > end - position:
        raise _Bad(_BAD_HEADERS)
    for _ in range(headers >> 1):
        position, null = _skip_sized(data, position, end)
        if null:
            raise _Bad(_NO_HEADER_KEY)
        position, _ = _skip_sized(data, position, end)
    if position != end:
        raise _Bad(_BAD_END)
    return end, stamp, without_key


def _number(data: bytes, position: int, end: int, most: int) -> tuple[int, int]:
    """Return the varint at `position`, of at most `most` bytes and still zig-zag encoded, and the position after it."""
    value = 0
    for at in range(most):
        if position >= end:
            raise _Bad(_OVER_RECORD)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << 7 * at
        if byte < 128:
            if value >> 64:
                raise _Bad(_LONG_NUMBER)
            return value, position
    raise _Bad(_LONG_NUMBER)


def _skip_sized(data: bytes, position: int, end: int) -> tuple[int, bool]:
    """Return the position after a field of bytes that begins with its length, and whether it is null."""
    length, position = _number(data, position, end, _INT_BYTES)
    if length == 1:
        return position, True
    if length & 1:
        raise _Bad(_BAD_LENGTH)
    if length >> 1 > end - position:
        raise _Bad(_OVER_RECORD)
    return position + (length >> 1), False
