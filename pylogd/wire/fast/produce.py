"""Read Produce requests of one partition, and write the responses to them, with `struct`.

The usual shape: one topic with one partition, no transaction, no tagged fields, and in the response no error.
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
from pylogd.wire.schema import Part
from pylogd.wire.values import ZERO_UUID

Decode = Callable[[memoryview], Any]
Encode = Callable[[Any], list[Part]]

FIRST_FLEXIBLE = 9
FIRST_TOPIC_ID = 13
LAST = 13  # whose layout is known here

# transactional id (none), acks, timeout, number of topics, length of the name
_CLASSIC_HEAD = struct.Struct(">hhiih")
_CLASSIC_PARTITION = struct.Struct(">iii")  # number of partitions, index, size of the records
_FLEXIBLE_HEAD = struct.Struct(">BhiBB")
_ID_HEAD = struct.Struct(">BhiB16s")
_FLEXIBLE_PARTITION = struct.Struct(">Bi")  # number of partitions + 1, index
_FLEXIBLE_PARTITION_SIZE = _FLEXIBLE_PARTITION.size
END_TAGS = b"\0\0\0"  # no tagged fields: behind the partition, the topic, the request
VARINT_MORE = 0x80
_VARINT_SHIFT = 28  # of the fifth byte, the last that a varint may have
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
    try:
        transactional, acks, timeout, topics, length = _CLASSIC_HEAD.unpack_from(body)
        at = 14 + length
        partitions, index, size = _CLASSIC_PARTITION.unpack_from(body, at)
        if transactional != -1 or topics != 1 or length < 0 or partitions != 1 or at + 12 + size != len(body):
            return general(body)
        name = str(body[14:at], "utf-8")
    except (struct.error, ValueError):
        return general(body)
    records = PartitionProduceData(index, body[at + 12 :])
    return ProduceRequest(None, acks, timeout, [TopicProduceData(name, ZERO_UUID, [records])])


def _flexible_produce(general: Decode, by_id: bool, body: memoryview) -> Any:
    """Decode a request of version 9 or later; from 13 on the topic goes by its id."""
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
    """Read the varint at `at`: the size of the records plus one, and the position of the records.

    Raises IndexError where `body` ends too early. A varint of more than five bytes is cut off there.
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


# The response for one partition without an error, behind the topic's name: number of partitions, index, error code,
# base offset, log append time, then by version the log start offset and the throttle time.
_RESPONSE_3 = struct.Struct(">iihqqi")
_RESPONSE_5 = struct.Struct(">iihqqqi")
_RESPONSE_8 = struct.Struct(">iihqqqihi")
_pack_response_9 = struct.Struct(">BihqqqBBBBiB").pack
BASE_OFFSET_TAIL = 25  # bytes of it behind the base offset
_CLASSIC_TOPIC = struct.Struct(">ih")


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
    if version >= FIRST_FLEXIBLE:
        values = (answer.index, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
        return [encode_response(version, topic.name, topic.topic_id, *values, response.throttle_time_ms)]
    name, throttle = topic.name.encode(), response.throttle_time_ms
    result = (answer.index, 0, answer.base_offset, answer.log_append_time_ms)
    if version >= 8:
        tail = _RESPONSE_8.pack(1, *result, answer.log_start_offset, 0, -1, throttle)
    elif version >= 5:
        tail = _RESPONSE_5.pack(1, *result, answer.log_start_offset, throttle)
    else:
        tail = _RESPONSE_3.pack(1, *result, throttle)
    return [_CLASSIC_TOPIC.pack(1, len(name)) + name + tail]


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
    """Return the body of a response for one partition without an error, from version `FIRST_FLEXIBLE` on."""
    tail = _pack_response_9(2, index, 0, base_offset, append_time, log_start, 1, 0, 0, 0, throttle_ms, 0)
    if version >= FIRST_TOPIC_ID:
        return b"\x02" + topic_id + tail
    encoded = name.encode()
    size = len(encoded) + 1
    if size < VARINT_MORE:
        return b"\x02%c%b%b" % (size, encoded, tail)
    return b"\x02%c%c%b%b" % (size & 0x7F | VARINT_MORE, size >> 7, encoded, tail)
