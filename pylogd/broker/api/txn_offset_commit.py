"""TxnOffsetCommit (28), versions 0 to 5: store how far a group has read, if a transaction is committed.

Behaviour: the answer comes when the offsets are committed in the offsets topic. They count once the transaction's
marker is committed there. Each partition is checked separately; offsets that pass are stored together, all or none.
Before a transaction's first offsets in a partition of the offsets topic, the transaction's coordinator is asked whether
this partition is part of the transaction. From version 5 on the coordinator adds the partition (KIP-890). From version
3 on the consumer's member id and generation are checked (KIP-447). A client needs WRITE for the transactional id, READ
for the group and for each topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.offset_commit import why_not
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.groups.records import Committed, offset_record
from pylogd.broker.groups.values import TransactionalCommit
from pylogd.broker.log.transactions import VerificationGuard
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pylogd.wire.records import NO_SEQUENCE

_FIRST_THAT_KNOWS_LOADING = 2
_FIRST_ABORTABLE = 4
_FIRST_THAT_ADDS = 5
_MOST_QUESTIONS = 6  # the most questions to the coordinator for one request
_PARTITION_WORK = 60  # the work for a partition, as bytes of an answer whose encoding takes as long

#: An offset to store, the record that stores it, and the answer for it.
_Wanted = tuple[tuple[tuple[str, int], Committed], tuple[bytes, bytes], TxnOffsetCommitResponsePartition]


@handles(TxnOffsetCommitRequest, 0, 5)
def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Deferred[Any]:
    """Store the offsets. Return the response, or a Deferred of it if a coordinator or replicas must be waited for."""
    if not context.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    wanted: list[_Wanted] = []
    response = TxnOffsetCommitResponse()

    def answered(error: ErrorCode) -> None:
        for _, _, answer in wanted:
            answer.error_code = _for_version(error, context.version)

    def commit() -> Deferred[None] | None:
        return Deferred.fromCoroutine(_commit(context, request, wanted)).addCallback(answered) if wanted else None

    steps = _answer_all(context, request, response, wanted)
    return in_slices(context, request.API_KEY, steps, response, commit)


async def _commit(context: RequestContext, request: TxnOffsetCommitRequest, wanted: list[_Wanted]) -> ErrorCode:
    """Verify that the transaction is open, and store the offsets."""
    groups = context.broker.groups
    error = await _verify(context, request)
    if error:
        return error
    result = groups.commit_in_transaction(
        request.group_id,
        TransactionalCommit(
            request.producer_id,
            request.producer_epoch,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            [entry for entry, _, _ in wanted],
            [record for _, record, _ in wanted],
            context.share,
        ),
    )
    return await result if isinstance(result, Deferred) else result


async def _verify(context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Return NONE if the offsets topic's partition is part of the transaction; otherwise the error code."""
    broker = context.broker
    verifier, key = broker.verifier, broker.groups.offsets_partition(request.group_id)
    partition = None if key is None else broker.partitions.by_name.get(key)
    if key is None or partition is None or not partition.online:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if key is None else ErrorCode.NOT_COORDINATOR
    producer_id, epoch = request.producer_id, request.producer_epoch
    producers, adds = partition.log.producers, context.version >= _FIRST_THAT_ADDS
    if verifier is None or producers.in_transaction(producer_id, epoch):
        return ErrorCode.NONE
    for _ in range(_MOST_QUESTIONS if adds else 1):
        new = VerificationGuard(epoch, NO_SEQUENCE, adds, broker.groups.now_ms)
        guard = producers.keep_guard(producer_id, new)
        answer = verifier.verify(request.transactional_id, producer_id, epoch, [key], adds)
        found = (await answer if isinstance(answer, Deferred) else answer).get(key)
        if found is not ErrorCode.NONE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else found
        if producers.is_verified(producer_id, epoch, guard):
            return ErrorCode.NONE
        # A marker was appended meanwhile. It ended the previous transaction, or this one, which is over then.
    return ErrorCode.INVALID_TXN_STATE


def _for_version(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code to use for a version whose clients do not know this one."""
    if error is ErrorCode.NETWORK_EXCEPTION or (
        error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _FIRST_THAT_ADDS
    ):
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # clients send the request again
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_THAT_KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.STALE_MEMBER_EPOCH:
        return ErrorCode.ILLEGAL_GENERATION  # as in Kafka, since the epoch is in a field that is called a generation
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _answer_all(
    context: RequestContext, request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse, wanted: list[_Wanted]
) -> Iterator[int]:
    """Add an answer for each partition to the response, and the offsets to store to `wanted`."""
    for topic in request.topics:
        answer = TxnOffsetCommitResponseTopic(topic.name)
        response.topics.append(answer)
        yield from _answer(context, request.group_id, topic, answer.partitions, wanted)


def _answer(
    context: RequestContext,
    group_id: str,
    asked: TxnOffsetCommitRequestTopic,
    answers: list[TxnOffsetCommitResponsePartition],
    wanted: list[_Wanted],
) -> Iterator[int]:
    topic, unknown = context.broker.topics.get(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not context.may_use_topic(AclOperation.READ, asked.name):
        topic, unknown = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    most = context.broker.settings.integer("offset.metadata.max.bytes")
    now_ms = context.broker.groups.now_ms
    for one in asked.partitions:
        answer = TxnOffsetCommitResponsePartition(one.partition_index)
        answers.append(answer)
        text = one.committed_metadata or ""
        answer.error_code = unknown if topic is None else why_not(topic, one.partition_index, text, most)
        if topic is not None and not answer.error_code:
            committed = Committed(
                one.committed_offset, one.committed_leader_epoch, text, now_ms, topic_id=topic.topic_id
            )
            entry = (topic.name, one.partition_index), committed
            wanted.append((entry, offset_record(group_id, *entry), answer))
        yield _PARTITION_WORK
    yield _PARTITION_WORK


def _refuse(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        0,
        [
            TxnOffsetCommitResponseTopic(
                topic.name, [TxnOffsetCommitResponsePartition(one.partition_index, error) for one in topic.partitions]
            )
            for topic in request.topics
        ],
    )
