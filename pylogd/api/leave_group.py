"""LeaveGroup (13), versions 0 to 5: members leave, or are removed by an administrator.

Behaviour: the group rebalances at once. From version 3 on a request may have several members, each answered separately;
a static member is removed by its group instance id, with or without its member id.
Gaps: the reason (version 5) is not kept.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.groups.values import LeavingMember
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_FIRST_WITH_MANY = 3


@handles(LeaveGroupRequest, 0, 5)
def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove the members that the request names."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return LeaveGroupResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    many = context.version >= _FIRST_WITH_MANY
    if many:
        leavers = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    else:
        leavers = [LeavingMember(request.member_id, None)]
    error, results = context.broker.groups.leave(request.group_id, leavers)
    if not many:
        return LeaveGroupResponse(0, error or results[0])
    if error:
        return LeaveGroupResponse(0, error)
    return LeaveGroupResponse(
        0, 0, [MemberResponse(*leaver, result) for leaver, result in zip(leavers, results, strict=True)]
    )
