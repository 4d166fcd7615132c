"""DeleteGroups (42), versions 0 to 2: delete groups that have no members, with their offsets.

Behaviour: each group is deleted or refused separately. It is answered when its deletion is committed.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


@handles(DeleteGroupsRequest, 0, 2)
def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> Deferred[DeleteGroupsResponse]:
    """Delete the groups of the request."""
    return Deferred.fromCoroutine(_delete_all(context, request))


async def _delete_all(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results = []
    pace = Pace(context)
    for group_id in dict.fromkeys(request.groups_names):
        await pace.step()
        if not context.may_use_group(AclOperation.DELETE, group_id):
            results.append(DeletableGroupResult(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        results.append(DeletableGroupResult(group_id, await context.broker.groups.delete(group_id)))
    return DeleteGroupsResponse(results=results)
