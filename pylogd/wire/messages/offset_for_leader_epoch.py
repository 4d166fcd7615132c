"""OffsetForLeaderEpoch, API key 23, versions 0-4. Asks where a leader epoch ended in the log, so that a client can
notice lost records.

Generated from protocol/apis/offset_for_leader_epoch.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class OffsetForLeaderPartition:
    """A partition's part of the request."""

    #: The partition's number.
    partition: int = 0
    #: The leader epoch that the client believes in, so that a stale client or broker is found out; -1 for none.
    #: Versions 2+.
    current_leader_epoch: int = -1
    #: The epoch asked about.
    leader_epoch: int = 0


@dataclass(slots=True)
class OffsetForLeaderTopic:
    """A topic's part of the request."""

    #: The topic name.
    topic: str = ""
    #: The partitions.
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)


@dataclass(slots=True)
class EpochEndOffset:
    """Where a leader epoch ends."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The partition's number.
    partition: int = 0
    #: The largest epoch in the log that is not above the one asked about; -1 if there is none. Versions 1+.
    leader_epoch: int = -1
    #: The offset behind the last record of that epoch; -1 if not known.
    end_offset: int = -1


@dataclass(slots=True)
class OffsetForLeaderTopicResult:
    """A topic's part of the response."""

    #: The topic name.
    topic: str = ""
    #: The partitions.
    partitions: list[EpochEndOffset] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochRequest:
    """The request of OffsetForLeaderEpoch."""

    API_KEY: ClassVar[int] = 23
    API_NAME: ClassVar[str] = "OffsetForLeaderEpoch"

    #: The broker id of a follower; -1 for a consumer, -2 if it does not say. Versions 3+.
    replica_id: int = -2
    #: The topics.
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochResponse:
    """The response of OffsetForLeaderEpoch."""

    API_KEY: ClassVar[int] = 23
    API_NAME: ClassVar[str] = "OffsetForLeaderEpoch"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int = 0
    #: The topics.
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)
