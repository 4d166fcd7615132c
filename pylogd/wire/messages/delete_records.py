"""DeleteRecords, API key 21, versions 0-2. Deletes all records before an offset.

Generated from protocol/apis/delete_records.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DeleteRecordsPartition:
    """A partition's part of the request."""

    #: The partition's number.
    partition_index: int = 0
    #: Delete all records before this offset; -1 means the high watermark.
    offset: int = 0


@dataclass(slots=True)
class DeleteRecordsTopic:
    """A topic's part of the request."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsPartitionResult:
    """A partition's part of the response."""

    #: The partition's number.
    partition_index: int = 0
    #: The first offset that all replicas still have; -1 on an error.
    low_watermark: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class DeleteRecordsTopicResult:
    """A topic's part of the response."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsRequest:
    """The request of DeleteRecords."""

    API_KEY: ClassVar[int] = 21
    API_NAME: ClassVar[str] = "DeleteRecords"

    #: The topics.
    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    #: How many milliseconds the broker may take.
    timeout_ms: int = 0


@dataclass(slots=True)
class DeleteRecordsResponse:
    """The response of DeleteRecords."""

    API_KEY: ClassVar[int] = 21
    API_NAME: ClassVar[str] = "DeleteRecords"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The topics.
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)
