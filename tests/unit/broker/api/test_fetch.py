"""Fetch: limits, long polls, sessions, epochs, cold reads, and what a closed connection leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.sessions import FINAL_EPOCH, INITIAL_EPOCH
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch, records_in

MIB = 1 << 20
SIZE = len(batch(b"v"))


def wants(*offsets: int, max_bytes: int = MIB, **fields: Any) -> list[FetchPartition]:
    return [
        FetchPartition(index, fetch_offset=offset, partition_max_bytes=max_bytes, **fields)
        for index, offset in enumerate(offsets)
    ]


def at(indexes: Iterable[int]) -> list[FetchPartition]:
    return [FetchPartition(index, fetch_offset=0, partition_max_bytes=MIB) for index in indexes]


def request(
    name: str, partitions: Iterable[FetchPartition], *, topic_id: bytes = bytes(16), **fields: Any
) -> FetchRequest:
    chosen = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 * MIB, **fields}
    return FetchRequest(topics=[FetchTopic(name, topic_id, list(partitions))], **chosen)


def only(response: FetchResponse) -> Any:
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


def values(data: Any) -> list[bytes | None]:
    return [record.value for record in records_in(data.records)]


def by_index(response: FetchResponse) -> dict[int, Any]:
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


class TestReading:
    @pytest.mark.parametrize("version", range(4, 19))
    def test_every_version(self, parts: Parts, version: int) -> None:
        topic = parts.create("t")
        parts.append("t", b"a", b"b")
        data = only(parts.call(request("t", wants(0), topic_id=topic.topic_id), version))
        assert values(data) == [b"a", b"b"]
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (2, 2, 0)

    def test_a_slice_of_the_file_goes_through_untouched(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"a")
        answer = parts.ask(request("t", wants(0)), 12)
        assert isinstance(answer, FetchResponse)
        assert hasattr(only(answer).records, "fileno")

    def test_from_inside_a_batch_the_whole_batch_comes(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"a", b"b", b"c")
        assert values(only(parts.call(request("t", wants(1)), 12))) == [b"a", b"b", b"c"]

    def test_the_first_batch_is_whole_whatever_the_limits(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        for partition in (0, 1):
            parts.append("t", b"x" * 1000, partition=partition)
        answers = by_index(parts.call(request("t", wants(0, 0, max_bytes=1), max_bytes=1), 12))
        assert sorted(len(data.records) > 0 for data in answers.values()) == [False, True]

    def test_the_response_limit_holds_behind_the_first_batch(self, parts: Parts) -> None:
        parts.create("t", partitions=4)
        for partition in range(4):
            parts.append("t", b"v", partition=partition)
        answers = by_index(parts.call(request("t", wants(0, 0, 0, 0), max_bytes=2 * SIZE), 12))
        assert sum(len(data.records) for data in answers.values()) == 2 * SIZE
        assert len(answers) == 4

    def test_fetch_max_bytes_of_the_broker(self, tmp_path: Any) -> None:
        parts = Parts(tmp_path, fetch_max_bytes=1024)
        parts.create("t")
        for _ in range(40):
            parts.append("t", b"v")
        assert len(only(parts.call(request("t", wants(0)), 12)).records) <= 1024
        parts.close()

    @pytest.mark.parametrize("session_epoch", [FINAL_EPOCH, INITIAL_EPOCH])
    def test_partitions_are_served_in_the_order_of_the_request(self, parts: Parts, session_epoch: int) -> None:
        """As in Kafka, where clients change the order of their requests, so that each partition gets its turn."""
        parts.create("t", partitions=4)
        parts.create("u", partitions=2)
        for name, count in (("t", 4), ("u", 2)):
            for partition in range(count):
                parts.append(name, b"v", partition=partition)
        draw = Random(1)
        for _ in range(20):
            indexes = [draw.sample(range(4), 4), draw.sample(range(2), 2)]
            named = draw.sample(
                [FetchTopic("t", partitions=at(indexes[0])), FetchTopic("u", partitions=at(indexes[1]))], 2
            )
            asked = FetchRequest(
                topics=named, max_wait_ms=0, min_bytes=1, max_bytes=3 * SIZE, session_epoch=session_epoch
            )
            answer = parts.call(asked, 12)
            order = [(topic.topic, one.partition) for topic in named for one in topic.partitions]
            found = [(topic.topic, one) for topic in answer.responses for one in topic.partitions]
            assert [(topic, one.partition_index) for topic, one in found] == order
            assert [bool(len(one.records)) for _, one in found] == [True] * 3 + [False] * 3

    def test_isolation_levels(self, parts: Parts) -> None:
        parts.create("t")
        assert only(parts.call(request("t", wants(0), isolation_level=0), 12)).aborted_transactions is None
        assert only(parts.call(request("t", wants(0), isolation_level=1), 12)).aborted_transactions == []

    def test_only_committed_records_are_seen(self, parts: Parts) -> None:
        parts.create("t")
        parts.set_state("t", replicas=(1, 2), isr=(1, 2))
        parts.append("t", b"a")
        assert len(only(parts.call(request("t", wants(0)), 12)).records) == 0
        assert only(parts.call(request("t", wants(1)), 12)).error_code == 0

    @pytest.mark.parametrize("version", [4, 9, 10])
    def test_old_clients_get_zstd_too(self, parts: Parts, version: int) -> None:
        """As from Apache Kafka 4.4, where KIP-110 would refuse it: clients of old versions may know the codec."""
        parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        for codec in (CompressionType.NONE, CompressionType.GZIP, CompressionType.ZSTD, CompressionType.NONE):
            parts.replicas.append(partition, batch(b"v" * 100, compression=codec, now_ms=parts.now_ms()), False)
        for offset in range(4):
            assert len(values(only(parts.call(request("t", wants(offset)), version)))) == 4 - offset


class TestErrors:
    def test_out_of_range(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"a")
        for offset in (-1, 2, 1 << 62):
            answer = parts.ask(request("t", wants(offset), max_wait_ms=1000), 12)
            assert only(answer).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_unknown_topics_and_partitions(self, parts: Parts) -> None:
        topic = parts.create("t")
        for asked, version, code in [
            (request("nope", wants(0)), 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (request("t", [FetchPartition(1)]), 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (request("", wants(0), topic_id=b"x" * 16), 13, ErrorCode.UNKNOWN_TOPIC_ID),
            (request("", [FetchPartition(-1)], topic_id=topic.topic_id), 13, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]:
            assert only(parts.call(asked, version)).error_code == code

    def test_leader_epochs(self, parts: Parts) -> None:
        parts.create("t")
        parts.partitions.by_name["t", 0].leader_epoch = 5
        for epoch, code in [(-1, 0), (5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)]:
            response = parts.call(request("t", wants(0, current_leader_epoch=epoch), topic_id=b""), 12)
            assert only(response).error_code == code
        topic_id = parts.topics.get("t").topic_id  # type: ignore[union-attr]
        response = parts.call(request("", wants(0, current_leader_epoch=4), topic_id=topic_id), 16)
        assert (only(response).current_leader.leader_id, only(response).current_leader.leader_epoch) == (1, 5)
        assert [(node.node_id, node.port) for node in response.node_endpoints] == [(1, 9092)]

    def test_a_broker_that_no_longer_has_the_partition_says_who_leads(self, parts: Parts) -> None:
        topic_id = parts.create("t").topic_id
        parts.move_away("t", leader=2, leader_epoch=7, replicas=(2, 3), isr=(2, 3))
        for asked, version in ((request("t", wants(0)), 11), (request("", wants(0), topic_id=topic_id), 16)):
            data = only(parts.call(asked, version))
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            found = data.current_leader.leader_id, data.current_leader.leader_epoch
            assert found == ((2, 7) if version == 16 else (-1, -1))

    def test_a_client_whose_log_diverges_is_told_where(self, parts: Parts) -> None:
        parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        parts.append("t", b"a", b"b")
        partition.leader_epoch = 3
        parts.append("t", b"c")
        data = only(parts.ask(request("t", wants(3, last_fetched_epoch=2), max_wait_ms=1000), 12))
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 2)
        assert len(data.records) == 0
        data = only(parts.ask(request("t", wants(2, last_fetched_epoch=0)), 12))
        assert data.diverging_epoch.epoch == -1
        assert values(data) == [b"c"]


class TestWaiting:
    def poll(self, parts: Parts, *offsets: int, version: int = 12, **fields: Any) -> Deferred[FetchResponse]:
        answer = parts.ask(request("t", wants(*offsets), max_wait_ms=500, **fields), version)
        assert isinstance(answer, Deferred)
        return answer

    def nothing_waits(self, parts: Parts) -> bool:
        return not parts.replicas.fetch_waits.watched_keys() and not any(
            call.getTime() - parts.time.seconds() < 5 for call in parts.time.getDelayedCalls()
        )

    def test_an_append_ends_the_wait(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        answer = self.poll(parts, 0, 0)
        parts.append("t", b"a", partition=1)
        data = by_index(result_of(answer))
        assert values(data[1]) == [b"a"]
        assert len(data[0].records) == 0
        assert self.nothing_waits(parts)

    def test_the_time_is_up(self, parts: Parts) -> None:
        parts.create("t")
        answer = self.poll(parts, 0)
        parts.time.advance(0.499)
        assert not answer.called
        parts.time.advance(0.001)
        assert only(result_of(answer)).error_code == 0
        assert self.nothing_waits(parts)

    def test_min_bytes(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        parts.append("t", b"v")
        answer = self.poll(parts, 0, 0, min_bytes=3 * SIZE)
        parts.append("t", b"v", partition=1)
        assert not answer.called
        parts.append("t", b"v", partition=0)
        assert sum(len(data.records) for data in by_index(result_of(answer)).values()) == 3 * SIZE
        assert self.nothing_waits(parts)

    def test_min_bytes_above_what_may_come(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"v")
        answer = parts.ask(request("t", wants(0), max_wait_ms=500, min_bytes=1 << 30, max_bytes=SIZE), 12)
        assert values(only(answer)) == [b"v"]

    def test_a_request_for_nothing_does_not_wait(self, parts: Parts) -> None:
        assert parts.ask(FetchRequest(max_wait_ms=500, min_bytes=1), 12).responses == []

    def test_an_error_does_not_wait(self, parts: Parts) -> None:
        parts.create("t")
        answer = parts.ask(request("t", wants(0, 0), max_wait_ms=500), 12)
        assert by_index(answer)[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.parametrize(
        ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
    )
    def test_the_topic_is_deleted_meanwhile(self, parts: Parts, version: int, code: ErrorCode) -> None:
        topic = parts.create("t")
        answer = self.poll(parts, 0, version=version, topic_id=topic.topic_id)
        result_of(parts.topic_admin.delete_topic("t"))
        assert only(result_of(answer)).error_code == code
        assert self.nothing_waits(parts)

    def test_a_client_that_leaves_leaves_nothing_behind(self, parts: Parts) -> None:
        parts.create("t")
        answer = self.poll(parts, 0, session_epoch=0)
        answer.addErrback(lambda failure: failure.trap(CancelledError))
        answer.cancel()
        assert self.nothing_waits(parts)
        assert len(parts.fetch_sessions) == 0
        parts.append("t", b"a")

    def test_changes_of_other_partitions_do_not_end_the_wait(self, parts: Parts) -> None:
        parts.create("t")
        parts.create("u")
        answer = self.poll(parts, 0)
        parts.append("u", b"a")
        assert not answer.called
        answer.addErrback(lambda _: None)
        answer.cancel()


class TestSessions:
    def begin(self, parts: Parts, *offsets: int, version: int = 12, **fields: Any) -> FetchResponse:
        response: FetchResponse = parts.call(request("t", wants(*offsets), session_epoch=0, **fields), version)
        assert response.session_id > 0
        return response

    def go_on(self, parts: Parts, session_id: int, epoch: int, *wanted: FetchPartition, **fields: Any) -> FetchResponse:
        version = fields.pop("version", 12)
        asked = request("t", wanted, session_id=session_id, session_epoch=epoch, **fields)
        if not wanted:
            asked.topics = []
        response: FetchResponse = parts.call(asked, version)
        return response

    def test_only_what_changed_is_answered(self, parts: Parts) -> None:
        parts.create("t", partitions=3)
        first = self.begin(parts, 0, 0, 0)
        assert len(by_index(first)) == 3
        assert self.go_on(parts, first.session_id, 1).responses == []
        parts.append("t", b"a", partition=1)
        assert list(by_index(self.go_on(parts, first.session_id, 2))) == [1]
        moved = self.go_on(parts, first.session_id, 3, FetchPartition(1, fetch_offset=1, partition_max_bytes=MIB))
        assert moved.responses == []
        assert moved.session_id == first.session_id

    def test_topic_ids(self, parts: Parts) -> None:
        topic = parts.create("t")
        first = self.begin(parts, 0, version=13, topic_id=topic.topic_id)
        parts.append("t", b"a")
        (answered,) = self.go_on(parts, first.session_id, 1, version=13).responses
        assert (answered.topic, answered.topic_id) == ("", topic.topic_id)
        mixed = self.go_on(parts, first.session_id, 2, version=12)
        assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    def test_errors_are_repeated_and_their_end_is_reported(self, parts: Parts) -> None:
        parts.create("t")
        first = self.begin(parts, 0, 0)
        for epoch in (1, 2):
            answers = by_index(self.go_on(parts, first.session_id, epoch))
            assert {index: data.error_code for index, data in answers.items()} == {
                1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
        result_of(parts.topic_admin.add_partitions("t", 2))
        assert {i: data.error_code for i, data in by_index(self.go_on(parts, first.session_id, 3)).items()} == {1: 0}
        assert self.go_on(parts, first.session_id, 4).responses == []

    def test_wrong_ids_and_epochs(self, parts: Parts) -> None:
        parts.create("t")
        first = self.begin(parts, 0)
        wrong = self.go_on(parts, first.session_id, 7)
        assert (wrong.error_code, wrong.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
        assert self.go_on(parts, 12345, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert self.go_on(parts, first.session_id, 1).error_code == 0

    def test_forgetting_and_ending(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        first = self.begin(parts, 0, 0)
        for partition in (0, 1):
            parts.append("t", b"a", partition=partition)
        gone = [ForgottenTopic("t", bytes(16), [0])]
        assert list(by_index(self.go_on(parts, first.session_id, 1, forgotten_topics_data=gone))) == [1]
        ended = self.go_on(parts, first.session_id, -1, *wants(0))
        assert ended.session_id == 0
        assert list(by_index(ended)) == [0]
        assert len(parts.fetch_sessions) == 0

    def test_forgetting_all_ends_the_session(self, parts: Parts) -> None:
        parts.create("t")
        first = self.begin(parts, 0)
        gone = [ForgottenTopic("t", bytes(16), [0])]
        assert self.go_on(parts, first.session_id, 1, forgotten_topics_data=gone).session_id == 0
        assert len(parts.fetch_sessions) == 0

    def test_a_new_session_takes_the_place_of_the_old(self, parts: Parts) -> None:
        parts.create("t")
        first = self.begin(parts, 0)
        second = self.begin(parts, 0, session_id=first.session_id)
        assert second.session_id != first.session_id
        assert len(parts.fetch_sessions) == 1

    def test_a_full_cache_gives_no_session(self, tmp_path: Any) -> None:
        parts = Parts(tmp_path, max_incremental_fetch_session_cache_slots=0)
        parts.create("t")
        assert parts.call(request("t", wants(0), session_epoch=0), 12).session_id == 0
        parts.close()

    def test_every_partition_gets_its_turn(self, parts: Parts) -> None:
        parts.create("t", partitions=3)
        for partition in range(3):
            parts.append("t", b"v", partition=partition)
        first = self.begin(parts, 0, 0, 0, max_bytes=1)
        served = [index for index, data in by_index(first).items() if data.records]
        for epoch in (1, 2):
            answers = by_index(self.go_on(parts, first.session_id, epoch, max_bytes=1))
            served += [index for index, data in answers.items() if data.records]
        assert sorted(served) == [0, 1, 2]

    def test_waiting_in_a_session(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        first = self.begin(parts, 0, 0)
        asked = FetchRequest(max_wait_ms=500, min_bytes=1, session_id=first.session_id, session_epoch=1)
        answer = parts.ask(asked, 12)
        assert isinstance(answer, Deferred)
        parts.append("t", b"a", partition=1)
        assert list(by_index(result_of(answer))) == [1]


class TestColdReads:
    def test_a_cold_read_is_done_in_a_thread(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        parts.create("t", partitions=2)
        for partition in (0, 1):
            parts.append("t", b"a", partition=partition)
        plain = Partition.read

        def cold(self: Partition, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> Any:
            if self.index == 1 and not allow_cold:
                raise ColdRead("the disk would have to be asked")
            return plain(self, offset, max_bytes, min_one=min_one, allow_cold=allow_cold)

        monkeypatch.setattr(Partition, "read", cold)
        parts.threads.hold = True
        answer = parts.ask(request("t", wants(0, 0), max_wait_ms=500), 12)
        assert isinstance(answer, Deferred)
        assert not answer.called
        parts.threads.release()
        data = by_index(result_of(answer))
        assert (values(data[0]), values(data[1])) == ([b"a"], [b"a"])

    def test_a_cold_read_that_fails(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        parts.create("t")
        parts.append("t", b"a")

        def cold(self: Partition, offset: int, *_: Any, allow_cold: bool, **__: Any) -> Any:
            if allow_cold:
                self.log.read(99, 1)
            raise ColdRead("the disk would have to be asked")

        monkeypatch.setattr(Partition, "read", cold)
        data = only(parts.call(request("t", wants(0)), 12))
        assert (data.error_code, len(data.records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
