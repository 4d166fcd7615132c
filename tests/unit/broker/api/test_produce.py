"""Produce: acks, versions, an error for each partition, and waiting for replicas."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pylogd.wire.records import encode_batch
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch, decoded


def request(name: str, *records: Any, acks: int = 1, topic_id: bytes = bytes(16), **fields: Any) -> ProduceRequest:
    data = [PartitionProduceData(index, one) for index, one in enumerate(records)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name, topic_id, data)], **fields)


def only(response: ProduceResponse) -> Any:
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    return partition


def test_appends_and_answers_at_once(parts: Parts) -> None:
    parts.create("t")
    for base in (0, 3, 6):
        answer = parts.ask(request("t", batch(b"a", b"b", b"c")), 12)
        answer = decoded(answer, ProduceRequest.API_KEY, 12)
        assert isinstance(answer, ProduceResponse)
        partition = only(answer)
        assert (partition.error_code, partition.base_offset, partition.log_start_offset) == (0, base, 0)
        assert partition.log_append_time_ms == -1
        assert partition.error_message is None
    assert parts.partitions.by_name["t", 0].high_watermark == 9


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version(parts: Parts, version: int) -> None:
    topic = parts.create("t")
    partition = only(parts.call(request("t", batch(), topic_id=topic.topic_id), version))
    assert (partition.error_code, partition.base_offset) == (0, 0)


def test_log_append_time(parts: Parts) -> None:
    parts.create("t", message_timestamp_type="LogAppendTime")
    partition = only(parts.call(request("t", batch(now_ms=5)), 12))
    assert partition.log_append_time_ms == parts.now_ms()


def test_records_without_a_key_are_refused_by_a_compacted_topic_and_named(parts: Parts) -> None:
    parts.create("t", cleanup_policy="compact")
    rows = [(key, b"v", parts.now_ms(), ()) for key in (b"k", None, b"", None)]
    partition = only(parts.call(request("t", encode_batch(rows)), 9))
    assert partition.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in partition.record_errors] == [1, 3]
    assert "2 of 4 records are without a key" in partition.error_message
    assert only(parts.call(request("t", encode_batch(rows)), 7)).error_code == ErrorCode.INVALID_RECORD
    assert only(parts.call(request("t", encode_batch(rows[:1])), 9)).error_code == 0


def test_acks_0_is_not_answered(parts: Parts) -> None:
    parts.create("t")
    assert parts.ask(request("t", batch(), acks=0), 9) is None
    assert parts.partitions.by_name["t", 0].high_watermark == 1


def test_acks_0_closes_the_connection_on_an_error(parts: Parts) -> None:
    with pytest.raises(CloseConnection, match="acks=0"):
        parts.ask(request("unknown", batch(), acks=0), 9)
    with pytest.raises(CloseConnection):
        parts.ask(request("unknown", batch(), acks=0, transactional_id="x"), 9)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks(parts: Parts, acks: int) -> None:
    parts.create("t")
    assert only(parts.call(request("t", batch(), acks=acks), 9)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert parts.partitions.by_name["t", 0].high_watermark == 0


def test_plain_batches_of_a_transactional_producer_are_appended(parts: Parts) -> None:
    parts.create("t")
    assert only(parts.call(request("t", batch(), acks=-1, transactional_id="tx"), 9)).error_code == 0


def test_unknown_names_indexes_and_ids(parts: Parts) -> None:
    topic = parts.create("t")
    assert only(parts.call(request("nope", batch()), 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    both = parts.call(request("t", batch(), batch()), 12).responses[0].partition_responses
    assert [one.error_code for one in both] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [one.base_offset for one in both] == [0, -1]
    assert only(parts.call(request("", batch(), topic_id=b"x" * 16), 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    both = parts.call(request("", batch(), batch(), topic_id=topic.topic_id), 13).responses[0].partition_responses
    assert [one.error_code for one in both] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", range(3, 13))
def test_a_broker_that_does_not_lead_says_so_in_every_version(parts: Parts, version: int) -> None:
    """And who does, in those that have a field for it."""
    parts.create("t")
    parts.set_state("t", leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    answer = only(parts.call(request("t", batch()), version))
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader.leader_id == (2 if version >= 10 else -1)


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_broker_that_no_longer_has_the_partition_says_who_leads(parts: Parts, version: int) -> None:
    """So clients go there at once (KIP-951), also those whose append was being replicated when it was moved."""
    topic_id = parts.create("t").topic_id
    sent = request("t", batch(), acks=-1) if version < 13 else request("", batch(), acks=-1, topic_id=topic_id)
    parts.set_state("t", leader=1, replicas=(1, 2), isr=(1, 2))
    waiting = parts.ask(sent, version)
    parts.move_away("t", leader=2, leader_epoch=7, replicas=(2, 3), isr=(2, 3))
    for answer in (result_of(waiting), parts.call(sent, version)):
        found = only(answer)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader = found.current_leader
        assert (leader.leader_id, leader.leader_epoch) == ((2, 7) if version >= 10 else (-1, -1))


def test_a_log_that_is_being_created_has_no_leader_yet(parts: Parts) -> None:
    parts.threads.hold = True
    result_of(parts.topic_admin.create_topic("t"))
    answer = only(parts.call(request("t", batch()), 12))
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    parts.threads.release()
    assert only(parts.call(request("t", batch()), 12)).error_code == 0


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (flipped(batch(b"abc"), 65), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"abc")[:-1], ErrorCode.INVALID_RECORD),
        (batch(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_bad_records_append_nothing(parts: Parts, records: bytes | None, code: ErrorCode) -> None:
    parts.create("t")
    partition = only(parts.call(request("t", records), 12))
    assert partition.error_code == code
    assert partition.error_message
    assert partition.base_offset == -1
    assert parts.partitions.by_name["t", 0].log.log_end_offset == 0


def test_one_bad_partition_does_not_stop_the_other(parts: Parts) -> None:
    parts.create("t", partitions=2)
    answers = parts.call(request("t", b"junk", batch()), 12).responses[0].partition_responses
    assert [bool(one.error_code) for one in answers] == [True, False]


def test_zstd_needs_version_7(parts: Parts) -> None:
    parts.create("t")
    records = batch(b"abc", compression=4)
    assert only(parts.call(request("t", records), 6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert only(parts.call(request("t", records), 7)).error_code == 0


def test_a_full_disk(parts: Parts) -> None:
    parts.create("t")
    with parts.fs.failing("pwritev", errno.ENOSPC, lasting=True):
        assert only(parts.call(request("t", batch()), 12)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert only(parts.call(request("t", batch()), 12)).base_offset == 0


def test_a_duplicate_gets_its_first_offset(parts: Parts) -> None:
    parts.create("t")
    first = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    assert only(parts.call(request("t", first, acks=-1), 12)).base_offset == 0
    assert only(parts.call(request("t", batch()), 12)).base_offset == 1
    assert only(parts.call(request("t", first, acks=-1), 12)).base_offset == 0
    gap = batch(producer_id=7, producer_epoch=0, base_sequence=5)
    assert only(parts.call(request("t", gap), 12)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class TestReplicas:
    def two(self, parts: Parts) -> Any:
        parts.create("t")
        return parts.set_state("t", replicas=(1, 2), isr=(1, 2))

    def test_too_few_in_sync(self, parts: Parts) -> None:
        parts.create("t", min_insync_replicas="2")
        parts.set_state("t", replicas=(1, 2), isr=(1,))
        assert only(parts.call(request("t", batch(), acks=-1), 12)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert parts.partitions.by_name["t", 0].log.log_end_offset == 0
        assert only(parts.call(request("t", batch(), acks=1), 12)).error_code == 0

    def test_acks_all_waits_for_the_others(self, parts: Parts) -> None:
        partition = self.two(parts)
        answer = parts.ask(request("t", batch(b"a", b"b"), acks=-1), 12)
        assert isinstance(answer, Deferred)
        partition.high_watermark = 1
        parts.replicas.append_waits.check(partition.key)
        assert not answer.called
        partition.high_watermark = 2
        parts.replicas.append_waits.check(partition.key)
        assert only(result_of(answer)).error_code == 0

    def test_acks_1_does_not_wait(self, parts: Parts) -> None:
        self.two(parts)
        assert only(parts.call(request("t", batch()), 12)).error_code == 0

    def test_the_time_is_up(self, parts: Parts) -> None:
        self.two(parts)
        answer = parts.ask(request("t", batch(), acks=-1), 12)
        parts.time.advance(1)
        assert only(result_of(answer)).error_code == ErrorCode.REQUEST_TIMED_OUT

    def test_the_topic_is_deleted_meanwhile(self, parts: Parts) -> None:
        self.two(parts)
        answer = parts.ask(request("t", batch(), acks=-1), 12)
        result_of(parts.topic_admin.delete_topic("t"))
        assert only(result_of(answer)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
