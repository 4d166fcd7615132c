"""SyncGroup (14), versions 0 to 5: give a member its assignment.

Behaviour: the answer comes when the leader has sent the assignments and they are stored. From version 5 on the type and
name of the protocol are checked and returned; without them the answer is INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.groups.values import SyncAnswer, SyncRequest
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_WITH_PROTOCOL = 5


@handles(SyncGroupRequest, 0, 5)
def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    """Return the assignment, or a Deferred of it while the leader is waited for."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _response(SyncAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if context.version >= _FIRST_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        return _response(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    assignments = {share.member_id: share.assignment for share in request.assignments}
    sync = SyncRequest(
        request.member_id, request.group_instance_id, request.generation_id, request.protocol_type,
        request.protocol_name, assignments,
    )  # fmt: skip
    answer = context.broker.groups.sync(request.group_id, sync)
    return answer.addCallback(_response) if isinstance(answer, Deferred) else _response(answer)


def _response(answer: SyncAnswer) -> SyncGroupResponse:
    return SyncGroupResponse(0, answer.error, answer.protocol_type, answer.protocol, answer.assignment)
