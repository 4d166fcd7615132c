"""A follower's decisions: from where to fetch, where to truncate, what to refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import InvalidAppend
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.replica.fetch_session_handler import FetchSessionHandler, next_epoch
from pylogd.broker.replica.followed_partition import (
    FetchPosition,
    FollowedPartition,
    StepKind,
    parts,
    truncation_offset,
)
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role
from pylogd.wire.messages.fetch import EpochEndOffset, FetchResponse, PartitionData
from pylogd.wire.records import HEADER, BatchHeader
from tests.fakes.parts import Parts, batch


@pytest.fixture
def parts_of(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


def placed(offset: int, epoch: int, values: int = 1) -> bytes:
    """Return a batch as a leader sends it."""
    raw = bytearray(batch(*[b"v"] * values))
    header = BatchHeader._make(HEADER.unpack_from(raw))
    HEADER.pack_into(raw, 0, *header._replace(base_offset=offset, leader_epoch=epoch))
    return bytes(raw)


def followed(parts_of: Parts, *epochs: int) -> FollowedPartition:
    """Return a partition that follows broker 2 in epoch 9, with one record of each of `epochs`."""
    parts_of.create("t")
    partition = parts_of.set_state("t", replicas=(2, 1), isr=(2, 1), leader=2, leader_epoch=9)
    assert partition.role is Role.FOLLOWING
    for epoch in epochs:
        partition.append_fetched(placed(partition.log.log_end_offset, epoch), 0, 0)
    return FollowedPartition(partition, 1.0)


def answer(**fields: object) -> PartitionData:
    return PartitionData(0, **fields)  # type: ignore[arg-type]


class TestWhereToCut:
    @pytest.mark.parametrize(
        ("ours", "leader_epoch", "leader_end", "cut"),
        [
            ((1, 1, 1), 1, 2, 2),  # the leader's records of that epoch end earlier
            ((1, 1, 3), 1, 2, 2),  # the leader does not have our latest epoch
            ((1, 1, 3), 1, 9, 2),
            ((1, 1, 3, 3), 2, 3, 2),  # neither side has the other's epoch: truncate to the end of our epoch before it
            ((3, 3), 1, 4, 0),  # no common epoch is known
            ((1, 2, 3), 0, 0, 0),
        ],
    )
    def test_by_epochs(
        self, parts_of: Parts, ours: tuple[int, ...], leader_epoch: int, leader_end: int, cut: int
    ) -> None:
        log = followed(parts_of, *ours).partition.log
        assert truncation_offset(log, leader_epoch, leader_end) == cut


class TestAnswers:
    def test_a_follower_fetches_from_its_end_with_the_epoch_of_its_last_record(self, parts_of: Parts) -> None:
        assert followed(parts_of, 4, 7).position() == FetchPosition(2, 7, 0, 9)

    def test_a_diverging_leader(self, parts_of: Parts) -> None:
        one = followed(parts_of, 4, 4, 7)
        step = one.answered(answer(diverging_epoch=EpochEndOffset(4, 1)), one.position())
        assert (step.kind, step.offset) == (StepKind.TRUNCATE, 1)

    def test_a_divergence_that_the_log_contradicts_is_fetched_again_later(self, parts_of: Parts) -> None:
        one = followed(parts_of, 4, 4)
        asked = answer(diverging_epoch=EpochEndOffset(4, 5))
        steps = [one.answered(asked, one.position()) for _ in range(4)]
        assert {step.kind for step in steps} == {StepKind.PAUSE}
        assert [step.loud for step in steps] == [True, True, False, True]
        one.answered(answer(), one.position())
        assert one.answered(asked, one.position()).loud

    def test_a_late_response_is_ignored(self, parts_of: Parts) -> None:
        one = followed(parts_of, 4, 4)
        late = one.position()._replace(offset=1)
        assert one.answered(answer(diverging_epoch=EpochEndOffset(4, 1)), late).kind is StepKind.FETCH

    def test_a_response_of_another_epoch_is_ignored(self, parts_of: Parts) -> None:
        one = followed(parts_of, 4, 4)
        asked = one.position()
        parts_of.set_state("t", leader_epoch=10)
        assert not one.current
        assert one.answered(answer(diverging_epoch=EpochEndOffset(4, 1)), asked).kind is StepKind.FETCH

    def test_errors(self, parts_of: Parts) -> None:
        one = followed(parts_of)
        passing = one.answered(answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), one.position())
        assert passing.kind is StepKind.PAUSE
        assert passing.seconds < 0.1
        assert not passing.loud
        again = one.answered(answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), one.position())
        assert again.seconds > passing.seconds
        other = one.answered(answer(error_code=ErrorCode.KAFKA_STORAGE_ERROR), one.position())
        assert other.seconds == 1.0
        assert one.answered(answer(error_code=12345), one.position()).kind is StepKind.PAUSE
        assert one.answered(answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), one.position()).kind is StepKind.LOCATE


class TestLost:
    def test_the_leaders_log_starts_behind_our_end(self, parts_of: Parts) -> None:
        step = followed(parts_of, 4).located(50, 90)
        assert (step.kind, step.offset) == (StepKind.BEGIN, 50)

    def test_the_leaders_log_ends_before_ours(self, parts_of: Parts) -> None:
        step = followed(parts_of, 4, 4, 4).located(0, 2)
        assert (step.kind, step.offset) == (StepKind.TRUNCATE, 2)

    def test_an_offset_in_range_after_all(self, parts_of: Parts) -> None:
        assert followed(parts_of, 4).located(0, 90).kind is StepKind.FETCH

    def test_a_replica_that_starts_at_the_latest_offset(self, parts_of: Parts) -> None:
        parts_of.create("t")
        partition = parts_of.set_state(
            "t", replicas=(2, 1), isr=(2,), leader=2, leader_epoch=9, adding=(1,), latest_until_ms=1
        )
        one = FollowedPartition(partition, 1.0)
        assert one.starts_at_latest
        step = one.located(10, 90)
        assert (step.kind, step.offset) == (StepKind.BEGIN, 90)
        assert not one.starts_at_latest

    def test_a_replica_that_lost_its_disk_after_the_wait_was_ended_copies_everything(self, parts_of: Parts) -> None:
        parts_of.create("t")
        partition = parts_of.set_state(
            "t", replicas=(2, 1), isr=(2,), leader=2, leader_epoch=9, adding=(1,), latest_until_ms=0
        )
        one = FollowedPartition(partition, 1.0)
        assert not one.starts_at_latest
        assert one.located(0, 90).kind is StepKind.FETCH


class TestParts:
    def test_whole_batches_only(self) -> None:
        raw = placed(0, 0) + placed(1, 0, 3) + placed(4, 0)
        assert b"".join(parts(memoryview(raw))) == raw
        assert b"".join(parts(memoryview(raw)[:-1])) == placed(0, 0) + placed(1, 0, 3)
        assert list(parts(memoryview(raw)[:20])) == []
        assert list(parts(memoryview(b""))) == []

    def test_batches_are_cut_at_a_size(self) -> None:
        one = placed(0, 0)
        assert [len(part) for part in parts(memoryview(one * 7), len(one) * 3)] == [
            3 * len(one),
            3 * len(one),
            len(one),
        ]
        assert [len(part) for part in parts(memoryview(one * 5), 1 << 20, 2)] == [2 * len(one), 2 * len(one), len(one)]
        assert [len(part) for part in parts(memoryview(one * 2), 1)] == [len(one), len(one)]

    def test_an_invalid_length(self) -> None:
        with pytest.raises(InvalidAppend):
            list(parts(memoryview(bytes(100))))


class TestAppending:
    def test_batches_of_the_leader_are_stored_unchanged(self, parts_of: Parts) -> None:
        partition = followed(parts_of, 4).partition
        assert partition.append_fetched(placed(1, 9, 2), 2, 0)
        assert (partition.log.log_end_offset, partition.high_watermark) == (3, 2)
        assert partition.log.epochs.entries() == [(4, 0), (9, 1)]
        assert not partition.append_fetched(b"", 1, 0)  # the high watermark never decreases
        assert partition.high_watermark == 2

    @pytest.mark.parametrize("bad", [placed(0, 9), placed(1, 3), placed(1, 10), placed(1, 9)[:-1] + b"x"])
    def test_batches_that_do_not_continue_the_log_are_refused(self, parts_of: Parts, bad: bytes) -> None:
        partition: Partition = followed(parts_of, 4).partition
        with pytest.raises(InvalidAppend):
            partition.append_fetched(bad, 2, 0)
        assert partition.log.log_end_offset == 1
        partition.log.append(placed(1, 9), leader_epoch=9, origin=AppendOrigin.REPLICATION)

    def test_the_log_start_follows_the_leaders_up_to_what_is_committed(self, parts_of: Parts) -> None:
        partition = followed(parts_of, 4, 4, 4).partition
        partition.heard(2, 3)
        assert partition.log.log_start_offset == 2
        partition.heard(3, 3)
        assert partition.log.log_start_offset == 3


class TestConversation:
    KEY = (b"i" * 16, 0)
    ASKED = FetchPosition(0, -1, 0, 0)

    def test_everything_first_then_what_changed(self) -> None:
        talk = FetchSessionHandler()
        topics, gone = talk.request({self.KEY: self.ASKED}, [], 100)
        assert talk.next == (0, 0)
        assert [one.partitions[0].fetch_offset for one in topics] == [0]
        assert gone == []
        talk.answered(FetchResponse(session_id=7))
        assert talk.next == (7, 1)
        assert talk.request({self.KEY: self.ASKED}, [], 100) == ([], [])
        topics, _ = talk.request({self.KEY: replace_offset(self.ASKED, 5)}, [], 100)
        assert topics[0].partitions[0].fetch_offset == 5
        talk.answered(FetchResponse(session_id=7))
        _, gone = talk.request({}, [self.KEY, (b"j" * 16, 3)], 100)
        assert [(one.topic_id, one.partitions) for one in gone] == [(self.KEY[0], [0])]
        assert talk.positions == {}

    def test_a_leader_without_room_is_told_everything_each_time(self) -> None:
        talk = FetchSessionHandler()
        for _ in range(2):
            topics, _ = talk.request({self.KEY: self.ASKED}, [], 100)
            assert len(topics) == 1
            talk.answered(FetchResponse(session_id=0))
            assert talk.next == (0, 0)

    def test_without_a_session_what_gave_records_is_named_last(self) -> None:
        """A leader serves in the request's order: in a fixed one a busy partition would starve those behind it."""
        talk, keys = FetchSessionHandler(), [(bytes([number]) * 16, 0) for number in range(3)]
        talk.request(dict.fromkeys(keys, self.ASKED), [], 100)
        for offset in (1, 2):
            talk.answered(FetchResponse(session_id=0))
            first = keys.pop(0)
            topics, _ = talk.request({first: replace_offset(self.ASKED, offset)}, [], 100)
            keys.append(first)
            assert [topic.topic_id for topic in topics] == [topic_id for topic_id, _ in keys]

    def test_epochs_start_over(self) -> None:
        assert next_epoch(0x7FFFFFFF) == 1


def replace_offset(asked: FetchPosition, offset: int) -> FetchPosition:
    return asked._replace(offset=offset)
