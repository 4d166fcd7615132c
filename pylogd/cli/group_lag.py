"""The committed offsets of groups, compared with the ends of the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.model import GroupDescription, OffsetAndMetadata
from pylogd.errors import ErrorCode, KafkaError


def lag_of(admin: Admin, group: GroupDescription) -> list[dict[str, Any]]:
    """Return a record for each partition that has a member of the group or a committed offset."""
    committed = admin.group_offsets(group.group_id)
    owners = {partition: member for member in group.members for partition in member.assignment}
    partitions = sorted({*owners, *committed})
    ends = _ends(admin, partitions)
    rows = []
    for partition in partitions:
        at, end, owner = committed.get(partition), ends.get(partition), owners.get(partition)
        rows.append({
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": None if at is None else at.offset,
            "end": end,
            "lag": _lag(at, end),
            "member": None if owner is None else owner.member_id,
            "client": None if owner is None else owner.client_id,
            "host": None if owner is None else owner.host,
        })  # fmt: skip
    return rows


def _lag(committed: OffsetAndMetadata | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(0, end - committed.offset)


def _ends(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of the partitions that still exist."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    ends: dict[TopicPartition, int] = {}
    for some in by_topic.values():
        try:
            there = {p.index for p in admin.describe_topic(some[0].topic).partitions}
            found = admin.offsets({p: LATEST for p in some if p.partition in there})
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            continue  # the topic was deleted, and the offsets were not yet
        ends.update((partition, answer.offset) for partition, answer in found.items())
    return ends
