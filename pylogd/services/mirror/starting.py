"""Decide where the copying of a partition starts, and look up the data for the decision.

Strategy: if there is a checkpoint of the same topic, copying starts at the checkpoint. The topic's id, and the range of
offsets in its log, show whether the topic was recreated (its log is copied from its first record, after the records at
the target), whether records were deleted before they were copied (copying continues at the first remaining record), or
whether the log was truncated (copying continues at its present end). Each case is reported; none ends the copying.

Rules: `start_of` is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pylogd.base.errors import KafkaError
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.model import OffsetAndMetadata, Topic, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.target import Checkpoint
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.values import ZERO_UUID

_UNKNOWN_EPOCH = -1

StartAt = Literal["earliest", "latest"]


class LogRange(NamedTuple):
    """The offsets in a partition's log: from `first` up to, but not including, `end`."""

    first: int
    end: int


class StartOffset(NamedTuple):
    """Where copying starts.

    warning: a message for operators, or empty.
    lost: an upper bound of the number of records that can no longer be copied.
    """

    offset: int
    epoch: int
    warning: str | None = None
    lost: int = 0


def start_of(
    topic_id: bytes,
    log: LogRange,
    checkpoint: Checkpoint | None,
    divergence: OffsetAndMetadata | None = None,
    new: StartAt = "earliest",
) -> StartOffset:
    """Return where to start a partition of the topic with this id.

    divergence: the offset from which its log differs from the copied records, if it was looked up; -1 if the leader
    could not tell.
    new: where a partition without a checkpoint starts.
    """
    if checkpoint is None:
        return StartOffset(log.first if new == "earliest" else log.end, _UNKNOWN_EPOCH)
    if ZERO_UUID not in (topic_id, checkpoint.topic_id) and topic_id != checkpoint.topic_id:
        return StartOffset(
            log.first, _UNKNOWN_EPOCH,
            f"the topic was deleted and created again: it is copied from offset {log.first} on, behind what was copied "
            "of the former topic",
        )  # fmt: skip
    offset, epoch = checkpoint.offset, checkpoint.epoch
    if divergence is not None and divergence.offset < offset:
        known = divergence.offset >= 0
        at = max(divergence.offset, log.first) if known else min(offset, log.end)
        return StartOffset(
            at, divergence.leader_epoch if known else _UNKNOWN_EPOCH,
            f"the source's log was truncated to offset {at} by an unclean election; the target keeps what was copied "
            f"up to {offset}",
        )  # fmt: skip
    if offset < log.first:
        return StartOffset(
            log.first, _UNKNOWN_EPOCH,
            f"the source deleted offsets {offset} to {log.first - 1} before they were copied: give the topic a longer "
            "retention, or the mirror more workers",
            log.first - offset,
        )  # fmt: skip
    if offset > log.end and epoch == _UNKNOWN_EPOCH:  # with an epoch, the leader is asked before reading
        return StartOffset(
            log.end, _UNKNOWN_EPOCH,
            f"the source's log ends at offset {log.end}, before {offset}, up to which it was copied: it has lost "
            "records; the target keeps them",
        )  # fmt: skip
    return StartOffset(offset, epoch)


async def describe_topics(
    cluster: Cluster, names: Collection[str] | None
) -> tuple[dict[str, Topic], dict[str, KafkaError]]:
    """Return topics by name, or all, and the errors of topics that can't be described. Raises PylogdError."""

    async def attempt() -> tuple[dict[str, Topic], dict[str, KafkaError]]:
        metadata = cluster.metadata
        wanted = None if names is None else list(names)
        response: MetadataResponse = await cluster.send(
            Question(MetadataRequest, lambda version: metadata.request(wanted, version))
        )
        errors = metadata.learn_each(response)
        found = [topic.name or "" for topic in response.topics]
        return {name: metadata.topics[name] for name in found if name not in errors}, errors

    return await cluster.call(attempt)


class SourceState(NamedTuple):
    """A source's state of the partitions to copy.

    errors: the errors of topics that can't be described, by name.
    """

    cluster_id: str
    topic_ids: Mapping[str, bytes]
    ranges: Mapping[TopicPartition, LogRange]
    errors: Mapping[str, KafkaError]


async def look_up(cluster: Cluster, partitions: Sequence[TopicPartition]) -> SourceState:
    """Read the state of a source that is needed to start partitions. Raises PylogdError."""
    topics, errors = await describe_topics(cluster, {partition.topic for partition in partitions})
    ranges = await log_ranges(cluster, [partition for partition in partitions if partition.topic in topics])
    ids = {name: topic.topic_id for name, topic in topics.items()}
    return SourceState(cluster.metadata.cluster_id or "", ids, ranges, errors)


async def log_ranges(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
    """Return the ranges of offsets in logs; the end is that of committed records. Raises PylogdError."""
    wanted = list(partitions)
    if not wanted:
        return {}
    first = await find_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    end = await find_offsets(cluster, dict.fromkeys(wanted, LATEST), committed=True)
    return {partition: LogRange(first[partition].offset, end[partition].offset) for partition in wanted}
