"""DescribeConfigs (32), versions 0 to 4: list settings of topics, brokers, groups and subscriptions
to metrics of clients, with the source of each value.

Behaviour: every setting is listed, including defaults; an empty or null list of names means all. A value's source is
the topic or the group, a dynamic setting of the broker, the configuration file or command line, or the default.
Synonyms (on request) are all sources that have a value, the one in force first. Types come with version 3, as does
documentation (on request). A broker is named by its id. The empty name means the settings of all brokers; only those
that have been set are listed. A resource that is named more than once is answered once. Resources that no longer fit
into `response.max.bytes` get INVALID_REQUEST. A broker that is asked for `lagging.consumers.throttled` tells which
clients had to wait for a busy disk in the last minute, the one that waited longest first, as a JSON array.
Gaps: broker loggers (type 8) have no settings here and get INVALID_REQUEST.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.resources import (
    ResourceType,
    broker_of,
    check_authorized,
    group_of,
    subscription_of,
    topic_of,
    unsupported,
)
from pylogd.broker.api.slices import answer_budget, in_slices
from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.isolation.throttled_clients import ThrottledClient
from pylogd.broker.security.authorizer import AclOperation
from pylogd.config import ConfigEntry, ConfigSource
from pylogd.config.client_metrics import describe_subscription
from pylogd.config.values import ConfigType
from pylogd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_THIS_BROKER = "this broker"
_LEAST_WORK = 1000  # the least work for a resource, as bytes of an answer whose encoding takes as long

#: The results that are equal for all topics with the same settings of their own, and about how many bytes they take.
_Results = tuple[list[DescribeConfigsResourceResult], int]


#: No setting, so it is listed only if a request for a broker names it. A broker knows clients, not their groups: see
#: `pylogd.broker.isolation.throttled_clients`.
_THROTTLED: Final = "lagging.consumers.throttled"
_MOST_THROTTLED: Final = 100
_DOC: Final = (
    "Not a setting: the consumers that had to wait for a busy disk in the last minute, as JSON; only listed if it is "
    "asked for by its name."
)


def _throttled_consumers(laggards: LaggardThrottle) -> ConfigEntry:
    """Return the entry of `lagging.consumers.throttled`."""
    value = json.dumps([_as_json(laggards, one) for one in laggards.waits()[:_MOST_THROTTLED]], separators=(",", ":"))
    return ConfigEntry(_THROTTLED, value, ConfigSource.UNKNOWN, True, False, ConfigType.STRING, _DOC, ())


def _as_json(laggards: LaggardThrottle, one: ThrottledClient) -> dict[str, Any]:
    return {
        "client": one.client.client_id,
        "principal": one.client.principal,
        "host": one.client.host,
        "seconds": round(one.recent_seconds, 3),
        "total_seconds": round(one.total_seconds, 3),
        "waits": one.waits,
        "partition": one.partition,
        "directory": one.directory,
        "disk": one.disk,
        "utilization": laggards.utilisation(one.directory),
    }


@handles(DescribeConfigsRequest, 0, 4)
def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Deferred[Any]:
    """Return the settings of every resource of the request."""
    response = DescribeConfigsResponse()
    return in_slices(context, request.API_KEY, _describe_all(context, request, response.results), response)


def _describe_all(
    context: RequestContext, request: DescribeConfigsRequest, results: list[DescribeConfigsResult]
) -> Iterator[int]:
    budget = answer_budget(context)
    known: dict[tuple[object, frozenset[str]], _Results] = {}
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for resource in resources.values():
        before = budget.spent
        results.append(_describe(context, request, resource, known, budget))
        yield budget.spent - before + _LEAST_WORK


def _describe(
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    known: dict[tuple[object, frozenset[str]], _Results],
    budget: AnswerBudget,
) -> DescribeConfigsResult:
    """Return the answer for one resource.

    known: the results of earlier resources, which are shared and never changed.
    """
    result = DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        check_authorized(context, AclOperation.DESCRIBE_CONFIGS, resource)
        kind, list_entries = _source(context, resource)
        wanted = frozenset(resource.configuration_keys or ())
        found = known.get((kind, wanted))
        if found is None:
            entries = [entry for entry in list_entries() if not wanted or entry.name in wanted]
            if _THROTTLED in wanted and kind == _THIS_BROKER:
                entries.append(_throttled_consumers(context.broker.laggards))
            configs = [_result(context.version, request, entry) for entry in entries]
            found = known[kind, wanted] = configs, sum(map(_size, configs))
        if not budget.take(found[1]):
            raise KafkaError(ErrorCode.INVALID_REQUEST, budget.refusal)
        result.configs = found[0]
    except PylogdError as error:
        result.error_code, result.error_message = explain(error)
    return result


def _source(
    context: RequestContext, resource: DescribeConfigsResource
) -> tuple[object, Callable[[], list[ConfigEntry]]]:
    """Return a key that resources with the same settings share, and a function that lists the settings."""
    settings = context.broker.settings
    if resource.resource_type == ResourceType.TOPIC:
        overrides: Mapping[str, str] = topic_of(context, resource.resource_name).configs
        return frozenset(overrides.items()), partial(settings.describe_topic, overrides)
    if resource.resource_type == ResourceType.GROUP:
        own = context.broker.metadata.group_configs.get(group_of(resource.resource_name))
        return ("group", frozenset(own.items())), partial(settings.describe_group, own)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        own = context.broker.metadata.client_metrics.get(subscription_of(resource.resource_name))
        return ("subscription", frozenset(own.items())), partial(describe_subscription, own)
    if resource.resource_type != ResourceType.BROKER:
        raise unsupported(resource.resource_type)
    if broker_of(context, resource.resource_name) is not None:
        return _THIS_BROKER, settings.describe
    return "all brokers", lambda: [entry for entry in map(_for_all_brokers, settings.describe()) if entry is not None]


def _size(result: DescribeConfigsResourceResult) -> int:
    """Return about how many bytes a setting takes in the answer."""
    texts = [result.name, result.value, result.documentation]
    for synonym in result.synonyms:
        texts += (synonym.name, synonym.value)
    return 16 + sum(2 + len(text) for text in texts if text)


def _for_all_brokers(entry: ConfigEntry) -> ConfigEntry | None:
    """Return the setting as it was set for all brokers, or None if it was not set for all."""
    for synonym in entry.synonyms:
        if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER and synonym.name == entry.name:
            return entry._replace(value=synonym.value, source=synonym.source, synonyms=(synonym,))
    return None


def _result(version: int, request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        version == 0 and entry.source is ConfigSource.DEFAULT,  # later versions have the source instead
        entry.sensitive,
        [DescribeConfigsSynonym(synonym.name, synonym.value, synonym.source) for synonym in synonyms],
        entry.type,
        entry.doc if request.include_documentation else None,
    )
