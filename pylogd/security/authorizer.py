"""The interface of an authorizer: may this client do this to this resource?

The codes are those of the protocol (DescribeAcls and its relatives; KIP-11, KIP-290, KIP-430).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from pylogd.security.principal import Principal


class AclOperation(IntEnum):
    """What is done to a resource."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """A kind of resource."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


#: The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides what clients may do."""

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether `principal`, connected from the address `host`, may do `operation` to the resource `name`."""
