"""ListOffsets, API key 2, versions 1-11. Looks up offsets: the first, the last, or the first at or after a time.

Generated from protocol/apis/list_offsets.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ListOffsetsPartition(Message):
    """A partition's part of the request."""

    __slots__ = ("partition_index", "current_leader_epoch", "timestamp")

    #: The partition's number.
    partition_index: int
    #: The leader epoch that the client knows, so that a stale client or broker is detected; -1 for none. Versions 4+.
    current_leader_epoch: int
    #: A time in milliseconds, or -1 the end, -2 the start, -3 the largest time stamp, -4 the local start, -5 the end of
    #: remote storage.
    timestamp: int

    def __init__(self, partition_index: int = 0, current_leader_epoch: int = -1, timestamp: int = 0) -> None:
        self.partition_index = partition_index
        self.current_leader_epoch = current_leader_epoch
        self.timestamp = timestamp


class ListOffsetsTopic(Message):
    """A topic's part of the request."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[ListOffsetsPartition]

    def __init__(self, name: str = "", partitions: list[ListOffsetsPartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class ListOffsetsPartitionResponse(Message):
    """A partition's part of the response."""

    __slots__ = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")

    #: The partition's number.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The time stamp of the record found; -1 if none was.
    timestamp: int
    #: The offset found; -1 if none was.
    offset: int
    #: The leader epoch of the record found; -1 if not known. Versions 4+.
    leader_epoch: int

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
        timestamp: int = -1,
        offset: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.timestamp = timestamp
        self.offset = offset
        self.leader_epoch = leader_epoch


class ListOffsetsTopicResponse(Message):
    """A topic's part of the response."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[ListOffsetsPartitionResponse]

    def __init__(self, name: str = "", partitions: list[ListOffsetsPartitionResponse] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class ListOffsetsRequest(Message):
    """The request of ListOffsets."""

    __slots__ = ("replica_id", "isolation_level", "topics", "timeout_ms")

    API_KEY: ClassVar[int] = 2
    API_NAME: ClassVar[str] = "ListOffsets"

    #: The broker id of a follower; -1 for any other client.
    replica_id: int
    #: 0: read all records; 1: only those of committed transactions. Versions 2+.
    isolation_level: int
    #: The topics.
    topics: list[ListOffsetsTopic]
    #: How many milliseconds remote storage may take. Versions 10+.
    timeout_ms: int

    def __init__(
        self, replica_id: int = 0, isolation_level: int = 0, topics: list[ListOffsetsTopic] = UNSET, timeout_ms: int = 0
    ) -> None:
        self.replica_id = replica_id
        self.isolation_level = isolation_level
        self.topics = [] if topics is UNSET else topics
        self.timeout_ms = timeout_ms


class ListOffsetsResponse(Message):
    """The response of ListOffsets."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 2
    API_NAME: ClassVar[str] = "ListOffsets"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int
    #: The topics.
    topics: list[ListOffsetsTopicResponse]

    def __init__(self, throttle_time_ms: int = 0, topics: list[ListOffsetsTopicResponse] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
