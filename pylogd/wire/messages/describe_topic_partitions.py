"""DescribeTopicPartitions, API key 75, versions 0. Asks for the partitions of topics, page by page.

Generated from protocol/apis/describe_topic_partitions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class TopicRequest(Message):
    """A topic asked for."""

    __slots__ = ("name",)

    #: The topic name.
    name: str

    def __init__(self, name: str = "") -> None:
        self.name = name


class Cursor(Message):
    """A position in the list of all partitions."""

    __slots__ = ("topic_name", "partition_index")

    #: The topic name.
    topic_name: str
    #: The partition's number.
    partition_index: int

    def __init__(self, topic_name: str = "", partition_index: int = 0) -> None:
        self.topic_name = topic_name
        self.partition_index = partition_index


class DescribeTopicPartitionsResponsePartition(Message):
    """A partition."""

    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "eligible_leader_replicas",
        "last_known_elr",
        "offline_replicas",
    )

    #: The error code; 0 if all went well.
    error_code: int
    #: The partition's number.
    partition_index: int
    #: The leader's broker id; -1 if there is none.
    leader_id: int
    #: The epoch of the leader.
    leader_epoch: int
    #: The broker ids of all replicas.
    replica_nodes: list[int]
    #: The broker ids of the replicas that are in sync.
    isr_nodes: list[int]
    #: The broker ids of replicas that may lead though not in sync; null if not known.
    eligible_leader_replicas: list[int] | None
    #: The broker ids that were such replicas last; null if not known.
    last_known_elr: list[int] | None
    #: The broker ids of the replicas that are down.
    offline_replicas: list[int]

    def __init__(
        self,
        error_code: int = 0,
        partition_index: int = 0,
        leader_id: int = 0,
        leader_epoch: int = -1,
        replica_nodes: list[int] = UNSET,
        isr_nodes: list[int] = UNSET,
        eligible_leader_replicas: list[int] | None = None,
        last_known_elr: list[int] | None = None,
        offline_replicas: list[int] = UNSET,
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replica_nodes = [] if replica_nodes is UNSET else replica_nodes
        self.isr_nodes = [] if isr_nodes is UNSET else isr_nodes
        self.eligible_leader_replicas = eligible_leader_replicas
        self.last_known_elr = last_known_elr
        self.offline_replicas = [] if offline_replicas is UNSET else offline_replicas


class DescribeTopicPartitionsResponseTopic(Message):
    """A topic."""

    __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

    #: The error code; 0 if all went well.
    error_code: int
    #: The topic name.
    name: str | None
    #: The topic's id.
    topic_id: bytes
    #: Whether the topic is for the use of brokers only.
    is_internal: bool
    #: The partitions.
    partitions: list[DescribeTopicPartitionsResponsePartition]
    #: A bit for each operation that the client may do on the topic; the smallest int32 if not asked for.
    topic_authorized_operations: int

    def __init__(
        self,
        error_code: int = 0,
        name: str | None = "",
        topic_id: bytes = ZERO_UUID,
        is_internal: bool = False,
        partitions: list[DescribeTopicPartitionsResponsePartition] = UNSET,
        topic_authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions = [] if partitions is UNSET else partitions
        self.topic_authorized_operations = topic_authorized_operations


class DescribeTopicPartitionsRequest(Message):
    """The request of DescribeTopicPartitions."""

    __slots__ = ("topics", "response_partition_limit", "cursor")

    API_KEY: ClassVar[int] = 75
    API_NAME: ClassVar[str] = "DescribeTopicPartitions"

    #: The topics.
    topics: list[TopicRequest]
    #: At most this many partitions in the response.
    response_partition_limit: int
    #: Where to begin; null for the beginning.
    cursor: Cursor | None

    def __init__(
        self, topics: list[TopicRequest] = UNSET, response_partition_limit: int = 2000, cursor: Cursor | None = None
    ) -> None:
        self.topics = [] if topics is UNSET else topics
        self.response_partition_limit = response_partition_limit
        self.cursor = cursor


class DescribeTopicPartitionsResponse(Message):
    """The response of DescribeTopicPartitions."""

    __slots__ = ("throttle_time_ms", "topics", "next_cursor")

    API_KEY: ClassVar[int] = 75
    API_NAME: ClassVar[str] = "DescribeTopicPartitions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The topics.
    topics: list[DescribeTopicPartitionsResponseTopic]
    #: Where the next page begins; null if this is the last.
    next_cursor: Cursor | None

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[DescribeTopicPartitionsResponseTopic] = UNSET,
        next_cursor: Cursor | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
        self.next_cursor = next_cursor
