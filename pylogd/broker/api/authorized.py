"""Authorized operations, the bit fields of Metadata, DescribeCluster and DescribeGroups (KIP-430).

A client that doesn't ask gets `NOT_ASKED`. Without an authorizer every operation of a resource type is authorized.
"""

from __future__ import annotations

from pylogd.broker.api.context import RequestContext
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType

NOT_ASKED = -(1 << 31)


TOPIC_OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
GROUP_OPERATIONS = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)

_EVERYTHING = {
    resource: sum(1 << operation for operation in operations)
    for resource, operations in (
        (ResourceType.TOPIC, TOPIC_OPERATIONS),
        (ResourceType.GROUP, GROUP_OPERATIONS),
        (ResourceType.CLUSTER, CLUSTER_OPERATIONS),
    )
}


def topic_operations(context: RequestContext, name: str) -> int:
    """Return the operations that the client may do on a topic."""
    return _authorized(context, ResourceType.TOPIC, name, TOPIC_OPERATIONS)


def group_operations(context: RequestContext, group_id: str) -> int:
    """Return the operations that the client may do on a group."""
    return _authorized(context, ResourceType.GROUP, group_id, GROUP_OPERATIONS)


def cluster_operations(context: RequestContext) -> int:
    """Return the operations that the client may do on the cluster. As in Kafka, 0 if it may not DESCRIBE it."""
    if not context.may_use_cluster(AclOperation.DESCRIBE):
        return 0
    return _authorized(context, ResourceType.CLUSTER, CLUSTER_NAME, CLUSTER_OPERATIONS)


def _authorized(
    context: RequestContext, resource: ResourceType, name: str, operations: tuple[AclOperation, ...]
) -> int:
    if context.broker.authorizer is None:
        return _EVERYTHING[resource]
    return sum(1 << operation for operation in operations if context.may(operation, resource, name, audited=False))
