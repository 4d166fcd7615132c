"""DescribeGroups (15), versions 0 to 6: describe groups and their members.

Behaviour: the members' metadata and assignments are shown only while the group is Stable, since during a rebalance they
belong to no generation. A group that does not exist is Dead, and from version 6 on GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from pylogd.api.authorized import NOT_ASKED, group_operations
from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.groups.group import ClassicGroup
from pylogd.groups.states import GroupState
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_FIRST_WITH_NOT_FOUND = 6


@handles(DescribeGroupsRequest, 0, 6)
def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Return a description of each group of the request."""
    told = request.include_authorized_operations
    return DescribeGroupsResponse(0, [_describe(context, group_id, told) for group_id in request.groups])


def _describe(context: RequestContext, group_id: str, with_operations: bool) -> DescribedGroup:
    if not context.may_use_group(AclOperation.DESCRIBE, group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DescribedGroup(refused, refused.text, group_id)
    found = context.broker.groups.describe(group_id)
    if isinstance(found, ClassicGroup):
        answer = _known(found)
    elif found == ErrorCode.GROUP_ID_NOT_FOUND:
        answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.kafka_name)
        if context.version >= _FIRST_WITH_NOT_FOUND:
            answer.error_code, answer.error_message = found, f"Group {group_id} not found."
    else:
        return DescribedGroup(found, found.text, group_id)
    answer.authorized_operations = group_operations(context, group_id) if with_operations else NOT_ASKED
    return answer


def _known(group: ClassicGroup) -> DescribedGroup:
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.kafka_name,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if stable else "",
        members=[
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )
