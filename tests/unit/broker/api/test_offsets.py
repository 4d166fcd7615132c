"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.checkpoints import LOG_STARTS, read_offsets
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.log.log import Log
from pylogd.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts


@pytest.fixture
def t(parts: Parts) -> Parts:
    """Return a broker with a topic "t" of three records, a second apart."""
    parts.create("t")
    for value in (b"a", b"b", b"c"):
        parts.append("t", value)
        parts.time.advance(1)
    return parts


class TestListOffsets:
    def look_up(self, parts: Parts, timestamp: int, version: int = 11, index: int = 0, epoch: int = -1) -> Any:
        wanted = [ListOffsetsPartition(index, epoch, timestamp)]
        return parts.call(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), version).topics[0].partitions[0]

    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [
            (-1, (-1, 3)),
            (-2, (-1, 0)),
            (-3, (NOW_MS + 2000, 2)),
            (-4, (-1, 0)),
            (-5, (-1, -1)),
            (-6, (-1, -1)),
            (0, (NOW_MS, 0)),
            (NOW_MS, (NOW_MS, 0)),
            (NOW_MS + 1, (NOW_MS + 1000, 1)),
            (NOW_MS + 2000, (NOW_MS + 2000, 2)),
            (NOW_MS + 2001, (-1, -1)),
        ],
    )
    def test_look_ups(self, t: Parts, timestamp: int, expected: tuple[int, int]) -> None:
        found = self.look_up(t, timestamp)
        assert (found.timestamp, found.offset, found.error_code) == (*expected, 0)

    def test_a_followers_look_up_by_isolation_level(self, t: Parts) -> None:
        partition = t.set_state("t", replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1)
        t.append("t", b"not committed")
        assert partition.high_watermark == 3
        wanted = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]
        found = [t.call(ListOffsetsRequest(2, isolation, wanted), 11).topics[0].partitions[0] for isolation in (0, 1)]
        assert [one.offset for one in found] == [4, 3]

    @pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
    def test_special_timestamps_need_their_versions(self, t: Parts, timestamp: int, since: int) -> None:
        assert self.look_up(t, timestamp, since).error_code == 0
        assert self.look_up(t, timestamp, since - 1).error_code == ErrorCode.UNSUPPORTED_VERSION

    def test_an_unknown_name(self, t: Parts) -> None:
        assert self.look_up(t, -7).error_code == ErrorCode.UNSUPPORTED_VERSION

    def test_an_empty_log(self, parts: Parts) -> None:
        parts.create("t")
        for timestamp, offset in ((-1, 0), (-2, 0), (-3, -1), (0, -1)):
            assert self.look_up(parts, timestamp).offset == offset

    def test_errors(self, t: Parts) -> None:
        assert self.look_up(t, -1, index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.look_up(t, -1, epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_records_that_are_not_committed_are_not_found(self, t: Parts) -> None:
        t.partitions.by_name["t", 0].high_watermark = 1
        assert self.look_up(t, -1).offset == 1
        assert self.look_up(t, NOW_MS + 1).offset == -1

    @pytest.mark.parametrize("version", [1, 11])
    def test_a_look_up_that_waits_for_the_disk(self, t: Parts, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        plain = Log.offset_for_timestamp

        def cold(self: Log, timestamp_ms: int, *, allow_cold: bool = False) -> Any:
            if not allow_cold:
                raise ColdRead("the disk would have to be asked")
            return plain(self, timestamp_ms, allow_cold=True)

        monkeypatch.setattr(Log, "offset_for_timestamp", cold)
        t.threads.hold = True
        wanted = [ListOffsetsPartition(0, -1, NOW_MS + 1)]
        answer = t.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), version)
        assert isinstance(answer, Deferred)
        t.threads.release()
        found = result_of(answer).topics[0].partitions[0]
        assert (found.offset, found.leader_epoch) == (1, 0 if version == 11 else -1)


class TestOffsetForLeaderEpoch:
    def look_up(self, parts: Parts, epoch: int, current: int = -1, index: int = 0) -> Any:
        wanted = [OffsetForLeaderPartition(index, current, epoch)]
        return (
            parts.call(OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("t", wanted)])).topics[0].partitions[0]
        )

    def test_look_ups(self, t: Parts) -> None:
        t.partitions.by_name["t", 0].leader_epoch = 5
        t.append("t", b"d")
        for epoch, expected in ((0, (0, 3)), (3, (0, 3)), (5, (5, 4)), (6, (-1, -1))):
            found = self.look_up(t, epoch)
            assert (found.leader_epoch, found.end_offset, found.error_code) == (*expected, 0)

    def test_the_current_epoch_of_a_log_without_records(self, parts: Parts) -> None:
        parts.create("t")
        found = self.look_up(parts, 0)
        assert (found.leader_epoch, found.end_offset, found.error_code) == (0, 0, 0)

    def test_errors(self, t: Parts) -> None:
        assert self.look_up(t, 0, index=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.look_up(t, 0, current=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


class TestDeleteRecords:
    def delete(self, parts: Parts, offset: int, index: int = 0, topic: str = "t") -> Any:
        wanted = [DeleteRecordsPartition(index, offset)]
        return parts.call(DeleteRecordsRequest([DeleteRecordsTopic(topic, wanted)])).topics[0].partitions[0]

    def test_the_start_moves_and_never_back(self, t: Parts) -> None:
        for offset, start in ((1, 1), (0, 1), (2, 2), (-1, 3), (3, 3)):
            answer = self.delete(t, offset)
            assert (answer.low_watermark, answer.error_code) == (start, 0)
        asked = FetchRequest(topics=[FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0)])])
        assert t.call(asked, 12).responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_a_killed_broker_does_not_serve_deleted_records_again(self, t: Parts) -> None:
        assert self.delete(t, 2).low_watermark == 2
        t.fs.lose_power()
        assert read_offsets(t.fs, "/data", LOG_STARTS) == {("t", 0): 2}

    @pytest.mark.parametrize("offset", [4, -2])
    def test_out_of_range(self, t: Parts, offset: int) -> None:
        answer = self.delete(t, offset)
        assert (answer.low_watermark, answer.error_code) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)

    def test_unknown(self, t: Parts) -> None:
        assert self.delete(t, 0, index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.delete(t, 0, topic="u").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_compacted_topic(self, parts: Parts) -> None:
        parts.create("t", cleanup_policy="compact")
        assert self.delete(parts, 0).error_code == ErrorCode.POLICY_VIOLATION
