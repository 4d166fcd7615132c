"""TxnOffsetCommit, API key 28, versions 0-5. Commits offsets of a group when a transaction is committed.

Generated from protocol/apis/txn_offset_commit.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class TxnOffsetCommitRequestPartition(Message):
    """The offset of a partition."""

    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

    #: The index of the partition.
    partition_index: int
    #: The offset of the next record to read.
    committed_offset: int
    #: The leader epoch of the last record that was read; -1 if it is not known. Versions 2+.
    committed_leader_epoch: int
    #: A text that the client stores with the offset.
    committed_metadata: str | None

    def __init__(
        self,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        committed_metadata: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.committed_metadata = committed_metadata


class TxnOffsetCommitRequestTopic(Message):
    """Offsets of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The offsets by partition.
    partitions: list[TxnOffsetCommitRequestPartition]

    def __init__(self, name: str = "", partitions: list[TxnOffsetCommitRequestPartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class TxnOffsetCommitResponsePartition(Message):
    """The result for the offset of a partition."""

    __slots__ = ("partition_index", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class TxnOffsetCommitResponseTopic(Message):
    """The results for the offsets of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The result for each offset.
    partitions: list[TxnOffsetCommitResponsePartition]

    def __init__(self, name: str = "", partitions: list[TxnOffsetCommitResponsePartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class TxnOffsetCommitRequest(Message):
    """The request of TxnOffsetCommit."""

    __slots__ = (
        "transactional_id",
        "group_id",
        "producer_id",
        "producer_epoch",
        "generation_id",
        "member_id",
        "group_instance_id",
        "topics",
    )

    API_KEY: ClassVar[int] = 28
    API_NAME: ClassVar[str] = "TxnOffsetCommit"

    #: The transactional id.
    transactional_id: str
    #: The group id.
    group_id: str
    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: The member's generation or epoch; -1 if the offsets are not those of a member. Versions 3+.
    generation_id: int
    #: The member id; empty if the offsets are not those of a member. Versions 3+.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 3+.
    group_instance_id: str | None
    #: The offsets to store, by topic.
    topics: list[TxnOffsetCommitRequestTopic]

    def __init__(
        self,
        transactional_id: str = "",
        group_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        topics: list[TxnOffsetCommitRequestTopic] = UNSET,
    ) -> None:
        self.transactional_id = transactional_id
        self.group_id = group_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.topics = [] if topics is UNSET else topics


class TxnOffsetCommitResponse(Message):
    """The response of TxnOffsetCommit."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 28
    API_NAME: ClassVar[str] = "TxnOffsetCommit"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each offset, by topic.
    topics: list[TxnOffsetCommitResponseTopic]

    def __init__(self, throttle_time_ms: int = 0, topics: list[TxnOffsetCommitResponseTopic] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
