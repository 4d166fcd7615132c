"""DescribeGroups (15), versions 0 to 6: describe groups and their members.

Behaviour: the members' metadata and assignments are shown only while the group is Stable, since during a rebalance they
belong to no generation. A group that does not exist is shown as Dead, and from version 6 on gets GROUP_ID_NOT_FOUND. A
group that is named more than once is answered once. Groups that no longer fit into `response.max.bytes` get
INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.authorized import NOT_ASKED, group_operations
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, in_slices
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.states import GroupState
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_FIRST_WITH_NOT_FOUND = 6
_LEAST_WORK = 100  # the least work for a group, as bytes of an answer whose encoding takes as long


@handles(DescribeGroupsRequest, 0, 6)
def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse | Deferred[Any]:
    """Return a description of each group of the request."""
    response = DescribeGroupsResponse()
    return in_slices(context, request.API_KEY, _describe_all(context, request, response.groups), response)


def _describe_all(
    context: RequestContext, request: DescribeGroupsRequest, answers: list[DescribedGroup]
) -> Iterator[int]:
    budget = answer_budget(context)
    for group_id in dict.fromkeys(request.groups):
        before = budget.spent
        answers.append(_describe(context, group_id, request.include_authorized_operations, budget))
        yield budget.spent - before + _LEAST_WORK


def _describe(context: RequestContext, group_id: str, with_operations: bool, budget: AnswerBudget) -> DescribedGroup:
    if not context.may_use_group(AclOperation.DESCRIBE, group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DescribedGroup(refused, refused.text, group_id)
    found = context.broker.groups.describe(group_id)
    if isinstance(found, ClassicGroup):
        if not budget.take(_size(found)):
            return DescribedGroup(ErrorCode.INVALID_REQUEST, budget.refusal, group_id)
        answer = _known(found)
    elif found == ErrorCode.GROUP_ID_NOT_FOUND:
        answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.kafka_name)
        if context.version >= _FIRST_WITH_NOT_FOUND:
            answer.error_code, answer.error_message = found, f"Group {group_id} not found."
    else:
        return DescribedGroup(found, found.text, group_id)
    answer.authorized_operations = group_operations(context, group_id) if with_operations else NOT_ASKED
    return answer


def _size(group: ClassicGroup) -> int:
    """Return about how many bytes a group's description takes in the answer."""
    texts = 100 + len(group.group_id)
    for member in group.members.values():
        texts += 16 + len(member.member_id) + len(member.client_id) + len(member.instance_id or "")
        texts += len(member.client_host) + len(member.metadata(group.protocol)) + len(member.assignment)
    return texts


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
