"""Metadata (3), versions 0 to 13: list the brokers, and the leaders of partitions.

Behaviour: no topics (null; at version 0 an empty list) means all of them, an empty list none. Topics are named, from
version 12 on also by id. A topic that does not exist is created with the broker's defaults if the request (before
version 4 each request does) and `auto.create.topics.enable` allow it, and answered once it can be used, so that clients
need not ask twice; those beyond `max.partitions.per.request` are POLICY_VIOLATION. Internal topics are not created this
way. Illegal names are INVALID_TOPIC_EXCEPTION, other unknown ones UNKNOWN_TOPIC_OR_PARTITION, unknown ids
UNKNOWN_TOPIC_ID. Partitions without a live leader are LEADER_NOT_AVAILABLE; a live leader without the client's listener
is LISTENER_NOT_FOUND from version 6 on, before that LEADER_NOT_AVAILABLE. Offline replicas are those of brokers that
are not alive, and those whose log directory has failed (KIP-112). A topic that is named more than once is answered
once, as in Kafka.

A topic that the client may not DESCRIBE is TOPIC_AUTHORIZATION_FAILED, whether it exists or not, and is missing where
all are listed. To create one takes CREATE on it or on the cluster. What is created counts for the client's
`controller_mutation_rate`: a client over it has to wait (KIP-599).

Caching: the response for a topic is kept as long as the topic and the brokers do not change; entries of deleted topics
are dropped when there are many. The response for all topics is kept encoded, for each version, listener and set of
topics that a client may see, until anything in it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred

from pylogd.api.authorized import NOT_ASKED, cluster_operations, topic_operations
from pylogd.api.brokers import offline_replicas, reachable_brokers
from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.api.metering import MutationQuota
from pylogd.api.registry import handles
from pylogd.api.slices import Pace, in_slices, next_turn
from pylogd.errors import ErrorCode, PylogdError
from pylogd.metadata.errors import InvalidTopicName, TopicExists
from pylogd.metadata.image import INTERNAL_TOPICS, NO_LEADER, Topic, check_topic_name
from pylogd.security.authorizer import AclOperation
from pylogd.wire import schema
from pylogd.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from pylogd.metadata.cluster import Cluster
    from pylogd.metadata.topics import TopicRegistry

_FIRST_WITH_NULL = 1
_FIRST_WITH_LISTENER_NOT_FOUND = 6
_FIRST_BY_ID = 12
_NEVER_STRICT = 1 << 15  # no version refuses to create topics because of a quota
_NO_ID = bytes(16)
_MAX_CACHED_DELETED = 100
_MAX_CACHED_RESPONSES = 8
_MANY = 500  # topics: looking at them takes some milliseconds
# What takes as long as adding so many bytes to an answer:
_TOPIC_WORK = 60
_PARTITION_WORK = 60


class _CachedTopic(NamedTuple):
    """A topic, the generation of the brokers, the response while all leaders can be reached, and those leaders."""

    topic: Topic
    generation: int
    answer: MetadataResponseTopic
    leaders: frozenset[int]


_Brokers = tuple[tuple[int, str, int, str | None], ...]
_Cache = dict[str, _CachedTopic]
_caches: WeakKeyDictionary[TopicRegistry, _Cache] = WeakKeyDictionary()


@dataclass(slots=True)
class _CachedResponses:
    """Encoded responses for all topics, by everything else that they depend on."""

    generation: int
    answers: dict[Hashable, bytes] = field(default_factory=dict)
    building: dict[Hashable, list[Deferred[bytes]]] = field(default_factory=dict)  # who waits for an answer

    def keep(self, key: Hashable, answer: bytes) -> None:
        """Keep an answer; forget all others if there are many."""
        if len(self.answers) == _MAX_CACHED_RESPONSES:
            self.answers.clear()
        self.answers[key] = answer


_cached_responses: WeakKeyDictionary[TopicRegistry, _CachedResponses] = WeakKeyDictionary()


@handles(MetadataRequest, 0, 13)
def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse | bytes | Deferred[Any]:
    """Return the response, encoded if it is for all topics; a Deferred of it if it is large or creates topics first."""
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
) -> MetadataResponse | bytes:
    """Answer as `metadata` does, with turns of the reactor for other connections in between."""
    missing: list[str] = []
    for start in range(0, len(asked), _MANY):
        missing += _to_create(context, request, asked[start : start + _MANY], failed)
        await next_turn(context)
    return await _create(context, request, asked, missing, failed)


def _everything(context: RequestContext, request: MetadataRequest) -> bytes | Deferred[bytes]:
    registry = context.broker.topics
    cached = _cached_responses.get(registry)
    if cached is None or cached.generation != registry.generation:
        cached = _cached_responses[registry] = _CachedResponses(registry.generation)
    brokers = tuple(reachable_brokers(context))
    topics = registry.all()
    visible = None  # all of them
    operations: Hashable = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    if context.broker.authorizer is not None:
        topics = [t for t in topics if context.may_use_topic(AclOperation.DESCRIBE, t.name, audited=False)]
        visible = tuple(topic.name for topic in topics) if len(topics) < len(registry) else None
        operations = _operations(context, request, topics)
    key = (
        context.version, brokers, context.broker.cluster.generation, context.broker.cluster.controller_id, visible,
        operations,
    )  # fmt: skip
    found = cached.answers.get(key)
    return found if found is not None else _build(context, request, cached, key, topics, brokers)


def _build(
    context: RequestContext,
    request: MetadataRequest,
    cached: _CachedResponses,
    key: Hashable,
    topics: Iterable[Topic],
    brokers: _Brokers,
) -> bytes | Deferred[bytes]:
    """Return the encoded response for these topics, and keep it under `key`; those who ask meanwhile wait for it."""
    waiting = cached.building.get(key)
    if waiting is not None:
        waiting.append(Deferred())
        return waiting[-1]
    describe = _describer(context, brokers)
    response = _head(context, request, brokers)

    def describe_each() -> Iterator[int]:
        for topic in topics:
            yield _add(context, request, response, describe(topic))

    made = in_slices(context, MetadataRequest.API_KEY, describe_each(), response)
    if isinstance(made, Deferred):
        waiting = cached.building[key] = [Deferred()]

        def built(result: Any) -> None:
            del cached.building[key]
            if isinstance(result, bytes):
                cached.keep(key, result)
            for one in waiting:
                one.callback(result)

        first = waiting[0]
        made.addBoth(built)
        return first
    (encoded,) = schema.response_codec(MetadataRequest.API_KEY, context.version).encode(response)
    assert isinstance(encoded, bytes)
    cached.keep(key, encoded)
    return encoded


def _operations(context: RequestContext, request: MetadataRequest, topics: Iterable[Topic]) -> Hashable:
    """Return what an encoded response tells of the client's authorized operations."""
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
    """Return the topics to create; put into `failed` those that the client may not create."""
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
) -> MetadataResponse | bytes:
    settings = context.broker.settings
    most = max(1, settings.integer("max.partitions.per.request") // settings.integer("num.partitions"))
    failed.update(dict.fromkeys(names[most:], ErrorCode.POLICY_VIOLATION))
    quota = MutationQuota(context, _NEVER_STRICT)
    pace = Pace(context)
    for name in names[:most]:
        await pace.step()  # those that can't be created wait for nothing else
        try:
            topic = await context.broker.topic_admin.create_topic(name)
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
) -> MetadataResponse | Deferred[bytes]:
    brokers = tuple(reachable_brokers(context))
    response = _head(context, request, brokers)
    if quota is not None:
        quota.applied(response)
    return in_slices(context, request.API_KEY, _fill(context, request, asked, failed, brokers, response), response)


def _fill(
    context: RequestContext,
    request: MetadataRequest,
    asked: Iterable[MetadataRequestTopic],
    failed: Mapping[str, ErrorCode],
    brokers: _Brokers,
    response: MetadataResponse,
) -> Iterator[int]:
    """Add to the response what each topic that is asked for is answered with."""
    describe = _describer(context, brokers)
    for wanted in asked:
        found = _find(context, wanted, failed)
        yield _add(context, request, response, describe(found) if isinstance(found, Topic) else found)


def _find(
    context: RequestContext, wanted: MetadataRequestTopic, failed: Mapping[str, ErrorCode]
) -> Topic | MetadataResponseTopic:
    """Return a topic that the client may know, or the answer instead of it."""
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


def _cache(registry: TopicRegistry) -> _Cache:
    cache = _caches.get(registry)
    if cache is None:
        cache = _caches[registry] = {}
    if len(cache) > 2 * len(registry) + _MAX_CACHED_DELETED:
        cache.clear()  # most entries are of deleted topics
    return cache


def _describer(context: RequestContext, brokers: _Brokers) -> Callable[[Topic], MetadataResponseTopic]:
    """Return a function that describes a topic to this client. Never change its results: requests share them."""
    cache = _cache(context.broker.topics)
    cluster = context.broker.cluster
    reachable = {broker[0] for broker in brokers}

    def describe(topic: Topic) -> MetadataResponseTopic:
        found = cache.get(topic.name)
        if found is None or found.topic is not topic or found.generation != cluster.generation:
            found = cache[topic.name] = _describe(cluster, topic)
        return found.answer if found.leaders <= reachable else _hide_leaders(context, found.answer, reachable)

    return describe


def _hide_leaders(context: RequestContext, topic: MetadataResponseTopic, reachable: set[int]) -> MetadataResponseTopic:
    """Return the response for a topic without those leaders that the client can't reach."""
    alive = context.broker.cluster.brokers if context.version >= _FIRST_WITH_LISTENER_NOT_FOUND else ()

    def hide(partition: MetadataResponsePartition) -> MetadataResponsePartition:
        leader = partition.leader_id
        if leader == NO_LEADER or leader in reachable:
            return partition
        code = ErrorCode.LISTENER_NOT_FOUND if leader in alive else ErrorCode.LEADER_NOT_AVAILABLE
        return replace(partition, error_code=code, leader_id=NO_LEADER)

    return replace(topic, partitions=[hide(partition) for partition in topic.partitions])


def _describe(cluster: Cluster, topic: Topic) -> _CachedTopic:
    partitions = [
        MetadataResponsePartition(
            ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else ErrorCode.NONE,
            state.index,
            state.leader,
            state.leader_epoch,
            list(state.replicas),
            list(state.isr),
            offline_replicas(cluster.brokers, topic.topic_id, state),
        )
        for state in topic.partitions
    ]
    answer = MetadataResponseTopic(0, topic.name, topic.topic_id, topic.internal, partitions)
    leaders = frozenset(state.leader for state in topic.partitions) - {NO_LEADER}
    return _CachedTopic(topic, cluster.generation, answer, leaders)


def _head(context: RequestContext, request: MetadataRequest, brokers: _Brokers) -> MetadataResponse:
    """Return the response without topics."""
    broker = context.broker
    return MetadataResponse(
        brokers=[MetadataResponseBroker(*found) for found in brokers],
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id,
        cluster_authorized_operations=(
            cluster_operations(context) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _add(
    context: RequestContext, request: MetadataRequest, response: MetadataResponse, topic: MetadataResponseTopic
) -> int:
    """Add a topic to the response. Return how much work that and encoding it is, as `in_slices` counts it."""
    if request.include_topic_authorized_operations and not topic.error_code and topic.name is not None:
        topic = replace(topic, topic_authorized_operations=topic_operations(context, topic.name))
    response.topics.append(topic)
    return _TOPIC_WORK + _PARTITION_WORK * len(topic.partitions)
