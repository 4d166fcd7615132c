"""OffsetDelete, API key 47, versions 0. Deletes offsets that a group has stored. (No version is flexible yet.)

Generated from protocol/apis/offset_delete.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class OffsetDeleteRequestPartition(Message):
    """A partition."""

    __slots__ = ("partition_index",)

    #: The index of the partition.
    partition_index: int

    def __init__(self, partition_index: int = 0) -> None:
        self.partition_index = partition_index


class OffsetDeleteRequestTopic(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[OffsetDeleteRequestPartition]

    def __init__(self, name: str = "", partitions: list[OffsetDeleteRequestPartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class OffsetDeleteResponsePartition(Message):
    """The result for the offset of a partition."""

    __slots__ = ("partition_index", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetDeleteResponseTopic(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The result for the offset of each partition.
    partitions: list[OffsetDeleteResponsePartition]

    def __init__(self, name: str = "", partitions: list[OffsetDeleteResponsePartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class OffsetDeleteRequest(Message):
    """The request of OffsetDelete."""

    __slots__ = ("group_id", "topics")

    API_KEY: ClassVar[int] = 47
    API_NAME: ClassVar[str] = "OffsetDelete"

    #: The group id.
    group_id: str
    #: The partitions, by topic.
    topics: list[OffsetDeleteRequestTopic]

    def __init__(self, group_id: str = "", topics: list[OffsetDeleteRequestTopic] = UNSET) -> None:
        self.group_id = group_id
        self.topics = [] if topics is UNSET else topics


class OffsetDeleteResponse(Message):
    """The response of OffsetDelete."""

    __slots__ = ("error_code", "throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 47
    API_NAME: ClassVar[str] = "OffsetDelete"

    #: The error code for the group; 0 if all went well.
    error_code: int
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The partitions, by topic.
    topics: list[OffsetDeleteResponseTopic]

    def __init__(
        self, error_code: int = 0, throttle_time_ms: int = 0, topics: list[OffsetDeleteResponseTopic] = UNSET
    ) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
