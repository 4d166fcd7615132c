"""Fetch, API key 1, versions 4-18. Reads record batches from partitions, waiting for them if the client likes.

Generated from protocol/apis/fetch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class ReplicaState:
    """A follower that fetches."""

    #: The broker id of a follower; -1 for any other client.
    replica_id: int = -1
    #: The epoch of the follower's registration; -1 if not known.
    replica_epoch: int = -1


@dataclass(slots=True)
class FetchPartition:
    """A partition's part of the request."""

    #: The partition's number.
    partition: int = 0
    #: The leader epoch that the client believes in, so that a stale client or broker is found out; -1 for none.
    #: Versions 9+.
    current_leader_epoch: int = -1
    #: The offset to read from.
    fetch_offset: int = 0
    #: The leader epoch of the last record read; -1 if there is none. Versions 12+.
    last_fetched_epoch: int = -1
    #: The first offset in the follower's log; -1 for any other client. Versions 5+.
    log_start_offset: int = -1
    #: At most this many bytes of this partition, save that the first batch always comes whole.
    partition_max_bytes: int = 0
    #: The id of the follower's data directory. Versions 17+.
    replica_directory_id: bytes = ZERO_UUID
    #: The high watermark that the follower knows; -1 if none, the largest int64 if it does not say. Versions 18+.
    high_watermark: int = 9223372036854775807


@dataclass(slots=True)
class FetchTopic:
    """A topic's part of the request."""

    #: The topic name. Versions 4-12.
    topic: str = ""
    #: The topic's id. Versions 13+.
    topic_id: bytes = ZERO_UUID
    #: The partitions.
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic:
    """Partitions of a topic to drop from the session."""

    #: The topic name. Versions 7-12.
    topic: str = ""
    #: The topic's id. Versions 13+.
    topic_id: bytes = ZERO_UUID
    #: The partitions.
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class EpochEndOffset:
    """Where a leader epoch ends."""

    #: The leader epoch; -1 if not known.
    epoch: int = -1
    #: The offset behind the last record of that epoch; -1 if not known.
    end_offset: int = -1


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """A leader and its epoch."""

    #: The leader's broker id; -1 if there is none.
    leader_id: int = -1
    #: The epoch of the leader; -1 if not known.
    leader_epoch: int = -1


@dataclass(slots=True)
class SnapshotId:
    """A snapshot of the cluster metadata."""

    #: The offset behind the snapshot; -1 if there is none.
    end_offset: int = -1
    #: The epoch of the snapshot; -1 if there is none.
    epoch: int = -1


@dataclass(slots=True)
class AbortedTransaction:
    """A transaction that was aborted."""

    #: The producer id of the transaction.
    producer_id: int = 0
    #: The offset of its first record.
    first_offset: int = 0


@dataclass(slots=True)
class PartitionData:
    """A partition's part of the response."""

    #: The partition's number.
    partition_index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The offset behind the last record that all in-sync replicas have.
    high_watermark: int = 0
    #: The offset before which every transaction is decided; -1 if not known.
    last_stable_offset: int = -1
    #: The first offset in the partition's log; -1 if not known. Versions 5+.
    log_start_offset: int = -1
    #: Where the client's log parts from the leader's, if it does. Versions 12+.
    diverging_epoch: EpochEndOffset = field(default_factory=EpochEndOffset)
    #: Who leads now, if the request went to the wrong broker. Versions 12+.
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    #: The snapshot to fetch instead, if the offset is gone from the log. Versions 12+.
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    #: The aborted transactions in what was read; null if all records were asked for.
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    #: The broker to read this partition from; -1 for this one. Versions 11+.
    preferred_read_replica: int = -1
    #: Record batches, one behind the other; the last one may be cut off.
    records: Sized | None = None


@dataclass(slots=True)
class FetchableTopicResponse:
    """A topic's part of the response."""

    #: The topic name. Versions 4-12.
    topic: str = ""
    #: The topic's id. Versions 13+.
    topic_id: bytes = ZERO_UUID
    #: The partitions.
    partitions: list[PartitionData] = field(default_factory=list)


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
class FetchRequest:
    """The request of Fetch."""

    API_KEY: ClassVar[int] = 1
    API_NAME: ClassVar[str] = "Fetch"

    #: The cluster that the client means to talk to; null for any. Versions 12+.
    cluster_id: str | None = None
    #: The broker id of a follower; -1 for any other client. Versions 4-14.
    replica_id: int = -1
    #: Who fetches, if it is a follower. Versions 15+.
    replica_state: ReplicaState = field(default_factory=ReplicaState)
    #: How many milliseconds to wait for min_bytes.
    max_wait_ms: int = 0
    #: Answer once there are this many bytes.
    min_bytes: int = 0
    #: Answer with at most this many bytes, save that the first batch always comes whole.
    max_bytes: int = 2147483647
    #: 0: read all records; 1: only those of committed transactions.
    isolation_level: int = 0
    #: The fetch session; 0 for none, or to begin one. Versions 7+.
    session_id: int = 0
    #: The count of requests in the session: 0 begins one, -1 fetches without or ends one. Versions 7+.
    session_epoch: int = -1
    #: What to fetch; in a session, what to add or change.
    topics: list[FetchTopic] = field(default_factory=list)
    #: What to drop from the session. Versions 7+.
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)
    #: The client's rack, so that a near replica can serve it. Versions 11+.
    rack_id: str = ""


@dataclass(slots=True)
class FetchResponse:
    """The response of Fetch."""

    API_KEY: ClassVar[int] = 1
    API_NAME: ClassVar[str] = "Fetch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The error of the whole request; 0 if there is none. Versions 7+.
    error_code: int = 0
    #: The session that the broker opened or goes on with; 0 for none. Versions 7+.
    session_id: int = 0
    #: What was read, by topic.
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    #: How to reach the leaders that the response names. Versions 16+.
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
