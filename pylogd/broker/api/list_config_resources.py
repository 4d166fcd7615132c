"""ListConfigResources (74), versions 0 and 1: list the resources that can have settings (KIP-1142).

Behaviour: lists the resources of the requested types, or of all types: topics, brokers, subscriptions to metrics of
clients, and the groups that have settings of their own. A type without settings gets UNSUPPORTED_VERSION. Version 0
asks for subscriptions. A client needs DESCRIBE_CONFIGS on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.resources import ResourceType
from pylogd.broker.api.slices import in_slices
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

#: The types that Kafka knows but that have no resources here: loggers.
_EMPTY: Final = (8,)
_RESOURCE_WORK = 30  # the work for a resource, as bytes of an answer whose encoding takes as long


@handles(ListConfigResourcesRequest, 0, 1)
def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Deferred[Any]:
    """Return the names and types of the resources."""
    if not context.may_use_cluster(AclOperation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = request.resource_types if context.version > 0 else [ResourceType.CLIENT_METRICS]
    kinds = dict.fromkeys(wanted) or dict.fromkeys((*ResourceType, *_EMPTY))
    if not kinds.keys() <= {*ResourceType, *_EMPTY}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse()

    def steps() -> Iterator[int]:
        for kind in kinds:
            for name in _names(context, kind):
                response.config_resources.append(ConfigResource(name, kind))
                yield _RESOURCE_WORK + len(name)

    return in_slices(context, request.API_KEY, steps(), response)


def _names(context: RequestContext, kind: int) -> list[str]:
    broker = context.broker
    match kind:
        case ResourceType.TOPIC:
            return sorted(topic.name for topic in broker.topics.all())
        case ResourceType.BROKER:
            return [str(node_id) for node_id in sorted(broker.cluster.brokers)]
        case ResourceType.GROUP:
            return broker.metadata.group_configs.names()
        case ResourceType.CLIENT_METRICS:
            return broker.metadata.client_metrics.names()
    return []
