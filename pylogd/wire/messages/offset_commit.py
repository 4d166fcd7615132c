"""OffsetCommit, API key 8, versions 2-10. Commits offsets of a group.

Generated from protocol/apis/offset_commit.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class OffsetCommitRequestPartition(Message):
    """The offset of a partition."""

    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

    #: The index of the partition.
    partition_index: int
    #: The offset of the next record to read.
    committed_offset: int
    #: The leader epoch of the last record that was read; -1 if it is not known. Versions 6+.
    committed_leader_epoch: int
    #: A text that the client stores with the offset.
    committed_metadata: str | None

    def __init__(
        self,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        committed_metadata: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.committed_metadata = committed_metadata


class OffsetCommitRequestTopic(Message):
    """Offsets of a topic."""

    __slots__ = ("name", "topic_id", "partitions")

    #: The topic name. Versions 2-9.
    name: str
    #: The topic's id. Versions 10+.
    topic_id: bytes
    #: The offsets by partition.
    partitions: list[OffsetCommitRequestPartition]

    def __init__(
        self, name: str = "", topic_id: bytes = ZERO_UUID, partitions: list[OffsetCommitRequestPartition] = UNSET
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class OffsetCommitResponsePartition(Message):
    """The result for the offset of a partition."""

    __slots__ = ("partition_index", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetCommitResponseTopic(Message):
    """The result for the offsets of a topic."""

    __slots__ = ("name", "topic_id", "partitions")

    #: The topic name. Versions 2-9.
    name: str
    #: The topic's id. Versions 10+.
    topic_id: bytes
    #: The result for each offset.
    partitions: list[OffsetCommitResponsePartition]

    def __init__(
        self, name: str = "", topic_id: bytes = ZERO_UUID, partitions: list[OffsetCommitResponsePartition] = UNSET
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class OffsetCommitRequest(Message):
    """The request of OffsetCommit."""

    __slots__ = (
        "group_id",
        "generation_id_or_member_epoch",
        "member_id",
        "group_instance_id",
        "retention_time_ms",
        "topics",
    )

    API_KEY: ClassVar[int] = 8
    API_NAME: ClassVar[str] = "OffsetCommit"

    #: The group id.
    group_id: str
    #: The member's generation; -1 for a consumer that has no part in a group.
    generation_id_or_member_epoch: int
    #: The member id that the coordinator gave out; empty for a consumer that has no part in a group.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 7+.
    group_instance_id: str | None
    #: Milliseconds for which the offsets are kept; -1 for the broker's own setting. Versions 2-4.
    retention_time_ms: int
    #: The offsets to store, by topic.
    topics: list[OffsetCommitRequestTopic]

    def __init__(
        self,
        group_id: str = "",
        generation_id_or_member_epoch: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        retention_time_ms: int = -1,
        topics: list[OffsetCommitRequestTopic] = UNSET,
    ) -> None:
        self.group_id = group_id
        self.generation_id_or_member_epoch = generation_id_or_member_epoch
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.retention_time_ms = retention_time_ms
        self.topics = [] if topics is UNSET else topics


class OffsetCommitResponse(Message):
    """The response of OffsetCommit."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 8
    API_NAME: ClassVar[str] = "OffsetCommit"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int
    #: The result for each offset, by topic.
    topics: list[OffsetCommitResponseTopic]

    def __init__(self, throttle_time_ms: int = 0, topics: list[OffsetCommitResponseTopic] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
