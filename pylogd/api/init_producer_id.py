"""InitProducerId (22), versions 0 to 5: give an idempotent producer an id.

Behaviour: ids come from blocks that are stored before they are used, so no id is given twice, even after a crash. Every
request is answered with a new id and epoch 0. The id and epoch that a producer may send (version 3 on, KIP-360) count
for transactional producers only, as in Kafka: an idempotent one raises its epoch by itself. One without the other is
INVALID_REQUEST.
Gaps: a transactional id is refused with UNSUPPORTED_VERSION: there are no transactions. An empty one is
INVALID_REQUEST. A client needs WRITE for any topic (KIP-679) or, as before, IDEMPOTENT_WRITE on the cluster; with a
transactional id WRITE for that.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode, PylogdError
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NONE = -1


@handles(InitProducerIdRequest, 0, 5)
def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    """Return a new id with epoch 0."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not context.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return _refuse(ErrorCode.UNSUPPORTED_VERSION if transactional_id else ErrorCode.INVALID_REQUEST)
    if not (
        context.may_use_cluster(AclOperation.IDEMPOTENT_WRITE, audited=False)
        or context.may_any(AclOperation.WRITE, ResourceType.TOPIC)
    ):
        return _refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _refuse(ErrorCode.INVALID_REQUEST)
    return Deferred.fromCoroutine(_new(context))


async def _new(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await context.broker.cluster.next_producer_id()
    except PylogdError as error:
        return _refuse(explain(error)[0])
    return InitProducerIdResponse(producer_id=producer_id)


def _refuse(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
