"""Count what clients use while any quota is set, and make clients over their quota wait.

Strategy: `metered_handlers` and `metered_batch` call the handlers, and charge the client afterwards. The dispatcher
uses them only while a quota is set. A fetch that was waiting for records when the first quota was set is charged when
it is answered (`answer_waited_fetch`). The answer to a client over its quota is sent at once, with the records that
were read and `throttle_time_ms`. No further request is taken from its connection for that time (KIP-219). Kafka answers
a throttled fetch without records instead, which makes a consumer read them twice.

Rules: a client is charged for the size of the request when it produces, for the size of the records when it fetches,
and for the working time of any request: of its handler, of threads, and of the later slices of a long answer. Other
work for the connection (`net.work_meter`: receiving, decrypting, parsing, encoding, encrypting and sending) is counted
when it is known. As in Kafka, it does not make a client wait by itself. If several quotas are exceeded, the longest
wait counts. Brokers are never charged. A fetch returns at most what an idle client may fetch at once, so that one large
answer does not mute a client for long. `MutationQuota` is for the handlers of requests that create or delete partitions
(KIP-599).

Gaps: answers to requests that waited, such as long polls, are encoded in a turn of the reactor that another event
began. Its time is counted for the client of that event, or for nobody.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from twisted.internet.defer import Deferred

from pylogd.base.clock import WorkTime
from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.api.context import BrokerParts, Connection, RequestContext
from pylogd.broker.api.fast.produce import answer_batch
from pylogd.broker.api.fast.repeated import ShapedConnection
from pylogd.broker.api.registry import Handler
from pylogd.broker.api.statistics import STATISTICS
from pylogd.broker.quotas.limits import QuotaKind
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.fast.request_batch import with_throttle_time
from pylogd.wire.headers import read_request_header
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.messages.produce import ProduceRequest
from pylogd.wire.schema import request_codec, response_codec
from pylogd.wire.session import NOT_ANSWERED, BatchReply, ServerSession

T = TypeVar("T")

_INT32: Final = struct.Struct(">i")
_PERCENT: Final = 100.0
_MOST_MS: Final = (1 << 31) - 1


class _Owed(NamedTuple):
    """The seconds for which a client has to wait, and the quota that requires it."""

    seconds: float
    kind: QuotaKind


_SECONDS: Final = attrgetter("seconds")


class ServedConnection(Connection, Protocol):
    """A connection that keeps the context of its last request.

    authenticated: whether the client has authenticated, if it must.
    """

    context: RequestContext | None
    authenticated: bool


def metered_handlers(handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
    """Return the handlers to use while quotas are set, by API key."""
    return {key: partial(_metered, key, handler) for key, handler in handlers.items()}


def _metered(api_key: int, handler: Handler, context: RequestContext, request: Any) -> Any:
    """Answer a request by its handler, and charge the client for it."""
    if _is_broker(context, request):
        return handler(context, request)
    size = 0
    if api_key == ProduceRequest.API_KEY:
        size = sum(map(len, request_codec(api_key, context.version).encode(request)))
    elif api_key == FetchRequest.API_KEY:
        _bound(context, request)
    return _answer_and_charge(api_key, context, size, partial(handler, context, request))


def metered_after_wait(
    context: RequestContext, request: FetchRequest, answer: Callable[[None], Any]
) -> Callable[[None], Any]:
    """Return a function that calls `answer` after a fetch has waited, and charges the client if a quota is set by then.

    A fetch that begins while a quota is set is charged by `metered_handlers`.
    """
    active = context.broker.client_quotas.active
    return answer if active else partial(answer_waited_fetch, context, request, answer)


def answer_waited_fetch(
    context: RequestContext, request: FetchRequest, answer: Callable[[None], Any], _: None = None
) -> Any:
    """Return the result of `answer` for a fetch that began without a quota. If one is set now, charge the client.

    In that case `request.max_bytes` is lowered before `answer` is called.
    """
    if not context.broker.client_quotas.active or _is_broker(context, request):
        return answer(None)
    _bound(context, request)
    return _answer_and_charge(FetchRequest.API_KEY, context, 0, partial(answer, None))


def _bound(context: RequestContext, request: FetchRequest) -> None:
    """Limit a fetch to what an idle client may fetch at once."""
    most = context.broker.client_quotas.most_at_once(QuotaKind.FETCH, context.principal.name, context.client_id)
    if most is not None:
        request.max_bytes = min(request.max_bytes, int(most))


def _answer_and_charge(api_key: int, context: RequestContext, size: int, answer: Callable[[], Any]) -> Any:
    """Return the result of `answer`, and charge the client for it.

    size: the bytes of a Produce request.
    """
    quotas, work = context.broker.client_quotas, None
    if quotas.times_requests:
        work = WorkTime(quotas.seconds)
        result = work.begin(answer)
        quotas.handled += work.seconds
    else:
        result = answer()
    charge = partial(_charge, api_key, context, size, work)
    return result.addCallback(charge) if isinstance(result, Deferred) else charge(result)


def _charge(api_key: int, context: RequestContext, size: int, work: WorkTime | None, response: Any) -> Any:
    broker, user, client_id = context.broker, context.principal.name, context.client_id
    owed = _charged(broker, QuotaKind.REQUEST, user, client_id, 0.0 if work is None else work.seconds * _PERCENT)
    if api_key == ProduceRequest.API_KEY:
        owed = max(owed, _charged(broker, QuotaKind.PRODUCE, user, client_id, size), key=_SECONDS)
    elif api_key == FetchRequest.API_KEY:
        size = sum(len(data.records or b"") for topic in response.responses for data in topic.partitions)
        owed = max(owed, _charged(broker, QuotaKind.FETCH, user, client_id, size), key=_SECONDS)
    return _throttle(api_key, context, response, owed) if owed.seconds > 0 else response


def _charged(broker: BrokerParts, kind: QuotaKind, user: str, client_id: str | None, amount: float) -> _Owed:
    """Charge a client, and return the seconds that it has to wait."""
    return _Owed(broker.client_quotas.charge(kind, user, client_id, amount), kind)


def metered_batch(
    broker: BrokerParts, connection: ShapedConnection, frame: memoryview, session: ServerSession, most: int
) -> BatchReply:
    """Answer requests together like `answer_batch`, and charge the client for them.

    A client that already has to wait gets one answer only: with many connections it could otherwise continue for long
    before all of them wait.
    """
    quotas, user = broker.client_quotas, connection.principal.name
    try:
        _, version, _, client_id, _ = read_request_header(frame)
    except RemoteProtocolError:
        return NOT_ANSWERED  # the parser of the request reports the error
    if quotas.charge(QuotaKind.PRODUCE, user, client_id, 0) > 0:
        most = 1
    at, work = session.unread()[1], WorkTime(quotas.seconds)
    reply = work.run(answer_batch, broker, connection, frame, session, most)
    quotas.handled += work.seconds
    if not reply.replies:
        return reply
    size = len(frame) + max(reply.end - at, 0)
    owed = max(
        _charged(broker, QuotaKind.REQUEST, user, client_id, work.seconds * _PERCENT),
        _charged(broker, QuotaKind.PRODUCE, user, client_id, size),
        key=_SECONDS,
    )
    replies = reply.replies
    if owed.seconds > 0:
        replies = with_throttle_time(version, replies, _mute(connection, owed))
    return BatchReply(replies, reply.end, reply.singles)  # no request may be repeated, since each has to be charged


def _throttle(api_key: int, context: RequestContext, response: Any, owed: _Owed) -> Any:
    """Mute the connection, and return the response with the time for which it is muted."""
    throttle_ms = _mute(context.connection, owed)
    if isinstance(response, bytes):  # the response is large, or its handler keeps it for others
        codec = response_codec(api_key, context.version)
        if codec.construct.regular[0][0].name == "throttle_time_ms":
            return _INT32.pack(throttle_ms) + response[_INT32.size :]
        response = codec.decode(memoryview(response))
    if response is None or not hasattr(response, "throttle_time_ms"):
        return response
    response = copy.copy(response)
    response.throttle_time_ms = max(response.throttle_time_ms, throttle_ms)
    return response


def _mute(connection: Connection, owed: _Owed) -> int:
    """Mute a connection. Return for how many milliseconds, rounded up."""
    throttle_ms = min(math.ceil(owed.seconds * 1000), _MOST_MS)
    connection.mute(throttle_ms / 1000)
    STATISTICS.count_throttle(owed.kind.value, throttle_ms / 1000)
    return throttle_ms


def charge_connection(broker: BrokerParts, connection: ServedConnection, seconds: float) -> None:
    """Charge a client for work for its connection outside of handlers. It waits with its next request."""
    if not connection.authenticated or (
        connection.claim is not None and broker.security.peers.is_peer(connection.claim)
    ):
        return
    context = connection.context
    client_id = None if context is None else context.client_id
    broker.client_quotas.charge(QuotaKind.REQUEST, connection.principal.name, client_id, seconds * _PERCENT)


def _is_broker(context: RequestContext, request: Any) -> bool:
    """Return whether a broker of the cluster sent a request."""
    claim = context.connection.claim
    if claim is not None and context.broker.security.peers.is_peer(claim):
        return True
    state = getattr(request, "replica_state", None)  # brokers of earlier releases prove nothing
    node_id = max(getattr(request, "replica_id", -1), -1 if state is None else state.replica_id)
    return node_id >= 0 and context.is_broker(node_id)


class MutationQuota:
    """What one request uses of its client's `controller_mutation_rate`."""

    def __init__(self, context: RequestContext, strict_from: int) -> None:
        """Count partitions.

        strict_from: the first version in which a client over its quota is refused; in earlier versions the client
            waits.
        """
        self._context = context
        self._strict = context.version >= strict_from
        self._owed = 0.0

    @property
    def active(self) -> bool:
        """Whether partitions have to be counted."""
        return self._context.broker.client_quotas.active

    def charge(self, partitions: int) -> None:
        """Count partitions to create or delete. Raises KafkaError if the client may not."""
        context = self._context
        may, owed = context.broker.client_quotas.change_topics(
            context.principal.name, context.client_id, partitions, strict=self._strict
        )
        self._owed = max(self._owed, owed)
        if not may:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The quota controller_mutation_rate is exceeded; try again in {math.ceil(owed * 1000)} ms.",
            )

    def applied(self, response: T) -> T:
        """Return the response with the time that the client has to wait; its connection is muted for this time."""
        if self._owed > 0:
            throttled: Any = response
            throttled.throttle_time_ms = _mute(self._context.connection, _Owed(self._owed, QuotaKind.MUTATION))
        return response
