"""DescribeConfigs (32), versions 0 to 4: list the settings of topics and brokers, with the source of each value.

Behaviour: every setting is listed, defaults too; an empty or null list of names means all. A value's source is
the topic, a dynamic setting of the broker, the configuration file or command line, or the default; synonyms (on
request) are all sources that have a value, the one in force first. Types and documentation come
with version 3 (the latter on request). A broker is named by its id; the empty name is for settings of all brokers, of
which only those are listed that have been set.
Gaps: broker loggers (type 8), client metrics (16) and groups (32) have no settings here: INVALID_REQUEST.
"""

from __future__ import annotations

from dataclasses import replace

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.api.resources import ResourceType, broker_of, check_authorized, topic_of, unsupported
from pylogd.config import ConfigEntry, ConfigSource
from pylogd.errors import PylogdError
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@handles(DescribeConfigsRequest, 0, 4)
def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Return the settings of every resource of the request."""
    return DescribeConfigsResponse(results=[_describe(context, request, resource) for resource in request.resources])


def _describe(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        check_authorized(context, AclOperation.DESCRIBE_CONFIGS, resource)
        entries = _entries(context, resource)
    except PylogdError as error:
        result.error_code, result.error_message = explain(error)
        return result
    wanted = frozenset(resource.configuration_keys or ())
    result.configs = [
        _result(context.version, request, entry) for entry in entries if not wanted or entry.name in wanted
    ]
    return result


def _entries(context: RequestContext, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    settings = context.broker.settings
    if resource.resource_type == ResourceType.TOPIC:
        return settings.describe_topic(topic_of(context, resource.resource_name).configs)
    if resource.resource_type != ResourceType.BROKER:
        raise unsupported(resource.resource_type)
    if broker_of(context, resource.resource_name) is not None:
        return settings.describe()
    return [entry for entry in map(_for_all_brokers, settings.describe()) if entry is not None]


def _for_all_brokers(entry: ConfigEntry) -> ConfigEntry | None:
    """Return the setting as it was set for all brokers, or None if it was not."""
    for synonym in entry.synonyms:
        if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER and synonym.name == entry.name:
            return replace(entry, value=synonym.value, source=synonym.source, synonyms=(synonym,))
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
