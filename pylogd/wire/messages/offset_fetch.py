"""OffsetFetch, API key 9, versions 1-10. Asks how far groups have read.

Generated from protocol/apis/offset_fetch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class OffsetFetchRequestTopic:
    """Partitions of a topic."""

    #: The topic name.
    name: str = ""
    #: The indexes of the partitions.
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestTopics:
    """Partitions of a topic."""

    #: The topic name. Versions 8-9.
    name: str = ""
    #: The topic's id. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: The indexes of the partitions.
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestGroup:
    """A group that is asked for."""

    #: The group id.
    group_id: str = ""
    #: The member id; null if none asks. Versions 9+.
    member_id: str | None = None
    #: The member's epoch; -1 if it has none. Versions 9+.
    member_epoch: int = -1
    #: The partitions asked for, by topic; null for all that the group has offsets of.
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponsePartition:
    """The offset of a partition."""

    #: The index of the partition.
    partition_index: int = 0
    #: The offset of the next record to read; -1 if none is stored.
    committed_offset: int = 0
    #: The leader epoch of the last record that was read; -1 if it is not known. Versions 5-7.
    committed_leader_epoch: int = -1
    #: What the client stored beside the offset.
    metadata: str | None = ""
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopic:
    """Offsets of a topic."""

    #: The topic name.
    name: str = ""
    #: The offsets by partition.
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponsePartitions:
    """The offset of a partition."""

    #: The index of the partition.
    partition_index: int = 0
    #: The offset of the next record to read; -1 if none is stored.
    committed_offset: int = 0
    #: The leader epoch of the last record that was read; -1 if it is not known.
    committed_leader_epoch: int = -1
    #: What the client stored beside the offset.
    metadata: str | None = ""
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopics:
    """Offsets of a topic."""

    #: The topic name. Versions 8-9.
    name: str = ""
    #: The topic's id. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: The offsets by partition.
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponseGroup:
    """The offsets of a group."""

    #: The group id.
    group_id: str = ""
    #: The offsets by topic.
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    #: The error code for the group; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchRequest:
    """The request of OffsetFetch."""

    API_KEY: ClassVar[int] = 9
    API_NAME: ClassVar[str] = "OffsetFetch"

    #: The group id. Versions 1-7.
    group_id: str = ""
    #: The partitions asked for, by topic; null for all that the group has offsets of. Versions 1-7.
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)
    #: The groups asked for. Versions 8+.
    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)
    #: Whether offsets that a transaction may still change are an error. Versions 7+.
    require_stable: bool = False


@dataclass(slots=True)
class OffsetFetchResponse:
    """The response of OffsetFetch."""

    API_KEY: ClassVar[int] = 9
    API_NAME: ClassVar[str] = "OffsetFetch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int = 0
    #: The offsets by topic. Versions 1-7.
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)
    #: The error code for the group; 0 if all went well. Versions 2-7.
    error_code: int = 0
    #: The answer for each group. Versions 8+.
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)
