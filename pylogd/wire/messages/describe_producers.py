"""DescribeProducers, API key 61, versions 0. Asks brokers which idempotent and transactional producers write to
partitions.

Generated from protocol/apis/describe_producers.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class TopicRequest(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partition_indexes")

    #: The topic name.
    name: str
    #: The indexes of the partitions.
    partition_indexes: list[int]

    def __init__(self, name: str = "", partition_indexes: list[int] = UNSET) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is UNSET else partition_indexes


class ProducerState(Message):
    """A producer."""

    __slots__ = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_timestamp",
        "coordinator_epoch",
        "current_txn_start_offset",
        "awaited_until_ms",
    )

    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: The sequence number of its last record; -1 if there is none.
    last_sequence: int
    #: The time stamp of its last record in milliseconds since 1970; -1 if there is none.
    last_timestamp: int
    #: The epoch of the coordinator that ended its last transaction; -1 if there was none.
    coordinator_epoch: int
    #: The first offset of its open transaction; -1 if none is open.
    current_txn_start_offset: int
    #: Particular to pylogd. The time, in milliseconds since 1970, until which new replicas that began with the latest
    #: offset wait for this producer; -1 if they do not.
    awaited_until_ms: int

    def __init__(
        self,
        producer_id: int = 0,
        producer_epoch: int = 0,
        last_sequence: int = -1,
        last_timestamp: int = -1,
        coordinator_epoch: int = 0,
        current_txn_start_offset: int = -1,
        awaited_until_ms: int = -1,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_start_offset = current_txn_start_offset
        self.awaited_until_ms = awaited_until_ms


class PartitionResponse(Message):
    """The producers of a partition."""

    __slots__ = ("partition_index", "error_code", "error_message", "active_producers")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: What is wrong, for people; null if nothing is.
    error_message: str | None
    #: The producers that the partition remembers.
    active_producers: list[ProducerState]

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        active_producers: list[ProducerState] = UNSET,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.active_producers = [] if active_producers is UNSET else active_producers


class TopicResponse(Message):
    """The answers for a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The answer for each partition.
    partitions: list[PartitionResponse]

    def __init__(self, name: str = "", partitions: list[PartitionResponse] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class DescribeProducersRequest(Message):
    """The request of DescribeProducers."""

    __slots__ = ("topics",)

    API_KEY: ClassVar[int] = 61
    API_NAME: ClassVar[str] = "DescribeProducers"

    #: The partitions asked for, by topic.
    topics: list[TopicRequest]

    def __init__(self, topics: list[TopicRequest] = UNSET) -> None:
        self.topics = [] if topics is UNSET else topics


class DescribeProducersResponse(Message):
    """The response of DescribeProducers."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 61
    API_NAME: ClassVar[str] = "DescribeProducers"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The answers, by topic.
    topics: list[TopicResponse]

    def __init__(self, throttle_time_ms: int = 0, topics: list[TopicResponse] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
