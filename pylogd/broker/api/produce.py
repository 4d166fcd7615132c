"""Produce (0), versions 3 to 13: append record batches.

Behaviour: each partition is appended to and answered separately, with an error text from version 8 on. A request with
acks=1 is answered after the append, one with acks=-1 once every in-sync replica has the records. acks=0 is never
answered, and an error closes the connection, since there is no other way to report it. Other acks get
INVALID_REQUIRED_ACKS. Topics are named, and from version 13 on given by id. zstd needs version 7 (KIP-110). Compressed
records that have to be checked are decompressed in a thread; later appends to the same partition queue after them.
Internal topics are for brokers. With an authorizer, clients that may do CLUSTER_ACTION can write to them too; all
others get INVALID_TOPIC_EXCEPTION.
Version 0 is advertised but not served, as in Apache Kafka 4: without it librdkafka does not compress (KAFKA-18659).
Errors of a partition:
- NOT_ENOUGH_REPLICAS_AFTER_APPEND: after an append with acks=-1 the in-sync set shrank below `min.insync.replicas`;
- NOT_LEADER_OR_FOLLOWER after an append: the leader has changed, and the records may or may not be lost;
- NOT_ENOUGH_REPLICAS: the write queue of the disk is full. If there are many of these errors, the client is muted for a
  moment;
- INVALID_RECORD: the partition has several batches or an incomplete one, or the header or the records are invalid
  (`log/validator.py` has the checks). Single invalid records, such as those without a key for a compacted topic, are
  named from version 8 on (KIP-467);
- TRANSACTIONAL_ID_AUTHORIZATION_FAILED: a transactional batch in a request without a transactional id;
- INVALID_TXN_STATE: a transactional batch that is not part of an open transaction, or one that is not transactional
  while its producer has a transaction open. `produce_transactions` has the rules.

The most frequent requests never get here: `fast.produce` answers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection, ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.elements import AT_ONCE
from pylogd.broker.api.brokers import PRODUCE_WITH_LEADERS, endpoints_of, leader_elsewhere
from pylogd.broker.api.context import Connection, RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.produce_transactions import TransactionalProduce
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import encode_in_thread, next_turn
from pylogd.broker.api.statistics import PRODUCE, STATISTICS
from pylogd.broker.api.traffic import count_refused_append
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import InspectionNeeded, InvalidAppend, InvalidRecord, UnsupportedCompressionType
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.broker.replica.errors import QueueFull
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role
from pylogd.broker.replica.waiting import PendingAppend, shield
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.fast.produce import FIRST_TOPIC_ID, FIRST_WITH_ZSTD, is_zstd
from pylogd.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pylogd.wire.validation import INLINE_BYTES

_MAX_RECORD_ERRORS = 1000  # the most in one answer
_MANY = AT_ONCE  # appending to so many partitions takes some 10 ms
_AT_ONCE = 200  # how many partitions of a large request are appended to in one turn of the reactor
# Shared by all answers without such information; never changed.
_NO_RECORD_ERRORS: list[BatchIndexAndErrorMessage] = []
_NO_LEADER = LeaderIdAndEpoch()

#: The answers of a topic, the index of one of them, and a Deferred of that answer, which fires when its records are
#: inspected.
Inspected = tuple[list[PartitionProduceResponse], int, Deferred[PartitionProduceResponse]]
_PENDING = PartitionProduceResponse()

#: As in Kafka, only clients with this id write to internal topics.
_INTERNAL_WRITER = "__admin_client"
_INTERNAL = (ErrorCode.INVALID_TOPIC_EXCEPTION, "Clients may not write to internal topics.")
_UNAUTHORIZED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.text)
_ACKS = (ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.INVALID_REQUIRED_ACKS.text)


@handles(ProduceRequest, 3, 13, advertise_from=0, overlaps=True)
def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | Deferred[Any] | None:
    """Append, and return the response: a Deferred of it if something has to be waited for, or None for acks=0."""
    if request.transactional_id is not None or not -1 <= request.acks <= 1:
        return _produce_unusual(context, request)
    return _append_all(context, request, _Job(context, request.acks))


def _produce_unusual(context: RequestContext, request: ProduceRequest) -> ProduceResponse | Deferred[Any] | None:
    """Answer a request that has a transactional id, or an invalid value of acks."""
    if not -1 <= request.acks <= 1:
        return _refuse(request, *_ACKS)
    job = _Job(context, request.acks)
    try:
        transaction = job.transaction = TransactionalProduce(context, request, job.find)
    except KafkaError as error:
        return _refuse(request, error.code, error.message)
    if not transaction.waits or (not _is_large(request) and transaction.verify_at_once()):
        return _append_all(context, request, job)
    return shield(Deferred.fromCoroutine(_append_verified(context, request, job, transaction)))


async def _append_verified(
    context: RequestContext, request: ProduceRequest, job: _Job, transaction: TransactionalProduce
) -> ProduceResponse | bytes | None:
    """Append after the transaction coordinator has answered, and all earlier batches of the producer were appended."""
    appended = await transaction.verify()
    try:
        answer = _append_all(context, request, job)
        if _is_large(request) and isinstance(answer, Deferred):
            large: ProduceResponse | bytes | None = await answer
            return large
    finally:
        appended()
    return await answer if isinstance(answer, Deferred) else answer


def _append_all(context: RequestContext, request: ProduceRequest, job: _Job) -> ProduceResponse | Deferred[Any] | None:
    if _is_large(request):
        return shield(Deferred[ProduceResponse | bytes | None].fromCoroutine(_produce_many(context, request, job)))
    topics = []
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        job.append(topic, topic.partition_data, answers)
        topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    response = ProduceResponse(topics)
    if job.inspected:
        return shield(Deferred[ProduceResponse | None].fromCoroutine(_once_inspected(context, request, response, job)))
    return _conclude(context, request, response, job)


def _is_large(request: ProduceRequest) -> bool:
    """Return whether a request has so many partitions that it must be handled in several turns of the reactor."""
    count = 0
    for topic in request.topic_data:
        count += len(topic.partition_data)
    return count > _MANY


async def _produce_many(context: RequestContext, request: ProduceRequest, job: _Job) -> ProduceResponse | bytes | None:
    """Answer like `produce`, with turns of the reactor for other connections in between.

    Other requests of the connection do not run meanwhile, since a request with so many elements is a `LargeRequest`.
    """
    response = ProduceResponse()
    since = 0  # partitions since the last turn
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        response.responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
        for start in range(0, len(topic.partition_data), _AT_ONCE):
            some = topic.partition_data[start : start + _AT_ONCE]
            job.append(topic, some, answers)
            since += len(some)
            if since >= _AT_ONCE:
                since = 0
                await next_turn(context)
    answer = await _once_inspected(context, request, response, job)
    return None if answer is None else await encode_in_thread(context, request.API_KEY, answer)


class _Job:
    """Appends the batches of a request.

    pending: appends to wait for.
    inspected: batches that a thread checks first.
    throttle_ms: for how long the client is muted, since an append was refused.
    transaction: the request's transaction, if it has a transactional id.
    find: returns a partition by its index and its topic, in the form that the request names it.
    """

    __slots__ = ("_acks", "_by_id", "_context", "_size", "find", "inspected", "pending", "throttle_ms", "transaction")

    def __init__(self, context: RequestContext, acks: int) -> None:
        self._context = context
        self._acks = acks
        self._by_id = context.version >= FIRST_TOPIC_ID
        hosted = context.broker.partitions
        self.find: Callable[[Any], Partition | None] = hosted.by_id.get if self._by_id else hosted.by_name.get
        self._size = 0  # bytes of records so far
        self.throttle_ms = 0
        self.pending: list[PendingAppend] = []
        self.inspected: list[Inspected] = []
        self.transaction: TransactionalProduce | None = None

    def append(
        self,
        topic: TopicProduceData,
        partitions: Sequence[PartitionProduceData],
        answers: list[PartitionProduceResponse],
    ) -> None:
        """Append to some partitions of a topic, and add their answers to `answers`."""
        context, acks = self._context, self._acks
        key = topic.topic_id if self._by_id else topic.name
        for data in partitions:
            partition = self.find((key, data.index))
            if context.broker.authorizer is not None and not _may_write(context, key, partition):
                answer = _failure(data.index, *_UNAUTHORIZED)
            elif partition is None:
                code = why_absent(context.broker, key, data.index)
                answer = _failure(data.index, code, code.text)
                answer.current_leader = _leader_of(context, key, data.index)
            elif partition.topic in INTERNAL_TOPICS and not _may_write_internal(context):
                answer = _failure(data.index, *_INTERNAL)
            else:
                self._size += len(data.records or b"")
                made = _append(context, partition, data, acks, self, at_once=self._size <= INLINE_BYTES)
                if isinstance(made, Deferred):
                    self.inspected.append((answers, len(answers), made))
                    made = _PENDING
                answer = made
            answers.append(answer)


def _may_write_internal(context: RequestContext) -> bool:
    """Return whether a client may write to internal topics: it has Kafka's name for that, and may act so."""
    may = context.broker.authorizer is not None and context.acts_for_cluster()
    return may and context.client_id == _INTERNAL_WRITER


async def _once_inspected(
    context: RequestContext, request: ProduceRequest, response: ProduceResponse, job: _Job
) -> ProduceResponse | None:
    for answers, at, made in job.inspected:
        answers[at] = await made
    answer = _conclude(context, request, response, job)
    return await answer if isinstance(answer, Deferred) else answer


def _conclude(
    context: RequestContext, request: ProduceRequest, response: ProduceResponse, job: _Job
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Return the response, or a Deferred of it, after everything was appended or refused."""
    refused = [one for topic in response.responses for one in topic.partition_responses if one.error_code]
    failed = refused[-1] if refused else None
    if request.acks == 0:
        if failed is not None:
            raise CloseConnection(f"a Produce request with acks=0 failed: {failed.error_message}")
        return None
    if failed is not None:
        _name_leaders(context, response)
        response.throttle_time_ms = job.throttle_ms
    pending = job.pending
    return _when_replicated(context, pending, request.timeout_ms, response) if pending else response


def _append(
    context: RequestContext,
    partition: Partition,
    data: PartitionProduceData,
    acks: int,
    job: _Job,
    *,
    at_once: bool,
) -> PartitionProduceResponse | Deferred[PartitionProduceResponse]:
    """Append to one partition and return its answer. If the answer has to wait, add the append to `pending`.

    at_once: whether a few records may be inspected on the reactor's thread. Large requests have too many records for
        that.
    """
    records = data.records
    partition.appends += 1
    try:
        if not records or context.version < FIRST_WITH_ZSTD:
            records = _check_old(records)
        replicas = context.broker.replicas
        terms = None if job.transaction is None else job.transaction.terms(partition)
        at_once = at_once or not partition.log.wants_inspection(records)
        if at_once and partition not in replicas.append_queues:
            try:
                result = replicas.append(partition, records, acks == -1, terms=terms)
                return _appended(partition, data.index, result, acks, job.pending)
            except InspectionNeeded:
                pass
    except PylogdError as error:
        return refusal(partition, data.index, error)
    full = replicas.refusal(partition, records) if partition in replicas.append_queues else None
    if full is not None:
        job.throttle_ms = max(job.throttle_ms, pause(context.connection, full))
        return refusal(partition, data.index, full)
    return Deferred.fromCoroutine(
        _append_in_turn(context, partition, data.index, records, acks, job.pending, at_once, terms)
    )


async def _append_in_turn(
    context: RequestContext,
    partition: Partition,
    index: int,
    records: bytes | memoryview,
    acks: int,
    pending: list[PendingAppend],
    at_once: bool,
    terms: TransactionTerms | None,
) -> PartitionProduceResponse:
    """Do the work of `_append` if records have to be inspected first, or earlier appends wait."""
    try:
        result = await context.broker.replicas.append_in_turn(partition, records, acks == -1, at_once, terms=terms)
    except PylogdError as error:
        return refusal(partition, index, error)
    return _appended(partition, index, result, acks, pending)


def _appended(
    partition: Partition, index: int, result: AppendResult, acks: int, pending: list[PendingAppend]
) -> PartitionProduceResponse:
    base, stamp, start = result.base_offset, result.log_append_time, result.log_start_offset
    answer = PartitionProduceResponse(index, 0, base, stamp, start, _NO_RECORD_ERRORS, None, _NO_LEADER)
    if acks == -1 and partition.high_watermark <= result.last_offset:
        pending.append(PendingAppend(partition, result.last_offset + 1, answer))
    return answer


def refusal(partition: Partition, index: int, error: PylogdError) -> PartitionProduceResponse:
    """Return the answer for a partition to which an append failed. Call this while `error` is handled."""
    answer = _failure(index, *explain(error))
    count_refused_append(partition, answer.error_code)
    if isinstance(error, InvalidAppend):
        indexes = error.record_indexes[:_MAX_RECORD_ERRORS]
        answer.record_errors = [BatchIndexAndErrorMessage(at, error.reason) for at in indexes]
    elif answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        answer.current_leader = LeaderIdAndEpoch(partition.leader_id, partition.leader_epoch)
    return answer


def pause(connection: Connection, full: QueueFull) -> int:
    """If many appends are being refused, mute the client of a refused append. Return for how long, in milliseconds."""
    if full.pause:
        connection.mute(full.pause)
    return math.ceil(full.pause * 1000)


def _failure(index: int, code: ErrorCode, message: str) -> PartitionProduceResponse:
    """Return the response for a partition that was not appended to."""
    STATISTICS.errors[PRODUCE, code] += 1
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=message, current_leader=_NO_LEADER
    )


def _check_old(records: bytes | memoryview | None) -> bytes | memoryview:
    """Return the records. Raises an error if there are none, or if the version does not have their codec."""
    if not records:
        raise InvalidRecord("A Produce request needs at least one record batch for each partition.")
    if is_zstd(records):
        raise UnsupportedCompressionType("zstd needs Produce version 7 or later.")
    return records


def _name_leaders(context: RequestContext, response: ProduceResponse) -> None:
    """Add the addresses of the leaders that the answers name (KIP-951). Remove the leaders for older versions."""
    answers = [answer for topic in response.responses for answer in topic.partition_responses]
    if context.version < PRODUCE_WITH_LEADERS:
        for answer in answers:
            answer.current_leader = _NO_LEADER
    else:
        leaders = {answer.current_leader.leader_id for answer in answers if answer.current_leader is not _NO_LEADER}
        response.node_endpoints = [NodeEndpoint(*found) for found in endpoints_of(context, leaders)]


def _leader_of(context: RequestContext, topic: str | bytes, index: int) -> LeaderIdAndEpoch:
    found = leader_elsewhere(context.broker, topic, index)
    return _NO_LEADER if found is None else LeaderIdAndEpoch(*found)


def _may_write(context: RequestContext, key: str | bytes, partition: Partition | None) -> bool:
    """Return whether the client may write to a topic, given by name or id. The result is True for an unknown id.

    partition: a partition of the topic, if it is here.
    """
    if partition is not None:
        name: str | None = partition.topic
    elif isinstance(key, bytes):
        found = context.broker.topics.by_id(key)
        name = None if found is None else found.name
    else:
        name = key
    return name is None or context.may_use_topic(AclOperation.WRITE, name)


def _refuse(request: ProduceRequest, code: ErrorCode, message: str) -> ProduceResponse | None:
    if request.acks == 0:
        raise CloseConnection(f"a Produce request with acks=0 failed: {message}")
    return ProduceResponse(
        [
            TopicProduceResponse(
                topic.name, topic.topic_id, [_failure(data.index, code, message) for data in topic.partition_data]
            )
            for topic in request.topic_data
        ]
    )


def _when_replicated(
    context: RequestContext, pending: list[PendingAppend], timeout_ms: int, response: ProduceResponse
) -> Deferred[ProduceResponse]:
    """Return a Deferred of the response, which fires once the appends are committed or `timeout_ms` is over."""

    def answer(_: list[PendingAppend]) -> ProduceResponse:
        for append in pending:
            code = why_not_committed(context, append)
            if code is not None:
                failed: PartitionProduceResponse = append.answer
                failed.error_code, failed.error_message, failed.base_offset = code, code.text, -1
                failed.log_append_time_ms = failed.log_start_offset = -1
                if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    partition = append.partition
                    failed.current_leader = _leader_of(context, partition.topic, partition.index)
        _name_leaders(context, response)
        return response

    return context.broker.replicas.wait_for_replicas(pending, timeout_ms).addCallback(answer)


def why_not_committed(context: RequestContext, append: PendingAppend) -> ErrorCode | None:
    """Return why an append is not committed after waiting for it; None if it is committed."""
    partition = append.partition
    if append.committed and not append.short:
        return None
    if partition.role is Role.OFFLINE:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if partition.role is Role.DELETED:
        return why_absent(context.broker, partition.topic, partition.index)
    if append.gone:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if append.short else ErrorCode.REQUEST_TIMED_OUT
