"""AlterPartitionReassignments, API key 45, versions 0-1. Moves replicas to other brokers, or stops moving them.

Generated from protocol/apis/alter_partition_reassignments.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class ReassignablePartition:
    """A partition whose replicas are moved."""

    #: The partition number.
    partition_index: int = 0
    #: The broker ids of the replicas that there shall be, the preferred leader first; null to stop the move under way.
    replicas: list[int] | None = None


@dataclass(slots=True)
class ReassignableTopic:
    """A topic whose replicas are moved."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[ReassignablePartition] = field(default_factory=list)


@dataclass(slots=True)
class ReassignablePartitionResponse:
    """What became of a partition."""

    #: The partition number.
    partition_index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = ""


@dataclass(slots=True)
class ReassignableTopicResponse:
    """What became of a topic."""

    #: The topic name.
    name: str = ""
    #: What became of each partition.
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionReassignmentsRequest:
    """The request of AlterPartitionReassignments."""

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: How many milliseconds the broker may take.
    timeout_ms: int = 60000
    #: Whether a partition may get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool = True
    #: The topics.
    topics: list[ReassignableTopic] = field(default_factory=list)
    #: pylogd's own. -1: new replicas copy all that there is. Otherwise they begin with the latest offset, and are in
    #: sync when every consumer group has read so far, or after so many milliseconds.
    latest_wait_ms: int = -1


@dataclass(slots=True)
class AlterPartitionReassignmentsResponse:
    """The response of AlterPartitionReassignments."""

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: Whether partitions might get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool = True
    #: What kept the whole request from being looked at; 0 if nothing did.
    error_code: int = 0
    #: The same for people; null if nothing did.
    error_message: str | None = ""
    #: What became of each topic.
    responses: list[ReassignableTopicResponse] = field(default_factory=list)
