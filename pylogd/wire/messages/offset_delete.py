"""OffsetDelete, API key 47, versions 0. Deletes offsets that a group has stored. (No version is flexible yet.)

Generated from protocol/apis/offset_delete.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class OffsetDeleteRequestPartition:
    """A partition."""

    #: The index of the partition.
    partition_index: int = 0


@dataclass(slots=True)
class OffsetDeleteRequestTopic:
    """Partitions of a topic."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteResponsePartition:
    """What became of a partition's offset."""

    #: The index of the partition.
    partition_index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class OffsetDeleteResponseTopic:
    """Partitions of a topic."""

    #: The topic name.
    name: str = ""
    #: What became of each partition's offset.
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteRequest:
    """The request of OffsetDelete."""

    API_KEY: ClassVar[int] = 47
    API_NAME: ClassVar[str] = "OffsetDelete"

    #: The group id.
    group_id: str = ""
    #: The partitions, by topic.
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteResponse:
    """The response of OffsetDelete."""

    API_KEY: ClassVar[int] = 47
    API_NAME: ClassVar[str] = "OffsetDelete"

    #: The error code for the group; 0 if all went well.
    error_code: int = 0
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The partitions, by topic.
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)
