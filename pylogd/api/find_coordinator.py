"""FindCoordinator (10), versions 0 to 6: which broker coordinates a group.

Behaviour: groups (key type 0) are coordinated by this broker. From version 4 on many keys are answered at once.
Gaps: transactional ids (type 1) are refused with UNSUPPORTED_VERSION and a text that says so: there are no
transactions, and a client that was told to try again would do so for ever. Share groups (type 2) and unknown types are
INVALID_REQUEST.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
_FIRST_WITH_MANY = 4
_NOBODY = -1


@handles(FindCoordinatorRequest, 0, 6)
def find_coordinator(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Answer the key, or each of the keys."""
    if context.version >= _FIRST_WITH_MANY:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(context, request.key_type, key) for key in request.coordinator_keys]
        )
    found = _coordinator(context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(context: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type == GROUP:
        host, port = context.broker.advertised(context.connection.listener)
        return Coordinator(key, context.broker.node_id, host, port, error_message=None)
    if key_type == TRANSACTION:
        code, message = ErrorCode.UNSUPPORTED_VERSION, "Transactions are not available on this broker."
    else:
        code, message = ErrorCode.INVALID_REQUEST, f"There is no coordinator for keys of type {key_type}."
    return Coordinator(key, _NOBODY, "", _NOBODY, code, message)
