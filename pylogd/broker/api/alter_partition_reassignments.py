"""AlterPartitionReassignments (45), versions 0 and 1: move replicas to other brokers.

Behaviour: any broker carries the request out. A partition is answered once its reassignment has begun: the new replicas
copy the log, and the controller drops the old replicas when all that stay are in sync. A new target replaces one under
way. A null target cancels a reassignment and restores the replicas (NO_REASSIGNMENT_IN_PROGRESS without a
reassignment). Targets must be brokers that are alive or hold a replica (INVALID_REPLICA_ASSIGNMENT). Version 1 may
forbid a change of the number of replicas (INVALID_REPLICATION_FACTOR). With pylogd's own tagged field `latest_wait_ms`
new replicas begin with the latest offset. Brokers without the topic's label are refused (INVALID_REPLICA_ASSIGNMENT),
and so is a cancellation that would bring replicas back to them (POLICY_VIOLATION). pylogd's own tagged field
`placement_label` changes the topic's label together with the moves, all or nothing; it needs ALTER_CONFIGS on the
topic. REQUEST_TIMED_OUT if the reassignments have not begun within `timeout_ms`; they will begin later.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.deadline import wait_for
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.controller.admin import Outcomes
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(AlterPartitionReassignmentsRequest, 0, 1)
def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Deferred[AlterPartitionReassignmentsResponse]:
    """Begin every reassignment of the request."""
    return Deferred.fromCoroutine(_move(context, request))


def _refuse(request: AlterPartitionReassignmentsRequest, code: ErrorCode) -> AlterPartitionReassignmentsResponse:
    """Set the error of the whole request; Kafka repeats it for each partition."""
    responses = [
        ReassignableTopicResponse(
            topic.name,
            [ReassignablePartitionResponse(one.partition_index, code, code.text) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=code.text, responses=responses)


async def _move(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not context.may_use_cluster(AclOperation.ALTER):
        return _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    targets = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    labels = {topic.name: topic.placement_label for topic in request.topics if topic.placement_label is not None}
    unchangeable = {name for name in labels if not context.may_change_topic(AclOperation.ALTER_CONFIGS, name)}
    forbidden: Outcomes = {
        key: KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED) for key in targets if key[0] in unchangeable
    }
    pace = Pace(context)
    try:
        begun = context.broker.partition_admin.move(
            {key: target for key, target in targets.items() if key not in forbidden},
            latest_wait_ms=request.latest_wait_ms if request.latest_wait_ms >= 0 else None,
            keep_factor=not request.allow_replication_factor_change,
            labels=labels,
            pause=pace.step,
        )
        outcomes = await wait_for(context, request.timeout_ms, begun)
    except PylogdError as failed:  # the metadata store can't be reached, or took too long
        why = explain(failed)
        return AlterPartitionReassignmentsResponse(error_code=why[0], error_message=why[1])
    results: dict[str, ReassignableTopicResponse] = {}
    for (topic, index), error in {**outcomes, **forbidden}.items():
        await pace.step()
        code, message = (ErrorCode.NONE, None) if error is None else explain(error)
        found = results.setdefault(topic, ReassignableTopicResponse(topic))
        found.partitions.append(ReassignablePartitionResponse(index, code, message))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=list(results.values()),
    )
