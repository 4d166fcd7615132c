"""AlterConfigs (33), versions 0 to 2: replace all settings of topics, brokers and groups.

Behaviour: settings that the request doesn't name return to their defaults. Each resource is changed or refused
separately, with all of its settings or none. A broker is named by its id; the empty name means all brokers.
`validate_only` makes all checks of a change. A resource that a request names twice, or a setting without a value, is
refused with INVALID_REQUEST.
Gaps: those of DescribeConfigs.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.resources import alter_each, alter_one, check_authorized
from pylogd.broker.metadata.errors import InvalidChange
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(AlterConfigsRequest, 0, 2)
def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> Deferred[AlterConfigsResponse]:
    """Replace the settings of every resource."""
    return Deferred.fromCoroutine(_alter_all(context, request))


async def _alter_all(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def alter(resource: AlterConfigsResource) -> None:
        await _alter(context, resource, request.validate_only)

    answers = await alter_each(context, request.resources, alter)
    return AlterConfigsResponse(responses=[AlterConfigsResourceResponse(*answer) for answer in answers])


async def _alter(context: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    check_authorized(context, AclOperation.ALTER_CONFIGS, resource)
    broker = context.broker
    configs: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise InvalidChange(f"{config.name} needs a value")
        if config.name in configs:
            raise InvalidChange(f"{config.name} is named twice")
        configs[config.name] = config.value
    await alter_one(
        context,
        resource,
        lambda name: broker.metadata.topic_admin.set_topic_configs(name, configs, validate_only=validate_only),
        lambda whose: broker.metadata.broker_configs.replace(whose, configs, validate_only=validate_only),
        lambda group: broker.metadata.group_configs.replace(group, configs, validate_only=validate_only),
        lambda name: broker.metadata.client_metrics.replace(name, configs, validate_only=validate_only),
    )
