"""Produce, API key 0, versions 3-13. Appends record batches to partitions.

Generated from protocol/apis/produce.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class PartitionProduceData:
    """A partition's part of the request."""

    #: The partition's number.
    index: int = 0
    #: Record batches, one behind the other.
    records: bytes | memoryview | None = None


@dataclass(slots=True)
class TopicProduceData:
    """A topic's part of the request."""

    #: The topic name. Versions 3-12.
    name: str = ""
    #: The topic's id. Versions 13+.
    topic_id: bytes = ZERO_UUID
    #: What to append, by partition.
    partition_data: list[PartitionProduceData] = field(default_factory=list)


@dataclass(slots=True)
class BatchIndexAndErrorMessage:
    """A record that was refused."""

    #: The record's place in the batch, from 0.
    batch_index: int = 0
    #: What is wrong with the record, for people.
    batch_index_error_message: str | None = None


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """A leader and its epoch."""

    #: The leader's broker id; -1 if there is none.
    leader_id: int = -1
    #: The epoch of the leader; -1 if not known.
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionProduceResponse:
    """A partition's part of the response."""

    #: The partition's number.
    index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The offset that the first record got; -1 if nothing was appended.
    base_offset: int = 0
    #: The time stamp that the broker gave the records; -1 if the producer's stand.
    log_append_time_ms: int = -1
    #: The first offset in the partition's log; -1 if not known. Versions 5+.
    log_start_offset: int = -1
    #: The records that made the broker refuse the batch. Versions 8+.
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)
    #: Why the batch was refused, for people; null if it was not. Versions 8+.
    error_message: str | None = None
    #: Who leads now, if the request went to the wrong broker. Versions 10+.
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


@dataclass(slots=True)
class TopicProduceResponse:
    """A topic's part of the response."""

    #: The topic name. Versions 3-12.
    name: str = ""
    #: The topic's id. Versions 13+.
    topic_id: bytes = ZERO_UUID
    #: What became of it, by partition.
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """How to reach a broker."""

    #: The broker's id.
    node_id: int = 0
    #: The host name to connect to.
    host: str = ""
    #: The port to connect to.
    port: int = 0
    #: The broker's rack; null if it has none.
    rack: str | None = None


@dataclass(slots=True)
class ProduceRequest:
    """The request of Produce."""

    API_KEY: ClassVar[int] = 0
    API_NAME: ClassVar[str] = "Produce"

    #: The transactional id; null if the producer uses no transactions.
    transactional_id: str | None = None
    #: When to answer: 0 never, 1 once the leader has appended, -1 once all in-sync replicas have.
    acks: int = 0
    #: How many milliseconds to wait for the replicas.
    timeout_ms: int = 0
    #: What to append, by topic.
    topic_data: list[TopicProduceData] = field(default_factory=list)


@dataclass(slots=True)
class ProduceResponse:
    """The response of Produce."""

    API_KEY: ClassVar[int] = 0
    API_NAME: ClassVar[str] = "Produce"

    #: What became of it, by topic.
    responses: list[TopicProduceResponse] = field(default_factory=list)
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: How to reach the leaders that the response names. Versions 10+.
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
