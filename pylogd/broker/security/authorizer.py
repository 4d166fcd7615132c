"""The interface of an authorizer, which decides whether a client may do an operation on a resource.

The codes are those of the protocol (DescribeAcls and related requests; KIP-11, KIP-290, KIP-430). `rules.AclAuthorizer`
decides by access control lists; `authorizer.class.name` may name another implementation.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from pylogd.credentials.principal import Principal


class AclOperation(IntEnum):
    """An operation on a resource. ALL in an ACL means every operation; ANY in a filter matches every operation."""

    ANY = 1
    ALL = 2
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
    """A resource type. ANY occurs only in filters of ACLs, where it matches every type."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


#: The name of the only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides what clients may do. It is called on the reactor's thread, so it must not wait for anything.

    version: a number that differs after each change that may affect a decision. When it changes, a fetch session at the
        end of its partitions checks them again.
    """

    @property
    def version(self) -> int: ...

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether `principal`, connected from the address `host`, may do `operation` to the resource `name`."""

    def authorize_any(self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether `principal` may do `operation` to at least one resource of a type (KIP-679).

        It is used for idempotent producers, which may get a producer id if they may write to any topic.
        """
