"""DescribeTopicPartitions, API key 75, versions 0. Asks for the partitions of topics, page by page.

Generated from protocol/apis/describe_topic_partitions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class TopicRequest:
    """A topic asked for."""

    #: The topic name.
    name: str = ""


@dataclass(slots=True)
class Cursor:
    """A place in the list of all partitions."""

    #: The topic name.
    topic_name: str = ""
    #: The partition's number.
    partition_index: int = 0


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition:
    """A partition."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The partition's number.
    partition_index: int = 0
    #: The leader's broker id; -1 if there is none.
    leader_id: int = 0
    #: The epoch of the leader.
    leader_epoch: int = -1
    #: The broker ids of all replicas.
    replica_nodes: list[int] = field(default_factory=list)
    #: The broker ids of the replicas that are in sync.
    isr_nodes: list[int] = field(default_factory=list)
    #: The broker ids of replicas that may lead though not in sync; null if not known.
    eligible_leader_replicas: list[int] | None = None
    #: The broker ids that were such replicas last; null if not known.
    last_known_elr: list[int] | None = None
    #: The broker ids of the replicas that are down.
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic:
    """A topic."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The topic name.
    name: str | None = ""
    #: The topic's id.
    topic_id: bytes = ZERO_UUID
    #: Whether the topic is for the use of brokers only.
    is_internal: bool = False
    #: The partitions.
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    #: A bit for each operation that the client may do on the topic; the smallest int32 if not asked for.
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class DescribeTopicPartitionsRequest:
    """The request of DescribeTopicPartitions."""

    API_KEY: ClassVar[int] = 75
    API_NAME: ClassVar[str] = "DescribeTopicPartitions"

    #: The topics.
    topics: list[TopicRequest] = field(default_factory=list)
    #: At most this many partitions in the response.
    response_partition_limit: int = 2000
    #: Where to begin; null for the beginning.
    cursor: Cursor | None = None


@dataclass(slots=True)
class DescribeTopicPartitionsResponse:
    """The response of DescribeTopicPartitions."""

    API_KEY: ClassVar[int] = 75
    API_NAME: ClassVar[str] = "DescribeTopicPartitions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The topics.
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    #: Where the next page begins; null if this is the last.
    next_cursor: Cursor | None = None
