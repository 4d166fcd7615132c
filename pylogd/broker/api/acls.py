"""The code that the three APIs of ACLs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.authorizer import AclOperation

T = TypeVar("T")
R = TypeVar("R")


def acls_for(context: RequestContext, operation: AclOperation) -> AclStore:
    """Return the ACLs if the client may do `operation` to the cluster.

    Raises KafkaError: CLUSTER_AUTHORIZATION_FAILED, or SECURITY_DISABLED if the broker has no ACLs.
    """
    if not context.may_use_cluster(operation):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    acls = context.broker.security.acls
    if acls is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "This broker has no authorizer, so it has no ACLs; set authorizer.class.name on all brokers.",
        )
    return acls


async def each_or_error(pace: Pace, items: Iterable[T], make: Callable[[T], R]) -> list[R | KafkaError]:
    """Return the result of `make` for each item, or the KafkaError that it raises."""
    made: list[R | KafkaError] = []
    for item in items:
        await pace.step()
        try:
            made.append(make(item))
        except KafkaError as error:
            made.append(error)
    return made
