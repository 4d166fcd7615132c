"""OffsetDelete (47), version 0: delete offsets of a group.

Behaviour: offsets of topics that a member subscribes to are kept (GROUP_SUBSCRIBED_TO_TOPIC). A group with members that
are not consumers is refused (NON_EMPTY_GROUP), since their subscriptions are unknown. An offset that does not exist
counts as deleted. A client needs DELETE for the group and READ for each topic.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest, 0, 0)
def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Deferred[OffsetDeleteResponse]:
    """Delete the offsets, and return the response; a Deferred of it where replicas are waited for."""
    if not context.may_use_group(AclOperation.DELETE, request.group_id):
        return OffsetDeleteResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    known = {
        (topic.name, one.partition_index): _exists(context, topic, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    }
    result, answers = context.broker.groups.delete_offsets(
        request.group_id, [place for place, error in known.items() if not error]
    )

    def answered(error: ErrorCode) -> OffsetDeleteResponse:
        if error:
            return OffsetDeleteResponse(error)
        codes = {**known, **answers}
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(one.partition_index, codes[topic.name, one.partition_index])
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return result.addCallback(answered) if isinstance(result, Deferred) else answered(result)


def _exists(context: RequestContext, asked: OffsetDeleteRequestTopic, index: int) -> ErrorCode:
    if not context.may_use_topic(AclOperation.READ, asked.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.broker.topics.get(asked.name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
