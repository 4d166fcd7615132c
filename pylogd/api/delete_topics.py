"""DeleteTopics (20), versions 0 to 6: delete topics by name or, from version 6 on, by id.

Behaviour: each topic is deleted or refused separately. It is answered once this broker no longer has it: its name is
free again, and fetches that waited on it have been answered. Unknown ids are UNKNOWN_TOPIC_ID. A topic that a request
names twice, or by both name and id, is INVALID_REQUEST. `delete.topic.enable` may forbid deletion.
A client needs DELETE, and for internal topics ALTER on the cluster; one that may not DESCRIBE a topic either is not
told the name of its id.
Topics that are not gone within `timeout_ms` are REQUEST_TIMED_OUT; they are deleted later. A client over its
`controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED from version 5 on; before, it has to wait (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.deadline import wait_for
from pylogd.api.errors import explain
from pylogd.api.metering import MutationQuota
from pylogd.api.registry import handles
from pylogd.api.slices import Pace, encode_in_thread
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.limits.elements import AT_ONCE
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_FIRST_BY_ID = 6
_FIRST_STRICT = 5  # THROTTLING_QUOTA_EXCEEDED is known from here on
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
    counts = Counter(asked)
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
        await context.broker.topic_admin.delete_topic(name)
        if topic is not None:
            result.topic_id = topic.topic_id
        await context.broker.hosting.settled(name)
    except PylogdError as error:
        result.error_code, result.error_message = explain(error)
    return result
