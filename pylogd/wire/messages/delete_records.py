"""DeleteRecords, API key 21, versions 0-2. Deletes all records before an offset.

Generated from protocol/apis/delete_records.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DeleteRecordsPartition(Message):
    """A partition's part of the request."""

    __slots__ = ("partition_index", "offset")

    #: The partition's number.
    partition_index: int
    #: Delete all records before this offset; -1 means the high watermark.
    offset: int

    def __init__(self, partition_index: int = 0, offset: int = 0) -> None:
        self.partition_index = partition_index
        self.offset = offset


class DeleteRecordsTopic(Message):
    """A topic's part of the request."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[DeleteRecordsPartition]

    def __init__(self, name: str = "", partitions: list[DeleteRecordsPartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class DeleteRecordsPartitionResult(Message):
    """A partition's part of the response."""

    __slots__ = ("partition_index", "low_watermark", "error_code")

    #: The partition's number.
    partition_index: int
    #: The first offset that all replicas still have; -1 on an error.
    low_watermark: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, low_watermark: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.low_watermark = low_watermark
        self.error_code = error_code


class DeleteRecordsTopicResult(Message):
    """A topic's part of the response."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[DeleteRecordsPartitionResult]

    def __init__(self, name: str = "", partitions: list[DeleteRecordsPartitionResult] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class DeleteRecordsRequest(Message):
    """The request of DeleteRecords."""

    __slots__ = ("topics", "timeout_ms")

    API_KEY: ClassVar[int] = 21
    API_NAME: ClassVar[str] = "DeleteRecords"

    #: The topics.
    topics: list[DeleteRecordsTopic]
    #: How many milliseconds the broker may take.
    timeout_ms: int

    def __init__(self, topics: list[DeleteRecordsTopic] = UNSET, timeout_ms: int = 0) -> None:
        self.topics = [] if topics is UNSET else topics
        self.timeout_ms = timeout_ms


class DeleteRecordsResponse(Message):
    """The response of DeleteRecords."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 21
    API_NAME: ClassVar[str] = "DeleteRecords"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The topics.
    topics: list[DeleteRecordsTopicResult]

    def __init__(self, throttle_time_ms: int = 0, topics: list[DeleteRecordsTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
