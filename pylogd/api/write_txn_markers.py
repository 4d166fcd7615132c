"""WriteTxnMarkers (27), versions 1 and 2: end transactions in partitions (KIP-98). For transaction coordinators.

Behaviour: a marker is a control batch. It is answered once every in-sync replica has it, after 30 s at the latest. A
marker of an older coordinator epoch than the producer's last one is TRANSACTION_COORDINATOR_FENCED; one of an older
producer epoch INVALID_PRODUCER_EPOCH, as is, with version 2 of transactions, one of the same epoch while the
transaction is open (KIP-890; Kafka 4.3's version 2 of this API says which version it is). A partition that is not led
here is NOT_LEADER_OR_FOLLOWER, one that does not exist UNKNOWN_TOPIC_OR_PARTITION. A marker that is written twice does
no harm, so whoever gets another error just sends it again. Offsets that groups commit in a transaction count when its
marker is committed in the topic of the offsets. Clients need ALTER or CLUSTER_ACTION on the cluster; others
get CLUSTER_AUTHORIZATION_FAILED for every partition.
Gaps: none.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain, why_absent
from pylogd.api.produce import why_not_committed
from pylogd.api.registry import handles
from pylogd.api.slices import Pace
from pylogd.errors import ErrorCode, PylogdError
from pylogd.log.append_result import AppendResult
from pylogd.log.markers import encode_marker
from pylogd.log.transactions import TransactionTerms
from pylogd.metadata.image import OFFSETS_TOPIC
from pylogd.replica.partition import Partition
from pylogd.replica.waiting import PendingAppend, shield
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_TIMEOUT_MS: Final = 30_000  # Kafka's default of request.timeout.ms


@handles(WriteTxnMarkersRequest, 1, 2)
def write_txn_markers(context: RequestContext, request: WriteTxnMarkersRequest) -> Deferred[WriteTxnMarkersResponse]:
    """Write all markers; return a Deferred of the response, which fires when they are replicated."""
    # Not cancelled when the client disconnects: the markers are in the log already and only wait for replicas.
    return shield(Deferred.fromCoroutine(_write_all(context, request)))


async def _write_all(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    allowed = context.may_use_cluster(AclOperation.ALTER, audited=False) or context.acts_for_cluster()
    response = WriteTxnMarkersResponse()
    pending: list[PendingAppend] = []
    pace = Pace(context)
    for marker in request.markers:
        topics: list[WritableTxnMarkerTopicResult] = []
        response.markers.append(WritableTxnMarkerResult(marker.producer_id, topics))
        for topic in marker.topics:
            answers: list[WritableTxnMarkerPartitionResult] = []
            topics.append(WritableTxnMarkerTopicResult(topic.name, answers))
            for index in topic.partition_indexes:
                await pace.step()
                answer = WritableTxnMarkerPartitionResult(index)
                answers.append(answer)
                if allowed:
                    await _write(context, marker, topic.name, answer, pending)
                else:
                    answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if pending:
        await context.broker.replicas.wait_for_replicas(pending, _TIMEOUT_MS)
    for append in pending:
        append.answer.error_code = why_not_committed(context, append) or ErrorCode.NONE
    if allowed:
        _tell_groups(context, request, response)
    return response


def _tell_groups(context: RequestContext, request: WriteTxnMarkersRequest, response: WriteTxnMarkersResponse) -> None:
    """Tell the coordinator of groups which transactions have ended in the topic of their offsets."""
    for marker, result in zip(request.markers, response.markers, strict=True):
        for topic in result.topics:
            for answer in topic.partitions if topic.name == OFFSETS_TOPIC else ():
                if not answer.error_code:
                    context.broker.groups.transaction_ended(
                        answer.partition_index, marker.producer_id, marker.transaction_result
                    )


async def _write(
    context: RequestContext,
    marker: WritableTxnMarker,
    topic: str,
    answer: WritableTxnMarkerPartitionResult,
    pending: list[PendingAppend],
) -> None:
    """Append a marker to one partition. Fill the answer, or add what it waits for to `pending`."""
    partition = context.broker.partitions.by_name.get((topic, answer.partition_index))
    if partition is None:
        answer.error_code = why_absent(context.broker, topic, answer.partition_index)
        return
    try:
        result = await _append(context, partition, marker)
    except PylogdError as error:
        answer.error_code = explain(error)[0]
        return
    if partition.high_watermark <= result.last_offset:
        pending.append(PendingAppend(partition, result.last_offset + 1, answer))


async def _append(context: RequestContext, partition: Partition, marker: WritableTxnMarker) -> AppendResult:
    replicas = context.broker.replicas
    batch = encode_marker(
        marker.producer_id, marker.producer_epoch, partition.log.now_ms(), committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
    )  # fmt: skip
    terms = TransactionTerms(version=marker.transaction_version)
    if partition in replicas.append_queues:
        return await replicas.append_in_turn(partition, batch, True, own=True, terms=terms)
    return replicas.append(partition, batch, True, own=True, terms=terms)
