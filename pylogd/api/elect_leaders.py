"""ElectLeaders (43), versions 0 to 2: have other replicas lead.

Behaviour: type 0 (and version 0) gives partitions to their preferred leaders; type 1 makes a replica that is alive the
leader of a partition that has none, though it may lack committed records. Any broker carries it out. Each partition is
answered by itself, once the election is written; with null for the partitions those where there was nothing to do are
not answered. Another type is INVALID_REQUEST. REQUEST_TIMED_OUT if that takes longer than `timeout_ms`; the elections
go on.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.deadline import wait_for
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode, PylogdError
from pylogd.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1


@handles(ElectLeadersRequest, 0, 2)
def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> Deferred[ElectLeadersResponse]:
    """Hold the elections."""
    return Deferred.fromCoroutine(_elect(context, request))


async def _elect(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    partitions = None
    if request.topic_partitions is not None:
        partitions = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    try:
        unclean = request.election_type == _UNCLEAN
        held = context.broker.partition_admin.elect(partitions, unclean=unclean)
        outcomes = await wait_for(context, request.timeout_ms, held)
    except PylogdError as failed:  # the store could not be asked, or took too long
        return ElectLeadersResponse(error_code=explain(failed)[0])
    results: dict[str, ReplicaElectionResult] = {}
    for (topic, index), error in outcomes.items():
        code, message = (ErrorCode.NONE, None) if error is None else explain(error)
        found = results.setdefault(topic, ReplicaElectionResult(topic))
        found.partition_result.append(PartitionResult(index, code, message))
    return ElectLeadersResponse(replica_election_results=list(results.values()))
