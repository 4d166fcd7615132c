"""ListPartitionReassignments, API key 46, versions 0. Tells which replicas are being moved.

Generated from protocol/apis/list_partition_reassignments.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    #: The topic name.
    name: str = ""
    #: The partition numbers.
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OngoingPartitionReassignment:
    """A partition of which replicas are being moved."""

    #: The partition number.
    partition_index: int = 0
    #: The replicas of now: those that stay, come and go.
    replicas: list[int] = field(default_factory=list)
    #: Those of them that come.
    adding_replicas: list[int] = field(default_factory=list)
    #: Those of them that go.
    removing_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OngoingTopicReassignment:
    """A topic of which replicas are being moved."""

    #: The topic name.
    name: str = ""
    #: Its partitions of which replicas are being moved.
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)


@dataclass(slots=True)
class ListPartitionReassignmentsRequest:
    """The request of ListPartitionReassignments."""

    API_KEY: ClassVar[int] = 46
    API_NAME: ClassVar[str] = "ListPartitionReassignments"

    #: How many milliseconds the broker may take.
    timeout_ms: int = 60000
    #: The partitions asked about; null for all.
    topics: list[ListPartitionReassignmentsTopics] | None = None


@dataclass(slots=True)
class ListPartitionReassignmentsResponse:
    """The response of ListPartitionReassignments."""

    API_KEY: ClassVar[int] = 46
    API_NAME: ClassVar[str] = "ListPartitionReassignments"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: What kept the request from being answered; 0 if nothing did.
    error_code: int = 0
    #: The same for people; null if nothing did.
    error_message: str | None = ""
    #: The topics of which replicas are being moved.
    topics: list[OngoingTopicReassignment] = field(default_factory=list)
