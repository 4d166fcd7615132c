"""CreatePartitions (37), versions 0 to 3: add partitions to topics.

Behaviour: every topic of the request is answered separately. `count` is the new total; the broker places the replicas
unless the client assigns them. A topic is answered once its new partitions can be used. A name that a request has twice
gets INVALID_REQUEST. Topics whose partitions can't be used within `timeout_ms` get REQUEST_TIMED_OUT; the partitions
are added later. A client over its `controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED from version 3 on; with
earlier versions it has to wait (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.deadline import wait_for
from pylogd.broker.api.errors import explain
from pylogd.broker.api.metering import MutationQuota
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_FIRST_STRICT = 3  # the first version with THROTTLING_QUOTA_EXCEEDED


@handles(CreatePartitionsRequest, 0, 3)
def create_partitions(context: RequestContext, request: CreatePartitionsRequest) -> Deferred[CreatePartitionsResponse]:
    """Extend every topic of the request."""
    return Deferred.fromCoroutine(_create_all(context, request))


async def _create_all(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    quota = MutationQuota(context, _FIRST_STRICT)
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    results = {name: CreatePartitionsTopicResult(name, timed_out, timed_out.text) for name in named}

    async def extend_each() -> None:
        pace = Pace(context)
        for wanted in {topic.name: topic for topic in request.topics}.values():
            await pace.step()
            result = CreatePartitionsTopicResult(wanted.name)
            try:
                if named[wanted.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the topic more than once.")
                if not context.may_change_topic(AclOperation.ALTER, wanted.name):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                await _create(context, wanted, request.validate_only, quota)
            except PylogdError as error:
                result.error_code, result.error_message = explain(error)
            results[wanted.name] = result

    with suppress(KafkaError):
        await wait_for(context, request.timeout_ms, extend_each())
    return quota.applied(CreatePartitionsResponse(results=list(results.values())))


async def _create(
    context: RequestContext, wanted: CreatePartitionsTopic, validate_only: bool, quota: MutationQuota
) -> None:
    assignment = None if wanted.assignments is None else [entry.broker_ids for entry in wanted.assignments]
    extend = partial(
        context.broker.metadata.topic_admin.add_partitions, wanted.name, wanted.count, assignment=assignment
    )
    before = context.broker.topics.get(wanted.name)
    if quota.active and not validate_only and before is not None:  # impossible changes are not counted
        quota.charge(len((await extend(validate_only=True)).partitions) - len(before.partitions))
    await extend(validate_only=validate_only)
    if not validate_only:
        await context.broker.hosting.settled(wanted.name)
