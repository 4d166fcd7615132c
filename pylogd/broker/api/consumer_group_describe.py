"""ConsumerGroupDescribe (69), versions 0 and 1: describe consumer groups of the newer protocol (KIP-848).

Behaviour: a group of the classic protocol gets GROUP_ID_NOT_FOUND, as does a group that does not exist. As in Kafka, a
group is refused if the client may not DESCRIBE one of its topics. A group that is named more than once is answered
once. Groups that no longer fit into `response.max.bytes` get INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.authorized import NOT_ASKED, group_operations
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, fill, in_slices
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import assignor_of
from pylogd.broker.groups.consumer.members import ConsumerMember, TopicPartition, partitions_by_topic
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)

_LEAST_WORK = 100  # the least work for a group, as bytes of an answer whose encoding takes as long
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


@handles(ConsumerGroupDescribeRequest, 0, 1)
def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Deferred[Any]:
    """Return a description of each group of the request."""
    response = ConsumerGroupDescribeResponse()
    return in_slices(context, request.API_KEY, _describe_all(context, request, response.groups), response)


def _describe_all(
    context: RequestContext, request: ConsumerGroupDescribeRequest, answers: list[DescribedConsumerGroup]
) -> Iterator[int]:
    budget = answer_budget(context)
    for group_id in dict.fromkeys(request.group_ids):
        before = budget.spent
        group = context.broker.groups.describe_consumers(group_id)
        answer = _describe(context, group_id, group, request.include_authorized_operations, budget)
        answers.append(answer)
        yield _LEAST_WORK
        if not isinstance(group, ErrorCode) and not answer.error_code:
            describe = partial(_member, context.broker.topics, group)
            work = (budget.spent - before) // max(len(group.members), 1)
            yield from fill(answer.members, group.members.values(), describe, work)


def _describe(
    context: RequestContext,
    group_id: str,
    group: ConsumerGroup | ErrorCode,
    with_operations: bool,
    budget: AnswerBudget,
) -> DescribedConsumerGroup:
    """Return the description of a group, without its members yet."""
    if not context.may_use_group(AclOperation.DESCRIBE, group_id):
        return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if isinstance(group, ErrorCode):
        text = f"Group {group_id} is not a consumer group." if group == ErrorCode.GROUP_ID_NOT_FOUND else None
        return _refused(group_id, group, text)
    if not budget.take(_size(group)):
        return _refused(group_id, ErrorCode.INVALID_REQUEST, budget.refusal)
    names = {name for member in group.members.values() for name in group.subscribed(member)}
    if not all(context.may_use_topic(AclOperation.DESCRIBE, name) for name in sorted(names)):
        return _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "You may not describe all topics of the group.")
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_of(group),
        authorized_operations=group_operations(context, group_id) if with_operations else NOT_ASKED,
    )


def _refused(group_id: str, error: ErrorCode, text: str | None = None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error, text or error.text, group_id)


def _size(group: ConsumerGroup) -> int:
    """Return about how many bytes a group's description takes in the answer."""
    size = 100 + len(group.group_id)
    for member in group.members.values():
        texts = (member.member_id, member.client_id, member.client_host, member.instance_id or "", member.regex or "")
        size += 60 + sum(map(len, texts)) + sum(map(len, member.topics)) + 2 * len(member.topics)
        partitions = (*member.assigned, *group.target_of(member.member_id))
        size += 60 * len({topic for topic, _ in partitions}) + 4 * len(partitions)
    return size


def _member(topics: TopicRegistry, group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.epoch,
        member.client_id,
        member.client_host,
        sorted(member.topics),
        member.regex or None,
        _assignment(topics, member.assigned),
        _assignment(topics, group.target_of(member.member_id)),
        _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(topics: TopicRegistry, partitions: Iterable[TopicPartition]) -> DescribedAssignment:
    found = []
    for topic_id, indexes in partitions_by_topic(partitions).items():
        topic = topics.by_id(topic_id)
        if topic is not None:  # otherwise the topic was deleted, and the member does not know that yet
            found.append(DescribedTopicPartitions(topic_id, topic.name, indexes))
    return DescribedAssignment(found)
