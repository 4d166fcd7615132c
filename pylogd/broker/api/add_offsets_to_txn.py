"""AddOffsetsToTxn (25), versions 0 to 4: add the offsets of a group to a transaction.

Behaviour: adds the partition of `__consumer_offsets` that stores the group; TxnOffsetCommit follows. From
TxnOffsetCommit 5 on the group's coordinator adds the partition itself. The topic is created if it is missing. The
errors are those of AddPartitionsToTxn. A client needs WRITE for the transactional id and READ for the group.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.names import MAX_GROUP_ID
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.transactions import EPOCH_PER_PRODUCER, for_version, may_use_transactional_id
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FIRST_WITH_FENCED = 2


@handles(AddOffsetsToTxnRequest, 0, 4)
def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Deferred[AddOffsetsToTxnResponse]:
    """Add the partition that stores the group's offsets."""
    if not may_use_transactional_id(context, AclOperation.WRITE, request.transactional_id):
        return _answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _answer(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if len(request.group_id) > MAX_GROUP_ID:
        return _answer(ErrorCode.INVALID_GROUP_ID)
    return Deferred.fromCoroutine(_add(context, request))


async def _add(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    groups = context.broker.groups
    if groups.offsets_partition(request.group_id) is None:
        # A client without a consumer asks for the group's coordinator only after this answer; that request creates the
        # topic.
        creating = groups.coordinator_of(request.group_id)
        if isinstance(creating, Deferred):
            await creating
    partition = groups.offsets_partition(request.group_id)
    if partition is None:
        return _answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    error = await context.broker.transactions.add(
        request.transactional_id, request.producer_id, request.producer_epoch, [partition], EPOCH_PER_PRODUCER
    )
    return _answer(for_version(error, context.version, _FIRST_WITH_FENCED))


def _answer(error: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=error)
