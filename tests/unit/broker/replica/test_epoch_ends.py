"""Where leader epochs end in the log of a leader: each case of Kafka's LeaderEpochFileCache.endOffsetFor.

Kafka gives a new leader an entry for its epoch at the log end offset, before there is a record of that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pylogd.broker.replica.partition import Partition
from pylogd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.fakes.parts import Parts
from tests.unit.broker.replica.test_followed_partition import placed

UNDEFINED = (-1, -1)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


def lead(parts: Parts, epoch: int) -> Partition:
    return parts.set_state("t", replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=epoch)


def copied(parts: Parts) -> Partition:
    """Copy records of epochs 4, 4, 7 and 8 as a follower, then lead in epoch 10."""
    following = parts.set_state("t", replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=9)
    for offset, epoch in enumerate((4, 4, 7, 8)):
        following.append_fetched(placed(offset, epoch), 0, 0)
    return lead(parts, 10)


def empty(parts: Parts) -> None:
    lead(parts, 5)


def copied_without_a_record_of_its_own(parts: Parts) -> None:
    copied(parts)


def copied_and_written(parts: Parts) -> None:
    copied(parts)
    parts.append("t")


def truncated(parts: Parts) -> None:
    copied(parts)
    parts.set_state("t", leader=2, leader_epoch=11)
    parts.logs.truncate_to("t", 0, 1)
    lead(parts, 12)


def truncated_to_nothing(parts: Parts) -> None:
    copied(parts)
    parts.set_state("t", leader=2, leader_epoch=11)
    parts.logs.truncate_to("t", 0, 0)
    lead(parts, 12)


def restarted_at_an_offset(parts: Parts) -> None:
    copied(parts)
    parts.set_state("t", leader=2, leader_epoch=11)
    parts.logs.begin_at("t", 0, 30)
    lead(parts, 12)


def first_records_deleted(parts: Parts) -> None:
    copied(parts).log.delete_records_before(3)


def all_records_deleted(parts: Parts) -> None:
    copied(parts).log.delete_records_before(4)


def all_records_deleted_and_written(parts: Parts) -> None:
    all_records_deleted(parts)
    parts.append("t")


@pytest.mark.parametrize(
    ("make", "ends"),
    [
        # requested epoch -> (epoch, end offset): -1 asks for nothing, the leader's own epoch ends at the log end
        # offset, and nothing is known of epochs after it
        (empty, {-1: UNDEFINED, 0: (0, 0), 4: (4, 0), 5: (5, 0), 6: UNDEFINED}),
        (
            copied_without_a_record_of_its_own,
            {-1: UNDEFINED, 3: (3, 0), 4: (4, 2), 5: (4, 2), 7: (7, 3), 8: (8, 4), 9: (8, 4), 10: (10, 4),
             11: UNDEFINED},
        ),
        (
            copied_and_written,
            {-1: UNDEFINED, 3: (3, 0), 4: (4, 2), 6: (4, 2), 7: (7, 3), 8: (8, 4), 9: (8, 4), 10: (10, 5),
             11: UNDEFINED},
        ),
        (truncated, {3: (3, 0), 4: (4, 1), 7: (4, 1), 10: (4, 1), 11: (4, 1), 12: (12, 1), 13: UNDEFINED}),
        (truncated_to_nothing, {3: (3, 0), 4: (4, 0), 11: (11, 0), 12: (12, 0), 13: UNDEFINED}),
        (restarted_at_an_offset, {4: (4, 30), 8: (8, 30), 11: (11, 30), 12: (12, 30), 13: UNDEFINED}),
        (first_records_deleted, {4: (4, 3), 7: (7, 3), 8: (8, 4), 9: (8, 4), 10: (10, 4), 11: UNDEFINED}),
        (all_records_deleted, {4: (4, 4), 8: (8, 4), 9: (9, 4), 10: (10, 4), 11: UNDEFINED}),
        (all_records_deleted_and_written, {4: (4, 4), 8: (8, 4), 9: (9, 4), 10: (10, 5), 11: UNDEFINED}),
    ],
)  # fmt: skip
def test_the_ends_are_kafkas(parts: Parts, make: Callable[[Parts], None], ends: dict[int, tuple[int, int]]) -> None:
    parts.create("t")
    make(parts)
    wanted = [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, epoch)]) for epoch in ends]
    answers = [topic.partitions[0] for topic in parts.call(OffsetForLeaderEpochRequest(topics=wanted)).topics]
    assert {one.error_code for one in answers} == {0}
    assert dict(zip(ends, ((one.leader_epoch, one.end_offset) for one in answers), strict=True)) == ends
