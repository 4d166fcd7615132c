"""ConsumerGroupHeartbeat (68), versions 0 and 1: take part in a consumer group of the newer protocol (KIP-848).

Behaviour: a member says what has changed since its last heartbeat. The answer has the member's epoch and, if they
changed, its partitions. From version 1 on consumers make their member ids themselves. A member needs READ for the group
and DESCRIBE for the topics that it subscribes to by name. If it may not describe one of them, the heartbeat is refused.
Gaps: the rack (KIP-881) is kept and shown, but does not guide assignors. A regular expression gets
INVALID_REGULAR_EXPRESSION if the package google-re2 is missing.
"""

from __future__ import annotations

from functools import partial
from typing import cast
from uuid import uuid4

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.expressions import InvalidExpression
from pylogd.base.limits.names import MAX_CLIENT_ID, MAX_INSTANCE_ID, MAX_SUBSCRIPTIONS
from pylogd.base.limits.shares import Crowded
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer
from pylogd.broker.groups.consumer.heartbeats import Heartbeat, HeartbeatRefused, check
from pylogd.broker.groups.consumer.members import JOINING, partitions_by_topic
from pylogd.broker.metadata.feature_levels import GROUP_VERSION
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)


@handles(ConsumerGroupHeartbeatRequest, 0, 1)
def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Deferred[ConsumerGroupHeartbeatResponse]:
    """Return the response, or a Deferred of it if replicas have to be waited for."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _response(HeartbeatAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if not context.broker.metadata.features.level(GROUP_VERSION):
        return _response(HeartbeatAnswer(ErrorCode.UNSUPPORTED_VERSION, "The cluster's group.version is 0."))
    heartbeat = _heartbeat(context, request)
    try:
        check(heartbeat, request.group_id, may_name_itself=context.version == 0)
        _check_topics(context, heartbeat)
    except HeartbeatRefused as refused:
        return _response(HeartbeatAnswer(refused.code, str(refused)))
    if not heartbeat.member_id:
        heartbeat = heartbeat._replace(member_id=str(uuid4()))
    group_id = request.group_id
    former = _former(context, group_id, heartbeat)
    expression = former if heartbeat.regex is None else heartbeat.regex
    if not expression:
        return _beat(context, group_id, heartbeat)
    try:
        matched = context.broker.expressions.prepare(expression, context.share.name, member=former == expression)
    except InvalidExpression as error:
        return _response(_refusal(str(error)))
    if matched is None:
        return _beat(context, group_id, heartbeat)
    context.broker.groups.keep_alive(group_id, heartbeat)  # the wait is not the member's fault
    matched.addCallbacks(lambda _: _beat(context, group_id, heartbeat), _refuse_if_slow)
    return cast("Deferred[ConsumerGroupHeartbeatResponse]", matched)


def _former(context: RequestContext, group_id: str, heartbeat: Heartbeat) -> str | None:
    """Return the regular expression that the member has had so far, if it has one."""
    group = context.broker.groups.describe_consumers(group_id)
    member = None if isinstance(group, ErrorCode) else group.members.get(heartbeat.member_id)
    return None if member is None else member.regex


def _beat(
    context: RequestContext, group_id: str, heartbeat: Heartbeat
) -> ConsumerGroupHeartbeatResponse | Deferred[ConsumerGroupHeartbeatResponse]:
    answer = context.broker.groups.consumer_heartbeat(group_id, heartbeat, partial(_matching, context))
    return answer.addCallback(_response) if isinstance(answer, Deferred) else _response(answer)


def _refuse_if_slow(failure: Failure) -> ConsumerGroupHeartbeatResponse:
    if failure.check(Crowded):
        return _response(HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many expressions wait. Try again."))
    failure.trap(InvalidExpression)
    return _response(_refusal(str(failure.value)))


def _refusal(text: str) -> HeartbeatAnswer:
    return HeartbeatAnswer(ErrorCode.INVALID_REGULAR_EXPRESSION, text)


def _heartbeat(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Heartbeat:
    owned = request.topic_partitions
    topics = request.subscribed_topic_names
    return Heartbeat(
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if topics is None else frozenset(topics),
        request.subscribed_topic_regex,
        request.server_assignor,
        None if owned is None else frozenset((one.topic_id, index) for one in owned for index in one.partitions),
        (context.client_id or "")[:MAX_CLIENT_ID],
        "/" + context.connection.host,
        context.share,
    )


def _check_topics(context: RequestContext, heartbeat: Heartbeat) -> None:
    """Raise HeartbeatRefused for ids that are too long, and for topics that the client may not describe."""
    ids = (heartbeat.member_id, heartbeat.instance_id, heartbeat.rack_id)
    if any(len(text) > MAX_INSTANCE_ID for text in ids if text is not None):
        raise HeartbeatRefused(ErrorCode.INVALID_REQUEST, f"An id has more than {MAX_INSTANCE_ID} characters.")
    if len(heartbeat.topics or ()) > MAX_SUBSCRIPTIONS:
        raise HeartbeatRefused(ErrorCode.INVALID_REQUEST, f"The member names more than {MAX_SUBSCRIPTIONS} topics.")
    if heartbeat.epoch < JOINING:
        return
    for name in heartbeat.topics or ():
        if not context.may_use_topic(AclOperation.DESCRIBE, name):
            raise HeartbeatRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The member may not describe all its topics.")


def _matching(context: RequestContext, expression: str) -> frozenset[str]:
    """Return the topics that an expression matches and the client may describe. Raises HeartbeatRefused."""
    try:
        found = context.broker.expressions.find(expression, context.share.name)
    except InvalidExpression as error:
        raise HeartbeatRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    return frozenset(name for name in found if context.may_use_topic(AclOperation.DESCRIBE, name, audited=False))


def _response(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        by_topic = partitions_by_topic(answer.assignment)
        assignment = HeartbeatAssignment([AssignedTopicPartitions(topic, found) for topic, found in by_topic.items()])
    text = answer.text or answer.error.text if answer.error else None
    return ConsumerGroupHeartbeatResponse(
        0, answer.error, text, answer.member_id, answer.epoch, answer.interval_ms, assignment
    )
