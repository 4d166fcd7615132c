"""ElectLeaders, API key 43, versions 0-2. Elects other leaders of partitions: the preferred replicas, or any that are
left.

Generated from protocol/apis/elect_leaders.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class TopicPartitions(Message):
    """Partitions of a topic."""

    __slots__ = ("topic", "partitions")

    #: The topic name.
    topic: str
    #: The partition numbers.
    partitions: list[int]

    def __init__(self, topic: str = "", partitions: list[int] = UNSET) -> None:
        self.topic = topic
        self.partitions = [] if partitions is UNSET else partitions


class PartitionResult(Message):
    """The result for an election."""

    __slots__ = ("partition_id", "error_code", "error_message")

    #: The partition number.
    partition_id: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(self, partition_id: int = 0, error_code: int = 0, error_message: str | None = "") -> None:
        self.partition_id = partition_id
        self.error_code = error_code
        self.error_message = error_message


class ReplicaElectionResult(Message):
    """The result for the elections of a topic."""

    __slots__ = ("topic", "partition_result")

    #: The topic name.
    topic: str
    #: The result for each partition.
    partition_result: list[PartitionResult]

    def __init__(self, topic: str = "", partition_result: list[PartitionResult] = UNSET) -> None:
        self.topic = topic
        self.partition_result = [] if partition_result is UNSET else partition_result


class ElectLeadersRequest(Message):
    """The request of ElectLeaders."""

    __slots__ = ("election_type", "topic_partitions", "timeout_ms")

    API_KEY: ClassVar[int] = 43
    API_NAME: ClassVar[str] = "ElectLeaders"

    #: 0 for the preferred leaders, 1 for replicas that need not be in sync, where no other can lead. Versions 1+.
    election_type: int
    #: The partitions; null for all that are not as asked for.
    topic_partitions: list[TopicPartitions] | None
    #: How many milliseconds the broker may take.
    timeout_ms: int

    def __init__(
        self, election_type: int = 0, topic_partitions: list[TopicPartitions] | None = UNSET, timeout_ms: int = 60000
    ) -> None:
        self.election_type = election_type
        self.topic_partitions = [] if topic_partitions is UNSET else topic_partitions
        self.timeout_ms = timeout_ms


class ElectLeadersResponse(Message):
    """The response of ElectLeaders."""

    __slots__ = ("throttle_time_ms", "error_code", "replica_election_results")

    API_KEY: ClassVar[int] = 43
    API_NAME: ClassVar[str] = "ElectLeaders"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code of the whole request; 0 if there is none. Versions 1+.
    error_code: int
    #: The result for each topic.
    replica_election_results: list[ReplicaElectionResult]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        replica_election_results: list[ReplicaElectionResult] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.replica_election_results = [] if replica_election_results is UNSET else replica_election_results
