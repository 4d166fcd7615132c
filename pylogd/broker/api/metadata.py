"""Metadata (3), versions 0 to 13: list the brokers, and the leaders of partitions.

Behaviour: null topics (in version 0 an empty list) means all topics, an empty list none. Topics are named, from version
12 on also given by id. A topic that does not exist is created with the broker's defaults if `auto.create.topics.enable`
and the request allow it (before version 4 each request does). It is answered once it can be used, so that clients need
not ask twice. New topics beyond `max.partitions.per.request` get POLICY_VIOLATION. Internal topics are not created this
way. Offline replicas are those of brokers that are not alive, and those whose log directory has failed (KIP-112). As in
Kafka, a topic that is named more than once is answered once.
Errors:
- INVALID_TOPIC_EXCEPTION: illegal name;
- UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID: another unknown name, unknown id;
- LEADER_NOT_AVAILABLE: a partition without a live leader;
- LISTENER_NOT_FOUND (before version 6 LEADER_NOT_AVAILABLE): the live leader does not have the client's listener.

A topic that the client may not DESCRIBE gets TOPIC_AUTHORIZATION_FAILED, whether it exists or not. In a list of all
topics it is missing. To create a topic, a client needs CREATE on it or on the cluster. Created partitions count for the
client's `controller_mutation_rate`; a client over this rate has to wait (KIP-599).

Caching: answers are joined from encoded pieces, one for each topic. A piece is kept until its topic changes; see
`metadata_pieces`. The whole response for all topics is kept too, for each version, listener and set of topics that a
client may see, until anything changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.authorized import cluster_operations, topic_operations
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.metadata_pieces import PARTITION_WORK, TOPIC_WORK, MetadataPieces, head, pieces_for
from pylogd.broker.api.metering import MutationQuota
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace, in_steps, next_turn
from pylogd.broker.metadata.errors import InvalidTopicName, TopicExists
from pylogd.broker.metadata.image import Topic, check_topic_name
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from pylogd.wire.splicing import Around

_FIRST_WITH_NULL = 1
_FIRST_BY_ID = 12
_NEVER_STRICT = 1 << 15  # no version refuses to create topics because of a quota
_NO_ID = bytes(16)
_MANY = 500  # looking at so many topics takes some milliseconds


@handles(MetadataRequest, 0, 13)
def metadata(context: RequestContext, request: MetadataRequest) -> bytes | Deferred[bytes]:
    """Return the encoded response, or a Deferred of it if it is large or topics are created first."""
    asked = request.topics
    if asked is None or (not asked and context.version < _FIRST_WITH_NULL):
        return _everything(context, request)
    asked = list({(topic.name, topic.topic_id): topic for topic in asked}.values())
    failed: dict[str, ErrorCode] = {}
    if len(asked) > _MANY:
        return Deferred.fromCoroutine(_answer_many(context, request, asked, failed))
    missing = _to_create(context, request, asked, failed)
    if missing:
        return Deferred.fromCoroutine(_create(context, request, asked, missing, failed))
    return _answer(context, request, asked, failed)


async def _answer_many(
    context: RequestContext, request: MetadataRequest, asked: list[MetadataRequestTopic], failed: dict[str, ErrorCode]
) -> bytes:
    """Answer like `metadata`, with turns of the reactor for other connections in between."""
    missing: list[str] = []
    for start in range(0, len(asked), _MANY):
        missing += _to_create(context, request, asked[start : start + _MANY], failed)
        await next_turn(context)
    return await _create(context, request, asked, missing, failed)


def _everything(context: RequestContext, request: MetadataRequest) -> bytes | Deferred[bytes]:
    pieces = pieces_for(context)
    visible = None  # None means all topics
    operations: Hashable = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    if context.broker.authorizer is not None:
        topics = context.broker.topics.all()
        may_see = [one for one in topics if context.may_use_topic(AclOperation.DESCRIBE, one.name, audited=False)]
        visible = tuple(topic.name for topic in may_see) if len(may_see) < len(topics) else None
        operations = _operations(context, request, may_see)
    seen = pieces.seen
    key = seen, visible, operations, _around(context, request, pieces)
    found = pieces.answers.get(key)
    if found is not None:
        return found
    waiting = pieces.building.get(key)
    if waiting is not None:
        waiting.append(Deferred())
        return waiting[-1]
    some: list[bytes] = []
    # With an authorizer, topics that are created meanwhile may be hidden from this client.
    every = context.broker.authorizer is None and not request.include_topic_authorized_operations
    names = context.broker.topics.ordered() if visible is None else visible

    def join() -> bytes:
        found = pieces.all(context) if every else some
        around = _around(context, request, pieces)
        answer = pieces.topics.join(around, found)
        if every or pieces.seen == seen:
            pieces.keep((pieces.seen, visible, operations, around), answer)
        return answer

    steps = pieces.list_all(context) if every else _encode_some(context, request, pieces, tuple(names), some)
    made = in_steps(context, steps, join)
    return _shared(pieces.building, key, made) if isinstance(made, Deferred) else made


def _shared(building: dict[Hashable, list[Deferred[bytes]]], key: Hashable, made: Deferred[bytes]) -> Deferred[bytes]:
    """Return a Deferred of an answer that is being made. Clients that ask for the same answer meanwhile share it."""
    waiting = building[key] = [Deferred()]
    first = waiting[0]

    def built(result: Any) -> None:
        del building[key]
        for one in waiting:
            one.callback(result)

    made.addBoth(built)
    return first


def _encode_some(
    context: RequestContext, request: MetadataRequest, pieces: MetadataPieces, names: Iterable[str], into: list[bytes]
) -> Iterator[int]:
    """Add the encoded topics with these names that still exist."""
    for topic in filter(None, map(context.broker.topics.get, names)):
        into.append(_encode(context, request, pieces, topic))
        yield TOPIC_WORK


def _operations(context: RequestContext, request: MetadataRequest, topics: Iterable[Topic]) -> Hashable:
    """Return the client's authorized operations in the form of an encoded response."""
    return (
        request.include_topic_authorized_operations
        and tuple(topic_operations(context, topic.name) for topic in topics),
        request.include_cluster_authorized_operations and cluster_operations(context),
    )


def _to_create(
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    failed: dict[str, ErrorCode],
) -> list[str]:
    """Return the topics to create. Put the topics that the client may not create into `failed`."""
    broker = context.broker
    if not (request.allow_auto_topic_creation and broker.settings["auto.create.topics.enable"]):
        return []
    names = dict.fromkeys(topic.name for topic in asked if topic.name is not None and topic.topic_id == _NO_ID)
    missing = [
        name
        for name in names
        if context.may_use_topic(AclOperation.DESCRIBE, name, audited=False)
        and broker.topics.get(name) is None
        and name not in INTERNAL_TOPICS
        and _is_legal(name)
    ]
    if missing and not context.may_use_cluster(AclOperation.CREATE, audited=False):
        refused = [name for name in missing if not context.may_use_topic(AclOperation.CREATE, name)]
        failed.update(dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        missing = [name for name in missing if name not in failed]
    return missing


async def _create(
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    names: list[str],
    failed: dict[str, ErrorCode],
) -> bytes:
    settings = context.broker.settings
    most = max(1, settings.integer("max.partitions.per.request") // settings.integer("num.partitions"))
    failed.update(dict.fromkeys(names[most:], ErrorCode.POLICY_VIOLATION))
    quota = MutationQuota(context, _NEVER_STRICT)
    pace = Pace(context)
    for name in names[:most]:
        await pace.step()  # topics that can't be created wait for nothing else
        try:
            topic = await context.broker.metadata.topic_admin.create_topic(name)
            quota.charge(len(topic.partitions))
        except TopicExists:
            pass  # it has been created meanwhile
        except PylogdError as error:
            failed[name] = explain(error)[0]
            continue
        await context.broker.hosting.settled(name)
    answer = _answer(context, request, asked, failed, quota)
    return await answer if isinstance(answer, Deferred) else answer


def _answer(
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    failed: dict[str, ErrorCode],
    quota: MutationQuota | None = None,
) -> bytes | Deferred[bytes]:
    pieces = pieces_for(context)
    around = _around(context, request, pieces, quota)
    encoded: list[bytes] = []

    def fill() -> Iterator[int]:
        for wanted in asked:
            found = _find(context, wanted, failed)
            if isinstance(found, Topic):
                encoded.append(_encode(context, request, pieces, found))
                yield TOPIC_WORK + PARTITION_WORK * len(found.partitions)
            else:
                encoded.append(pieces.topics.encode(found))
                yield TOPIC_WORK

    return in_steps(context, fill(), lambda: pieces.topics.join(around, encoded))


def _around(
    context: RequestContext, request: MetadataRequest, pieces: MetadataPieces, quota: MutationQuota | None = None
) -> Around:
    """Return the encoded answer without topics."""
    if quota is None and not request.include_cluster_authorized_operations:
        return pieces.around(context)
    response = head(context)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context)
    if quota is not None:
        quota.applied(response)
    return pieces.topics.around(response)


def _encode(context: RequestContext, request: MetadataRequest, pieces: MetadataPieces, topic: Topic) -> bytes:
    if request.include_topic_authorized_operations:
        return pieces.with_operations(topic, topic_operations(context, topic.name))
    return pieces.of(topic)


def _find(
    context: RequestContext, wanted: MetadataRequestTopic, failed: Mapping[str, ErrorCode]
) -> Topic | MetadataResponseTopic:
    """Return a topic that the client may know, or the error to answer instead."""
    registry = context.broker.topics
    by_id = context.version >= _FIRST_BY_ID
    if wanted.topic_id != _NO_ID:
        topic = registry.by_id(wanted.topic_id) if by_id else None
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.INVALID_REQUEST
            return MetadataResponseTopic(code, None if by_id else wanted.name or "", wanted.topic_id)
        if not context.may_use_topic(AclOperation.DESCRIBE, topic.name):
            return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, wanted.topic_id)
        return topic
    if wanted.name is None:
        return MetadataResponseTopic(ErrorCode.INVALID_REQUEST, None if by_id else "")
    if not context.may_use_topic(AclOperation.DESCRIBE, wanted.name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.name)
    topic = registry.get(wanted.name)
    if topic is None:
        return MetadataResponseTopic(failed.get(wanted.name) or _why_unknown(wanted.name), wanted.name)
    return topic


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True


def _why_unknown(name: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if _is_legal(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
