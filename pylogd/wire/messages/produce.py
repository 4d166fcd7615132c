"""Produce, API key 0, versions 3-13. Appends record batches to partitions.

Generated from protocol/apis/produce.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class PartitionProduceData(Message):
    """A partition's part of the request."""

    __slots__ = ("index", "records")

    #: The partition's number.
    index: int
    #: Record batches, one after the other.
    records: bytes | memoryview | None

    def __init__(self, index: int = 0, records: bytes | memoryview | None = None) -> None:
        self.index = index
        self.records = records


class TopicProduceData(Message):
    """A topic's part of the request."""

    __slots__ = ("name", "topic_id", "partition_data")

    #: The topic name. Versions 3-12.
    name: str
    #: The topic's id. Versions 13+.
    topic_id: bytes
    #: What to append, by partition.
    partition_data: list[PartitionProduceData]

    def __init__(
        self, name: str = "", topic_id: bytes = ZERO_UUID, partition_data: list[PartitionProduceData] = UNSET
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_data = [] if partition_data is UNSET else partition_data


class BatchIndexAndErrorMessage(Message):
    """A record that was refused."""

    __slots__ = ("batch_index", "batch_index_error_message")

    #: The index of the record in the batch, from 0.
    batch_index: int
    #: What is wrong with the record, for people.
    batch_index_error_message: str | None

    def __init__(self, batch_index: int = 0, batch_index_error_message: str | None = None) -> None:
        self.batch_index = batch_index
        self.batch_index_error_message = batch_index_error_message


class LeaderIdAndEpoch(Message):
    """A leader and its epoch."""

    __slots__ = ("leader_id", "leader_epoch")

    #: The leader's broker id; -1 if there is none.
    leader_id: int
    #: The epoch of the leader; -1 if not known.
    leader_epoch: int

    def __init__(self, leader_id: int = -1, leader_epoch: int = -1) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class PartitionProduceResponse(Message):
    """A partition's part of the response."""

    __slots__ = (
        "index",
        "error_code",
        "base_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
        "error_message",
        "current_leader",
    )

    #: The partition's number.
    index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The offset that the first record got; -1 if nothing was appended.
    base_offset: int
    #: The time stamp that the broker gave the records; -1 if they keep the producer's.
    log_append_time_ms: int
    #: The first offset in the partition's log; -1 if not known. Versions 5+.
    log_start_offset: int
    #: The records that made the broker refuse the batch. Versions 8+.
    record_errors: list[BatchIndexAndErrorMessage]
    #: Why the batch was refused, for people; null if it was not. Versions 8+.
    error_message: str | None
    #: The current leader, if the request went to another broker. Versions 10+.
    current_leader: LeaderIdAndEpoch

    def __init__(
        self,
        index: int = 0,
        error_code: int = 0,
        base_offset: int = 0,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: list[BatchIndexAndErrorMessage] = UNSET,
        error_message: str | None = None,
        current_leader: LeaderIdAndEpoch = UNSET,
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors = [] if record_errors is UNSET else record_errors
        self.error_message = error_message
        self.current_leader = LeaderIdAndEpoch() if current_leader is UNSET else current_leader


class TopicProduceResponse(Message):
    """A topic's part of the response."""

    __slots__ = ("name", "topic_id", "partition_responses")

    #: The topic name. Versions 3-12.
    name: str
    #: The topic's id. Versions 13+.
    topic_id: bytes
    #: The results by partition.
    partition_responses: list[PartitionProduceResponse]

    def __init__(
        self, name: str = "", topic_id: bytes = ZERO_UUID, partition_responses: list[PartitionProduceResponse] = UNSET
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_responses = [] if partition_responses is UNSET else partition_responses


class NodeEndpoint(Message):
    """How to reach a broker."""

    __slots__ = ("node_id", "host", "port", "rack")

    #: The broker's id.
    node_id: int
    #: The host name to connect to.
    host: str
    #: The port to connect to.
    port: int
    #: The broker's rack; null if it has none.
    rack: str | None

    def __init__(self, node_id: int = 0, host: str = "", port: int = 0, rack: str | None = None) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class ProduceRequest(Message):
    """The request of Produce."""

    __slots__ = ("transactional_id", "acks", "timeout_ms", "topic_data")

    API_KEY: ClassVar[int] = 0
    API_NAME: ClassVar[str] = "Produce"

    #: The transactional id; null if the producer uses no transactions.
    transactional_id: str | None
    #: When to answer: 0 never, 1 once the leader has appended, -1 once all in-sync replicas have.
    acks: int
    #: How many milliseconds to wait for the replicas.
    timeout_ms: int
    #: What to append, by topic.
    topic_data: list[TopicProduceData]

    def __init__(
        self,
        transactional_id: str | None = None,
        acks: int = 0,
        timeout_ms: int = 0,
        topic_data: list[TopicProduceData] = UNSET,
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic_data = [] if topic_data is UNSET else topic_data


class ProduceResponse(Message):
    """The response of Produce."""

    __slots__ = ("responses", "throttle_time_ms", "node_endpoints")

    API_KEY: ClassVar[int] = 0
    API_NAME: ClassVar[str] = "Produce"

    #: The results by topic.
    responses: list[TopicProduceResponse]
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: How to reach the leaders that the response names. Versions 10+.
    node_endpoints: list[NodeEndpoint]

    def __init__(
        self,
        responses: list[TopicProduceResponse] = UNSET,
        throttle_time_ms: int = 0,
        node_endpoints: list[NodeEndpoint] = UNSET,
    ) -> None:
        self.responses = [] if responses is UNSET else responses
        self.throttle_time_ms = throttle_time_ms
        self.node_endpoints = [] if node_endpoints is UNSET else node_endpoints
