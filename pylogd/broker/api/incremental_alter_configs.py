"""IncrementalAlterConfigs (44), versions 0 and 1: change some settings of topics, brokers, groups and
subscriptions to metrics of clients (KIP-339).

Behaviour: the operations are SET, DELETE (back to the default), APPEND and SUBTRACT (lists only). Settings that the
request doesn't name stay. Each resource is changed or refused separately, with all of its settings or none. A broker is
named by its id; the empty name means all brokers. `validate_only` makes all checks of a change. INVALID_REQUEST is the
error for a resource that a request names twice, a setting that a resource has twice, and a SET, APPEND or SUBTRACT
without a value.
Gaps: those of DescribeConfigs.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.resources import alter_each, alter_one, check_authorized
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@handles(IncrementalAlterConfigsRequest, 0, 1)
def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Deferred[IncrementalAlterConfigsResponse]:
    """Change the settings of every resource."""
    return Deferred.fromCoroutine(_alter_all(context, request))


async def _alter_all(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    async def alter(resource: AlterConfigsResource) -> None:
        await _alter(context, resource, request.validate_only)

    answers = await alter_each(context, request.resources, alter)
    return IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse(*answer) for answer in answers])


async def _alter(context: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    check_authorized(context, AclOperation.ALTER_CONFIGS, resource)
    broker = context.broker
    changes = [_change(config) for config in resource.configs]
    await alter_one(
        context,
        resource,
        lambda name: broker.metadata.topic_admin.alter_topic_configs(name, changes, validate_only=validate_only),
        lambda whose: broker.metadata.broker_configs.alter(whose, changes, validate_only=validate_only),
        lambda group: broker.metadata.group_configs.alter(group, changes, validate_only=validate_only),
        lambda name: broker.metadata.client_metrics.alter(name, changes, validate_only=validate_only),
    )


def _change(config: AlterableConfig) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{config.name}: there is no operation {config.config_operation}"
        ) from None
    return ConfigChange(config.name, operation, config.value)
