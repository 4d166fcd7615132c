"""CreateTopics (19), versions 0 to 7: create topics.

Behaviour: each topic is created or refused separately. -1 partitions or replicas means the broker's default; a client
may assign the replicas instead. A topic is answered once its partitions can be used. From version 5 on the response has
the topic's settings, with defaults. `validate_only` makes all checks and creates nothing. INVALID_REQUEST is the error
for a name that a request has twice, and for internal topics, which only brokers create. A client needs CREATE on the
cluster or on the topic; without DESCRIBE_CONFIGS it is not told the settings. Topics that can't be used within
`timeout_ms` get REQUEST_TIMED_OUT; they are created later. A client over its `controller_mutation_rate` gets
THROTTLING_QUOTA_EXCEEDED from version 6 on; with earlier versions it has to wait (KIP-599).
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
from pylogd.broker.api.slices import SLICE_BYTES, Pace, answer_budget, encode_in_thread
from pylogd.broker.metadata.errors import InvalidReplicaAssignment, TopicExists
from pylogd.broker.metadata.image import Topic
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_NO_ID = bytes(16)
_KAFKA_METADATA = "__cluster_metadata"
_FIRST_STRICT = 6  # the first version with THROTTLING_QUOTA_EXCEEDED


@handles(CreateTopicsRequest, 0, 7)
def create_topics(context: RequestContext, request: CreateTopicsRequest) -> Deferred[CreateTopicsResponse | bytes]:
    """Create every topic of the request."""
    return Deferred.fromCoroutine(_create_all(context, request))


async def _create_all(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse | bytes:
    everything = context.may_use_cluster(AclOperation.CREATE, audited=False)
    named = Counter(topic.name for topic in request.topics)
    quota = MutationQuota(context, _FIRST_STRICT)
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    results = {name: _refused(name, timed_out, timed_out.text) for name in named}
    configs = _Configs(context)

    async def create_each() -> None:
        pace = Pace(context)
        for wanted in {topic.name: topic for topic in request.topics}.values():
            await pace.step()
            try:
                if named[wanted.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the topic more than once.")
                if not (everything or context.may_use_topic(AclOperation.CREATE, wanted.name)):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                _check_not_internal(context, wanted.name)
                results[wanted.name] = await _create(context, wanted, request.validate_only, quota, configs)
            except PylogdError as error:
                results[wanted.name] = _refused(wanted.name, *explain(error))

    with suppress(KafkaError):
        await wait_for(context, request.timeout_ms, create_each())
    response = quota.applied(CreateTopicsResponse(topics=list(results.values())))
    if configs.size <= SLICE_BYTES:
        return response
    return await encode_in_thread(context, request.API_KEY, response)


def _check_not_internal(context: RequestContext, name: str) -> None:
    """Raise an error for a topic that only brokers create, and for the topic in which Kafka keeps its own metadata."""
    if name in INTERNAL_TOPICS:
        if context.broker.topics.get(name) is not None:
            raise TopicExists(f'topic "{name}" exists already')
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Brokers create this internal topic when it is needed.")
    if name == _KAFKA_METADATA:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topics of this name are for Apache Kafka's own metadata.")


def _refused(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=code, error_message=message, configs=[])


async def _create(
    context: RequestContext, wanted: CreatableTopic, validate_only: bool, quota: MutationQuota, configs: _Configs
) -> CreatableTopicResult:
    broker = context.broker
    assignment = {entry.partition_index: entry.broker_ids for entry in wanted.assignments}
    if len(assignment) < len(wanted.assignments):
        raise InvalidReplicaAssignment("a partition is assigned twice")
    create = partial(
        broker.metadata.topic_admin.create_topic,
        wanted.name,
        partitions=wanted.num_partitions,
        replication_factor=wanted.replication_factor,
        assignment=assignment or None,
        configs={config.name: config.value for config in wanted.configs},
    )
    if quota.active and not validate_only:  # topics that can't be created are not counted
        quota.charge(len((await create(validate_only=True)).partitions))
    topic = await create(validate_only=validate_only)
    if not validate_only:
        await broker.hosting.settled(topic.name)
    topic_id = _NO_ID if validate_only else topic.topic_id
    if not context.may_use_topic(AclOperation.DESCRIBE_CONFIGS, topic.name, audited=False):
        return CreatableTopicResult(
            topic.name, topic_id, error_message=None, topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            configs=[],
        )  # fmt: skip
    listed = configs.of(topic)
    return CreatableTopicResult(
        topic.name,
        topic_id,
        error_message=None,
        topic_config_error_code=ErrorCode.NONE if listed is not None else ErrorCode.INVALID_REQUEST,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=listed,
    )


class _Configs:
    """The settings of the topics in one answer. Topics with the same settings share a list, which is never changed."""

    def __init__(self, context: RequestContext) -> None:
        self._settings = context.broker.settings
        self._budget = answer_budget(context)
        self._known: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    @property
    def size(self) -> int:
        """About how many bytes the returned settings take together."""
        return self._budget.spent

    def of(self, topic: Topic) -> list[CreatableTopicConfigs] | None:
        """Return the settings of a topic; None if they do not fit into the answer."""
        key = frozenset(topic.configs.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [
                CreatableTopicConfigs(entry.name, entry.value, entry.read_only, entry.source, entry.sensitive)
                for entry in self._settings.describe_topic(topic.configs)
            ]
        size = sum(8 + len(config.name) + len(config.value or "") for config in found)
        return found if self._budget.take(size) else None
