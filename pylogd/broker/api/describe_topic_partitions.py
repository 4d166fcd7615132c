"""DescribeTopicPartitions (75), version 0: list the partitions of topics, page by page (KIP-966).

Behaviour: topics come in order of their names; if the request names none, all topics come. A page has at most
`response_partition_limit` partitions, and never more than 2,000. If it ends before the last one, a cursor says where
the next page begins. A cursor whose topic is gone continues with the next name. Topics that the client may not DESCRIBE
get TOPIC_AUTHORIZATION_FAILED, whether they exist or not; in a list of all topics they are missing. The leader is -1 if
there is none, if it is not alive, or if it has no address for the client's listener. Then the partition has no error
code, as in Kafka's KRaftMetadataCache, and unlike in Metadata. The lists of eligible leader replicas are empty, never
null, since the Java client does not expect null.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.authorized import topic_operations
from pylogd.broker.api.brokers import offline_replicas, reachable_brokers
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.metadata.errors import InvalidTopicName
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, Topic, check_topic_name
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_MOST = 2000
# Work, as the number of bytes that can be added to the answer in the same time:
_TOPIC_WORK = 60
_PARTITION_WORK = 80


@handles(DescribeTopicPartitionsRequest, 0, 0)
def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Deferred[Any]:
    """Return one page."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        return _refuse(request)
    response = DescribeTopicPartitionsResponse()
    return in_slices(context, request.API_KEY, _fill(context, request, response), response)


def _fill(
    context: RequestContext, request: DescribeTopicPartitionsRequest, response: DescribeTopicPartitionsResponse
) -> Iterator[int]:
    """Add topics to the response until the page is full, or all topics are added."""
    registry, cursor, answers = context.broker.topics, request.cursor, response.topics
    asked = sorted({topic.name for topic in request.topics})
    names = asked or registry.ordered()
    names = names[0 if cursor is None else bisect_left(names, cursor.topic_name) :]
    reachable = frozenset(found[0] for found in reachable_brokers(context))
    left = max(1, min(request.response_partition_limit, _MOST))
    for name in names:
        yield _TOPIC_WORK
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not context.may_use_topic(AclOperation.DESCRIBE, name, audited=bool(asked)):
            if asked:
                answers.append(DescribeTopicPartitionsResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        topic = registry.get(name)
        if topic is None:
            if asked:  # otherwise the topic has been deleted meanwhile
                answers.append(_unknown(name))
            continue
        if not left:
            response.next_cursor = Cursor(name, first)
            return
        page = topic.partitions[first : first + left]
        left -= len(page)
        answers.append(_describe(context, topic, page, reachable))
        if first + len(page) < len(topic.partitions):
            response.next_cursor = Cursor(name, first + len(page))
            return
        yield _PARTITION_WORK * len(page)


def _describe(
    context: RequestContext, topic: Topic, page: tuple[PartitionState, ...], reachable: frozenset[int]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                ErrorCode.NONE,
                state.index,
                state.leader if state.leader in reachable else NO_LEADER,
                state.leader_epoch,
                list(state.replicas),
                list(state.isr),
                list(state.elr),
                list(state.last_known_elr),
                offline_replicas(context.broker.cluster.brokers, topic.topic_id, state),
            )
            for state in page
        ],
        topic_authorized_operations=topic_operations(context, topic.name),
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    return DescribeTopicPartitionsResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)


def _refuse(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, topic.name) for topic in request.topics]
    )
