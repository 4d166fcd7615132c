"""AlterPartitionReassignments, API key 45, versions 0-1. Moves replicas to other brokers, or stops moving them.

Generated from protocol/apis/alter_partition_reassignments.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pylogd.wire.values import UNSET, Message


@dataclass(slots=True, init=False, repr=False, eq=False)
class ReassignablePartition(Message):
    """A partition whose replicas are moved."""

    #: The partition number.
    partition_index: int
    #: The broker ids of the replicas that there shall be, the preferred leader first; null to stop the move under way.
    replicas: list[int] | None

    def __init__(self, partition_index: int = 0, replicas: list[int] | None = None) -> None:
        self.partition_index = partition_index
        self.replicas = replicas


@dataclass(slots=True, init=False, repr=False, eq=False)
class ReassignableTopic(Message):
    """A topic whose replicas are moved."""

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[ReassignablePartition]

    def __init__(self, name: str = "", partitions: list[ReassignablePartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


@dataclass(slots=True, init=False, repr=False, eq=False)
class ReassignablePartitionResponse(Message):
    """What became of a partition."""

    #: The partition number.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: What went wrong, for people; null if nothing did.
    error_message: str | None

    def __init__(self, partition_index: int = 0, error_code: int = 0, error_message: str | None = "") -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


@dataclass(slots=True, init=False, repr=False, eq=False)
class ReassignableTopicResponse(Message):
    """What became of a topic."""

    #: The topic name.
    name: str
    #: What became of each partition.
    partitions: list[ReassignablePartitionResponse]

    def __init__(self, name: str = "", partitions: list[ReassignablePartitionResponse] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterPartitionReassignmentsRequest(Message):
    """The request of AlterPartitionReassignments."""

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: How many milliseconds the broker may take.
    timeout_ms: int
    #: Whether a partition may get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool
    #: The topics.
    topics: list[ReassignableTopic]
    #: pylogd's own. -1: new replicas copy all that there is. Otherwise they begin with the latest offset, and are in
    #: sync when every consumer group has read so far, or after so many milliseconds.
    latest_wait_ms: int

    def __init__(
        self,
        timeout_ms: int = 60000,
        allow_replication_factor_change: bool = True,
        topics: list[ReassignableTopic] = UNSET,
        latest_wait_ms: int = -1,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.topics = [] if topics is UNSET else topics
        self.latest_wait_ms = latest_wait_ms


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterPartitionReassignmentsResponse(Message):
    """The response of AlterPartitionReassignments."""

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: Whether partitions might get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool
    #: What kept the whole request from being looked at; 0 if nothing did.
    error_code: int
    #: The same for people; null if nothing did.
    error_message: str | None
    #: What became of each topic.
    responses: list[ReassignableTopicResponse]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        allow_replication_factor_change: bool = True,
        error_code: int = 0,
        error_message: str | None = "",
        responses: list[ReassignableTopicResponse] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.error_code = error_code
        self.error_message = error_message
        self.responses = [] if responses is UNSET else responses
