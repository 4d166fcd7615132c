"""Look up offsets by position or time, the ends of many logs, and the ends of leader epochs.

ListOffsets and OffsetForLeaderEpoch are sent to each partition's leader. To find the ends of many logs (`EndSearch`),
one broker is asked for the leaders; then all leaders are asked at the same time, each for the ends of all its logs. So
the number of requests depends on brokers, not on partitions. A retry asks only for missing ends that may still be
found.

A reader that remembers the leader epoch of its position learns from the epoch's end whether the log was truncated
(KIP-320).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.admin.calls import Answers, Calls, Question, question, refresh, send
from pylogd.client.core.metadata import check
from pylogd.client.core.model import OffsetAndTime, TopicPartition
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
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


_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class EndSearch:
    """What leaders have answered.

    found: the log end offsets.
    deleted: partitions that do not exist any more.

    The log ends of other partitions are not known: they have no leader, or their leader does not answer.
    """

    def __init__(self, calls: Calls, answers: Answers) -> None:
        self.found: dict[TopicPartition, int] = {}
        self.deleted: set[TopicPartition] = set()
        self._calls = calls
        self._answers = answers

    async def find(self, partitions: Iterable[TopicPartition], nodes: Sequence[int], timeout: float | None) -> None:
        """Find the log end offsets of partitions.

        nodes: brokers that know the leaders of partitions; they are asked one after the other, until one answers.
        """
        wanted = sorted(partitions)
        with suppress(KafkaError):  # ends that can't be found now stay unknown
            await self._calls.call(lambda: self._attempt(wanted, nodes), timeout)

    async def _attempt(self, partitions: Sequence[TopicPartition], nodes: Sequence[int]) -> None:
        """Find the ends that are missing, in one try. Raises KafkaError if another try may find more."""
        wanted = [one for one in partitions if one not in self.found and one not in self.deleted]
        leaders = await self._leaders(nodes, {partition.topic for partition in wanted})
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition in wanted:
            leader = leaders.get(partition.topic, {}).get(partition.partition)
            if leader is None and partition.topic in leaders:
                self.deleted.add(partition)
            elif leader is not None and leader >= 0:
                by_leader.setdefault(leader, {})[partition] = LATEST
        questions = [
            (leader, question(offsets_request(some, self._calls.metadata.leader_epochs(some)), leader))
            for leader, some in by_leader.items()
        ]
        passing = None
        for answer in await self._answers.of(questions):
            for partition, found in (read_offsets(answer) if answer is not None else {}).items():
                if not isinstance(found, KafkaError):
                    self.found[partition] = found.offset
                elif found.retriable:
                    passing = found
        if passing is not None:
            raise passing

    async def _leaders(self, nodes: Sequence[int], topics: Collection[str]) -> dict[str, dict[int, int]]:
        """Return the leaders of topics' partitions, from the first broker that answers; none for a deleted topic.
        Topics that this broker does not know are left out.
        """
        if not topics:
            return {}
        metadata = self._calls.metadata
        answers = await self._answers.of_first(nodes, lambda node: [
            Question(MetadataRequest, lambda version: metadata.request(topics, version, create=False), node)
        ])  # fmt: skip
        if answers is None:
            return {}
        errors = metadata.learn_each(answers[0])
        deleted = [name for name, error in errors.items() if error.code is _UNKNOWN]
        known = [metadata.topics[name] for name in topics if name in metadata.topics]
        return {name: {} for name in deleted} | {
            topic.name: {one.index: one.leader for one in topic.partitions} for topic in known
        }
