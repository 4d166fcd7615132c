"""OffsetCommit, API key 8, versions 2-10. Stores how far a group has read.

Generated from protocol/apis/offset_commit.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class OffsetCommitRequestPartition:
    """The offset of a partition."""

    #: The index of the partition.
    partition_index: int = 0
    #: The offset of the next record to read.
    committed_offset: int = 0
    #: The leader epoch of the last record that was read; -1 if it is not known. Versions 6+.
    committed_leader_epoch: int = -1
    #: Anything that the client wants to keep beside the offset.
    committed_metadata: str | None = ""


@dataclass(slots=True)
class OffsetCommitRequestTopic:
    """Offsets of a topic."""

    #: The topic name. Versions 2-9.
    name: str = ""
    #: The topic's id. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: The offsets by partition.
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitResponsePartition:
    """What became of the offset of a partition."""

    #: The index of the partition.
    partition_index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class OffsetCommitResponseTopic:
    """What became of the offsets of a topic."""

    #: The topic name. Versions 2-9.
    name: str = ""
    #: The topic's id. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: What became of each offset.
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitRequest:
    """The request of OffsetCommit."""

    API_KEY: ClassVar[int] = 8
    API_NAME: ClassVar[str] = "OffsetCommit"

    #: The group id.
    group_id: str = ""
    #: The member's generation; -1 for a consumer that has no part in a group.
    generation_id_or_member_epoch: int = -1
    #: The member id that the coordinator gave out; empty for a consumer that has no part in a group.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one. Versions 7+.
    group_instance_id: str | None = None
    #: Milliseconds for which the offsets are kept; -1 for the broker's own setting. Versions 2-4.
    retention_time_ms: int = -1
    #: The offsets to store, by topic.
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitResponse:
    """The response of OffsetCommit."""

    API_KEY: ClassVar[int] = 8
    API_NAME: ClassVar[str] = "OffsetCommit"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int = 0
    #: What became of each offset, by topic.
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)
