"""Produce with a transactional id: verify with the coordinator before the first batch of a transaction on a partition.

Strategy: a partition whose log has an open transaction of the producer needs no verification. For the others the log
makes a guard, the coordinator is asked about all of them at once, and the batches are appended with their guards: the
log refuses a batch if a marker has ended the transaction meanwhile. Later requests of the producer to the same
partitions wait until these batches were appended (`replica.verifications`). Without a verification nothing waits.

Errors: a refusal of the coordinator is answered with the coordinator's error. If the coordinator can't be asked, or
reports a concurrent transaction, clients below version 12 get NOT_ENOUGH_REPLICAS, after which they just send the batch
again. From version 12 on the coordinator adds the partition itself. It answers CONCURRENT_TRANSACTIONS while the
producer's last transaction is still being ended, so the question is first repeated for a moment. TRANSACTION_ABORTABLE
is known from version 11 on.

Source: KIP-890; Kafka's ReplicaManager and AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.log.transactions import UNGUARDED, VERIFICATION_OFF, TransactionTerms, VerificationGuard
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.waiting import then
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.transactions.verification import Answer, TopicPartition
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.fast.produce import FIRST_TOPIC_ID
from pylogd.wire.messages.produce import ProduceRequest
from pylogd.wire.records import LENGTH_OVERHEAD, BatchHeader, Buffer, parse_header

ADDS_PARTITIONS: Final = 12  # from this version on the coordinator adds the partitions itself
_FIRST_ABORTABLE: Final = 11
_RETRY_SECONDS: Final = 0.02  # Kafka's add.partitions.to.txn.retry.backoff.ms, and .max.ms
_MOST_RETRIES: Final = 5
_PASSING: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


_Answers: TypeAlias = dict[TopicPartition, ErrorCode]
Find: TypeAlias = Callable[[tuple[Any, int]], "Partition | None"]


class _First(NamedTuple):
    """The first transactional batch for a partition."""

    partition: Partition
    header: BatchHeader


class TransactionalProduce:
    """The result of the verification of a request's transaction, by partition. Make it before appending the batches.

    waits: whether `verify` has to be awaited first, unless `verify_at_once` makes that needless.
    """

    def __init__(self, context: RequestContext, request: ProduceRequest, find: Find) -> None:
        """find: returns a partition by its index and its topic, in the form that the request names it.

        Raises KafkaError for a request that is refused as a whole.
        """
        self._context = context
        self._id = request.transactional_id or ""
        self._verifier = context.broker.verifier
        self._terms: dict[Partition, TransactionTerms | KafkaError] = {}
        self._guards: dict[TopicPartition, VerificationGuard] = {}
        #: The coordinator's answer to the first question, if it was asked.
        self._answer: _Answers | Deferred[_Answers] | None = None
        if not context.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, self._id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        self._first = _first_batches(context, request, find)
        self._senders = [(partition, header.producer_id) for partition, header in self._first]
        if len({header.producer_id for _, header in self._first}) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "The transactional batches are of more than one producer."
            )
        verifies = context.broker.settings.flag("transaction.partition.verification.enable")
        self._default = UNGUARDED if verifies else VERIFICATION_OFF
        self._busy = context.broker.replicas.verifications.busy(self._senders)
        self._asked = self._without_transaction() if verifies and self._verifier is not None else []
        self.waits = verifies and self._verifier is not None and (self._busy or bool(self._asked))

    def terms(self, partition: Partition) -> TransactionTerms:
        """Return the proof of verification that an append needs. Raises KafkaError if the coordinator refused it."""
        found = self._terms.get(partition, self._default)
        if isinstance(found, KafkaError):
            raise found
        return found

    def verify_at_once(self) -> bool:
        """Ask the coordinator, unless earlier requests of the producer wait. Return whether it has answered already.

        If so, there is nothing to wait for. Otherwise call `verify`.
        """
        if self._busy:
            return False
        answer = self._answer = self._question(self._asked)
        if isinstance(answer, Deferred) or (
            self._adds and any(_is_undecided(one, answer, self._guards) for one in self._asked)
        ):
            return False
        self._take_over(self._asked, answer)
        return True

    async def verify(self) -> Callable[[], None]:
        """Wait for earlier requests of the producer, then for the coordinator's answer.

        Return the function to call when the batches were appended.
        """
        finish = await self._context.broker.replicas.verifications.take_turn(self._senders)
        try:
            asked = self._asked if self._answer is not None else self._without_transaction()
            if asked:
                self._take_over(asked, await self._answers(asked))
        except BaseException:
            finish()
            raise
        return finish

    @property
    def _adds(self) -> bool:
        return self._context.version >= ADDS_PARTITIONS

    def _without_transaction(self) -> list[_First]:
        """Return the batches that would open a transaction."""
        found = []
        for first in self._first:
            try:
                header = first.header
                if not first.partition.log.producers.in_transaction(header.producer_id, header.producer_epoch):
                    found.append(first)
            except PylogdError:
                continue  # the append reports the error
        return found

    def _take_over(self, asked: list[_First], answers: Answer) -> None:
        for partition, _ in asked:
            refusal = self._refusal(answers.get(partition.key, ErrorCode.UNKNOWN_SERVER_ERROR))
            self._terms[partition] = refusal or TransactionTerms(self._guards[partition.key])

    def _question(self, asked: list[_First]) -> _Answers | Deferred[_Answers]:
        """Ask the coordinator about partitions. Each has a guard that is valid now.

        If a log has failed, its answer is its error.
        """
        assert self._verifier is not None
        failed: dict[TopicPartition, ErrorCode] = {}
        asked = [one for one in asked if _begin(one, failed, self._guards, self._adds)]
        if not asked:
            return failed
        header = asked[0].header
        keys = [partition.key for partition, _ in asked]
        answer = self._verifier.verify(self._id, header.producer_id, header.producer_epoch, keys, self._adds)
        return then(answer, lambda found: {**found, **failed})

    async def _answers(self, asked: list[_First]) -> Answer:
        """Wait for the answer. Ask again about partitions where the producer's last transaction is still being ended.

        The marker of the last transaction ends the existing guards, even while the coordinator waits for the marker to
        be written and then adds the partition. So each question has a guard that is valid at that time. If a marker
        comes meanwhile, the question is repeated at once: had it ended the current transaction, the coordinator would
        say so now. If a log fails meanwhile, its answer is its error.
        """
        answers: dict[TopicPartition, ErrorCode] = {}
        left = asked
        for attempt in range(_MOST_RETRIES + 1):
            if attempt and any(answers[one.partition.key] for one in left):
                pause: Deferred[None] = Deferred()
                self._context.broker.clock.callLater(_RETRY_SECONDS, pause.callback, None)
                await pause
            answer = self._question(left) if self._answer is None else self._answer
            self._answer = None
            answers.update(await answer if isinstance(answer, Deferred) else answer)
            left = [one for one in left if _is_undecided(one, answers, self._guards)] if self._adds else []
            if not left:
                break
        return answers

    def _refusal(self, code: ErrorCode) -> KafkaError | None:
        """Return the client's error for the coordinator's answer; None if the batch may be appended."""
        if code is ErrorCode.NONE:
            return None
        version = self._context.version
        if code in _PASSING or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_PARTITIONS):
            return KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"Could not verify that the partition is in the transaction: {code.name}. Send the batch again.",
            )
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_ABORTABLE:
            code = ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.INVALID_TXN_STATE:
            return KafkaError(code, "The partition is not part of the transaction.")
        return KafkaError(code)


def _begin(
    asked: _First,
    answers: dict[TopicPartition, ErrorCode],
    guards: dict[TopicPartition, VerificationGuard],
    add: bool,
) -> bool:
    """Make the guard of a batch. Return False, and fill the answer with the error, if the log has failed."""
    partition, header = asked
    try:
        log = partition.log
        guards[partition.key] = log.producers.begin_verification(header, add, log.now_ms())
    except PylogdError as error:
        answers[partition.key] = explain(error)[0]
        return False
    return True


def _is_undecided(
    asked: _First, answers: dict[TopicPartition, ErrorCode], guards: Mapping[TopicPartition, VerificationGuard]
) -> bool:
    """Return whether the coordinator has to be asked again about the first batch of a transaction on a partition."""
    (partition, header), key = asked, asked.partition.key
    if answers.get(key) is not ErrorCode.NONE:
        return answers.get(key) is ErrorCode.CONCURRENT_TRANSACTIONS
    try:
        return not partition.log.producers.is_verified(header.producer_id, header.producer_epoch, guards[key])
    except PylogdError as error:
        answers[key] = explain(error)[0]
        return False


def _first_batches(context: RequestContext, request: ProduceRequest, find: Find) -> list[_First]:
    """Return the first batch of each partition that the client may write to here, if the batch is transactional."""
    firsts = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = find((topic.topic_id if context.version >= FIRST_TOPIC_ID else topic.name, data.index))
            if partition is None or not partition.leading or partition.topic in INTERNAL_TOPICS:
                continue
            header = _first_header(data.records or b"")
            if header is None or not header.is_transactional or header.producer_id < 0:
                continue
            if context.may_use_topic(AclOperation.WRITE, partition.topic, audited=False):
                firsts.append(_First(partition, header))
    return firsts


def _first_header(records: Buffer) -> BatchHeader | None:
    """Return the header of the only batch; None if it can't be read or is not the only one. The append reports that."""
    try:
        header = parse_header(records)
    except InvalidRecordBatch:
        return None
    return header if header.batch_length + LENGTH_OVERHEAD == len(records) else None
