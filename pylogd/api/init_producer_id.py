"""InitProducerId (22), versions 0 to 5: an id for an idempotent producer.

Behaviour: ids come from blocks that were persisted before they are used, so no id is ever given twice, whatever
crashes. A producer that sends its id and epoch (version 3 on, KIP-360) keeps its id with the next epoch; with its
epochs used up it gets a new id.
Gaps: a transactional id is refused with UNSUPPORTED_VERSION: there are no transactions. An empty one is
INVALID_REQUEST.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode, PylogdError
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NONE = -1
_LAST_EPOCH = 0x7FFF - 1  # Kafka keeps the very last epoch for fencing


@handles(InitProducerIdRequest, 0, 5)
def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    """A new id with epoch 0, or the producer's id with the next epoch."""
    if request.transactional_id is not None:
        return _refuse(ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST)
    producer_id, epoch = request.producer_id, request.producer_epoch
    if (producer_id == _NONE) != (epoch == _NONE) or producer_id < _NONE or epoch < _NONE:
        return _refuse(ErrorCode.INVALID_REQUEST)
    if producer_id != _NONE and epoch < _LAST_EPOCH:
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch + 1)
    return Deferred.fromCoroutine(_new(context))


async def _new(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await context.broker.cluster.next_producer_id()
    except PylogdError as error:
        return _refuse(explain(error)[0])
    return InitProducerIdResponse(producer_id=producer_id)


def _refuse(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
