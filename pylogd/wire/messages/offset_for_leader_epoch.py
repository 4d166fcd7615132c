"""OffsetForLeaderEpoch, API key 23, versions 0-4. Asks where a leader epoch ended in the log, so that a client can
notice lost records.

Generated from protocol/apis/offset_for_leader_epoch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class OffsetForLeaderPartition(Message):
    """A partition's part of the request."""

    __slots__ = ("partition", "current_leader_epoch", "leader_epoch")

    #: The partition's number.
    partition: int
    #: The leader epoch that the client knows, so that a stale client or broker is detected; -1 for none. Versions 2+.
    current_leader_epoch: int
    #: The epoch asked about.
    leader_epoch: int

    def __init__(self, partition: int = 0, current_leader_epoch: int = -1, leader_epoch: int = 0) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.leader_epoch = leader_epoch


class OffsetForLeaderTopic(Message):
    """A topic's part of the request."""

    __slots__ = ("topic", "partitions")

    #: The topic name.
    topic: str
    #: The partitions.
    partitions: list[OffsetForLeaderPartition]

    def __init__(self, topic: str = "", partitions: list[OffsetForLeaderPartition] = UNSET) -> None:
        self.topic = topic
        self.partitions = [] if partitions is UNSET else partitions


class EpochEndOffset(Message):
    """Where a leader epoch ends."""

    __slots__ = ("error_code", "partition", "leader_epoch", "end_offset")

    #: The error code; 0 if all went well.
    error_code: int
    #: The partition's number.
    partition: int
    #: The largest epoch in the log that is not above the one asked about; -1 if there is none. Versions 1+.
    leader_epoch: int
    #: The offset after the last record of that epoch; -1 if not known.
    end_offset: int

    def __init__(self, error_code: int = 0, partition: int = 0, leader_epoch: int = -1, end_offset: int = -1) -> None:
        self.error_code = error_code
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end_offset = end_offset


class OffsetForLeaderTopicResult(Message):
    """A topic's part of the response."""

    __slots__ = ("topic", "partitions")

    #: The topic name.
    topic: str
    #: The partitions.
    partitions: list[EpochEndOffset]

    def __init__(self, topic: str = "", partitions: list[EpochEndOffset] = UNSET) -> None:
        self.topic = topic
        self.partitions = [] if partitions is UNSET else partitions


class OffsetForLeaderEpochRequest(Message):
    """The request of OffsetForLeaderEpoch."""

    __slots__ = ("replica_id", "topics")

    API_KEY: ClassVar[int] = 23
    API_NAME: ClassVar[str] = "OffsetForLeaderEpoch"

    #: The broker id of a follower; -1 for a consumer, -2 if not given. Versions 3+.
    replica_id: int
    #: The topics.
    topics: list[OffsetForLeaderTopic]

    def __init__(self, replica_id: int = -2, topics: list[OffsetForLeaderTopic] = UNSET) -> None:
        self.replica_id = replica_id
        self.topics = [] if topics is UNSET else topics


class OffsetForLeaderEpochResponse(Message):
    """The response of OffsetForLeaderEpoch."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 23
    API_NAME: ClassVar[str] = "OffsetForLeaderEpoch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int
    #: The topics.
    topics: list[OffsetForLeaderTopicResult]

    def __init__(self, throttle_time_ms: int = 0, topics: list[OffsetForLeaderTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
