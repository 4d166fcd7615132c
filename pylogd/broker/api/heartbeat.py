"""Heartbeat (12), versions 0 to 4: keep a member in its group, and tell it when it has to join again."""

from __future__ import annotations

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, 0, 4)
def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Return NONE, or the error code to which the member reacts."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return HeartbeatResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = context.broker.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(0, error)
