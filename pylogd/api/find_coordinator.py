"""FindCoordinator (10), versions 0 to 6: find the broker that coordinates a group.

Behaviour: a group (key type 0) is coordinated by the leader of the partition of the offsets topic that stores it; the
topic is created when it is first needed. COORDINATOR_NOT_AVAILABLE if there is no leader that this client can reach.
From version 4 on a request may have many keys; one that is named more than once is answered once. A group id longer
than `limits.names.MAX_GROUP_ID` is INVALID_GROUP_ID.
Gaps: transactional ids (type 1) are refused with UNSUPPORTED_VERSION and a text that says so: there are no
transactions, and with a retriable error clients would try for ever. Share groups (type 2) and unknown types are
INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred

from pylogd.api.brokers import reachable_brokers
from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
_FIRST_WITH_MANY = 4
_NOBODY = -1


@handles(FindCoordinatorRequest, 0, 6)
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Deferred[FindCoordinatorResponse]:
    """Return the coordinator of the key, or of each key; a Deferred while the offsets topic is being created."""
    keys = list(dict.fromkeys(request.coordinator_keys)) if context.version >= _FIRST_WITH_MANY else [request.key]
    if request.key_type != GROUP:
        return _response(context, [_refused(context, request.key_type, key) for key in keys])
    coordinator_of = context.broker.groups.coordinator_of
    found = [
        coordinator_of(key)
        if context.may_use_group(AclOperation.DESCRIBE, key)
        else ErrorCode.GROUP_AUTHORIZATION_FAILED
        for key in keys
    ]
    if any(isinstance(one, Deferred) for one in found):
        return Deferred.fromCoroutine(_wait(context, keys, found))
    return _locate(context, keys, [one for one in found if not isinstance(one, Deferred)])


async def _wait(
    context: RequestContext, keys: Sequence[str], found: Sequence[int | ErrorCode | Deferred[int | ErrorCode]]
) -> FindCoordinatorResponse:
    leaders = [await one if isinstance(one, Deferred) else one for one in found]
    return _locate(context, keys, leaders)


def _locate(
    context: RequestContext, keys: Sequence[str], leaders: Sequence[int | ErrorCode]
) -> FindCoordinatorResponse:
    addresses = {node_id: (host, port) for node_id, host, port, _ in reachable_brokers(context)}
    return _response(context, [_located(addresses, key, one) for key, one in zip(keys, leaders, strict=True)])


def _response(context: RequestContext, coordinators: list[Coordinator]) -> FindCoordinatorResponse:
    if context.version >= _FIRST_WITH_MANY:
        return FindCoordinatorResponse(coordinators=coordinators)
    (found,) = coordinators
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _located(addresses: Mapping[int, tuple[str, int]], key: str, leader: int | ErrorCode) -> Coordinator:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if isinstance(leader, ErrorCode):
        code = leader
    elif leader in addresses:
        return Coordinator(key, leader, *addresses[leader], error_message=None)
    return Coordinator(key, _NOBODY, "", _NOBODY, code, code.text)


def _refused(context: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type == TRANSACTION and not context.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        message = code.text
    elif key_type == TRANSACTION:
        code, message = ErrorCode.UNSUPPORTED_VERSION, "Transactions are not available on this broker."
    else:
        code, message = ErrorCode.INVALID_REQUEST, f"There is no coordinator for keys of type {key_type}."
    return Coordinator(key, _NOBODY, "", _NOBODY, code, message)
