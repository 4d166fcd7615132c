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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.api.brokers import reachable_brokers
from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.api.slices import in_slices
from pylogd.errors import ErrorCode
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
_FIRST_WITH_MANY = 4
_NOBODY = -1


#: How long finding one coordinator takes, as bytes of an answer whose encoding takes as long: for a key, and for each
#: of its characters, over which a hash is computed.
_KEY_WORK = 60
_CHARACTER_WORK = 2

#: The answer for a key, and the broker that will coordinate it once the offsets topic has been created.
_Waiting = tuple[Coordinator, Deferred[int | ErrorCode]]


@handles(FindCoordinatorRequest, 0, 6)
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Deferred[Any]:
    """Return the coordinator of the key, or of each key; a Deferred while the offsets topic is being created."""
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
    """Add the coordinator of each key to `found`, and to `waiting` those that are not known yet."""
    coordinator_of = context.broker.groups.coordinator_of
    for key in keys:
        coordinator = Coordinator(key, _NOBODY, "", _NOBODY, error_message=None)
        found.append(coordinator)
        if key_type != GROUP:
            coordinator.error_code, coordinator.error_message = _why_refused(context, key_type, key)
        elif not context.may_use_group(AclOperation.DESCRIBE, key):
            _locate(coordinator, addresses, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        else:
            leader = coordinator_of(key)
            if isinstance(leader, Deferred):
                waiting.append((coordinator, leader))
            else:
                _locate(coordinator, addresses, leader)
        yield _KEY_WORK + _CHARACTER_WORK * len(key)


def _locate(coordinator: Coordinator, addresses: Mapping[int, tuple[str, int]], leader: int | ErrorCode) -> None:
    """Fill the answer for a key: the address of its coordinator, or why there is none."""
    if not isinstance(leader, ErrorCode) and leader in addresses:
        coordinator.node_id = leader
        coordinator.host, coordinator.port = addresses[leader]
        return
    code = leader if isinstance(leader, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.error_code, coordinator.error_message = code, code.text


def _why_refused(context: RequestContext, key_type: int, key: str) -> tuple[ErrorCode, str]:
    """Return why there is no coordinator for a key of another type than a group."""
    if key_type != TRANSACTION:
        return ErrorCode.INVALID_REQUEST, f"There is no coordinator for keys of type {key_type}."
    if context.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
        return ErrorCode.UNSUPPORTED_VERSION, "Transactions are not available on this broker."
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return refused, refused.text
