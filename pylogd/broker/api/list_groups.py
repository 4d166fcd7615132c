"""ListGroups (16), versions 0 to 5: list the groups that this broker coordinates.

Behaviour: for all groups of a cluster a client asks every broker. While groups are still being loaded from the offsets
topic, those loaded so far are returned with COORDINATOR_LOAD_IN_PROGRESS. The filters by state (version 4) and type
(version 5) ignore case; types are classic and consumer (KIP-848). A client that may not DESCRIBE the cluster gets only
the groups that it may DESCRIBE.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import fill, in_slices
from pylogd.broker.groups.consumer.embedded import CONSUMER
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_CLASSIC, _CONSUMER = "classic", "consumer"
_GROUP_WORK = 60  # the work for a group, as bytes of an answer whose encoding takes as long


@handles(ListGroupsRequest, 0, 5)
def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse | Deferred[Any]:
    """Return the groups that match the filters of the request."""
    error, groups = context.broker.groups.groups()
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    everything = context.may_use_cluster(AclOperation.DESCRIBE, audited=False)

    def listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup | None:
        if isinstance(group, ConsumerGroup):
            kind, protocol, state = _CONSUMER, CONSUMER, group.state.value
        else:
            kind, protocol, state = _CLASSIC, group.protocol_type or "", group.state.kafka_name
        if (states and state.lower() not in states) or (types and kind not in types):
            return None
        if not everything and not context.may_use_group(AclOperation.DESCRIBE, group.group_id, audited=False):
            return None
        return ListedGroup(group.group_id, protocol, state, kind)

    response = ListGroupsResponse(0, error)
    return in_slices(context, request.API_KEY, fill(response.groups, groups, listed, _GROUP_WORK), response)
