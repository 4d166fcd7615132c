"""Ask transaction coordinators whether partitions are in a transaction, for the leaders of these partitions.

Strategy: each coordinator has a queue and one request in flight, so questions that arrive during a request are sent
together in the next one. Questions about the ids that this broker coordinates itself are answered at once.

Rules:
- A request names a transactional id once, since the response finds the question by it; a second question waits.
- An outdated epoch gets INVALID_PRODUCER_EPOCH, which producers expect from partition leaders.
- With `transaction.partition.verification.enable=false` coordinators are asked only to add partitions.
Source: KIP-890; Kafka's AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError, UnsupportedByBroker
from pylogd.broker.transactions.coordinator import TransactionCoordinator
from pylogd.broker.transactions.values import EPOCH_PER_TRANSACTION
from pylogd.broker.transactions.verification import Answer, TopicPartition
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

log = Logger()

#: The most transactional ids that one request names.
_MOST_QUESTIONS: Final = 500

Ask = Callable[[int, AddPartitionsToTxnRequest], "Deferred[AddPartitionsToTxnResponse]"]


class Question(NamedTuple):
    """A leader's question, and the Deferred that gets the answer."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[TopicPartition, ...]
    add: bool
    answer: Deferred[Answer]

    def all(self, error: ErrorCode) -> None:
        """Give the same answer for every partition."""
        self.answer.callback(dict.fromkeys(self.partitions, error))


class TransactionVerifier:
    """Implements `verification.PartitionVerifier`."""

    def __init__(
        self, coordinator: TransactionCoordinator, node_id: int, ask: Ask, enabled: Callable[[], bool]
    ) -> None:
        """Arguments:

        ask: sends a request to a broker.
        enabled: whether to ask about partitions that are not to be added.
        """
        self._coordinator = coordinator
        self._node_id = node_id
        self._ask = ask
        self._enabled = enabled
        self._queues: dict[int, list[Question]] = {}
        self._in_flight: set[int] = set()

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition], add: bool
    ) -> Answer | Deferred[Answer]:
        """Return the coordinator's answer for each partition, or a Deferred of it; never fails. See `verification`."""
        if not add and not self._enabled():
            return dict.fromkeys(partitions, ErrorCode.NONE)
        node = self._coordinator.known_coordinator_of(transactional_id)
        if isinstance(node, ErrorCode):
            return dict.fromkeys(partitions, node)
        if node == self._node_id:
            return self._ask_here(transactional_id, producer_id, epoch, partitions, add)
        question = Question(transactional_id, producer_id, epoch, tuple(partitions), add, Deferred())
        self._queues.setdefault(node, []).append(question)
        self._flush(node)
        return question.answer

    def stop(self) -> None:
        """Answer the queued questions with COORDINATOR_NOT_AVAILABLE."""
        queues, self._queues = self._queues, {}
        for question in (question for queue in queues.values() for question in queue):
            question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _ask_here(
        self, name: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition], add: bool
    ) -> Answer | Deferred[Answer]:
        """Ask about an id that this broker coordinates."""
        if not add:
            found = self._coordinator.verify(name, producer_id, epoch, partitions)
            return {partition: _for_producer(error) for partition, error in found.items()}
        added = self._coordinator.add(name, producer_id, epoch, partitions, EPOCH_PER_TRANSACTION)

        def answered(error: ErrorCode) -> Answer:
            return dict.fromkeys(partitions, _for_producer(error))

        answer = added.addCallback(answered)
        result: Any = answer.result if answer.called else None
        return result if isinstance(result, dict) else answer  # an append need not wait for what is known already

    def _flush(self, node: int) -> None:
        """Send the queued questions for a coordinator, unless a request to it is in flight."""
        if node in self._in_flight or not self._queues.get(node):
            return
        batch: dict[str, Question] = {}
        later: list[Question] = []
        for question in self._queues.pop(node):
            if question.transactional_id in batch or len(batch) == _MOST_QUESTIONS:
                later.append(question)
            else:
                batch[question.transactional_id] = question
        if later:
            self._queues[node] = later
        self._in_flight.add(node)
        request = AddPartitionsToTxnRequest([_transaction(question) for question in batch.values()])
        asked = maybeDeferred(self._ask, node, request)
        asked.addCallback(_answered, batch).addErrback(_not_answered, batch, node)
        asked.addBoth(self._landed, node)

    def _landed(self, _: object, node: int) -> None:
        self._in_flight.discard(node)
        self._flush(node)


def _answered(response: AddPartitionsToTxnResponse, batch: Mapping[str, Question]) -> None:
    refused = ErrorCode(response.error_code)
    if refused:
        log.error("The transaction coordinator refuses to verify: {error}", error=refused.name)
        # Producers can do nothing about a broker that is not authorized.
        refused = ErrorCode.INVALID_TXN_STATE if refused is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else refused
    results = {result.transactional_id: result for result in response.results_by_transaction}
    for name, question in batch.items():
        if refused or name not in results:
            question.all(refused or ErrorCode.UNKNOWN_SERVER_ERROR)
            continue
        errors = {
            (topic.name, found.partition_index): _for_producer(ErrorCode(found.partition_error_code))
            for topic in results[name].topic_results
            for found in topic.results_by_partition
        }
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        question.answer.callback({partition: errors.get(partition, missing) for partition in question.partitions})


def _not_answered(failure: Failure, batch: Mapping[str, Question], node: int) -> None:
    error = ErrorCode.NETWORK_EXCEPTION
    if failure.check(UnsupportedByBroker):
        error = ErrorCode.NONE  # a broker of an earlier release can't verify; this happens during an upgrade
    elif failure.check(PylogdError):
        log.warn("Transaction coordinator {node} could not be asked: {error}",
                 node=node, error=failure.getErrorMessage())  # fmt: skip
    else:
        log.failure("Unexpected error while asking transaction coordinator {node}", failure, node=node)
    for question in batch.values():
        if not question.answer.called:
            question.all(error)


def _transaction(question: Question) -> AddPartitionsToTxnTransaction:
    topics = [
        AddPartitionsToTxnTopic(name, [index for _, index in found])
        for name, found in groupby(sorted(question.partitions), lambda partition: partition[0])
    ]
    return AddPartitionsToTxnTransaction(
        question.transactional_id, question.producer_id, question.epoch, not question.add, topics
    )


def _for_producer(error: ErrorCode) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
