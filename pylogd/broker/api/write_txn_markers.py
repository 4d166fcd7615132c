"""WriteTxnMarkers (27), versions 1 and 2: end transactions in partitions (KIP-98). For transaction coordinators.

Behaviour: a marker is a control batch. It is answered once every in-sync replica has it. A marker that is written twice
does no harm, so it can be sent again after most errors. Offsets that groups commit in a transaction count when its
marker is committed in the offsets topic. Clients need ALTER or CLUSTER_ACTION on the cluster; others get
CLUSTER_AUTHORIZATION_FAILED for every partition.
Errors of a partition:
- REQUEST_TIMED_OUT: its disk or replicas take longer than half a second, and must not hold up the others;
- TRANSACTION_COORDINATOR_FENCED: the coordinator epoch is older than that of the producer's last marker;
- INVALID_PRODUCER_EPOCH: the producer epoch is outdated. With version 2 of transactions it is outdated too if it is the
  epoch of the open transaction (KIP-890; version 2 of this API tells the version of the transaction);
- NOT_LEADER_OR_FOLLOWER: the partition is not led here;
- UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist;
- UNKNOWN_LEADER_EPOCH: as far as this broker knows, no partition of `__transaction_state` has reached the coordinator
  epoch yet. The marker would fence the transaction's coordinator for good. This error is not given if the partition
  already has the epoch of this producer, as when an operator ends a transaction whose coordinator is gone with its
  topic.
Gaps: none.
"""

from __future__ import annotations

import contextlib
from typing import Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.produce import why_not_committed
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import AppendInTurn
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.waiting import PendingAppend, shield, unfinished
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.paths import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: How long to wait for a partition, in seconds. Coordinators send late markers again, in separate requests.
_SECONDS: Final = 0.5


@handles(WriteTxnMarkersRequest, 1, 2)
def write_txn_markers(context: RequestContext, request: WriteTxnMarkersRequest) -> Deferred[WriteTxnMarkersResponse]:
    """Write all markers. Return a Deferred of the response, which fires when they are replicated."""
    # A disconnect does not cancel this: the markers are in the log already and only wait for replicas.
    return shield(Deferred.fromCoroutine(_write_all(context, request)))


async def _write_all(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    allowed = context.may_use_cluster(AclOperation.ALTER, audited=False) or context.acts_for_cluster()
    newest = _newest_coordinator(context)
    response = WriteTxnMarkersResponse()
    writes: dict[int, Deferred[None]] = {}  # the writes that are not done at once, by their number
    pending: list[PendingAppend] = []
    pace = Pace(context)
    deadline = context.broker.clock.seconds() + _SECONDS
    for marker in request.markers:
        topics: list[WritableTxnMarkerTopicResult] = []
        response.markers.append(WritableTxnMarkerResult(marker.producer_id, topics))
        batch = encode_marker(
            marker.producer_id, marker.producer_epoch, context.broker.transactions.now_ms,
            committed=marker.transaction_result, coordinator_epoch=marker.coordinator_epoch,
        )  # fmt: skip
        for topic in marker.topics:
            answers: list[WritableTxnMarkerPartitionResult] = []
            topics.append(WritableTxnMarkerTopicResult(topic.name, answers))
            for index in topic.partition_indexes:
                await pace.step()
                if not allowed:
                    answers.append(WritableTxnMarkerPartitionResult(index, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
                    continue
                if marker.coordinator_epoch > max(newest, _known_epoch(context, marker, topic.name, index)):
                    answers.append(WritableTxnMarkerPartitionResult(index, ErrorCode.UNKNOWN_LEADER_EPOCH))
                    continue
                answers.append(answer := WritableTxnMarkerPartitionResult(index, ErrorCode.REQUEST_TIMED_OUT))
                writes[pace.steps] = Deferred.fromCoroutine(_write(context, batch, marker, topic.name, answer, pending))
                if writes[pace.steps].called:  # no queue of a disk has the write
                    await writes.pop(pace.steps)
    if writes:
        late = await unfinished(writes, context.broker.clock, _SECONDS)
        for number in writes.keys() - late:
            await writes[number]
    appended = list(pending)  # a late write adds to the other list, and to an answer that was already sent
    if appended:
        left_ms = round((deadline - context.broker.clock.seconds()) * 1000)
        await context.broker.replicas.wait_for_replicas(appended, left_ms)
    for append in appended:
        append.answer.error_code = why_not_committed(context, append) or ErrorCode.NONE
    return response


def _newest_coordinator(context: RequestContext) -> int:
    """The highest epoch that a transaction coordinator can have: that of the leaders of the topic's partitions."""
    topic = context.broker.topics.get(TRANSACTIONS_TOPIC)
    return max((partition.leader_epoch for partition in topic.partitions), default=0) if topic is not None else 0


def _known_epoch(context: RequestContext, marker: WritableTxnMarker, topic: str, index: int) -> int:
    """The coordinator epoch of a producer's last marker in a partition; -1 for none."""
    partition = context.broker.partitions.by_name.get((topic, index))
    try:
        producer = None if partition is None else partition.log.producers.by_id.get(marker.producer_id)
    except PylogdError:
        return -1  # the log has failed, and the append reports that
    return -1 if producer is None else producer.coordinator_epoch


async def _write(
    context: RequestContext,
    batch: bytes,
    marker: WritableTxnMarker,
    topic: str,
    answer: WritableTxnMarkerPartitionResult,
    pending: list[PendingAppend],
) -> None:
    """Append a marker to one partition. Fill the answer, or add the append to `pending` if it has to wait.

    Tell the group coordinator which transaction has ended in a partition of the offsets topic.
    """
    partition = context.broker.partitions.by_name.get((topic, answer.partition_index))
    if partition is None:
        answer.error_code = why_absent(context.broker, topic, answer.partition_index)
        return
    try:
        result = await _append(context, partition, batch, TransactionTerms(version=marker.transaction_version))
    except PylogdError as error:
        answer.error_code = explain(error)[0]
        return
    if topic == OFFSETS_TOPIC:
        context.broker.groups.transaction_ended(
            partition.index, marker.producer_id, result.base_offset, marker.transaction_result
        )
    if partition.high_watermark <= result.last_offset:
        pending.append(PendingAppend(partition, result.last_offset + 1, answer))
    else:
        answer.error_code = ErrorCode.NONE


async def _append(context: RequestContext, partition: Partition, batch: bytes, terms: TransactionTerms) -> AppendResult:
    replicas = context.broker.replicas
    if partition not in replicas.append_queues:
        with contextlib.suppress(AppendInTurn):
            return replicas.append(partition, batch, True, own=True, terms=terms)
    return await replicas.append_in_turn(partition, batch, True, own=True, terms=terms)
