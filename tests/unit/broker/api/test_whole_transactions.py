"""Transactions through all parts of one broker, as its clients' requests: coordinator, verification, log, markers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pylogd.wire.records import TRANSACTIONAL, decode_batch, iter_batches
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch

NONE = ErrorCode.NONE


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, transaction_state_log_num_partitions=2, offsets_topic_num_partitions=2)
    made.verifier = made.transaction_parts.verifier
    made.create("t", 2)
    for kind, key in ((0, "g"), (1, "x")):
        assert made.call(FindCoordinatorRequest(key, kind), 3).error_code == NONE
    yield made
    made.close()


class Producer:
    """A transactional producer. Each request goes at the version of transactions that it uses."""

    def __init__(self, parts: Parts, newer: bool = True) -> None:
        self.parts = parts
        self.newer = newer
        given = parts.call(InitProducerIdRequest("x", 60_000))
        assert given.error_code == NONE
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch
        self.sequences: dict[int, int] = {}

    def send(self, value: bytes, index: int = 0) -> ErrorCode:
        sequence = self.sequences.get(index, 0)
        data = batch(
            value, now_ms=self.parts.now_ms(), producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        topic = TopicProduceData("t", partition_data=[PartitionProduceData(index, data)])
        answer = self.parts.call(ProduceRequest("x", -1, 1000, [topic]), 12 if self.newer else 11)
        error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if not error:
            self.sequences[index] = sequence + 1
        return error

    def send_offset(self, offset: int) -> ErrorCode:
        topic = TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, offset)])
        request = TxnOffsetCommitRequest("x", "g", self.producer_id, self.epoch, topics=[topic])
        answer = self.parts.call(request, 5 if self.newer else 4)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, commit: bool) -> ErrorCode:
        request = EndTxnRequest("x", self.producer_id, self.epoch, commit)
        answer = self.parts.call(request, 5 if self.newer else 4)
        if self.newer and not answer.error_code:
            if (self.producer_id, self.epoch) != (answer.producer_id, answer.producer_epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)


def read(parts: Parts, index: int = 0) -> tuple[int, list[bytes | None]]:
    """Return the last stable offset, and the values that a read_committed consumer sees."""
    topic = parts.topics.get("t")
    assert topic is not None
    wanted = FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(index, partition_max_bytes=1 << 20)])
    request = FetchRequest(isolation_level=1, max_bytes=1 << 20, session_epoch=-1, topics=[wanted])
    (found,) = parts.call(request, 16).responses[0].partitions
    aborted: dict[int, list[int]] = {}
    for one in found.aborted_transactions or ():
        aborted.setdefault(one.producer_id, []).append(one.first_offset)
    return found.last_stable_offset, _visible(found.records, aborted)


def _visible(data: Any, aborted: dict[int, list[int]]) -> list[bytes | None]:
    raw = data if isinstance(data, bytes) else data.read()
    open_: set[int] = set()
    seen: list[bytes | None] = []
    for header, view in iter_batches(raw, allow_partial=True):
        while (firsts := aborted.get(header.producer_id)) and firsts[0] <= header.base_offset:
            firsts.pop(0)
            open_.add(header.producer_id)
        if header.is_control:
            open_.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_):
            seen += [record.value for record in decode_batch(view, header)]
    return seen


def committed_offset(parts: Parts) -> int:
    answer = parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9).groups[0]
    return answer.topics[0].partitions[0].committed_offset if answer.topics else -1


def test_transactions_one_after_the_other(parts: Parts) -> None:
    producer = Producer(parts)
    expected: list[bytes] = []
    for number in range(6):
        value = b"%d" % number
        assert producer.send(value) == producer.send(value, 1) == NONE
        assert read(parts)[1] == expected
        commit = number % 3 != 2
        assert producer.send_offset(number + 1) == NONE
        assert producer.end(commit) == NONE
        if commit:
            expected.append(value)
            assert committed_offset(parts) == number + 1
        assert read(parts)[1] == read(parts, 1)[1] == expected
        assert producer.epoch == number + 1
    assert committed_offset(parts) == 5
    assert read(parts)[0] == parts.partitions.by_name["t", 0].log.log_end_offset


def test_a_batch_that_comes_after_the_end_opens_nothing(parts: Parts) -> None:
    producer = Producer(parts)
    assert producer.send(b"a") == NONE
    late, sequences = producer.epoch, dict(producer.sequences)
    assert producer.end(True) == NONE
    producer.epoch, producer.sequences = late, sequences
    assert producer.send(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert read(parts) == (2, [b"a"])


def test_an_older_producer_has_to_add_partitions_first(parts: Parts) -> None:
    producer = Producer(parts, newer=False)
    assert producer.send(b"a") == ErrorCode.TRANSACTION_ABORTABLE
    added = parts.transactions.add("x", producer.producer_id, 0, [("t", 0)], 0)
    assert result_of(added) == NONE
    assert producer.send(b"a") == NONE
    assert producer.end(True) == NONE
    assert read(parts) == (2, [b"a"])
    assert producer.send(b"late") == ErrorCode.TRANSACTION_ABORTABLE


def test_a_successor_aborts_and_fences(parts: Parts) -> None:
    zombie = Producer(parts)
    assert zombie.send(b"zombie") == zombie.send_offset(7) == NONE
    assert parts.call(InitProducerIdRequest("x", 60_000)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    successor = Producer(parts)
    assert zombie.send(b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.end(True) == ErrorCode.PRODUCER_FENCED
    assert successor.send(b"new") == successor.send_offset(8) == NONE
    assert committed_offset(parts) == -1
    assert successor.end(True) == NONE
    assert read(parts)[1] == [b"new"]
    assert committed_offset(parts) == 8


def test_a_transaction_that_nobody_ends_does_not_hold_consumers_back(parts: Parts) -> None:
    producer = Producer(parts)
    assert producer.send(b"lost") == NONE
    assert read(parts) == (0, [])
    parts.time.pump([10] * 8)
    assert read(parts) == (2, [])
