"""Find consecutive Produce requests that differ only in correlation id and records.

Strategy: a client that sends each message in its own request repeats the same bytes around each message. The first
request of a batch is parsed. A further request only has to have the same bytes between its correlation id and its
records, and to end where its records end. A batch has only requests of the usual shape (see `produce`). Versions before
`FIRST_FLEXIBLE` have an int32 as the size of the records, and no tagged fields.
`tests/property/test_request_batches.py` proves that a client cannot tell the difference.

Source: KIP-482 (flexible versions).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pylogd.wire.fast.produce import (
    BASE_OFFSET_TAIL,
    END_TAGS,
    FIRST,
    FIRST_FLEXIBLE,
    FIRST_TOPIC_ID,
    FIRST_WITH_ZSTD,
    LAST,
    VARINT_MORE,
    encode_response,
    is_zstd,
    read_classic,
    records_size,
)
from pylogd.wire.headers import RESPONSE_V0
from pylogd.wire.values import ZERO_UUID

_LENGTH_SIZE = 4
_HEAD_SIZE = 10
_COMMON_FROM = 8  # the position after the correlation id, in a request without its length
_unpack_head = struct.Struct(">iih").unpack_from  # API and version, correlation id, length of the client id
_unpack_lengths = struct.Struct(">iii").unpack_from  # length of the request, API and version, correlation id
_unpack_body = struct.Struct(">bbhib").unpack_from  # no header tags, transactional id, acks, timeout, topics + 1
_unpack_partition = struct.Struct(">bi").unpack_from  # partitions + 1, index
_pack_head = RESPONSE_V0.pack  # length of a response, correlation id
_ID_SIZE = 4  # the bytes of the correlation id, which the length counts
_BODY_SIZE, _PARTITION_SIZE, _UUID_SIZE = 9, 5, 16
_ONE = 2  # the number 1, encoded as one more
_LARGEST = (1 << 14) - 1  # the largest varint of two bytes: the size of the records plus one
_SMALLEST_REST = 4  # the fewest bytes of a request from the size of its records on
_INT32 = struct.Struct(">i")
_unpack_int32 = _INT32.unpack_from


@dataclass(slots=True, eq=False)
class ProduceShape:
    """The common parts of Produce requests for one partition: all except correlation id and records.

    The topic is named by its name, from version 13 on by its id.
    common: the bytes between correlation id and the size of the records.
    """

    version: int
    acks: int
    topic: str
    topic_id: bytes
    index: int
    common: bytes

    def encode_response(self, base_offset: int, append_time: int, log_start: int) -> bytes:
        """Return the bytes after the correlation id in a response without an error."""
        return _header_tags(self.version) + encode_response(
            self.version, self.topic, self.topic_id, self.index, base_offset, append_time, log_start
        )


class ProduceRequestBatch:
    """Produce requests of one shape.

    correlation_ids, records: those of each request, in order.
    ends: the position after each request in the bytes given to `collect`; 0 for the first request.
    """

    __slots__ = ("correlation_ids", "ends", "records", "shape")

    def __init__(self, shape: ProduceShape, correlation_id: int, records: memoryview) -> None:
        self.shape = shape
        self.correlation_ids = [correlation_id]
        self.records = [records]
        self.ends = [0]

    def __len__(self) -> int:
        return len(self.records)

    def collect(self, chunk: memoryview, at: int, max_bytes: int, most: int) -> None:
        """Add the whole requests in `chunk` from position `at` on, up to the first that differs.

        max_bytes: the largest size of a request.
        most: the most requests that the batch may have.
        """
        received, common, version = len(chunk), self.shape.common, self.shape.version
        flexible, end_tags = version >= FIRST_FLEXIBLE, _end_tags(version)
        size_at, tail = _LENGTH_SIZE + _COMMON_FROM + len(common), len(end_tags)
        ids, batches, ends = self.correlation_ids, self.records, self.ends
        while at + size_at + _SMALLEST_REST <= received and len(ends) < most:
            length, kind, correlation_id = _unpack_lengths(chunk, at)
            start = at + size_at
            if kind != version or length > max_bytes or chunk[at + 12 : start] != common:
                break
            if flexible:
                size = chunk[start]
                start += 1
                if size >= VARINT_MORE:
                    more = chunk[start]
                    start += 1
                    if more >= VARINT_MORE:
                        break
                    size = size & 0x7F | more << 7
            else:
                size = _unpack_int32(chunk, start)[0] + 1
                start += _INT32.size
                if not 0 < size <= min(_LARGEST, received - start + 1):
                    break
                if version < FIRST_WITH_ZSTD and is_zstd(chunk[start : start + size - 1]):
                    break
            end = start + size - 1
            at += length + _LENGTH_SIZE
            if end + tail != at or chunk[end:at] != end_tags:
                break
            ids.append(correlation_id)
            batches.append(chunk[start:end])
            ends.append(at)

    def encode_responses(self, base_offsets: Sequence[int], append_time: int, log_start: int) -> bytes:
        """Return whole responses, with length and header, one for each base offset."""
        ids, shape = self.correlation_ids, self.shape
        rest = shape.encode_response(base_offsets[0], append_time, log_start)
        size = len(rest) + _ID_SIZE
        if len(base_offsets) == 1:
            return _pack_head(size, ids[0]) + rest
        tail = BASE_OFFSET_TAIL[shape.version]
        front, back = rest[: -tail - 8], rest[-tail:]
        pack = struct.Struct(f">ii{len(front)}sq{tail}s").pack
        return b"".join([pack(size, one, front, base, back) for one, base in zip(ids, base_offsets, strict=False)])

    def encode_refusals(self, body: bytes) -> bytes:
        """Return a whole response to each request, with length and header, and with the same `body`."""
        rest = _header_tags(self.shape.version) + body
        return b"".join([_pack_head(len(rest) + _ID_SIZE, one) + rest for one in self.correlation_ids])


def _header_tags(version: int) -> bytes:
    """Return the empty tagged fields after the correlation id of a response."""
    return b"\0" if version >= FIRST_FLEXIBLE else b""


def _end_tags(version: int) -> bytes:
    """Return the empty tagged fields after the records of a request."""
    return END_TAGS if version >= FIRST_FLEXIBLE else b""


def with_throttle_time(version: int, responses: bytes, throttle_ms: int) -> bytes:
    """Return whole responses to Produce requests of the usual shape, with another throttle time in each."""
    changed, at = bytearray(responses), 0
    tail = _INT32.size + len(_header_tags(version))  # throttle time, and empty tagged fields like the header's
    while at < len(changed):
        at += _LENGTH_SIZE + _INT32.unpack_from(changed, at)[0]
        _INT32.pack_into(changed, at - tail, throttle_ms)
    return bytes(changed)


def parse_request(frame: memoryview) -> ProduceRequestBatch | None:
    """Return a batch of the request in `frame`, which has no length; None if it does not have the usual shape."""
    try:
        version, correlation_id, client_length = _unpack_head(frame)  # the API key of Produce is 0
        body = _HEAD_SIZE
        if client_length > 0:
            body += client_length
            str(frame[_HEAD_SIZE:body], "utf-8")  # raises if the general path would refuse the client id
        if FIRST <= version < FIRST_FLEXIBLE:
            return _parse_classic(frame, version, correlation_id, body)
        if not FIRST_FLEXIBLE <= version <= LAST:
            return None
        tags, transactional, acks, _, topics = _unpack_body(frame, body)
        at = body + _BODY_SIZE
        if version >= FIRST_TOPIC_ID:
            named = at + _UUID_SIZE
            topic, topic_id = "", bytes(frame[at:named])
        else:
            size = frame[at]
            if not 1 <= size < VARINT_MORE:
                return None
            named = at + size
            topic, topic_id = str(frame[at + 1 : named], "utf-8"), ZERO_UUID
        partitions, index = _unpack_partition(frame, named)
        size_at = named + _PARTITION_SIZE
        size, start = records_size(frame, size_at)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    end = start + size - 1
    if tags or transactional or topics != _ONE or partitions != _ONE or size <= 1 or frame[end:] != END_TAGS:
        return None
    shape = ProduceShape(version, acks, topic, topic_id, index, bytes(frame[_COMMON_FROM:size_at]))
    return ProduceRequestBatch(shape, correlation_id, frame[start:end])


def _parse_classic(frame: memoryview, version: int, correlation_id: int, at: int) -> ProduceRequestBatch | None:
    """Do the same as `parse_request` for a request of version 3 to 8, whose body begins at position `at`."""
    fields = read_classic(frame, at)
    if fields is None:
        return None
    acks, _, topic, index, start = fields
    records = frame[start:]
    if not records or (version < FIRST_WITH_ZSTD and is_zstd(records)):
        return None
    common = bytes(frame[_COMMON_FROM : start - _INT32.size])
    return ProduceRequestBatch(ProduceShape(version, acks, topic, ZERO_UUID, index, common), correlation_id, records)
