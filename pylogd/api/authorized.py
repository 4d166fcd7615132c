"""Authorized operations, the bit fields of Metadata, DescribeCluster and DescribeGroups (KIP-430).

Every operation that a kind of resource has is authorized: nothing asks the authorizer yet. A client that doesn't ask
gets `NOT_ASKED`.
"""

from __future__ import annotations

from pylogd.security.authorizer import AclOperation

NOT_ASKED = -(1 << 31)


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
GROUP_OPERATIONS = _bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
CLUSTER_OPERATIONS = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
