"""The interface of an authorizer: may this client do this to this resource?

The codes are those of the protocol (DescribeAcls and its relatives; KIP-11, KIP-290, KIP-430). `rules.AclAuthorizer`
decides by access control lists; `authorizer.class.name` may name another implementation.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from pylogd.security.principal import Principal


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
    """A kind of resource. ANY occurs only in filters of ACLs, where it matches every kind."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


#: The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides what clients may do. It is asked on the reactor's thread, so it must not wait for anything.

    version: another number after each change that may change a decision. A fetch session that is at the end of its
        partitions looks at them again when the number changes.
    """

    @property
    def version(self) -> int: ...

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether `principal`, connected from the address `host`, may do `operation` to the resource `name`."""

    def authorize_any(self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether `principal` may do `operation` to at least one resource of a type (KIP-679).

        It is asked of idempotent producers, which may get a producer id if they may write to any topic.
        """
