"""EndTxn (26), versions 0 to 5: commit or abort a transaction.

Behaviour: the answer comes when the outcome is decided, that is, stored on the in-sync replicas. The markers are
written to the partitions afterwards; until then further changes get CONCURRENT_TRANSACTIONS. A repeated request gets
the same answer. From version 5 on (KIP-890) the answer has the epoch, and if need be the id, with which the producer
continues, and an abort without a transaction is allowed. A client needs WRITE for the transactional id.
Errors:
- INVALID_TXN_STATE: there is no transaction, or it has the other outcome;
- PRODUCER_FENCED (before version 2 INVALID_PRODUCER_EPOCH): outdated epoch;
- INVALID_PRODUCER_ID_MAPPING: another producer id.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.transactions import (
    EPOCH_PER_PRODUCER,
    EPOCH_PER_TRANSACTION,
    for_version,
    may_use_transactional_id,
)
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.transactions.values import ProducerAnswer
from pylogd.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FIRST_WITH_FENCED = 2
_FIRST_WITH_EPOCH = 5


@handles(EndTxnRequest, 0, 5)
def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Deferred[EndTxnResponse]:
    """Commit or abort the transaction."""
    if not may_use_transactional_id(context, AclOperation.WRITE, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    version = EPOCH_PER_TRANSACTION if context.version >= _FIRST_WITH_EPOCH else EPOCH_PER_PRODUCER
    ended = context.broker.transactions.end(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, version
    )
    return ended.addCallback(lambda answer: _answer(context, answer))


def _answer(context: RequestContext, answer: ProducerAnswer) -> EndTxnResponse:
    error = for_version(answer.error, context.version, _FIRST_WITH_FENCED)
    if error or context.version < _FIRST_WITH_EPOCH:
        return EndTxnResponse(error_code=error)
    return EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.epoch)
