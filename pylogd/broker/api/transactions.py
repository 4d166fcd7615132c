"""The code that the APIs of transactions share: permission for a transactional id, error codes for older clients."""

from __future__ import annotations

from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.security.authorizer import AclOperation, ResourceType

#: Whether producers use an epoch for each transaction, by API version (KIP-890).
EPOCH_PER_PRODUCER: Final = 0
EPOCH_PER_TRANSACTION: Final = 2


def may_use_transactional_id(
    context: RequestContext, operation: AclOperation, transactional_id: str, *, audited: bool = True
) -> bool:
    """Return whether the client may do `operation` to a transactional id."""
    return context.may(operation, ResourceType.TRANSACTIONAL_ID, transactional_id, audited=audited)


def for_version(error: ErrorCode, version: int, first_with_fenced: int) -> ErrorCode:
    """Return the error code for PRODUCER_FENCED that clients of a version know."""
    if error is ErrorCode.PRODUCER_FENCED and version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
