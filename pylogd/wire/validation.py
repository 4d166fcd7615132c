"""Whether what is behind a batch's header is what the header says.

Strategy: records that are not compressed are walked by the compiled loop in `_speedups`; of compressed ones only the
frame's magic is compared, or, for snappy's raw blocks, which have none, the block's own structure. The functions in
Python find the same, slowly: they say what is meant, serve where the loop could not be compiled, and a property test
holds both against each other.

Rules: what is accepted here can be read by this project's decoder and by the Java client, which reads no varint of
more than five bytes for a length or an offset. Any bytes at all have a result; nothing is raised.

Source: Kafka documentation, "Record Batch" and "Record"; the frame formats of gzip (RFC 1952), LZ4, Zstandard
(RFC 8878) and Snappy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pylogd.wire.compression import CompressionType, decompress
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER, HEADER_SIZE, BatchHeader, Buffer, payload_of, speedups

#: Bytes of a batch up to which a walk over records that are not compressed takes about a millisecond, or less.
INLINE_BYTES = (1 << 20) + 12 if speedups is not None else 1 << 14
#: Refused records that are named at most, for each reason.
MAX_PLACES = 1000

_INT_BYTES, _LONG_BYTES = 5, 10  # of varints of 32 and 64 bits
_MIN_RECORD = 7
_MAX_STAMP, _MIN_STAMP = (1 << 63) - 1, -(1 << 63)
_NO_STAMP = -1
_CODEC_MASK = 7
_ATTRIBUTES_LOW_BYTE = 22
_count_of: Callable[[Buffer], tuple[int]] = struct.Struct(">57xi").unpack_from
_MAGICS = {
    CompressionType.GZIP: b"\x1f\x8b\x08",
    CompressionType.LZ4: b"\x04\x22\x4d\x18",
    CompressionType.ZSTD: b"\x28\xb5\x2f\xfd",
}
_XERIAL = b"\x82SNAPPY\0"
_SNAPPY_EXPANSION = 22  # at most: an element of three bytes makes 64

_OVER_BATCH = "goes over the end of its batch"
_OVER_RECORD = "has fields that go over its end"
_LONG_NUMBER = "has a number of too many bytes"
_BAD_DELTA = "does not have the next offset"
_BAD_LENGTH = "has a negative length"
_BAD_HEADERS = "has a count of headers that can't be"
_NO_HEADER_KEY = "has a header without a key"
_BAD_END = "does not end with its fields"
_BAD_STAMP = "has a time stamp of more than 64 bits"
_BAD_COUNT = "is not there"
_TRAILING = "is followed by other bytes"


class Inspection(NamedTuple):
    """What a walk over the records of a batch has found.

    good: sound records, up to the first that is not. problem: what record number `good` does wrong, or the last one
    if all are sound; None for nothing. oldest: the least time stamp that is not negative, -1 if all are; newest: the
    largest. keyless, untimely: records without a key, and with a time stamp outside of what was asked for, negative
    ones not counted; the first MAX_PLACES of each are named by their numbers.
    """

    good: int
    problem: str | None
    oldest: int
    newest: int
    keyless: int
    keyless_places: list[int]
    untimely: int
    untimely_places: list[int]


def inspect_records(data: Buffer, count: int, base_timestamp: int, earliest: int, latest: int) -> Inspection:
    """Walk over the `count` records that fill `data`, decompressed and without the header.

    Lets other threads run if `data` is large and the loop is compiled.
    """
    if speedups is not None:
        return Inspection(*speedups.inspect_records(data, count, base_timestamp, earliest, latest))
    return inspect_slowly(data, count, base_timestamp, earliest, latest)


def inspect_slowly(data: Buffer, count: int, base_timestamp: int, earliest: int, latest: int) -> Inspection:
    """The same in Python."""
    data = bytes(data)
    keyless: list[int] = []
    untimely: list[int] = []
    newest, oldest, good, position = _MIN_STAMP, _MAX_STAMP, 0, 0
    problem = None
    try:
        if not 1 <= count <= len(data) // _MIN_RECORD:
            raise _Bad(_BAD_COUNT)
        for index in range(count):
            position, stamp, without_key = _inspect_record(data, position, index, base_timestamp)
            newest = max(newest, stamp)
            if without_key:
                keyless.append(index)
            if stamp >= 0:
                oldest = min(oldest, stamp)
                if not earliest <= stamp <= latest:
                    untimely.append(index)
            good += 1
        if position != len(data):
            raise _Bad(_TRAILING)
    except _Bad as bad:
        problem = bad.args[0]
    return Inspection(
        good, problem, oldest if oldest != _MAX_STAMP else _NO_STAMP, newest if good else _NO_STAMP,
        len(keyless), keyless[:MAX_PLACES], len(untimely), untimely[:MAX_PLACES],
    )  # fmt: skip


def batch_is_valid_slowly(batch: Buffer, earliest: int) -> bool:
    """See `batch_is_valid`."""
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
        and found.newest == header.max_timestamp
        and (found.oldest == _NO_STAMP or found.oldest >= earliest)
    )


def frame_is_valid(batch: Buffer, _earliest: int = 0) -> bool:
    """Whether compressed records begin as frames of their codec do; of others, whether so many have a place."""
    codec = batch[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK
    if not codec:
        return _MIN_RECORD * _count_of(batch)[0] <= len(batch) - HEADER_SIZE
    start = bytes(batch[HEADER_SIZE : HEADER_SIZE + len(_XERIAL)])
    if len(start) <= _INT_BYTES - 1:
        return False
    if codec == CompressionType.SNAPPY:
        return start == _XERIAL or min(start[:_INT_BYTES]) < 128
    return codec in _MAGICS and start.startswith(_MAGICS[CompressionType(codec)])


#: Whether the records of a batch can be read and agree with its header, as far as can be seen without decompression.
#: Takes the whole batch and the earliest time stamp allowed. Not compressed: count, offsets, structure, time stamps,
#: of which the largest must be the header's. Compressed: whether they are what the codec makes.
batch_is_valid: Callable[[Buffer, int], bool] = (
    speedups.batch_is_valid if speedups is not None else batch_is_valid_slowly
)


def inspect_batch(batch: Buffer, header: BatchHeader, most: int, earliest: int, latest: int) -> Inspection:
    """Walk over the records of a whole batch, decompressed where they have to be.

    Raises InvalidRecordBatch if they can't be, or would take more than `most` bytes.
    """
    data = payload_of(batch, header, most)
    return inspect_records(data, header.record_count, header.base_timestamp, earliest, latest)


class _Bad(Exception):
    """What is wrong with a record."""


def _inspect_record(data: bytes, position: int, index: int, base_timestamp: int) -> tuple[int, int, bool]:
    """The position behind a record, its time stamp, and whether it has no key."""
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
    stamp, position = _number(data, position + 1, end, _LONG_BYTES)  # behind the attributes: none are in use
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
    """A varint of at most so many bytes, before zig-zag is undone, and the position behind it."""
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
    """The position behind bytes that have their length in front, and whether they are null."""
    length, position = _number(data, position, end, _INT_BYTES)
    if length == 1:
        return position, True
    if length & 1:
        raise _Bad(_BAD_LENGTH)
    if length >> 1 > end - position:
        raise _Bad(_OVER_RECORD)
    return position + (length >> 1), False
