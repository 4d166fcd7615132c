"""CreatePartitions, API key 37, versions 0-3. Gives topics more partitions.

Generated from protocol/apis/create_partitions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class CreatePartitionsAssignment(Message):
    """Which brokers hold a new partition."""

    __slots__ = ("broker_ids",)

    #: The broker ids of the replicas, the preferred leader first.
    broker_ids: list[int]

    def __init__(self, broker_ids: list[int] = UNSET) -> None:
        self.broker_ids = [] if broker_ids is UNSET else broker_ids


class CreatePartitionsTopic(Message):
    """A topic to give partitions to."""

    __slots__ = ("name", "count", "assignments")

    #: The topic name.
    name: str
    #: How many partitions the topic is to have.
    count: int
    #: Which brokers hold each new partition; null to let the cluster decide.
    assignments: list[CreatePartitionsAssignment] | None

    def __init__(
        self, name: str = "", count: int = 0, assignments: list[CreatePartitionsAssignment] | None = UNSET
    ) -> None:
        self.name = name
        self.count = count
        self.assignments = [] if assignments is UNSET else assignments


class CreatePartitionsTopicResult(Message):
    """The result for a topic."""

    __slots__ = ("name", "error_code", "error_message")

    #: The topic name.
    name: str
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(self, name: str = "", error_code: int = 0, error_message: str | None = None) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message


class CreatePartitionsRequest(Message):
    """The request of CreatePartitions."""

    __slots__ = ("topics", "timeout_ms", "validate_only")

    API_KEY: ClassVar[int] = 37
    API_NAME: ClassVar[str] = "CreatePartitions"

    #: The topics.
    topics: list[CreatePartitionsTopic]
    #: How many milliseconds the broker may take.
    timeout_ms: int
    #: Whether to check the request only, without changing anything.
    validate_only: bool

    def __init__(
        self, topics: list[CreatePartitionsTopic] = UNSET, timeout_ms: int = 0, validate_only: bool = False
    ) -> None:
        self.topics = [] if topics is UNSET else topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreatePartitionsResponse(Message):
    """The response of CreatePartitions."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 37
    API_NAME: ClassVar[str] = "CreatePartitions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each topic.
    results: list[CreatePartitionsTopicResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[CreatePartitionsTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
