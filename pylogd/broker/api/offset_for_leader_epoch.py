"""OffsetForLeaderEpoch (23), versions 0 to 4: find where a leader epoch ends in the log (KIP-101, KIP-320).

Behaviour: returns for each partition the largest epoch that is not above the requested one, and the offset after its
last record. An epoch older than all in the log ends where the first one starts. If the epoch is newer than all, both
are -1. From version 2 on the client's current leader epoch is checked. A client needs CLUSTER_ACTION on the cluster,
which brokers have, or DESCRIBE for each topic.
Gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

_LOOK_UP_WORK = 100  # the work for a partition, as bytes of an answer whose encoding takes as long


@handles(OffsetForLeaderEpochRequest, 0, 4)
def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Deferred[Any]:
    """Return the end of the epoch for every partition of the request."""
    response = OffsetForLeaderEpochResponse()
    return in_slices(context, request.API_KEY, _answer_all(context, request, response), response)


def _answer_all(
    context: RequestContext, request: OffsetForLeaderEpochRequest, response: OffsetForLeaderEpochResponse
) -> Iterator[int]:
    everything = context.may_use_cluster(AclOperation.CLUSTER_ACTION, audited=False)
    for topic in request.topics:
        answers: list[EpochEndOffset] = []
        response.topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        allowed = everything or context.may_use_topic(AclOperation.DESCRIBE, topic.topic)
        for wanted in topic.partitions:
            answers.append(_answer(context, topic.topic, wanted) if allowed else _refused(wanted))
            yield _LOOK_UP_WORK


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
