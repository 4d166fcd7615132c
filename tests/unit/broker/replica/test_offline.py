"""A log directory fails: its partitions go offline, requests that wait for them are answered, the others continue."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.replica.roles import Role
from pylogd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """Return a broker with two data directories: partition 0 of topic t is in /a and 1 in /b."""
    made = Parts(tmp_path, log_dirs="/a,/b")
    made.create("t", partitions=2)
    assert made.logs.logs["t", 0].directory == "/a/t-0"
    yield made
    made.close()


def produce_to(parts: Parts, index: int) -> ProduceRequest:
    data = [PartitionProduceData(index, batch(b"v", now_ms=parts.now_ms()))]
    return ProduceRequest(None, -1, 1000, [TopicProduceData("t", bytes(16), data)])


def produce(parts: Parts, index: int) -> int:
    """Return the error code of a Produce request."""
    return int(parts.call(produce_to(parts, index), 9).responses[0].partition_responses[0].error_code)


def fetch_of(index: int, wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1000, topics=[FetchTopic(topic="t", partitions=[wanted])]
    )


def fail_a(parts: Parts) -> None:
    """Produce to /a, whose disk has failed."""
    with parts.fs.failing("pwritev", errno.EIO, path="/a/"):
        assert produce(parts, 0) == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_others_go_on(parts: Parts) -> None:
    assert produce(parts, 0) == produce(parts, 1) == 0
    fail_a(parts)
    assert parts.partitions.by_name["t", 0].role is Role.OFFLINE
    assert produce(parts, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert parts.call(fetch_of(0), 12).responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    latest = ListOffsetsTopic("t", [ListOffsetsPartition(partition_index=0, timestamp=-1)])
    answer = parts.call(ListOffsetsRequest(-1, topics=[latest]), 7)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(parts, 1) == 0
    found = parts.call(DescribeLogDirsRequest(topics=None))
    assert {result.log_dir: result.error_code for result in found.results} == {
        "/a": ErrorCode.KAFKA_STORAGE_ERROR,
        "/b": 0,
    }


def test_a_read_that_fails_takes_the_directory_offline(parts: Parts) -> None:
    assert produce(parts, 0) == 0
    partition = parts.partitions.by_name["t", 0]
    with parts.fs.failing("preadv", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        partition.read(0, 10, min_one=True, allow_cold=False)
    assert partition.role is Role.OFFLINE


def test_who_waits_is_told(parts: Parts) -> None:
    waiting = parts.ask(fetch_of(0, wait_ms=10_000), 12)
    assert not waiting.called
    fail_a(parts)
    assert result_of(waiting).responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_an_append_that_waits_for_a_sync_that_fails(parts: Parts) -> None:
    result_of(parts.topic_admin.set_topic_configs("t", {"flush.visible": "true"}))
    parts.threads.hold = True
    answer = parts.ask(produce_to(parts, 0), 9)
    assert not answer.called
    with parts.fs.failing("fsync", errno.EIO, path="/a/"):
        parts.threads.release()
    told = result_of(answer).responses[0].partition_responses[0]
    assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert told.base_offset == -1
    assert parts.logs.healthy == ["/b"]


def test_a_full_disk_fails_the_produce_and_passes(parts: Parts) -> None:
    with parts.fs.failing("pwritev", errno.ENOSPC, path="/a/", partial=30):
        assert produce(parts, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(parts, 0) == 0
    assert parts.logs.healthy == ["/a", "/b"]
    assert parts.partitions.by_name["t", 0].high_watermark == 1


def test_a_flush_that_finds_no_room_is_tried_again(parts: Parts) -> None:
    result_of(parts.topic_admin.set_topic_configs("t", {"flush.visible": "true", "internal.segment.bytes": "100"}))
    assert produce(parts, 0) == 0
    partition = parts.partitions.by_name["t", 0]
    with parts.fs.failing("open", errno.ENOSPC, path=".snapshot", lasting=True):
        answer = parts.ask(produce_to(parts, 0), 9)
        parts.time.advance(0.5)
        assert not answer.called
    parts.time.advance(0.6)
    assert result_of(answer).responses[0].partition_responses[0].error_code == 0
    assert partition.high_watermark == 2


def test_partitions_of_a_directory_that_is_away_are_not_made_anew(parts: Parts) -> None:
    assert produce(parts, 0) == produce(parts, 1) == 0
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    with parts.fs.failing("listdir", errno.EIO, path="/a", lasting=True):
        parts.boot()
        result_of(parts.replica_parts.start())
    assert produce(parts, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(parts, 1) == 0
    assert "t-0" not in parts.fs.listdir("/b")
    parts.create("new", partitions=2)
    assert parts.logs.logs["new", 0].directory == "/b/new-0"
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    parts.boot()
    result_of(parts.replica_parts.start())
    assert parts.partitions.by_name["t", 0].high_watermark == 1
