"""OffsetForLeaderEpoch (23), versions 0 to 4: find where a leader epoch ends in the log (KIP-101, KIP-320).

Behaviour: for each partition the largest epoch that is not above the requested one, and the offset behind its last
record. An epoch older than all in the log ends where the first one starts; -1 for both if the epoch is newer than all.
From version 2 on the client's current leader epoch is checked. A client needs CLUSTER_ACTION on the cluster, as brokers
have, or DESCRIBE for each topic.
Gaps: none.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain, why_absent
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode, PylogdError
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(OffsetForLeaderEpochRequest, 0, 4)
def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return the end of the epoch for every partition of the request."""
    everything = context.may_use_cluster(AclOperation.CLUSTER_ACTION, audited=False)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic.topic,
                [_answer(context, topic.topic, wanted) for wanted in topic.partitions]
                if everything or context.may_use_topic(AclOperation.DESCRIBE, topic.topic)
                else [_refused(wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _refused(wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    return EpochEndOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.partition)


def _answer(context: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    partition = context.broker.partitions.by_name.get((topic, wanted.partition))
    if partition is None:
        answer.error_code = why_absent(context.broker, topic, wanted.partition)
        return answer
    try:
        partition.check_leading()
        partition.check_epoch(wanted.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.end_offset_for_epoch(wanted.leader_epoch)
    except PylogdError as error:
        answer.error_code = explain(error)[0]
    return answer
