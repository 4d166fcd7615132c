"""Where a leader epoch ends in a partition's log: OffsetForLeaderEpoch, asked of each leader.

A reader that remembers the leader epoch of its position learns in this way whether the log was truncated.
Source: KIP-320, "Allow fetchers to detect and handle log truncation".
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.client.core.admin.calls import Calls, send
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.metadata import check
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_CONSUMER = -1


async def find_end_offsets(
    calls: Calls, wanted: Mapping[TopicPartition, int], timeout: float | None = None
) -> dict[TopicPartition, int | None]:
    """Return, for each partition, the offset after the last record of a leader epoch, or of the nearest earlier epoch.

    None where the leader does not know the epoch. Raises KafkaError for the first partition that has an error.
    """
    found: dict[TopicPartition, int | None] = {}

    async def attempt() -> None:
        by_leader: dict[int, OffsetForLeaderEpochRequest] = {}
        for partition, epoch in wanted.items():
            if partition in found:
                continue
            request = by_leader.setdefault(
                await leader_of(calls, partition), OffsetForLeaderEpochRequest(replica_id=_CONSUMER)
            )
            asked = OffsetForLeaderPartition(partition=partition.partition, leader_epoch=epoch)
            request.topics.append(OffsetForLeaderTopic(partition.topic, [asked]))
        for leader, request in by_leader.items():
            response: OffsetForLeaderEpochResponse = await send(calls, request, leader)
            for topic in response.topics:
                for answer in topic.partitions:
                    check(answer.error_code, f"{topic.topic}-{answer.partition}")
                    end = answer.end_offset if answer.end_offset >= 0 else None
                    found[TopicPartition(topic.topic, answer.partition)] = end

    await calls.call(attempt, timeout)
    return found
