"""Read Fetch requests and write their responses with `struct`, from version 13 on, which names topics by id.

The usual shape of a request has any partitions of one topic, no forgotten topics and no rack. It has no tagged fields,
or only those with which a follower names itself, which are decoded once, since all of its requests have the same. The
usual response has only numbers, aborted transactions and records. Its empty structures are recognised by identity:
handlers use the shared `NO_DIVERGENCE`, `NO_LEADER` and `NO_SNAPSHOT`. The general codec encodes an equal but different
object, to the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from pylogd.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from pylogd.wire.schema import Part
from pylogd.wire.stream import UUID_SIZE, unsigned_varint
from pylogd.wire.values import ZERO_UUID

Decode = Callable[[memoryview], Any]
Encode = Callable[[Any], list[Part]]

#: Shared by all responses that have no such information; never changed.
NO_DIVERGENCE = EpochEndOffset()
NO_LEADER = LeaderIdAndEpoch()
NO_SNAPSHOT = SnapshotId()

FIRST_FAST = 13
_FIRST_WITH_REPLICA_STATE = 15
_MOST_PARTITIONS = 0x7E  # this number plus one is a varint of one byte

# replica id, wait, least and most bytes, isolation, session id and epoch, topics + 1, the topic's id, partitions + 1
_HEAD_13 = struct.Struct(">iiiibiiB16sB")
_HEAD_15 = struct.Struct(">iiibiiB16sB")  # the replica id is in a tagged field
# index, leader epoch, offset, last fetched epoch, log start, most bytes, tagged fields
_PARTITION = struct.Struct(">iiqiqiB")
PARTITION_SIZE = _PARTITION.size
_END = b"\0\1\1\0"  # no tagged fields of the topic, no forgotten topics, no rack, no tags of the request
END_SIZE = len(_END)
#: The high watermark of a client that does not name it.
NOT_KNOWN = (1 << 63) - 1
_NO_REPLICA = ReplicaState()  # shared by all requests of clients; never changed
#: The fields of a request after its partitions: the cluster's id, which brokers send, and the replica that fetches.
_End: TypeAlias = "tuple[str | None, ReplicaState]"
_NO_END: _End = (None, _NO_REPLICA)
#: Limits of the remembered ends: the size from which one is too long, and their number.
_LONGEST_END, _MOST_ENDS = 128, 64


def request_decoder(version: int, general: Decode) -> Decode:
    """Return a decoder of Fetch requests of `version` that leaves unusual ones to `general`."""
    if version < FIRST_FAST:
        return general
    return partial(_fetch, general, _HEAD_15 if version >= _FIRST_WITH_REPLICA_STATE else _HEAD_13, {})


def _fetch(general: Decode, head: struct.Struct, ends: dict[bytes, _End], body: memoryview) -> Any:
    at = head.size
    if len(body) <= at:
        return general(body)
    numbers = head.unpack_from(body)
    replica = -1 if head is _HEAD_15 else numbers[0]
    wait, least, most, isolation, session, epoch, topics, topic_id, count = numbers[-9:]
    end = at + (count - 1) * _PARTITION.size
    if topics != 2 or not 0 < count <= _MOST_PARTITIONS + 1:
        return general(body)
    found = _NO_END if body[end:] == _END else ends.get(bytes(body[end : end + _LONGEST_END]))
    if found is None:
        return _learn_end(general, ends, body, at, end)
    partitions = []
    for index, leader_epoch, offset, last_epoch, start, limit, tags in _PARTITION.iter_unpack(body[at:end]):
        if tags:
            return general(body)
        partitions.append(FetchPartition(index, leader_epoch, offset, last_epoch, start, limit, ZERO_UUID, NOT_KNOWN))
    cluster_id, state = found
    return FetchRequest(
        cluster_id, replica, state, wait, least, most, isolation, session, epoch,
        [FetchTopic("", topic_id, partitions)], [], "",
    )  # fmt: skip


def _learn_end(general: Decode, ends: dict[bytes, _End], body: memoryview, at: int, end: int) -> Any:
    """Decode a request by `general`. Remember the bytes after its partitions if all of them are tagged fields."""
    request, last = general(body), bytes(body[end : end + _LONGEST_END])
    if (
        isinstance(request, FetchRequest)
        and last.startswith(_END[:-1])
        and len(last) < _LONGEST_END
        and not any(fields[-1] for fields in _PARTITION.iter_unpack(body[at:end]))
    ):
        if len(ends) >= _MOST_ENDS:
            ends.clear()
        ends[last] = request.cluster_id, request.replica_state
    return request


# throttle time, error code, session id, topics + 1, the topic's id, partitions + 1
_RESPONSE_HEAD = struct.Struct(">ihiB16sB")
_EMPTY = struct.Struct(">ihiBB")  # the same fields without topics, and no tagged fields
# index, error code, high watermark, last stable offset, log start, whether there is a list of aborted transactions,
# preferred replica
_RESPONSE_PARTITION = struct.Struct(">ihqqqBi")
# The same fields in parts, around aborted transactions: producer id, first offset, no tagged fields
_RESPONSE_OFFSETS = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qqB")
_REPLICA = struct.Struct(">i")
_NO_TAGS = b"\0"  # after each partition
_RESPONSE_END = b"\0\0"  # no tagged fields of the topic and of the answer


def response_encoder(version: int, general: Encode) -> Encode:
    """Return an encoder of Fetch responses of `version` that leaves unusual ones to `general`."""
    if version < FIRST_FAST:
        return general
    return lambda response: _encode_usual(response) or general(response)


def response_body(topic_id: bytes, index: int, committed: bool, session_id: int = 0) -> bytes:
    """Return the bytes between the header and the size of the records in a response of one partition, with offsets of
    0.

    committed: whether there is a list of aborted transactions, which is empty.
    """
    return _RESPONSE_HEAD.pack(0, 0, session_id, 2, topic_id, 2) + _RESPONSE_PARTITION.pack(
        index, 0, 0, 0, 0, committed, -1
    )


def empty_response(session_id: int) -> bytes:
    """Return the response of a session in which nothing has changed."""
    return _EMPTY.pack(0, 0, session_id, 1, 0)


def _encode_usual(response: FetchResponse) -> list[Part] | None:
    """Return `response` encoded if it is of the usual shape, else None."""
    topics = response.responses
    if len(topics) != 1 or response.node_endpoints:
        return None
    topic_id, partitions = topics[0].topic_id, topics[0].partitions
    if topics[0].topic or len(topic_id) != UUID_SIZE or len(partitions) > _MOST_PARTITIONS:
        return None
    try:
        pending = _RESPONSE_HEAD.pack(
            response.throttle_time_ms, response.error_code, response.session_id, 2, topic_id, len(partitions) + 1
        )
        parts: list[Part] = []
        for data in partitions:
            records, aborted = data.records, data.aborted_transactions
            if (
                data.diverging_epoch is not NO_DIVERGENCE
                or data.current_leader is not NO_LEADER
                or data.snapshot_id is not NO_SNAPSHOT
                or records is None
            ):
                return None
            if aborted:
                pending += _with_aborted(data, aborted)
            else:
                pending += _RESPONSE_PARTITION.pack(
                    data.partition_index, data.error_code, data.high_watermark, data.last_stable_offset,
                    data.log_start_offset, aborted is not None, data.preferred_read_replica,
                )  # fmt: skip
            size = len(records)
            pending += unsigned_varint(size + 1)
            if size:
                parts += (pending, records)
                pending = _NO_TAGS
            else:
                pending += _NO_TAGS
    except struct.error:
        return None
    parts.append(pending + _RESPONSE_END)
    return parts


def _with_aborted(data: PartitionData, aborted: Sequence[AbortedTransaction]) -> bytes:
    """Return the bytes before the records of a partition with aborted transactions."""
    head = _RESPONSE_OFFSETS.pack(
        data.partition_index, data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset
    )
    pack = _ABORTED.pack
    entries = [pack(one.producer_id, one.first_offset, 0) for one in aborted]
    return b"".join([head, unsigned_varint(len(entries) + 1), *entries, _REPLICA.pack(data.preferred_read_replica)])
