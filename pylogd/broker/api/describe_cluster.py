"""DescribeCluster (60), versions 0 to 2: the cluster's id, its brokers, its controller.

Behaviour: lists the live brokers that have the client's listener. pylogd's own tagged fields have what placement
depends on besides the rack: the labels and the `host.id` of each broker. Clients that may DESCRIBE or DESCRIBE_CONFIGS
the cluster are also told whether a broker is cordoned or has a full volume, and how many more partitions it may hold.
Gaps: a request for controllers as endpoints (type 2, from version 1 on) gets UNSUPPORTED_ENDPOINT_TYPE, since every
broker carries out administrative requests. No broker is ever fenced, so `include_fenced_brokers` changes nothing.
"""

from __future__ import annotations

from pylogd.base.errors import ErrorCode
from pylogd.base.placement.brokers import Candidate
from pylogd.broker.api.authorized import NOT_ASKED, cluster_operations
from pylogd.broker.api.brokers import reachable_brokers
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.metadata.labels import candidates
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2
#: The description of this broker while it has no registration.
_UNREGISTERED = Candidate(-1)


@handles(DescribeClusterRequest, 0, 2)
def describe_cluster(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the cluster as this broker knows it."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Endpoints of type {request.endpoint_type} are not available; ask for brokers (type 1).",
            endpoint_type=request.endpoint_type,
        )
    broker = context.broker
    placement = candidates(broker.cluster.brokers, broker.metadata.topic_admin.room_on).live
    # A client that cordons a broker needs ALTER_CONFIGS, and waits here until all brokers show the change.
    may_plan = any(
        context.may_use_cluster(one, audited=False) for one in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    )
    return DescribeClusterResponse(
        cluster_id=broker.cluster.cluster_id,
        controller_id=broker.cluster.controller_id,
        brokers=[
            DescribeClusterBroker(
                *found,
                labels=list(one.labels),
                host_id=one.host,
                is_cordoned=may_plan and one.cordoned,
                has_full_volume=may_plan and one.full,
                partition_room=one.room if may_plan and one.room is not None else -1,
            )
            for found in reachable_brokers(context)
            for one in [placement.get(found[0], _UNREGISTERED)]
        ],
        cluster_authorized_operations=(
            cluster_operations(context) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
