"""Look up offsets by position or time: ListOffsets, sent to each partition's leader."""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Calls, refresh, send
from pylogd.client.core.model import OffsetAndTime, TopicPartition
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

#: special times of ListOffsets
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3  # KIP-734
_CONSUMER = -1
_UNKNOWN_EPOCH = -1


async def find_offsets(
    calls: Calls, wanted: Mapping[TopicPartition, int], timeout: float | None = None, *, committed: bool = False
) -> dict[TopicPartition, OffsetAndTime]:
    """Return each partition's first offset at or after a time in milliseconds, or EARLIEST, LATEST, MAX_TIMESTAMP.

    Offset -1 means that there is no such record.

    committed: whether LATEST is the last stable offset, and records after it are not found by time.

    Raises KafkaError for the first partition that has an error.
    """
    found: dict[TopicPartition, OffsetAndTime] = {}

    async def attempt() -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, timestamp in wanted.items():
            if partition not in found:
                by_leader.setdefault(await leader_of(calls, partition), {})[partition] = timestamp
        for leader, partitions in by_leader.items():
            await _ask(calls, leader, partitions, found, committed=committed)

    await calls.call(attempt, timeout)
    return found


async def leader_of(calls: Calls, partition: TopicPartition) -> int:
    """Return the broker that leads a partition, in one try. Raises KafkaError if it is unknown or has no leader now."""
    found = calls.metadata.partition(partition)
    if found is None:
        await refresh(calls, [partition.topic])
        found = calls.metadata.partition(partition)
        assert found is not None
    return found.leader


async def _ask(
    calls: Calls,
    leader: int,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTime],
    *,
    committed: bool,
) -> None:
    request = offsets_request(wanted, calls.metadata.leader_epochs(wanted), committed=committed)
    for partition, answer in read_offsets(await send(calls, request, leader)).items():
        if isinstance(answer, KafkaError):
            raise answer
        found[partition] = answer


def offsets_request(
    wanted: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], *, committed: bool = False
) -> ListOffsetsRequest:
    """Return the request for offsets by time, to one leader.

    committed: whether LATEST is the last stable offset.

    epochs: the known leader epochs. A former leader that does not know its successor refuses a newer epoch.
    """
    topics: dict[str, ListOffsetsTopic] = {}
    for partition, timestamp in wanted.items():
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
        epoch = epochs.get(partition, _UNKNOWN_EPOCH)
        topic.partitions.append(ListOffsetsPartition(partition.partition, epoch, timestamp))
    return ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=int(committed), topics=list(topics.values()))


def read_offsets(response: ListOffsetsResponse) -> dict[TopicPartition, OffsetAndTime | KafkaError]:
    """Return what a leader answered for each partition."""
    found: dict[TopicPartition, OffsetAndTime | KafkaError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if answer.error_code:
                code = error_for(answer.error_code)
                found[partition] = KafkaError(code, f"{partition}: {code.text}")
            else:
                found[partition] = OffsetAndTime(answer.offset, answer.timestamp, answer.leader_epoch)
    return found
