"""Read Produce requests of one partition, and write their responses, with `struct`.

The usual request has one topic with one partition, no transaction and no tagged fields. The usual response has no
error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from pylogd.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pylogd.wire.records import Buffer
from pylogd.wire.schema import Part
from pylogd.wire.values import ZERO_UUID

Decode = Callable[[memoryview], Any]
Encode = Callable[[Any], list[Part]]

FIRST, LAST = 3, 13  # the versions with a layout that is known here
FIRST_WITH_ZSTD = 7  # KIP-110
FIRST_FLEXIBLE = 9
FIRST_TOPIC_ID = 13

# transactional id (none), acks, timeout, number of topics, length of the name
_CLASSIC_HEAD = struct.Struct(">hhiih")
_CLASSIC_PARTITION = struct.Struct(">iii")  # number of partitions, index, size of the records
_CLASSIC_HEAD_SIZE, _CLASSIC_PARTITION_SIZE = _CLASSIC_HEAD.size, _CLASSIC_PARTITION.size
_FLEXIBLE_HEAD = struct.Struct(">BhiBB")
_ID_HEAD = struct.Struct(">BhiB16s")
_FLEXIBLE_PARTITION = struct.Struct(">Bi")  # number of partitions + 1, index
_FLEXIBLE_PARTITION_SIZE = _FLEXIBLE_PARTITION.size
END_TAGS = b"\0\0\0"  # no tagged fields of partition, topic and request
VARINT_MORE = 0x80
_ATTRIBUTES_LOW_BYTE = 22  # its position in the first batch header
_CODEC = 7  # the bits of the attributes that name the codec
_ZSTD = 4
_VARINT_SHIFT = 28  # the shift of the fifth byte, the last one of a varint
_unpack_classic_head = _CLASSIC_HEAD.unpack_from
_unpack_classic_partition = _CLASSIC_PARTITION.unpack_from
_unpack_flexible_head = _FLEXIBLE_HEAD.unpack_from
_unpack_id_head = _ID_HEAD.unpack_from
_unpack_flexible_partition = _FLEXIBLE_PARTITION.unpack_from


def request_decoder(version: int, general: Decode) -> Decode:
    """Return a decoder of Produce requests of `version` that leaves unusual ones to `general`."""
    if version < FIRST_FLEXIBLE:
        return partial(_classic_produce, general)
    return partial(_flexible_produce, general, version >= FIRST_TOPIC_ID)


def _classic_produce(general: Decode, body: memoryview) -> Any:
    """Decode a request of version 3 to 8."""
    fields = read_classic(body, 0)
    if fields is None:
        return general(body)
    acks, timeout, name, index, at = fields
    topic = TopicProduceData(name, ZERO_UUID, [PartitionProduceData(index, body[at:])])
    return ProduceRequest(None, acks, timeout, [topic])


def read_classic(frame: memoryview, at: int) -> tuple[int, int, str, int, int] | None:
    """Read a request of version 3 to 8, whose body begins at position `at`.

    Return acks, the timeout in milliseconds, the topic's name, the partition's index, and the position of the records,
    which extend to the end of `frame`; None if the request is not of the usual shape.
    """
    try:
        transactional, acks, timeout, topics, length = _unpack_classic_head(frame, at)
        name_at = at + _CLASSIC_HEAD_SIZE
        name_end = name_at + length
        partitions, index, size = _unpack_classic_partition(frame, name_end)
        start = name_end + _CLASSIC_PARTITION_SIZE
        if transactional != -1 or topics != 1 or length < 0 or partitions != 1 or start + size != len(frame):
            return None
        return acks, timeout, str(frame[name_at:name_end], "utf-8"), index, start
    except (struct.error, UnicodeDecodeError):
        return None


def _flexible_produce(general: Decode, by_id: bool, body: memoryview) -> Any:
    """Decode a request of version 9 or later. From 13 on the topic is named by its id."""
    try:
        if by_id:
            transactional, acks, timeout, topics, topic_id = _unpack_id_head(body)
            name, at = "", 24
        else:
            transactional, acks, timeout, topics, length = _unpack_flexible_head(body)
            at = 8 + length
            if not 1 <= length < VARINT_MORE:
                return general(body)
            name, topic_id = str(body[9:at], "utf-8"), ZERO_UUID
        partitions, index = _unpack_flexible_partition(body, at)
        size, at = records_size(body, at + _FLEXIBLE_PARTITION_SIZE)
    except (struct.error, ValueError, IndexError):
        return general(body)
    end = at + size - 1
    if transactional or topics != 2 or partitions != 2 or not size or body[end:] != END_TAGS:
        return general(body)
    return ProduceRequest(
        None, acks, timeout, [TopicProduceData(name, topic_id, [PartitionProduceData(index, body[at:end])])]
    )


def records_size(body: memoryview, at: int) -> tuple[int, int]:
    """Return the size of the records plus one, from the varint at `at`, and the position of the records.

    Raises IndexError if `body` ends too early. A varint of more than five bytes is cut off.
    """
    size = body[at]
    at += 1
    if size >= VARINT_MORE:
        shift = 7
        size &= 0x7F
        while (byte := body[at]) >= VARINT_MORE and shift <= _VARINT_SHIFT:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        size |= byte << shift
        at += 1
    return size, at


def is_zstd(records: Buffer) -> bool:
    """Return whether the first batch is compressed with zstd, which versions before `FIRST_WITH_ZSTD` do not have."""
    return len(records) > _ATTRIBUTES_LOW_BYTE and records[_ATTRIBUTES_LOW_BYTE] & _CODEC == _ZSTD


# The fields after the topic's name in a response for one partition without an error: number of partitions, index, error
# code, base offset, log append time; then, depending on the version, log start offset, no record errors, no error text,
# and throttle time.
_RESPONSE_3 = struct.Struct(">iihqqi")
_RESPONSE_5 = struct.Struct(">iihqqqi")
_RESPONSE_8 = struct.Struct(">iihqqqihi")
_pack_response_9 = struct.Struct(">BihqqqBBBBiB").pack
_CLASSIC_TOPIC = struct.Struct(">ih")
#: The bytes of a response after its base offset, by version.
BASE_OFFSET_TAIL = {3: 12, 4: 12, 5: 20, 6: 20, 7: 20, 8: 26} | dict.fromkeys(range(FIRST_FLEXIBLE, LAST + 1), 25)


def response_encoder(version: int, general: Encode) -> Encode:
    """Return an encoder of Produce responses of `version` that leaves unusual ones to `general`."""
    return lambda response: _encode_usual(response, version) or general(response)


def _encode_usual(response: ProduceResponse, version: int) -> list[Part] | None:
    """Return `response` encoded if it is for one partition and has no error, else None."""
    topics = response.responses
    if len(topics) != 1 or len(topics[0].partition_responses) != 1 or response.node_endpoints:
        return None
    topic = topics[0]
    answer = topic.partition_responses[0]
    if answer.error_code or answer.error_message is not None or answer.record_errors:
        return None
    leader = answer.current_leader
    if leader.leader_id != -1 or leader.leader_epoch != -1:
        return None
    values = (answer.index, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
    return [encode_response(version, topic.name, topic.topic_id, *values, response.throttle_time_ms)]


def encode_response(
    version: int,
    name: str,
    topic_id: bytes,
    index: int,
    base_offset: int,
    append_time: int,
    log_start: int,
    throttle_ms: int = 0,
) -> bytes:
    """Return the body of a response for one partition without an error."""
    if version < FIRST_FLEXIBLE:
        result = (1, index, 0, base_offset, append_time)
        if version >= 8:
            tail = _RESPONSE_8.pack(*result, log_start, 0, -1, throttle_ms)
        elif version >= 5:
            tail = _RESPONSE_5.pack(*result, log_start, throttle_ms)
        else:
            tail = _RESPONSE_3.pack(*result, throttle_ms)
        encoded = name.encode()
        return _CLASSIC_TOPIC.pack(1, len(encoded)) + encoded + tail
    tail = _pack_response_9(2, index, 0, base_offset, append_time, log_start, 1, 0, 0, 0, throttle_ms, 0)
    if version >= FIRST_TOPIC_ID:
        return b"\x02" + topic_id + tail
    encoded = name.encode()
    size = len(encoded) + 1
    if size < VARINT_MORE:
        return b"\x02%c%b%b" % (size, encoded, tail)
    return b"\x02%c%c%b%b" % (size & 0x7F | VARINT_MORE, size >> 7, encoded, tail)
