"""ListPartitionReassignments (46), version 0: list the reassignments under way.

Behaviour: lists the partitions of the request that are being reassigned; with null those of all topics. Unknown
partitions are left out.
Gaps: none; `timeout_ms` is ignored, since nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Collection

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.metadata.image import Topic
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(ListPartitionReassignmentsRequest, 0, 0)
def list_partition_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return the reassignments under way."""
    if not context.may_use_cluster(AclOperation.DESCRIBE):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ListPartitionReassignmentsResponse(error_code=refused, error_message=refused.text)
    registry = context.broker.topics
    asked: list[tuple[Topic, Collection[int]]]
    if request.topics is None:
        asked = [(topic, range(len(topic.partitions))) for topic in registry.all()]
    else:
        wanted: dict[str, set[int]] = {}
        for named in request.topics:
            wanted.setdefault(named.name, set()).update(named.partition_indexes)
        known = [(registry.get(name), indexes) for name, indexes in wanted.items()]
        asked = [(topic, indexes) for topic, indexes in known if topic is not None]
    found = []
    for topic, indexes in asked:
        moving = [state for state in topic.partitions if state.moving and state.index in indexes]
        if moving:
            found.append(
                OngoingTopicReassignment(
                    topic.name,
                    [
                        OngoingPartitionReassignment(
                            state.index, list(state.replicas), list(state.adding), list(state.removing)
                        )
                        for state in moving
                    ],
                )
            )
    return ListPartitionReassignmentsResponse(error_message=None, topics=found)
