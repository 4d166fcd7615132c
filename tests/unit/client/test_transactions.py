"""The transactions of a producer, without a network: what is asked of whom, and what the answers mean."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.call import Call, Endpoint
from pylogd.client.core.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeliveryTimedOut,
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
    TransactionError,
)
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.transaction_states import TransactionState
from pylogd.client.core.producer.transactions import Transactions
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from pylogd.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", 3, "member", None)
OFFSETS = {T0: OffsetAndMetadata(5, "", 1), T1: OffsetAndMetadata(6)}
State = TransactionState


class Rig:
    """A producer around its transactions, and the brokers that it asks."""

    def __init__(self, level: int = 2, *, ready: bool = True) -> None:
        self.features = {"transaction.version": level}
        self.now = 100.0
        self.unfinished = 0
        self.wanted: set[TopicPartition] = set()
        self.ids: list[tuple[int, int]] = []
        self.dropped: list[PylogdError] = []
        self.numbered = False
        self.made = Transactions(
            self, ProducerOptions(transactional_id="me"), features=lambda: self.features, guard=nullcontext()
        )
        if ready:
            operation = self.made.prepare()
            self.find()
            self.answer(InitProducerIdRequest, InitProducerIdResponse(0, 0, 7, 0))
            assert operation.done
            assert operation.error is None

    # The owner

    def transaction_changed(self) -> None:
        """Nothing is kept of it."""

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        self.ids.append((producer_id, epoch))

    def drop_batches(self, error: PylogdError) -> bool:
        self.dropped.append(error)
        return self.numbered

    def stands(self, state: TransactionState) -> bool:
        return self.made.state is state

    # The network

    def call(self, api: type[Any]) -> Call:
        """Return the call that is due, which has to be of an API."""
        (call,) = self.made.turn(self.now, self.wanted, lambda: self.unfinished)
        assert call.api is api
        return call

    def quiet(self) -> bool:
        return not self.made.turn(self.now, self.wanted, lambda: self.unfinished)

    def answer(self, api: type[Any], response: Any, version: int = 0) -> Any:
        """Answer the call that is due, and return its message."""
        call = self.call(api)
        message = call.build(call.highest if call.highest is not None else version)
        call.answered(response, self.now)
        return message

    def find(self, node: int = 1, code: int = 0) -> Any:
        return self.answer(
            FindCoordinatorRequest, FindCoordinatorResponse(0, code, None, node, f"host{node}", 9092), version=3
        )

    def wait(self) -> None:
        """Let the pause after an error pass."""
        due = self.made.next_time(self.now)
        assert due is not None
        assert due > self.now
        assert self.quiet()
        self.now = due

    def begin(self) -> None:
        self.made.begin()
        self.wanted = {T0}
        if self.features["transaction.version"] == 2:
            self.made.sending()

    def end(self, *, committed: bool = True, code: int = 0, epoch: int = -1) -> Any:
        producer_id = 7 if epoch >= 0 else -1
        operation = self.made.end(committed=committed)
        message = self.answer(EndTxnRequest, EndTxnResponse(0, code, producer_id, epoch))
        assert message.committed is committed
        return operation


def added(code: int = 0, partition: int = 0) -> AddPartitionsToTxnResponse:
    results = [AddPartitionsToTxnTopicResult("t", [AddPartitionsToTxnPartitionResult(partition, code)])]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def offsets_answer(*codes: int) -> TxnOffsetCommitResponse:
    answers = [TxnOffsetCommitResponsePartition(index, code) for index, code in enumerate(codes)]
    return TxnOffsetCommitResponse(0, [TxnOffsetCommitResponseTopic("t", answers)])


def test_the_first_requests() -> None:
    rig = Rig(ready=False)
    operation = rig.made.prepare()
    assert rig.made.prepare() is operation
    message = rig.find(2)
    assert (message.key, message.key_type) == ("me", 1)
    call = rig.call(InitProducerIdRequest)
    assert call.target == Endpoint(2, "host2", 9092)
    message = call.build(5)
    assert (message.transactional_id, message.transaction_timeout_ms) == ("me", 60_000)
    assert (message.producer_id, message.producer_epoch) == (-1, -1)
    assert rig.quiet()  # one at a time
    call.answered(InitProducerIdResponse(0, 0, 7, 3), rig.now)
    assert operation.done
    assert rig.ids == [(7, 3)]
    assert rig.stands(State.READY)
    assert rig.made.prepare().done


def test_a_commit_of_the_second_generation() -> None:
    rig = Rig()
    assert isinstance(rig.made.refusal, TransactionError)
    rig.begin()
    assert rig.made.refusal is None
    assert rig.made.produce_until is None
    assert rig.made.may_send(T1)
    assert rig.quiet()
    rig.unfinished = 1
    operation = rig.made.end(committed=True)
    assert rig.made.end(committed=True) is operation
    with pytest.raises(TransactionError, match="commit is under way"):
        rig.made.end(committed=False)
    assert rig.made.refusal is not None
    assert rig.quiet()  # until all is sent
    rig.unfinished = 0
    message = rig.answer(EndTxnRequest, EndTxnResponse(0, 0, 7, 1))
    assert (message.transactional_id, message.producer_id, message.producer_epoch) == ("me", 7, 0)
    assert operation.done
    assert rig.ids == [(7, 0), (7, 1)]
    assert rig.stands(State.READY)


def test_a_commit_of_the_first_generation() -> None:
    rig = Rig(1)
    rig.begin()
    assert rig.made.produce_until == 11
    assert not rig.made.may_send(T0)
    message = rig.answer(AddPartitionsToTxnRequest, added())
    assert [(t.name, t.partitions) for t in message.v3_and_below_topics] == [("t", [0])]
    assert rig.made.may_send(T0)
    assert not rig.made.may_send(T1)
    rig.wanted = {T0, T1}
    assert rig.answer(AddPartitionsToTxnRequest, added(partition=1)).v3_and_below_topics[0].partitions == [1]
    assert rig.quiet()
    assert rig.end().error is None
    assert rig.ids == [(7, 0)]
    assert rig.stands(State.READY)
    rig.made.begin()
    assert not rig.made.may_send(T0)  # it is another transaction


def test_offsets_of_the_second_generation() -> None:
    rig = Rig()
    rig.made.begin()
    operation = rig.made.send_offsets(OFFSETS, GROUP)
    assert rig.find(4).key == "g"
    call = rig.call(TxnOffsetCommitRequest)
    assert call.target == Endpoint(4, "host4", 9092)
    message = call.build(5)
    assert (message.group_id, message.generation_id, message.member_id) == ("g", 3, "member")
    found = message.topics[0].partitions
    assert [(p.partition_index, p.committed_offset, p.committed_leader_epoch) for p in found] == [(0, 5, 1), (1, 6, -1)]
    call.answered(offsets_answer(0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), rig.now)
    assert not operation.done
    rig.wait()
    message = rig.answer(TxnOffsetCommitRequest, offsets_answer(0, 0), version=5)
    assert [p.partition_index for p in message.topics[0].partitions] == [1]  # the other one is acknowledged
    assert operation.done
    assert operation.error is None
    assert rig.end(epoch=1).done
    assert rig.made.send_offsets is not None
    with pytest.raises(TransactionError, match="no transaction is open"):
        rig.made.send_offsets(OFFSETS, GROUP)


def test_offsets_of_the_first_generation() -> None:
    rig = Rig(1)
    rig.made.begin()
    rig.made.send_offsets(OFFSETS, GROUP)
    assert rig.answer(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse()).group_id == "g"
    rig.find(4)
    rig.answer(TxnOffsetCommitRequest, offsets_answer(0, 0))
    again = rig.made.send_offsets({T0: OffsetAndMetadata(9)}, GROUP)
    rig.answer(TxnOffsetCommitRequest, offsets_answer(0))  # the group is in the transaction already
    assert again.done
    assert rig.made.send_offsets({}, GROUP).done


@pytest.mark.parametrize("committed", [True, False])
def test_nothing_to_end(committed: bool) -> None:
    rig = Rig()
    rig.made.begin()
    operation = rig.made.end(committed=committed)
    assert rig.quiet()
    assert operation.done
    assert rig.stands(State.READY)
    with pytest.raises(TransactionError, match="no transaction to end"):
        rig.made.end(committed=committed)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_coordinator_that_has_moved(code: ErrorCode) -> None:
    rig = Rig()
    rig.begin()
    operation = rig.end(code=code)
    rig.wait()
    rig.find(2)
    call = rig.call(EndTxnRequest)
    assert call.target == Endpoint(2, "host2", 9092)
    call.failed(BrokerUnavailable("gone"), rig.now)
    rig.wait()
    rig.find(3, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    rig.wait()
    rig.find(3)
    rig.answer(EndTxnRequest, EndTxnResponse(0, 0, 7, 1))
    assert operation.done
    assert operation.error is None


def test_the_transaction_before_is_still_being_ended() -> None:
    rig = Rig(1)
    rig.begin()
    began = rig.now
    for _ in range(3):
        rig.answer(AddPartitionsToTxnRequest, added(ErrorCode.CONCURRENT_TRANSACTIONS))
        rig.wait()
    assert rig.now - began < 0.1
    rig.answer(AddPartitionsToTxnRequest, added())
    assert rig.made.may_send(T0)


def test_an_abort() -> None:
    rig = Rig()
    rig.begin()
    operation = rig.made.end(committed=False)
    rig.unfinished = 2
    assert rig.quiet()
    (error,) = rig.dropped  # what waits is dropped, what is in flight is waited for
    assert isinstance(error, TransactionAborted)
    rig.unfinished = 0
    assert rig.answer(EndTxnRequest, EndTxnResponse(0, 0, 7, 1)).committed is False
    assert operation.done
    assert rig.stands(State.READY)
    rig.begin()
    assert rig.made.error is None


def test_a_batch_that_is_given_up_breaks_the_transaction() -> None:
    rig = Rig()
    rig.begin()
    offsets = rig.made.send_offsets(OFFSETS, GROUP)
    ending = rig.made.end(committed=True)
    cause = DeliveryTimedOut("late")
    rig.made.batch_failed(cause)
    assert rig.stands(State.BROKEN)
    assert isinstance(ending.error, TransactionAborted)
    assert ending.error.__cause__ is cause
    assert offsets.error is ending.error
    assert rig.made.refusal is ending.error
    assert rig.quiet()
    assert rig.dropped == [ending.error]
    assert not rig.made.may_send(T0)
    with pytest.raises(TransactionAborted):
        rig.made.end(committed=True)
    with pytest.raises(TransactionError, match="can't begin now"):
        rig.made.begin()
    rig.end(committed=False, epoch=1)
    assert rig.stands(State.READY)


def test_after_a_broken_transaction_of_the_first_generation_another_epoch_is_asked_for() -> None:
    rig = Rig(1)
    rig.begin()
    rig.answer(AddPartitionsToTxnRequest, added())
    rig.made.batch_failed(KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    assert rig.end(committed=False).done
    assert rig.stands(State.RENEWING)
    operation = rig.made.prepare()
    assert not operation.done
    message = rig.answer(InitProducerIdRequest, InitProducerIdResponse(0, 0, 7, 1))
    assert (message.producer_id, message.producer_epoch) == (7, 0)
    assert operation.done
    assert rig.ids == [(7, 0), (7, 1)]
    assert rig.stands(State.READY)


def test_dropped_batches_with_numbers_need_another_epoch() -> None:
    rig = Rig(1)
    rig.begin()
    rig.answer(AddPartitionsToTxnRequest, added())
    rig.numbered = True
    rig.end(committed=False)
    assert rig.stands(State.RENEWING)


def test_going_over_to_the_second_generation_takes_another_epoch() -> None:
    rig = Rig(1)
    rig.begin()
    rig.answer(AddPartitionsToTxnRequest, added())
    rig.features = {"transaction.version": 2}
    assert rig.end().done
    assert rig.stands(State.RENEWING)
    rig.answer(InitProducerIdRequest, InitProducerIdResponse(0, 0, 7, 1))
    rig.made.begin()
    assert rig.made.produce_until is None


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_can_do_nothing_more(code: ErrorCode) -> None:
    rig = Rig()
    rig.begin()
    operation = rig.end(code=code)
    assert isinstance(operation.error, ProducerFenced)
    assert rig.stands(State.FAILED)
    assert rig.quiet()
    assert rig.dropped == [operation.error]
    for use in (rig.made.begin, lambda: rig.made.end(committed=False), lambda: rig.made.send_offsets(OFFSETS, GROUP)):
        with pytest.raises(ProducerFenced):
            use()
    assert rig.made.prepare().error is operation.error
    rig.made.batch_failed(DeliveryTimedOut("late"))  # of a request that was in flight
    assert rig.stands(State.FAILED)


def test_batches_of_a_fenced_producer() -> None:
    rig = Rig()
    rig.begin()
    rig.made.batch_failed(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH))
    assert rig.stands(State.BROKEN)  # the coordinator's answer decides
    rig = Rig()
    rig.begin()
    rig.made.batch_failed(KafkaError(ErrorCode.PRODUCER_FENCED))
    assert isinstance(rig.made.refusal, ProducerFenced)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_no_producer_id(code: ErrorCode) -> None:
    rig = Rig(ready=False)
    operation = rig.made.prepare()
    rig.find()
    rig.answer(InitProducerIdRequest, InitProducerIdResponse(0, code))
    assert isinstance(operation.error, ProducerFailed)
    assert not isinstance(operation.error, ProducerFenced)
    assert isinstance(operation.error.__cause__, KafkaError)
    assert operation.error.__cause__.code is code


def test_failures_that_retries_do_not_help() -> None:
    rig = Rig(ready=False)
    operation = rig.made.prepare()
    rig.call(FindCoordinatorRequest).failed(AuthenticationFailed("no"), rig.now)
    assert isinstance(operation.error, ProducerFailed)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_offsets_that_are_refused_break_the_transaction(code: ErrorCode) -> None:
    rig = Rig()
    rig.made.begin()
    operation = rig.made.send_offsets(OFFSETS, GROUP)
    rig.find(4)
    rig.answer(TxnOffsetCommitRequest, offsets_answer(ErrorCode.NOT_COORDINATOR, code), version=5)
    assert isinstance(operation.error, TransactionAborted)
    assert rig.stands(State.BROKEN)
    assert rig.end(committed=False, epoch=1).error is None


def test_an_abort_of_what_the_coordinator_does_not_know() -> None:
    rig = Rig(1)
    rig.begin()
    rig.call(AddPartitionsToTxnRequest).failed(BrokerUnavailable("gone"), rig.now)  # it may have arrived, or not
    operation = rig.made.end(committed=False)
    rig.wait()
    rig.find()
    rig.answer(EndTxnRequest, EndTxnResponse(0, ErrorCode.INVALID_TXN_STATE))
    assert operation.error is None
    assert rig.stands(State.RENEWING)  # with another epoch what comes late is refused


def test_a_state_that_the_coordinator_denies() -> None:
    rig = Rig(1)
    rig.begin()
    rig.answer(AddPartitionsToTxnRequest, added())
    assert isinstance(rig.end(code=ErrorCode.INVALID_TXN_STATE).error, ProducerFailed)


def test_a_forgotten_producer_id() -> None:
    rig = Rig(1)
    rig.begin()
    rig.answer(AddPartitionsToTxnRequest, added(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert rig.stands(State.BROKEN)
    operation = rig.end(committed=False, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert operation.error is None
    assert rig.stands(State.RENEWING)


def test_the_coordinator_asks_for_an_abort() -> None:
    rig = Rig()
    rig.begin()
    assert isinstance(rig.end(code=ErrorCode.TRANSACTION_ABORTABLE).error, TransactionAborted)
    assert rig.end(committed=False, epoch=1).error is None


def test_closing_ends_all_waits() -> None:
    rig = Rig()
    rig.made.begin()
    operations = [rig.made.send_offsets(OFFSETS, GROUP), rig.made.end(committed=True)]
    error = TransactionError("closed")
    rig.made.close(error)
    assert [operation.error for operation in operations] == [error, error]
