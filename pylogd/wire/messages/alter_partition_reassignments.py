"""AlterPartitionReassignments, API key 45, versions 0-1. Moves replicas to other brokers, or stops moving them.

Generated from protocol/apis/alter_partition_reassignments.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ReassignablePartition(Message):
    """A partition whose replicas are moved."""

    __slots__ = ("partition_index", "replicas")

    #: The partition number.
    partition_index: int
    #: The broker ids of the future replicas, the preferred leader first; null to cancel the reassignment under way.
    replicas: list[int] | None

    def __init__(self, partition_index: int = 0, replicas: list[int] | None = None) -> None:
        self.partition_index = partition_index
        self.replicas = replicas


class ReassignableTopic(Message):
    """A topic whose replicas are moved."""

    __slots__ = ("name", "partitions", "placement_label")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[ReassignablePartition]
    #: Particular to pylogd. The label that the topic gets together with the moves, empty for none; null to keep its
    #: label.
    placement_label: str | None

    def __init__(
        self, name: str = "", partitions: list[ReassignablePartition] = UNSET, placement_label: str | None = None
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions
        self.placement_label = placement_label


class ReassignablePartitionResponse(Message):
    """The result for a partition."""

    __slots__ = ("partition_index", "error_code", "error_message")

    #: The partition number.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(self, partition_index: int = 0, error_code: int = 0, error_message: str | None = "") -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


class ReassignableTopicResponse(Message):
    """The result for a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The result for each partition.
    partitions: list[ReassignablePartitionResponse]

    def __init__(self, name: str = "", partitions: list[ReassignablePartitionResponse] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class AlterPartitionReassignmentsRequest(Message):
    """The request of AlterPartitionReassignments."""

    __slots__ = ("timeout_ms", "allow_replication_factor_change", "topics", "latest_wait_ms")

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: How many milliseconds the broker may take.
    timeout_ms: int
    #: Whether a partition may get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool
    #: The topics.
    topics: list[ReassignableTopic]
    #: Particular to pylogd. -1: new replicas copy all records. Otherwise they begin with the latest offset, and join
    #: the in-sync replicas once every consumer group has read up to it, or after this many milliseconds.
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


class AlterPartitionReassignmentsResponse(Message):
    """The response of AlterPartitionReassignments."""

    __slots__ = ("throttle_time_ms", "allow_replication_factor_change", "error_code", "error_message", "responses")

    API_KEY: ClassVar[int] = 45
    API_NAME: ClassVar[str] = "AlterPartitionReassignments"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: Whether partitions might get another number of replicas. Versions 1+.
    allow_replication_factor_change: bool
    #: The error code of the whole request; 0 if there is none.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The result for each topic.
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
