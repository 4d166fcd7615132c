"""DeleteTopics (20), versions 0 to 6: delete topics by name or, from version 6 on, by id.

Behaviour: each topic is deleted or refused separately. A topic is answered once this broker no longer has it: then its
name is free again, and fetches that waited on it have been answered. Unknown ids get UNKNOWN_TOPIC_ID. A topic that a
request names twice, or by both name and id, gets INVALID_REQUEST. `delete.topic.enable` may forbid deletion. A client
needs DELETE, and for internal topics ALTER on the cluster. A client that names a topic by its id and may not DESCRIBE
it either is not told the topic's name. Topics that are not gone within `timeout_ms` get REQUEST_TIMED_OUT; they are
deleted later. A client over its `controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED from version 5 on; with
earlier versions it has to wait (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.elements import AT_ONCE
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.deadline import wait_for
from pylogd.broker.api.errors import explain
from pylogd.broker.api.metering import MutationQuota
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace, encode_in_thread
from pylogd.broker.metadata.errors import UnknownTopic
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_FIRST_BY_ID = 6
_FIRST_WITH_DISABLED = 3  # the first version with TOPIC_DELETION_DISABLED
_FIRST_STRICT = 5  # the first version with THROTTLING_QUOTA_EXCEEDED
_NO_ID = bytes(16)


@handles(DeleteTopicsRequest, 0, 6)
def delete_topics(context: RequestContext, request: DeleteTopicsRequest) -> Deferred[DeleteTopicsResponse | bytes]:
    """Delete every topic of the request."""
    return Deferred.fromCoroutine(_delete_all(context, request))


async def _delete_all(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse | bytes:
    if context.version >= _FIRST_BY_ID:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, _NO_ID) for name in request.topic_names]
    counts = _by_id_alone(context, Counter(asked))
    quota = MutationQuota(context, _FIRST_STRICT)
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    results = {topic: DeletableTopicResult(*topic, timed_out, timed_out.text) for topic in counts}

    async def delete_each() -> None:
        pace = Pace(context)
        for topic, count in counts.items():
            await pace.step()
            results[topic] = await _delete(context, DeleteTopicState(*topic), count, quota)

    with suppress(KafkaError):
        await wait_for(context, request.timeout_ms, delete_each())
    response = quota.applied(DeleteTopicsResponse(responses=list(results.values())))
    return response if len(results) <= AT_ONCE else await encode_in_thread(context, request.API_KEY, response)


def _by_id_alone(
    context: RequestContext, counts: Counter[tuple[str | None, bytes]]
) -> Counter[tuple[str | None, bytes]]:
    """Return how often a request names each topic. A topic named by both name and id is counted by its id alone."""
    for name, topic_id in list(counts):
        topic = None if name is not None else context.broker.topics.by_id(topic_id)
        if topic is not None:
            counts[name, topic_id] += counts.pop((topic.name, _NO_ID), 0)
    return counts


async def _delete(
    context: RequestContext, wanted: DeleteTopicState, count: int, quota: MutationQuota
) -> DeletableTopicResult:
    registry = context.broker.topics
    result = DeletableTopicResult(wanted.name, wanted.topic_id)
    try:
        if count > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the topic more than once.")
        if (wanted.name is None) == (wanted.topic_id == _NO_ID):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Give either the name or the id of a topic.")
        name = wanted.name
        if name is None:
            topic = registry.by_id(wanted.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic.name
            if not context.may_use_topic(AclOperation.DESCRIBE, name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            result.name = name
        else:
            topic = registry.get(name)
        if not context.may_change_topic(AclOperation.DELETE, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is not None:
            quota.charge(len(topic.partitions))
        await _delete_one(context, name, wanted)
        if topic is not None:
            result.topic_id = topic.topic_id
        await context.broker.hosting.settled(name)
    except PylogdError as error:
        result.error_code, result.error_message = explain(error)
        if result.error_code == ErrorCode.TOPIC_DELETION_DISABLED and context.version < _FIRST_WITH_DISABLED:
            result.error_code = ErrorCode.INVALID_REQUEST
    return result


async def _delete_one(context: RequestContext, name: str, wanted: DeleteTopicState) -> None:
    """Delete a topic. If it was requested by its id, do not delete another topic that has the name by then."""
    if wanted.name is not None:
        await context.broker.metadata.topic_admin.delete_topic(name)
        return
    try:
        await context.broker.metadata.topic_admin.delete_topic(name, wanted.topic_id)
    except UnknownTopic as error:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID) from error
