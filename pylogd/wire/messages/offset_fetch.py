"""OffsetFetch, API key 9, versions 1-10. Asks for the committed offsets of groups.

Generated from protocol/apis/offset_fetch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class OffsetFetchRequestTopic(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partition_indexes")

    #: The topic name.
    name: str
    #: The indexes of the partitions.
    partition_indexes: list[int]

    def __init__(self, name: str = "", partition_indexes: list[int] = UNSET) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is UNSET else partition_indexes


class OffsetFetchRequestTopics(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "topic_id", "partition_indexes")

    #: The topic name. Versions 8-9.
    name: str
    #: The topic's id. Versions 10+.
    topic_id: bytes
    #: The indexes of the partitions.
    partition_indexes: list[int]

    def __init__(self, name: str = "", topic_id: bytes = ZERO_UUID, partition_indexes: list[int] = UNSET) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_indexes = [] if partition_indexes is UNSET else partition_indexes


class OffsetFetchRequestGroup(Message):
    """A group that is asked for."""

    __slots__ = ("group_id", "member_id", "member_epoch", "topics")

    #: The group id.
    group_id: str
    #: The member id; null if no member asks. Versions 9+.
    member_id: str | None
    #: The member's epoch; -1 if it has none. Versions 9+.
    member_epoch: int
    #: The partitions asked for, by topic; null for all that the group has offsets of.
    topics: list[OffsetFetchRequestTopics] | None

    def __init__(
        self,
        group_id: str = "",
        member_id: str | None = None,
        member_epoch: int = -1,
        topics: list[OffsetFetchRequestTopics] | None = UNSET,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.topics = [] if topics is UNSET else topics


class OffsetFetchResponsePartition(Message):
    """The offset of a partition."""

    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The offset of the next record to read; -1 if none is stored.
    committed_offset: int
    #: The leader epoch of the last record that was read; -1 if it is not known. Versions 5-7.
    committed_leader_epoch: int
    #: The text that the client stored with the offset.
    metadata: str | None
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(
        self,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        metadata: str | None = "",
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.metadata = metadata
        self.error_code = error_code


class OffsetFetchResponseTopic(Message):
    """Offsets of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The offsets by partition.
    partitions: list[OffsetFetchResponsePartition]

    def __init__(self, name: str = "", partitions: list[OffsetFetchResponsePartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class OffsetFetchResponsePartitions(Message):
    """The offset of a partition."""

    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The offset of the next record to read; -1 if none is stored.
    committed_offset: int
    #: The leader epoch of the last record that was read; -1 if it is not known.
    committed_leader_epoch: int
    #: The text that the client stored with the offset.
    metadata: str | None
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(
        self,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        metadata: str | None = "",
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.metadata = metadata
        self.error_code = error_code


class OffsetFetchResponseTopics(Message):
    """Offsets of a topic."""

    __slots__ = ("name", "topic_id", "partitions")

    #: The topic name. Versions 8-9.
    name: str
    #: The topic's id. Versions 10+.
    topic_id: bytes
    #: The offsets by partition.
    partitions: list[OffsetFetchResponsePartitions]

    def __init__(
        self, name: str = "", topic_id: bytes = ZERO_UUID, partitions: list[OffsetFetchResponsePartitions] = UNSET
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class OffsetFetchResponseGroup(Message):
    """The offsets of a group."""

    __slots__ = ("group_id", "topics", "error_code")

    #: The group id.
    group_id: str
    #: The offsets by topic.
    topics: list[OffsetFetchResponseTopics]
    #: The error code for the group; 0 if all went well.
    error_code: int

    def __init__(
        self, group_id: str = "", topics: list[OffsetFetchResponseTopics] = UNSET, error_code: int = 0
    ) -> None:
        self.group_id = group_id
        self.topics = [] if topics is UNSET else topics
        self.error_code = error_code


class OffsetFetchRequest(Message):
    """The request of OffsetFetch."""

    __slots__ = ("group_id", "topics", "groups", "require_stable")

    API_KEY: ClassVar[int] = 9
    API_NAME: ClassVar[str] = "OffsetFetch"

    #: The group id. Versions 1-7.
    group_id: str
    #: The partitions asked for, by topic; null for all that the group has offsets of. Versions 1-7.
    topics: list[OffsetFetchRequestTopic] | None
    #: The groups asked for. Versions 8+.
    groups: list[OffsetFetchRequestGroup]
    #: Whether offsets that a transaction may still change are an error. Versions 7+.
    require_stable: bool

    def __init__(
        self,
        group_id: str = "",
        topics: list[OffsetFetchRequestTopic] | None = UNSET,
        groups: list[OffsetFetchRequestGroup] = UNSET,
        require_stable: bool = False,
    ) -> None:
        self.group_id = group_id
        self.topics = [] if topics is UNSET else topics
        self.groups = [] if groups is UNSET else groups
        self.require_stable = require_stable


class OffsetFetchResponse(Message):
    """The response of OffsetFetch."""

    __slots__ = ("throttle_time_ms", "topics", "error_code", "groups")

    API_KEY: ClassVar[int] = 9
    API_NAME: ClassVar[str] = "OffsetFetch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int
    #: The offsets by topic. Versions 1-7.
    topics: list[OffsetFetchResponseTopic]
    #: The error code for the group; 0 if all went well. Versions 2-7.
    error_code: int
    #: The answer for each group. Versions 8+.
    groups: list[OffsetFetchResponseGroup]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[OffsetFetchResponseTopic] = UNSET,
        error_code: int = 0,
        groups: list[OffsetFetchResponseGroup] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
        self.error_code = error_code
        self.groups = [] if groups is UNSET else groups
