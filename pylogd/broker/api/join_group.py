"""JoinGroup (11), versions 0 to 9: join a consumer group.

Behaviour: the answer comes when the rebalance is over, which may take as long as the longest rebalance timeout of the
members. A client that disconnects before is removed. From version 4 on a new dynamic member first gets an id and joins
again with it (KIP-394). A member with a group instance id (from version 5 on) is a static member (KIP-345). From
version 9 on a static leader that rejoins a stable group is told not to assign (KIP-814). Before version 1 the session
timeout is also the rebalance timeout.
Gaps: the reason (version 8) is not kept.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.names import MAX_CLIENT_ID
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.groups.values import JoinAnswer, JoinRequest
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

_FIRST_WITH_KNOWN_ID = 4
_FIRST_WITH_NULL_PROTOCOL = 7
_FIRST_WITH_SKIP = 9


@handles(JoinGroupRequest, 0, 9)
def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    """Return the response, or a Deferred of it while the rebalance is in progress."""
    version = context.version
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _response(JoinAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED, ""), version)
    rebalance_ms = request.rebalance_timeout_ms
    answer = context.broker.groups.join(
        request.group_id,
        JoinRequest(
            request.member_id,
            request.group_instance_id,
            (context.client_id or "")[:MAX_CLIENT_ID],
            "/" + context.connection.host,
            request.session_timeout_ms / 1000,
            max(rebalance_ms if version and rebalance_ms >= 0 else request.session_timeout_ms, 0) / 1000,
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            needs_known_id=version >= _FIRST_WITH_KNOWN_ID,
            can_skip=version >= _FIRST_WITH_SKIP,
            share=context.share,
        ),
    )
    if isinstance(answer, Deferred):
        return answer.addCallback(_response, version)
    return _response(answer, version)


def _response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    protocol = answer.protocol
    if protocol is None and version < _FIRST_WITH_NULL_PROTOCOL:
        protocol = ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[JoinGroupResponseMember(*member) for member in answer.members],
    )
