"""ListPartitionReassignments, API key 46, versions 0. Lists the reassignments under way.

Generated from protocol/apis/list_partition_reassignments.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ListPartitionReassignmentsTopics(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partition_indexes")

    #: The topic name.
    name: str
    #: The partition numbers.
    partition_indexes: list[int]

    def __init__(self, name: str = "", partition_indexes: list[int] = UNSET) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is UNSET else partition_indexes


class OngoingPartitionReassignment(Message):
    """A partition of which replicas are being moved."""

    __slots__ = ("partition_index", "replicas", "adding_replicas", "removing_replicas")

    #: The partition number.
    partition_index: int
    #: All present replicas: those that stay, and those being added and removed.
    replicas: list[int]
    #: The replicas that are being added.
    adding_replicas: list[int]
    #: The replicas that are being removed.
    removing_replicas: list[int]

    def __init__(
        self,
        partition_index: int = 0,
        replicas: list[int] = UNSET,
        adding_replicas: list[int] = UNSET,
        removing_replicas: list[int] = UNSET,
    ) -> None:
        self.partition_index = partition_index
        self.replicas = [] if replicas is UNSET else replicas
        self.adding_replicas = [] if adding_replicas is UNSET else adding_replicas
        self.removing_replicas = [] if removing_replicas is UNSET else removing_replicas


class OngoingTopicReassignment(Message):
    """A topic of which replicas are being moved."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: Its partitions of which replicas are being moved.
    partitions: list[OngoingPartitionReassignment]

    def __init__(self, name: str = "", partitions: list[OngoingPartitionReassignment] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class ListPartitionReassignmentsRequest(Message):
    """The request of ListPartitionReassignments."""

    __slots__ = ("timeout_ms", "topics")

    API_KEY: ClassVar[int] = 46
    API_NAME: ClassVar[str] = "ListPartitionReassignments"

    #: How many milliseconds the broker may take.
    timeout_ms: int
    #: The partitions asked about; null for all.
    topics: list[ListPartitionReassignmentsTopics] | None

    def __init__(self, timeout_ms: int = 60000, topics: list[ListPartitionReassignmentsTopics] | None = None) -> None:
        self.timeout_ms = timeout_ms
        self.topics = topics


class ListPartitionReassignmentsResponse(Message):
    """The response of ListPartitionReassignments."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "topics")

    API_KEY: ClassVar[int] = 46
    API_NAME: ClassVar[str] = "ListPartitionReassignments"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code of the whole request; 0 if there is none.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The topics of which replicas are being moved.
    topics: list[OngoingTopicReassignment]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        topics: list[OngoingTopicReassignment] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.topics = [] if topics is UNSET else topics
