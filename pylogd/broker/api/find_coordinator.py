"""FindCoordinator (10), versions 0 to 6: find the broker that coordinates a group or a transactional id.

Behaviour: the coordinator of a group (key type 0) is the leader of the partition of `__consumer_offsets` that stores
the group. For a transactional id (type 1) it is the leader of a partition of `__transaction_state`. The topic is
created when it is first needed. If this client can reach no leader, it gets COORDINATOR_NOT_AVAILABLE. From version 4
on a request may have many keys; a key that is named more than once is answered once. A group id longer than
`limits.names.MAX_GROUP_ID` gets INVALID_GROUP_ID; a transactional id that is longer or empty gets INVALID_REQUEST.
Gaps: share groups (type 2) and unknown types get INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.brokers import reachable_brokers
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.api.transactions import may_use_transactional_id
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
_FIRST_WITH_MANY = 4
_NOBODY = -1


#: The work of finding one coordinator, as bytes of an answer whose encoding takes as long: for a key, and for each of
#: its characters, which are hashed.
_KEY_WORK = 60
_CHARACTER_WORK = 2

#: The answer for a key, and the broker that will coordinate it once the internal topic has been created.
_Waiting = tuple[Coordinator, Deferred[int | ErrorCode]]


@handles(FindCoordinatorRequest, 0, 6)
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Deferred[Any]:
    """Return the coordinator of each key, or a Deferred of them while the internal topic is being created."""
    many = context.version >= _FIRST_WITH_MANY
    keys = list(dict.fromkeys(request.coordinator_keys)) if many else [request.key]
    addresses = {node_id: (host, port) for node_id, host, port, _ in reachable_brokers(context)}
    response = FindCoordinatorResponse()
    found: list[Coordinator] = response.coordinators if many else []
    waiting: list[_Waiting] = []

    async def wait() -> None:
        for coordinator, leader in waiting:
            _locate(coordinator, addresses, await leader)
        complete()

    def complete() -> None:
        if not many:
            (one,) = found
            response.error_code, response.error_message = one.error_code, one.error_message
            response.node_id, response.host, response.port = one.node_id, one.host, one.port

    def finish() -> Deferred[None] | None:
        if waiting:
            return Deferred.fromCoroutine(wait())
        complete()
        return None

    steps = _find_each(context, request.key_type, keys, addresses, found, waiting)
    return in_slices(context, request.API_KEY, steps, response, finish)


def _find_each(
    context: RequestContext,
    key_type: int,
    keys: Sequence[str],
    addresses: Mapping[int, tuple[str, int]],
    found: list[Coordinator],
    waiting: list[_Waiting],
) -> Iterator[int]:
    """Add the known coordinators to `found`, and the keys whose coordinator is unknown to `waiting`."""
    for key in keys:
        coordinator = Coordinator(key, _NOBODY, "", _NOBODY, error_message=None)
        found.append(coordinator)
        leader = _coordinator_of(context, key_type, key)
        if isinstance(leader, Deferred):
            waiting.append((coordinator, leader))
        else:
            _locate(coordinator, addresses, leader)
        yield _KEY_WORK + _CHARACTER_WORK * len(key)


def _locate(coordinator: Coordinator, addresses: Mapping[int, tuple[str, int]], leader: int | ErrorCode) -> None:
    """Fill the answer for a key: the address of its coordinator, or an error code."""
    if not isinstance(leader, ErrorCode) and leader in addresses:
        coordinator.node_id = leader
        coordinator.host, coordinator.port = addresses[leader]
        return
    code = leader if isinstance(leader, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.error_code, coordinator.error_message = code, code.text


def _coordinator_of(context: RequestContext, key_type: int, key: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
    """Return the node id of the coordinator of a key, or an error code for this client."""
    if key_type == GROUP:
        if not context.may_use_group(AclOperation.DESCRIBE, key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return context.broker.groups.coordinator_of(key)
    if key_type != TRANSACTION:
        return ErrorCode.INVALID_REQUEST
    if not may_use_transactional_id(context, AclOperation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return context.broker.transactions.coordinator_of(key)
