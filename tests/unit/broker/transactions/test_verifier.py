"""Questions of partition leaders to coordinators: here, and at other brokers that the test plays."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from pylogd.base.errors import BrokerUnavailable, ErrorCode, UnsupportedByBroker
from pylogd.broker.transactions.values import ProducerAnswer
from pylogd.broker.transactions.verifier import TransactionVerifier
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tests.fakes.groups import PendingResult
from tests.fakes.transactions import TransactionFixture

NONE = ErrorCode.NONE
T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[TransactionFixture]:
    made = TransactionFixture(tmp_path)
    yield made
    made.close()


class Remote:
    """A coordinator at another broker: this one's, behind requests that are kept until `release`."""

    def __init__(self, fixture: TransactionFixture) -> None:
        self.fixture = fixture
        self.enabled = True
        self.requests: list[AddPartitionsToTxnRequest] = []
        self._held: list[tuple[Deferred[AddPartitionsToTxnResponse], AddPartitionsToTxnRequest]] = []
        self.verifier = TransactionVerifier(fixture.transactions, 9, self.ask, lambda: self.enabled)

    def ask(self, node: int, request: AddPartitionsToTxnRequest) -> Deferred[AddPartitionsToTxnResponse]:
        assert node == self.fixture.node_id
        self.requests.append(request)
        answer: Deferred[AddPartitionsToTxnResponse] = Deferred()
        self._held.append((answer, request))
        return answer

    def release(self) -> None:
        while self._held:
            answer, request = self._held.pop(0)
            answer.callback(self.fixture.call(request))

    def verify(self, producer: ProducerAnswer, *, name: str = "x", add: bool = False) -> PendingResult:
        return PendingResult(self.verifier.verify(name, producer.producer_id, producer.epoch, [T0, T1], add))


def test_a_local_coordinator_is_asked_at_once(fixture: TransactionFixture) -> None:
    producer, verify = fixture.ready(), fixture.transaction_parts.verifier.verify
    fixture.add(producer, 0)
    found = PendingResult(verify("x", producer.producer_id, 0, [T0, T1], False)).answer
    assert found == {T0: NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    found = PendingResult(verify("x", producer.producer_id, 0, [T0, T1], True)).answer
    assert found == {T0: NONE, T1: NONE}
    found = PendingResult(verify("x", producer.producer_id, 4, [T0], True)).answer
    assert found == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert fixture.found().value.version == 2


def test_questions_that_come_meanwhile_go_together_but_an_id_once(fixture: TransactionFixture) -> None:
    x, y = fixture.ready(), fixture.ready("y")
    remote = Remote(fixture)
    first = remote.verify(x, add=True)
    others = [remote.verify(y, name="y"), remote.verify(x), remote.verify(x, name="z"), remote.verify(x)]
    assert first.waits
    remote.release()
    assert first.answer == {T0: NONE, T1: NONE}
    assert [one.answer[T0] for one in others] == [
        ErrorCode.TRANSACTION_ABORTABLE, NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, NONE
    ]  # fmt: skip
    assert [[one.transactional_id for one in request.transactions] for request in remote.requests] == [
        ["x"], ["y", "x", "z"], ["x"]
    ]  # fmt: skip


def test_without_verification_only_adding_asks(fixture: TransactionFixture) -> None:
    producer = fixture.ready()
    remote = Remote(fixture)
    remote.enabled = False
    assert remote.verify(producer).answer == {T0: NONE, T1: NONE}
    assert remote.verify(producer, add=True).waits
    remote.release()


def test_a_fenced_producer_is_told_in_the_words_of_partition_leaders(fixture: TransactionFixture) -> None:
    old = fixture.ready()
    fixture.ready()
    remote = Remote(fixture)
    asked = remote.verify(old)
    remote.release()
    assert set(asked.answer.values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BrokerUnavailable("gone"), ErrorCode.NETWORK_EXCEPTION),
        (UnsupportedByBroker("an earlier release"), NONE),
        (ZeroDivisionError("unexpected"), ErrorCode.NETWORK_EXCEPTION),
    ],
)
def test_a_coordinator_that_does_not_answer(fixture: TransactionFixture, failure: Exception, code: ErrorCode) -> None:
    producer = fixture.ready()
    verifier = TransactionVerifier(fixture.transactions, 9, lambda node, request: fail(failure), lambda: True)
    asked = PendingResult(verifier.verify("x", producer.producer_id, 0, [T0], False))
    assert asked.answer == {T0: code}


def test_a_coordinator_that_refuses_or_forgets(fixture: TransactionFixture) -> None:
    producer = fixture.ready()
    remote = Remote(fixture)
    for response, code in (
        (AddPartitionsToTxnResponse(0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ErrorCode.INVALID_TXN_STATE),
        (AddPartitionsToTxnResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        asked = remote.verify(producer)
        answer, _ = remote._held.pop()
        answer.callback(response)
        assert set(asked.answer.values()) == {code}


def test_an_id_that_no_producer_can_have(fixture: TransactionFixture) -> None:
    asked = PendingResult(Remote(fixture).verifier.verify("", 0, 0, [T0], False))
    assert asked.answer == {T0: ErrorCode.INVALID_REQUEST}


def test_a_broker_that_stops_answers_what_is_queued(fixture: TransactionFixture) -> None:
    producer = fixture.ready()
    remote = Remote(fixture)
    remote.verify(producer)
    queued = remote.verify(producer)
    remote.verifier.stop()
    assert set(queued.answer.values()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize("late", [False, True])
def test_an_unexpected_error_leaves_no_question_without_an_answer(fixture: TransactionFixture, late: bool) -> None:
    """Or the producer's requests would wait for ever, and all others to that coordinator behind it."""
    producer, remote = fixture.ready(), Remote(fixture)

    def ask(node: int, request: AddPartitionsToTxnRequest) -> Deferred[AddPartitionsToTxnResponse]:
        if not late:
            raise struct.error("too large")
        return succeed(AddPartitionsToTxnResponse(error_code=999))

    remote.verifier._ask = ask
    for _ in range(2):
        answer = remote.verify(producer).answer
        assert answer == {T0: ErrorCode.NETWORK_EXCEPTION, T1: ErrorCode.NETWORK_EXCEPTION}
