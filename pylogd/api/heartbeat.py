"""Heartbeat (12), versions 0 to 4: a member lives, and hears whether it has to join again."""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, 0, 4)
def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Answer NONE, or what the member has to do."""
    error = context.broker.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(0, error)
