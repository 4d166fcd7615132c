"""AddPartitionsToTxn (24), versions 0 to 5: add partitions to transactions, or check that they are in them.

Behaviour: producers send versions 0 to 3, with one transaction. They add a partition before they send its first
records. If one partition is refused, none is added, and the others get OPERATION_NOT_ATTEMPTED. Leaders of partitions
send versions 4 and 5 (KIP-890), with many transactions. They ask whether partitions are in them (`verify_only`), or add
partitions for producers that leave that to the leaders (version 5). A request that adds partitions waits a short time
if the producer's previous transaction is still being ended.

Errors:
- INVALID_PRODUCER_ID_MAPPING: unknown transactional id, or another producer id;
- PRODUCER_FENCED (before version 2 INVALID_PRODUCER_EPOCH): outdated epoch;
- CONCURRENT_TRANSACTIONS: another change is in progress;
- INVALID_REQUEST: more partitions than `limits.names` allows.

A producer needs WRITE for the transactional id and for each topic, and may not write to internal topics; a leader needs
CLUSTER_ACTION on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.api.transactions import (
    EPOCH_PER_PRODUCER,
    EPOCH_PER_TRANSACTION,
    for_version,
    may_use_transactional_id,
)
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.transactions.values import PartitionId
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_FIRST_WITH_FENCED = 2
_FIRST_FOR_BROKERS = 4
_FIRST_WITH_EPOCHS = 5
_PARTITION_WORK = 30  # the work for a partition, as bytes of an answer whose encoding takes as long
_TRANSACTION_WORK = 100


@handles(AddPartitionsToTxnRequest, 0, 5)
def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[Any]:
    """Add or verify the partitions of the request."""
    response = AddPartitionsToTxnResponse()
    if context.version < _FIRST_FOR_BROKERS:
        only = AddPartitionsToTxnTransaction(
            request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch, False, request.v3_and_below_topics,
        )  # fmt: skip
        work = [_Work(context, only, response.results_by_topic_v3_and_below)]
    else:
        if not context.acts_for_cluster():
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        work = []
        for transaction in request.transactions:
            result = AddPartitionsToTxnResult(transaction.transactional_id)
            response.results_by_transaction.append(result)
            work.append(_Work(context, transaction, result.topic_results))
    waiting: list[Deferred[None]] = []
    return in_slices(context, request.API_KEY, _steps(work, waiting), response, lambda: _finish(waiting))


def _steps(work: Sequence[_Work], waiting: list[Deferred[None]]) -> Iterator[int]:
    """Yield the steps that check the transactions, and ask the coordinator about each."""
    for one in work:
        yield from one.check()
        asked = one.finish()
        if asked is not None:
            waiting.append(asked)
        yield _TRANSACTION_WORK


def _finish(waiting: Sequence[Deferred[None]]) -> Deferred[None] | None:
    """Return a Deferred if the coordinator's answer has to be waited for."""
    if not waiting:
        return None

    async def wait() -> None:
        for one in waiting:
            await one

    return Deferred.fromCoroutine(wait())


class _Work:
    """One transaction of a request, and the results to fill."""

    def __init__(
        self,
        context: RequestContext,
        transaction: AddPartitionsToTxnTransaction,
        results: list[AddPartitionsToTxnTopicResult],
    ) -> None:
        self._context = context
        self._transaction = transaction
        self._results = results
        self._partitions: set[PartitionId] = set()
        self._refused = False

    def check(self) -> Iterator[int]:
        """Yield the steps that determine which partitions may be added."""
        name = self._transaction.transactional_id
        for_client = self._context.version < _FIRST_FOR_BROKERS
        error = ErrorCode.NONE
        if for_client and not may_use_transactional_id(self._context, AclOperation.WRITE, name):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        for topic in self._transaction.topics:
            yield from self._check_topic(topic, error or (self._may_write(topic.name) if for_client else error))

    def _may_write(self, topic: str) -> ErrorCode:
        allowed = topic not in INTERNAL_TOPICS and self._context.may_use_topic(AclOperation.WRITE, topic)
        return ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _check_topic(self, topic: AddPartitionsToTxnTopic, error: ErrorCode) -> Iterator[int]:
        found = self._context.broker.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        results: list[AddPartitionsToTxnPartitionResult] = []
        self._results.append(AddPartitionsToTxnTopicResult(topic.name, results))
        for index in topic.partitions:
            missing = ErrorCode.NONE if 0 <= index < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = error or missing
            self._refused = self._refused or code is not ErrorCode.NONE
            self._partitions.add((topic.name, index))
            results.append(AddPartitionsToTxnPartitionResult(index, code))
            yield _PARTITION_WORK

    def finish(self) -> Deferred[None] | None:
        """Ask the coordinator, unless a partition was refused, and fill the results."""
        if self._refused:
            self._answer(ErrorCode.OPERATION_NOT_ATTEMPTED)
            return None
        wanted, coordinator = self._transaction, self._context.broker.transactions
        if wanted.verify_only:
            found = coordinator.verify(
                wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, self._partitions
            )
            for topic in self._results:
                for result in topic.results_by_partition:
                    result.partition_error_code = found[topic.name, result.partition_index]
            return None
        version = EPOCH_PER_TRANSACTION if self._context.version >= _FIRST_WITH_EPOCHS else EPOCH_PER_PRODUCER
        return coordinator.add(
            wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, self._partitions, version
        ).addCallback(self._answer)

    def _answer(self, error: ErrorCode) -> None:
        """Give this error code to all partitions that have none yet."""
        error = for_version(error, self._context.version, _FIRST_WITH_FENCED)
        for topic in self._results:
            for result in topic.results_by_partition:
                result.partition_error_code = result.partition_error_code or error
