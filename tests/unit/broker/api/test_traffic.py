"""What each partition was asked, and what of it failed."""

from __future__ import annotations

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.replica.partition import Partition
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.parts import Parts, batch


def produce(parts: Parts, records: bytes, index: int = 0) -> int:
    data = [TopicProduceData("t", bytes(16), [PartitionProduceData(index, records)])]
    response = parts.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=data), 12)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def fetch(parts: Parts, offset: int, epoch: int = -1) -> int:
    wanted = [FetchTopic("t", bytes(16), [FetchPartition(0, fetch_offset=offset, current_leader_epoch=epoch)])]
    response = parts.call(FetchRequest(topics=wanted, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20), 12)
    code: int = response.responses[0].partitions[0].error_code
    return code


@pytest.fixture
def partition(parts: Parts) -> Partition:
    parts.create("t")
    return parts.partitions.by_name["t", 0]


def test_produce_requests_and_those_that_failed(parts: Parts, partition: Partition) -> None:
    assert produce(parts, batch(b"a")) == 0
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    assert produce(parts, bytes(damaged)) == ErrorCode.CORRUPT_MESSAGE, "the client's fault, which Kafka does not count"
    assert (partition.produced + partition.appends, partition.failed_appends) == (2, 0)
    assert produce(parts, batch(b"a"), index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (partition.produced + partition.appends, partition.failed_appends) == (2, 0)


def test_an_append_that_is_refused_for_another_reason_has_failed(parts: Parts) -> None:
    parts.create("t", cleanup_policy="compact")
    partition = parts.partitions.by_name["t", 0]
    assert produce(parts, batch(b"no key")) == ErrorCode.INVALID_RECORD
    assert (partition.produced + partition.appends, partition.failed_appends) == (1, 1)


def test_fetches_and_those_that_failed(parts: Parts, partition: Partition) -> None:
    parts.append("t", b"a")
    assert fetch(parts, 0) == 0
    assert (partition.fetches, partition.fetch_errors, partition.failed_fetches) == (1, 0, 0)
    assert fetch(parts, 99) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(parts, 0, epoch=77) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (partition.fetches, partition.fetch_errors, partition.failed_fetches) == (1, 2, 0), (
        "Kafka does not count them"
    )
    parts.hosting.went_offline([("t", 0)])
    assert fetch(parts, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert (partition.fetch_errors, partition.failed_fetches) == (3, 0)
