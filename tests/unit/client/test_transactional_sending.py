"""A transactional producer without a network: which batches are sent when, with which numbers, and what breaks it."""

from __future__ import annotations

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.call import Call
from pylogd.client.core.connections import ConnectionOptions
from pylogd.client.core.errors import Closed, DeliveryTimedOut, TransactionAborted
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.network import Network
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import ProducerCore
from pylogd.client.core.producer.transaction_states import TransactionState
from pylogd.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pylogd.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pylogd.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pylogd.wire.records import parse_header

NONE = ErrorCode.NONE


class Rig:
    """A producer in a transaction, on a topic of one partition."""

    def __init__(self, level: int = 2) -> None:
        metadata = Metadata([("host", 9092)])
        partition = MetadataResponsePartition(0, 0, 1, 5, [1], [1])
        metadata.learn(
            MetadataResponse(
                brokers=[MetadataResponseBroker(1, "host", 9092)],
                topics=[MetadataResponseTopic(0, "t", b"i" * 16, False, [partition])],
            )
        )
        self.now = 0.0
        self.core = ProducerCore(
            ProducerOptions(transactional_id="me", linger_ms=0, batch_records=1, delivery_timeout=10.0), metadata,
            monotonic=lambda: self.now, is_ready=lambda _: True, features=lambda: {"transaction.version": level},
        )  # fmt: skip
        self.core.partitions["t"] = 1
        self.core.transactions.prepare()
        (call,) = self.core.turn(self.now)
        assert call.api is FindCoordinatorRequest
        call.answered(FindCoordinatorResponse(0, 0, None, 1, "host", 9092), self.now)
        (call,) = self.core.turn(self.now)
        assert call.api is InitProducerIdRequest
        call.answered(InitProducerIdResponse(0, 0, 7, 0), self.now)
        self.core.begin_transaction()

    def send(self, count: int) -> None:
        for _ in range(count):
            self.core.add("t", 0, None, b"x", 0)

    def turn(self) -> list[Call]:
        return self.core.turn(self.now)

    def produce(self) -> list[tuple[Call, ProduceRequest]]:
        """Return the produce requests that are due, as they are sent."""
        found = []
        for call in self.turn():
            assert call.api is ProduceRequest
            call.sent = True
            found.append((call, call.build(12 if call.highest is None else min(call.highest, 12))))
        return found

    def answer(self, call: Call, code: ErrorCode = NONE, offset: int = 0) -> None:
        answers = [PartitionProduceResponse(0, code, offset)]
        call.answered(ProduceResponse([TopicProduceResponse("t", partition_responses=answers)]), self.now)

    def end(self, *, committed: bool, epoch: int) -> None:
        operation = self.core.transactions.end(committed=committed)
        (call,) = self.turn()
        assert call.api is EndTxnRequest
        call.answered(EndTxnResponse(0, 0, 7, epoch), self.now)
        assert operation.done
        assert operation.error is None


def numbers(request: ProduceRequest) -> tuple[int, int, int]:
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    header = parse_header(records)
    assert header.is_transactional
    assert request.transactional_id == "me"
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_each_transaction_has_its_epoch_and_begins_at_sequence_0() -> None:
    rig = Rig()
    for epoch in range(3):
        rig.send(2)
        found: list[tuple[int, int, int]] = []
        while len(found) < 2:
            for call, request in rig.produce():
                found.append(numbers(request))
                rig.answer(call)
        assert found == [(7, epoch, 0), (7, epoch, 1)]
        rig.end(committed=True, epoch=epoch + 1)
        rig.core.begin_transaction()


def test_nothing_is_sent_before_the_partition_is_in_a_transaction_of_the_first_generation() -> None:
    rig = Rig(1)
    rig.send(1)
    (call,) = rig.turn()
    assert call.api is not ProduceRequest
    assert rig.turn() == []


def test_a_gap_breaks_the_transaction_where_others_would_raise_the_epoch() -> None:
    rig = Rig()
    rig.send(3)
    ((first, _),) = rig.produce()
    rig.answer(first)
    (second, _), (third, _) = rig.produce()
    rig.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rig.answer(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rig.now += 1
    assert rig.turn() == []
    assert rig.core.transactions.state is TransactionState.BROKEN
    rig.turn()
    assert rig.core.unfinished == 0
    assert isinstance(rig.core.broken_by, TransactionAborted)
    assert rig.core.accumulator.limit == -1
    rig.end(committed=False, epoch=1)
    rig.core.begin_transaction()
    rig.send(1)
    ((_, request),) = rig.produce()
    assert numbers(request) == (7, 1, 0)


def test_a_retry_keeps_its_numbers() -> None:
    rig = Rig()
    rig.send(1)
    ((call, request),) = rig.produce()
    rig.answer(call, ErrorCode.CONCURRENT_TRANSACTIONS)
    assert rig.produce() == []
    rig.now += 0.03  # the pause is short: the transaction before is being ended
    ((call, again),) = rig.produce()
    assert numbers(again) == numbers(request)
    rig.answer(call)
    rig.end(committed=True, epoch=1)


def test_a_batch_that_is_not_delivered_in_time_breaks_the_transaction() -> None:
    rig = Rig()
    rig.send(1)
    ((call, _),) = rig.produce()
    rig.answer(call, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rig.send(1)
    rig.now += 11
    rig.turn()
    rig.turn()
    assert isinstance(rig.core.broken_by, TransactionAborted)
    assert isinstance(rig.core.broken_by.__cause__, DeliveryTimedOut)
    assert rig.core.unfinished == 0


def test_an_abort_waits_for_what_is_in_flight_and_drops_the_rest() -> None:
    rig = Rig()
    rig.send(3)
    ((call, _),) = rig.produce()
    operation = rig.core.transactions.end(committed=False)
    assert rig.turn() == []
    assert rig.core.unfinished == 1
    rig.answer(call, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # not sent again
    assert rig.core.unfinished == 0
    (end,) = rig.turn()
    end.answered(EndTxnResponse(0, 0, 7, 1), rig.now)
    assert operation.done
    assert rig.core.queue.failures.records == 0  # the end tells, not `flush`
    assert {type(result.error) for _, result in rig.core.take_results()} == {TransactionAborted, KafkaError}


def test_stopping_ends_what_is_waited_for() -> None:
    rig = Rig()
    rig.send(1)
    operation = rig.core.transactions.end(committed=True)
    rig.core.stop(Closed("closed"))
    assert isinstance(operation.error, Closed)
    assert rig.turn() == []


@pytest.mark.parametrize(("epochs", "level"), [([1, 2], 2), ([2, 1], 1), ([-1, -1], 2)])
def test_the_newest_list_of_features_counts(epochs: list[int], level: int) -> None:
    network = Network(Metadata([("host", 9092)]), ConnectionOptions())
    network.note_features({"transaction.version": 1}, epochs[0])
    network.note_features({"transaction.version": 2}, epochs[1])
    assert network.features == {"transaction.version": level}
