"""Fetch, API key 1, versions 4-18. Reads record batches of partitions, waiting for them as long as the client asks.

Generated from protocol/apis/fetch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class ReplicaState(Message):
    """A follower that fetches."""

    __slots__ = ("replica_id", "replica_epoch")

    #: The broker id of a follower; -1 for any other client.
    replica_id: int
    #: The epoch of the follower's registration; -1 if not known.
    replica_epoch: int

    def __init__(self, replica_id: int = -1, replica_epoch: int = -1) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch


class FetchPartition(Message):
    """A partition's part of the request."""

    __slots__ = (
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
        "replica_directory_id",
        "high_watermark",
    )

    #: The partition's number.
    partition: int
    #: The leader epoch that the client knows, so that a stale client or broker is detected; -1 for none. Versions 9+.
    current_leader_epoch: int
    #: The offset to read from.
    fetch_offset: int
    #: The leader epoch of the last record read; -1 if there is none. Versions 12+.
    last_fetched_epoch: int
    #: The first offset in the follower's log; -1 for any other client. Versions 5+.
    log_start_offset: int
    #: At most this many bytes of this partition, save that the first batch always comes whole.
    partition_max_bytes: int
    #: The id of the follower's data directory. Versions 17+.
    replica_directory_id: bytes
    #: The high watermark that the follower knows; -1 if none, the largest int64 if not given. Versions 18+.
    high_watermark: int

    def __init__(
        self,
        partition: int = 0,
        current_leader_epoch: int = -1,
        fetch_offset: int = 0,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        partition_max_bytes: int = 0,
        replica_directory_id: bytes = ZERO_UUID,
        high_watermark: int = 9223372036854775807,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.partition_max_bytes = partition_max_bytes
        self.replica_directory_id = replica_directory_id
        self.high_watermark = high_watermark


class FetchTopic(Message):
    """A topic's part of the request."""

    __slots__ = ("topic", "topic_id", "partitions")

    #: The topic name. Versions 4-12.
    topic: str
    #: The topic's id. Versions 13+.
    topic_id: bytes
    #: The partitions.
    partitions: list[FetchPartition]

    def __init__(self, topic: str = "", topic_id: bytes = ZERO_UUID, partitions: list[FetchPartition] = UNSET) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class ForgottenTopic(Message):
    """Partitions of a topic to drop from the session."""

    __slots__ = ("topic", "topic_id", "partitions")

    #: The topic name. Versions 7-12.
    topic: str
    #: The topic's id. Versions 13+.
    topic_id: bytes
    #: The partitions.
    partitions: list[int]

    def __init__(self, topic: str = "", topic_id: bytes = ZERO_UUID, partitions: list[int] = UNSET) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class EpochEndOffset(Message):
    """Where a leader epoch ends."""

    __slots__ = ("epoch", "end_offset")

    #: The leader epoch; -1 if not known.
    epoch: int
    #: The offset after the last record of that epoch; -1 if not known.
    end_offset: int

    def __init__(self, epoch: int = -1, end_offset: int = -1) -> None:
        self.epoch = epoch
        self.end_offset = end_offset


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


class SnapshotId(Message):
    """A snapshot of the cluster metadata."""

    __slots__ = ("end_offset", "epoch")

    #: The offset after the snapshot; -1 if there is none.
    end_offset: int
    #: The epoch of the snapshot; -1 if there is none.
    epoch: int

    def __init__(self, end_offset: int = -1, epoch: int = -1) -> None:
        self.end_offset = end_offset
        self.epoch = epoch


class AbortedTransaction(Message):
    """A transaction that was aborted."""

    __slots__ = ("producer_id", "first_offset")

    #: The producer id of the transaction.
    producer_id: int
    #: The offset of its first record.
    first_offset: int

    def __init__(self, producer_id: int = 0, first_offset: int = 0) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset


class PartitionData(Message):
    """A partition's part of the response."""

    __slots__ = (
        "partition_index",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "diverging_epoch",
        "current_leader",
        "snapshot_id",
        "aborted_transactions",
        "preferred_read_replica",
        "records",
    )

    #: The partition's number.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The offset after the last record that all in-sync replicas have.
    high_watermark: int
    #: The offset before which every transaction is decided; -1 if not known.
    last_stable_offset: int
    #: The first offset in the partition's log; -1 if not known. Versions 5+.
    log_start_offset: int
    #: Where the client's log diverges from the leader's, if it does. Versions 12+.
    diverging_epoch: EpochEndOffset
    #: The current leader, if the request went to another broker. Versions 12+.
    current_leader: LeaderIdAndEpoch
    #: The snapshot to fetch instead, if the offset is gone from the log. Versions 12+.
    snapshot_id: SnapshotId
    #: The aborted transactions in what was read; null if all records were asked for.
    aborted_transactions: list[AbortedTransaction] | None
    #: The broker to read this partition from; -1 for this one. Versions 11+.
    preferred_read_replica: int
    #: Record batches, one after the other; the last one may be cut off.
    records: Sized | None

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
        high_watermark: int = 0,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        diverging_epoch: EpochEndOffset = UNSET,
        current_leader: LeaderIdAndEpoch = UNSET,
        snapshot_id: SnapshotId = UNSET,
        aborted_transactions: list[AbortedTransaction] | None = UNSET,
        preferred_read_replica: int = -1,
        records: Sized | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.diverging_epoch = EpochEndOffset() if diverging_epoch is UNSET else diverging_epoch
        self.current_leader = LeaderIdAndEpoch() if current_leader is UNSET else current_leader
        self.snapshot_id = SnapshotId() if snapshot_id is UNSET else snapshot_id
        self.aborted_transactions = [] if aborted_transactions is UNSET else aborted_transactions
        self.preferred_read_replica = preferred_read_replica
        self.records = records


class FetchableTopicResponse(Message):
    """A topic's part of the response."""

    __slots__ = ("topic", "topic_id", "partitions")

    #: The topic name. Versions 4-12.
    topic: str
    #: The topic's id. Versions 13+.
    topic_id: bytes
    #: The partitions.
    partitions: list[PartitionData]

    def __init__(self, topic: str = "", topic_id: bytes = ZERO_UUID, partitions: list[PartitionData] = UNSET) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


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


class FetchRequest(Message):
    """The request of Fetch."""

    __slots__ = (
        "cluster_id",
        "replica_id",
        "replica_state",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "session_id",
        "session_epoch",
        "topics",
        "forgotten_topics_data",
        "rack_id",
    )

    API_KEY: ClassVar[int] = 1
    API_NAME: ClassVar[str] = "Fetch"

    #: The cluster that the client means to talk to; null for any. Versions 12+.
    cluster_id: str | None
    #: The broker id of a follower; -1 for any other client. Versions 4-14.
    replica_id: int
    #: The follower that fetches, if it is one. Versions 15+.
    replica_state: ReplicaState
    #: How many milliseconds to wait for min_bytes.
    max_wait_ms: int
    #: Answer once there are this many bytes.
    min_bytes: int
    #: Answer with at most this many bytes, save that the first batch always comes whole.
    max_bytes: int
    #: 0: read all records; 1: only those of committed transactions.
    isolation_level: int
    #: The fetch session; 0 for none, or to begin one. Versions 7+.
    session_id: int
    #: The number of the request in the session: 0 begins a session, -1 fetches without one or ends it. Versions 7+.
    session_epoch: int
    #: What to fetch; in a session, what to add or change.
    topics: list[FetchTopic]
    #: What to drop from the session. Versions 7+.
    forgotten_topics_data: list[ForgottenTopic]
    #: The client's rack, so that a near replica can serve it. Versions 11+.
    rack_id: str

    def __init__(
        self,
        cluster_id: str | None = None,
        replica_id: int = -1,
        replica_state: ReplicaState = UNSET,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 2147483647,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        topics: list[FetchTopic] = UNSET,
        forgotten_topics_data: list[ForgottenTopic] = UNSET,
        rack_id: str = "",
    ) -> None:
        self.cluster_id = cluster_id
        self.replica_id = replica_id
        self.replica_state = ReplicaState() if replica_state is UNSET else replica_state
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.topics = [] if topics is UNSET else topics
        self.forgotten_topics_data = [] if forgotten_topics_data is UNSET else forgotten_topics_data
        self.rack_id = rack_id


class FetchResponse(Message):
    """The response of Fetch."""

    __slots__ = ("throttle_time_ms", "error_code", "session_id", "responses", "node_endpoints")

    API_KEY: ClassVar[int] = 1
    API_NAME: ClassVar[str] = "Fetch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code of the whole request; 0 if there is none. Versions 7+.
    error_code: int
    #: The session that the broker opened or continues with; 0 for none. Versions 7+.
    session_id: int
    #: What was read, by topic.
    responses: list[FetchableTopicResponse]
    #: How to reach the leaders that the response names. Versions 16+.
    node_endpoints: list[NodeEndpoint]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        session_id: int = 0,
        responses: list[FetchableTopicResponse] = UNSET,
        node_endpoints: list[NodeEndpoint] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.session_id = session_id
        self.responses = [] if responses is UNSET else responses
        self.node_endpoints = [] if node_endpoints is UNSET else node_endpoints
