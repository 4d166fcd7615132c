"""Appends to logs at rest, as all are after a start: a thread opens the files first, and the order is kept."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import LogAtRest, StorageFailure
from pylogd.broker.replica.errors import FencedLeaderEpoch
from pylogd.broker.replica.partition import Partition
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch, decoded

VERSION = 10


def restarted(parts: Parts) -> Partition:
    """Return a partition with one record, whose log is at rest since the broker was stopped and started."""
    parts.create("t")
    parts.append("t", b"first")
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    parts.boot()
    result_of(parts.replica_parts.start())
    partition = parts.partitions.by_name["t", 0]
    assert partition.log.at_rest
    return partition


def follow(parts: Parts, epoch: int = 1) -> None:
    """Have this broker follow broker 2."""
    parts.set_state("t", leader=2, leader_epoch=epoch, replicas=(1, 2), isr=(1, 2))


def produce(parts: Parts) -> Deferred[Any]:
    """Return a Deferred of the response to a Produce request."""
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"v"))])]
    answer = parts.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=data), VERSION)
    assert isinstance(answer, Deferred)
    return answer.addCallback(decoded, ProduceRequest.API_KEY, VERSION)


def answered(done: Deferred[Any]) -> tuple[int, int]:
    """Return error code and base offset of a response."""
    partition = result_of(done).responses[0].partition_responses[0]
    return partition.error_code, partition.base_offset


def test_clients_wait_until_a_thread_has_opened_the_files(parts: Parts) -> None:
    partition = restarted(parts)
    parts.threads.hold = True
    answers = [produce(parts) for _ in range(3)]
    assert not any(answer.called for answer in answers)
    assert len(parts.threads.held) == 1, "opened once"
    parts.threads.release()
    parts.threads.hold = False
    assert [answered(answer) for answer in answers] == [(0, 1), (0, 2), (0, 3)]
    assert not partition.log.at_rest
    assert parts.replicas.append(partition, batch(b"v"), True).base_offset == 4


def test_a_followers_append_waits_too(parts: Parts) -> None:
    partition = restarted(parts)
    follow(parts)
    parts.threads.hold = True
    done = parts.replicas.append_fetched(partition, batch(b"theirs", base_offset=1, leader_epoch=1), 2, 0)
    assert done is not None
    parts.threads.release()
    result_of(done)
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 2)
    assert parts.replicas.append_fetched(partition, batch(b"next", base_offset=2, leader_epoch=1), 3, 0) is None


def test_what_a_former_leader_sent_is_refused_when_the_files_are_open(parts: Parts) -> None:
    partition = restarted(parts)
    follow(parts)
    parts.threads.hold = True
    done = parts.replicas.append_fetched(partition, batch(b"theirs", base_offset=1, leader_epoch=1), 2, 0)
    follow(parts, epoch=2)
    assert done is not None
    failed: list[Any] = []
    done.addErrback(failed.append)
    parts.threads.release()
    assert failed[0].check(FencedLeaderEpoch)
    assert partition.log.log_end_offset == 1


def test_a_disk_that_fails_takes_the_directory_offline(parts: Parts) -> None:
    partition = restarted(parts)
    with parts.fs.failing("open", errno.EIO, path="/data/t-0/"):
        done = produce(parts)
    assert answered(done)[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert not partition.online
    with pytest.raises(StorageFailure):
        raise next(iter(parts.logs.offline.values()))


def test_a_topic_is_truncated_or_deleted_at_rest(parts: Parts) -> None:
    partition = restarted(parts)
    follow(parts)
    result_of(parts.replicas.truncate(partition, 0))
    assert partition.log.log_end_offset == 0
    assert not partition.log.at_rest
    result_of(parts.topic_admin.delete_topic("t"))
    result_of(parts.hosting.settled("t"))
    assert ("t", 0) not in parts.logs.logs


def test_the_broker_s_own_records_wait_too(parts: Parts) -> None:
    partition = restarted(parts)
    with pytest.raises(LogAtRest):
        parts.replicas.append(partition, batch(b"own"), True, own=True)
    assert result_of(parts.replicas.append_in_turn(partition, batch(b"own"), True, own=True)).base_offset == 1
