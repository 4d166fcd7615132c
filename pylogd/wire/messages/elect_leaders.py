"""ElectLeaders, API key 43, versions 0-2. Has other replicas lead partitions: the preferred ones, or whatever is left.

Generated from protocol/apis/elect_leaders.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class TopicPartitions:
    """Partitions of a topic."""

    #: The topic name.
    topic: str = ""
    #: The partition numbers.
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PartitionResult:
    """What became of an election."""

    #: The partition number.
    partition_id: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = ""


@dataclass(slots=True)
class ReplicaElectionResult:
    """What became of the elections of a topic."""

    #: The topic name.
    topic: str = ""
    #: What became of each partition.
    partition_result: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ElectLeadersRequest:
    """The request of ElectLeaders."""

    API_KEY: ClassVar[int] = 43
    API_NAME: ClassVar[str] = "ElectLeaders"

    #: 0 for the preferred leaders, 1 for replicas that need not be in sync, where no other can lead. Versions 1+.
    election_type: int = 0
    #: The partitions; null for all that are not as asked for.
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    #: How many milliseconds the broker may take.
    timeout_ms: int = 60000


@dataclass(slots=True)
class ElectLeadersResponse:
    """The response of ElectLeaders."""

    API_KEY: ClassVar[int] = 43
    API_NAME: ClassVar[str] = "ElectLeaders"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: What kept the whole request from being looked at; 0 if nothing did. Versions 1+.
    error_code: int = 0
    #: What became of each topic.
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)
