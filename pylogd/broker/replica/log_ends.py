"""Ask a leader for the starts and ends of its logs (ListOffsets)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from pylogd.broker.replica.followed_partition import FollowedPartition
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

Offsets = dict[tuple[str, int], int]
"""By topic name and partition index."""

_LATEST, _EARLIEST_LOCAL = -1, -4  # the time stamps that ask for a log's end and start
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


class IConnection(Protocol):
    """The methods of a connection to a broker that this module needs (`pylogd.link.client.BrokerConnection`)."""

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        """Return a Deferred of the response."""

    def close(self) -> None:
        """Fail the requests without an answer, and close the connection."""


async def ask_log_ends(
    connection: IConnection, node_id: int, partitions: Sequence[FollowedPartition], timeout: float
) -> tuple[Offsets, Offsets]:
    """Return the log starts and the log ends that the leader answers. A partition with an error is in neither.

    For a replica that skips old records the end is the last stable offset, so that no undecided transaction begins
    before its first record.

    node_id: the follower's node id.
    timeout: seconds for each request.
    """
    skipping = [one for one in partitions if one.starts_at_latest]
    others = [one for one in partitions if not one.starts_at_latest]

    async def ask(wanted: Sequence[FollowedPartition], timestamp: int, isolation: int = _READ_UNCOMMITTED) -> Offsets:
        if not wanted:
            return {}
        request = ListOffsetsRequest(node_id, isolation, _topics(wanted, timestamp))
        response = await connection.request(request, timeout=timeout)
        return {
            (topic.name, data.partition_index): data.offset
            for topic in response.topics
            for data in topic.partitions
            if not data.error_code and data.offset >= 0
        }

    starts = await ask(partitions, _EARLIEST_LOCAL)
    ends = await ask(others, _LATEST)
    return starts, ends | await ask(skipping, _LATEST, _READ_COMMITTED)


def _topics(partitions: Sequence[FollowedPartition], timestamp: int) -> list[ListOffsetsTopic]:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for one in partitions:
        entry = ListOffsetsPartition(one.partition.index, one.epoch, timestamp)
        topics.setdefault(one.partition.topic, []).append(entry)
    return [ListOffsetsTopic(name, entries) for name, entries in topics.items()]
