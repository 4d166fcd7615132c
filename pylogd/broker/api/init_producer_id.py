"""InitProducerId (22), versions 0 to 5: give an idempotent or transactional producer an id and an epoch.

Behaviour: ids come from blocks that are stored before they are used, so no id is given twice, even after a crash. An
idempotent producer gets a new id and epoch 0 with every request. As in Kafka, the id and epoch that a producer may send
(from version 3 on, KIP-360) count for transactional producers only; an idempotent producer raises its epoch itself. An
id without an epoch, or an epoch without an id, gets INVALID_REQUEST.

With a transactional id the coordinator answers; other brokers return NOT_COORDINATOR. The answer is the same id with
the next epoch, which fences every producer with an earlier epoch. If a transaction is open, it is aborted first, and
the answer is CONCURRENT_TRANSACTIONS until that is done. A timeout over `transaction.max.timeout.ms` gets
INVALID_TRANSACTION_TIMEOUT, an empty transactional id INVALID_REQUEST. A producer with an outdated id or epoch gets
PRODUCER_FENCED, before version 4 INVALID_PRODUCER_EPOCH.

A client needs WRITE for the transactional id. Without a transactional id it needs WRITE for any topic (KIP-679), or
IDEMPOTENT_WRITE on the cluster.
Gaps: two-phase commit (KIP-939, version 6) is not served.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.transactions import for_version, may_use_transactional_id
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.transactions.values import ProducerAnswer
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NONE = -1
_FIRST_WITH_FENCED = 4


@handles(InitProducerIdRequest, 0, 5)
def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    """Return an id and an epoch."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not may_use_transactional_id(context, AclOperation.WRITE, transactional_id):
            return _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not (
        context.may_use_cluster(AclOperation.IDEMPOTENT_WRITE, audited=False)
        or context.may_any(AclOperation.WRITE, ResourceType.TOPIC)
    ):
        return _refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _refuse(ErrorCode.INVALID_REQUEST)
    if transactional_id is None:
        return Deferred.fromCoroutine(_new(context))
    expected = None if request.producer_id == _NONE else (request.producer_id, request.producer_epoch)
    timeout_ms, transactions = request.transaction_timeout_ms, context.broker.transactions
    answer = transactions.initialize(transactional_id, timeout_ms, expected, context.share)
    return answer.addCallback(lambda given: _answer(context, given))


def _answer(context: RequestContext, given: ProducerAnswer) -> InitProducerIdResponse:
    error = for_version(given.error, context.version, _FIRST_WITH_FENCED)
    return (
        _refuse(error) if error else InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.epoch)
    )


async def _new(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await context.broker.metadata.producer_ids.next()
    except PylogdError as error:
        return _refuse(explain(error)[0])
    return InitProducerIdResponse(producer_id=producer_id)


def _refuse(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
