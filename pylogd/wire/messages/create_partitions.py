"""CreatePartitions, API key 37, versions 0-3. Gives topics more partitions.

Generated from protocol/apis/create_partitions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class CreatePartitionsAssignment:
    """Which brokers hold a new partition."""

    #: The broker ids of the replicas, the preferred leader first.
    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsTopic:
    """A topic to give partitions to."""

    #: The topic name.
    name: str = ""
    #: How many partitions the topic shall have.
    count: int = 0
    #: Which brokers hold each new partition; null to let the cluster decide.
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsTopicResult:
    """What became of a topic."""

    #: The topic name.
    name: str = ""
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = None


@dataclass(slots=True)
class CreatePartitionsRequest:
    """The request of CreatePartitions."""

    API_KEY: ClassVar[int] = 37
    API_NAME: ClassVar[str] = "CreatePartitions"

    #: The topics.
    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    #: How many milliseconds the broker may take.
    timeout_ms: int = 0
    #: Only check whether it could be done.
    validate_only: bool = False


@dataclass(slots=True)
class CreatePartitionsResponse:
    """The response of CreatePartitions."""

    API_KEY: ClassVar[int] = 37
    API_NAME: ClassVar[str] = "CreatePartitions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: What became of each topic.
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)
