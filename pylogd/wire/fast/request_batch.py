"""Runs: Produce requests behind each other in what was received that differ in correlation id and records only.

Strategy: a client that sends each message by itself sends the same bytes around each. The first request of a run is
taken apart; of each one behind it, it is enough that all before the size of its records is the same, and that they
end where it ends. The usual shape only, as in `hot`; a run ends before any other request, which goes the plain way.
A property test proves that a client can't tell the difference.

Source: KIP-482 (flexible versions).
"""

from __future__ import annotations

import struct

from pylogd.wire.fast.produce import END_TAGS, FIRST_PRODUCED, FIRST_TOPIC_ID
from pylogd.wire.values import ZERO_UUID

PRODUCE = 0
_MOST = 256  # requests in a run
_HEAD = struct.Struct(">iiih")  # length, API and version, correlation id, length of the client's id
_SAME_FROM = 12  # behind the correlation id
_unpack_head = _HEAD.unpack_from
_unpack_body = struct.Struct(">bbhib").unpack_from  # no header tags, transactional id, acks, timeout, topics + 1
_unpack_partition = struct.Struct(">bi").unpack_from  # partitions + 1, index
_BODY_SIZE, _PARTITION_SIZE = 9, 5
_ONE = 2  # of what is counted from 1
_VARINT_MORE = 0x80


class ProduceRun:
    """What the requests of a run have in common, and, once `collect` was called, each one's correlation id and records.

    `topic` or, from version 13 on, `topic_id` names the topic.
    """

    __slots__ = (
        "_at", "_chunk", "_max_bytes", "_size_at", "acks", "client_id", "correlation_ids", "ends", "index", "records",
        "topic", "topic_id", "version",
    )  # fmt: skip

    def __init__(
        self, chunk: memoryview, at: int, size_at: int, max_bytes: int, version: int, client_id: str | None, acks: int,
        topic: str, topic_id: bytes, index: int,
    ) -> None:  # fmt: skip
        self._chunk = chunk
        self._at = at
        self._size_at = size_at  # where in a request the size of its records stands
        self._max_bytes = max_bytes
        self.version = version
        self.client_id = client_id
        self.acks = acks
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.correlation_ids: list[int] = []
        self.records: list[memoryview] = []
        self.ends: list[int] = []  # places in what was received

    def __len__(self) -> int:
        return len(self.ends)

    def collect(self) -> None:
        """Find the requests of the run that are there whole, if any."""
        chunk, at, size_at = self._chunk, self._at, self._size_at
        received, kind = len(chunk), PRODUCE << 16 | self.version
        same = bytes(chunk[at + _SAME_FROM : at + size_at])
        ids, batches, ends = self.correlation_ids, self.records, self.ends
        while at + size_at + 2 <= received and len(ends) < _MOST:
            length, found, correlation_id, _ = _unpack_head(chunk, at)
            start = at + size_at
            if found != kind or length > self._max_bytes or chunk[at + _SAME_FROM : start] != same:
                break
            size = chunk[start]
            start += 1
            if size >= _VARINT_MORE:
                more = chunk[start]
                start += 1
                if more >= _VARINT_MORE:
                    break
                size = size & 0x7F | more << 7
            end = start + size - 1
            at += length + 4
            if end + 3 != at or chunk[end:at] != END_TAGS:
                break
            ids.append(correlation_id)
            batches.append(chunk[start:end])
            ends.append(at)


def find_run(chunk: memoryview, at: int, version: int, max_bytes: int) -> ProduceRun | None:
    """The run of requests of that version that the request at `at` may be the first of; None if it can be of none.

    `max_bytes`: of a request.
    """
    by_id = version >= FIRST_TOPIC_ID
    try:
        _, kind, _, client_length = _unpack_head(chunk, at)
        body = at + _HEAD.size + max(client_length, 0)
        tags, transactional, acks, _, topics = _unpack_body(chunk, body)
        named = body + _BODY_SIZE
        name_end = named + (16 if by_id else chunk[named])
        partitions, index = _unpack_partition(chunk, name_end)
        if (
            kind != PRODUCE << 16 | version
            or version < FIRST_PRODUCED
            or (tags, transactional, topics, partitions) != (0, 0, _ONE, _ONE)
            or not (by_id or 1 <= chunk[named] < _VARINT_MORE)
        ):
            return None
        client_id = str(chunk[at + _HEAD.size : body], "utf-8") if client_length >= 0 else None
        topic = "" if by_id else str(chunk[named + 1 : name_end], "utf-8")
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    topic_id = bytes(chunk[named:name_end]) if by_id else ZERO_UUID
    size_at = name_end + _PARTITION_SIZE - at
    return ProduceRun(chunk, at, size_at, max_bytes, version, client_id, acks, topic, topic_id, index)
