"""OffsetDelete (47), version 0: delete offsets of a group.

Behaviour: offsets of topics that a member subscribes to are kept (GROUP_SUBSCRIBED_TO_TOPIC). A group with members that
are not consumers is refused (NON_EMPTY_GROUP), since their subscriptions are unknown. An offset that does not exist
counts as deleted. A client needs DELETE for the group and READ for each topic.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest, 0, 0)
def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> Deferred[OffsetDeleteResponse]:
    """Delete the offsets."""
    return Deferred.fromCoroutine(_delete(context, request))


async def _delete(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    if not context.may_use_group(AclOperation.DELETE, request.group_id):
        return OffsetDeleteResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID)
    pace = Pace(context)
    known: dict[tuple[str, int], ErrorCode] = {}
    for topic in request.topics:
        for one in topic.partitions:
            await pace.step()
            known[topic.name, one.partition_index] = _exists(context, topic, one.partition_index)
    error, answers = await context.broker.groups.delete_offsets(
        request.group_id, [place for place, error in known.items() if not error]
    )
    if error:
        return OffsetDeleteResponse(error)
    codes = {**known, **answers}
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            await pace.step()
            partitions.append(
                OffsetDeleteResponsePartition(one.partition_index, codes[topic.name, one.partition_index])
            )
        topics.append(OffsetDeleteResponseTopic(topic.name, partitions))
    return OffsetDeleteResponse(topics=topics)


def _exists(context: RequestContext, asked: OffsetDeleteRequestTopic, index: int) -> ErrorCode:
    if not context.may_use_topic(AclOperation.READ, asked.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.broker.topics.get(asked.name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
