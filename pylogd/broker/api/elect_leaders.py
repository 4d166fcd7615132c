"""ElectLeaders (43), versions 0 to 2: elect leaders on request.

Behaviour: type 0 (and version 0) elects the preferred leaders. Type 1 elects a live replica for a partition without a
leader, though the replica may lack committed records. Any broker carries the request out. Each partition is answered
separately, once the election is in the metadata. If the request names no partitions (null), those without a change are
left out. Another type gets INVALID_REQUEST. If the elections take longer than `timeout_ms`, the answer is
REQUEST_TIMED_OUT, and the elections continue.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.deadline import wait_for
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1


@handles(ElectLeadersRequest, 0, 2)
def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> Deferred[ElectLeadersResponse]:
    """Elect leaders for the partitions of the request."""
    return Deferred.fromCoroutine(_elect(context, request))


async def _elect(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if not context.may_use_cluster(AclOperation.ALTER):
        return _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        return _refuse(request, ErrorCode.INVALID_REQUEST)
    pace = Pace(context)
    partitions = None
    if request.topic_partitions is not None:
        partitions = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    try:
        unclean = request.election_type == _UNCLEAN
        held = context.broker.partition_admin.elect(partitions, unclean=unclean, pause=pace.step)
        outcomes = await wait_for(context, request.timeout_ms, held)
    except PylogdError as failed:  # the metadata store can't be reached, or took too long
        return ElectLeadersResponse(error_code=explain(failed)[0])
    results: dict[str, ReplicaElectionResult] = {}
    for (topic, index), error in outcomes.items():
        await pace.step()
        code, message = (ErrorCode.NONE, None) if error is None else explain(error)
        found = results.setdefault(topic, ReplicaElectionResult(topic))
        found.partition_result.append(PartitionResult(index, code, message))
    return ElectLeadersResponse(replica_election_results=list(results.values()))


def _refuse(request: ElectLeadersRequest, code: ErrorCode) -> ElectLeadersResponse:
    refused = [
        ReplicaElectionResult(topic.topic, [PartitionResult(index, code, code.text) for index in topic.partitions])
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=refused)
