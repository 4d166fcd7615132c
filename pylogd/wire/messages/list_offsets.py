"""ListOffsets, API key 2, versions 1-11. Looks up offsets: the first, the last, or the first at or after a time.

Generated from protocol/apis/list_offsets.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class ListOffsetsPartition:
    """A partition's part of the request."""

    #: The partition's number.
    partition_index: int = 0
    #: The leader epoch that the client believes in, so that a stale client or broker is found out; -1 for none.
    #: Versions 4+.
    current_leader_epoch: int = -1
    #: A time in milliseconds, or -1 the end, -2 the start, -3 the largest time stamp, -4 the local start, -5 the end of
    #: remote storage.
    timestamp: int = 0


@dataclass(slots=True)
class ListOffsetsTopic:
    """A topic's part of the request."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[ListOffsetsPartition] = field(default_factory=list)


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    """A partition's part of the response."""

    #: The partition's number.
    partition_index: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The time stamp of the record found; -1 if none was.
    timestamp: int = -1
    #: The offset found; -1 if none was.
    offset: int = -1
    #: The leader epoch of the record found; -1 if not known. Versions 4+.
    leader_epoch: int = -1


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    """A topic's part of the response."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class ListOffsetsRequest:
    """The request of ListOffsets."""

    API_KEY: ClassVar[int] = 2
    API_NAME: ClassVar[str] = "ListOffsets"

    #: The broker id of a follower; -1 for any other client.
    replica_id: int = 0
    #: 0: read all records; 1: only those of committed transactions. Versions 2+.
    isolation_level: int = 0
    #: The topics.
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    #: How many milliseconds remote storage may take. Versions 10+.
    timeout_ms: int = 0


@dataclass(slots=True)
class ListOffsetsResponse:
    """The response of ListOffsets."""

    API_KEY: ClassVar[int] = 2
    API_NAME: ClassVar[str] = "ListOffsets"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int = 0
    #: The topics.
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)
