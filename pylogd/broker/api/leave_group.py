"""LeaveGroup (13), versions 0 to 5: members leave, or are removed by an administrator.

Behaviour: the group rebalances at once. From version 3 on a request may have several members, each answered separately;
a static member is removed by its group instance id, with or without its member id.
Gaps: the reason (version 5) is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import next_turn
from pylogd.broker.groups.consumer.mixed import LeaveAnswer
from pylogd.broker.groups.values import LeavingMember
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

#: The error of the whole request, and the answer for each member.
_Removed = tuple[ErrorCode, list[MemberResponse]]

_FIRST_WITH_MANY = 3
_AT_ONCE = 1000  # the most members that are removed in one turn of the reactor


@handles(LeaveGroupRequest, 0, 5)
def leave_group(
    context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Deferred[LeaveGroupResponse]:
    """Remove the members that the request names."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return LeaveGroupResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if context.version < _FIRST_WITH_MANY:
        answer = context.broker.groups.leave(request.group_id, [LeavingMember(request.member_id, None)])
        return answer.addCallback(_one) if isinstance(answer, Deferred) else _one(answer)
    if len(request.members) <= _AT_ONCE:
        some = _remove(context, request.group_id, request.members)
        return some.addCallback(_many) if isinstance(some, Deferred) else _many(some)
    return Deferred.fromCoroutine(_remove_many(context, request))


def _one(answer: LeaveAnswer) -> LeaveGroupResponse:
    error, (result,) = answer
    return LeaveGroupResponse(0, error or result)


def _many(answer: _Removed) -> LeaveGroupResponse:
    error, members = answer
    return LeaveGroupResponse(0, error) if error else LeaveGroupResponse(0, 0, members)


async def _remove_many(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove many members, some in each turn of the reactor."""
    members: list[MemberResponse] = []
    for start in range(0, len(request.members), _AT_ONCE):
        answer = _remove(context, request.group_id, request.members[start : start + _AT_ONCE])
        error, some = await answer if isinstance(answer, Deferred) else answer
        if error:
            return LeaveGroupResponse(0, error)
        members += some
        await next_turn(context)
    return LeaveGroupResponse(0, 0, members)


def _remove(context: RequestContext, group_id: str, members: Sequence[MemberIdentity]) -> _Removed | Deferred[_Removed]:
    """Return the error of the whole request, and the answer for each member."""
    leavers = [LeavingMember(member.member_id, member.group_instance_id) for member in members]

    def answered(answer: LeaveAnswer) -> _Removed:
        error, results = answer
        return error, [MemberResponse(*leaver, result) for leaver, result in zip(leavers, results, strict=True)]

    answer = context.broker.groups.leave(group_id, leavers)
    return answer.addCallback(answered) if isinstance(answer, Deferred) else answered(answer)
