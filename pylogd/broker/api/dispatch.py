"""Route the requests of all connections to the handlers that are registered for their APIs.

Strategy: a request goes to the one handler that `registry` has for its API. Connections know which versions are served,
so its version is already checked. A request with very many elements is first decoded in a thread. Requests that may be
answered together go as bytes to `fast.produce`; requests that may repeat the last one go to `fast.fetch`.

Must not know: connections beyond what handlers see of them, the order of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.errors import CloseConnection
from pylogd.broker.api.api_versions import unsupported_api_versions
from pylogd.broker.api.auditing import ADMINISTRATIVE, describe
from pylogd.broker.api.context import BrokerParts, OwnContext, RequestContext
from pylogd.broker.api.fast.fetch import repeated_answers
from pylogd.broker.api.fast.produce import answer_batch, repeated_batch_answers
from pylogd.broker.api.fast.repeated import RepeatingConnection
from pylogd.broker.api.fetch import answer_after_wait
from pylogd.broker.api.fetch_lagging import fetch_sparing_disks
from pylogd.broker.api.metering import metered_batch, metered_handlers
from pylogd.broker.api.registry import HANDLERS, REGISTRATIONS, Handler, overlapping_apis, served_versions
from pylogd.broker.api.statistics import PRODUCE, STATISTICS, timed_handlers, watched_handlers
from pylogd.broker.replica.waiting import shield, then
from pylogd.broker.security.audit import AuditLog
from pylogd.wire import schema
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.fast import known_fetch
from pylogd.wire.fast.fetch import FIRST_FAST
from pylogd.wire.fast.produce import FIRST, LAST
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.messages.produce import ProduceRequest
from pylogd.wire.session import (
    BatchReply,
    DirectOutput,
    LargeRequest,
    RepeatedBatch,
    RepeatReply,
    RequestReceived,
    ServerSession,
    UnsupportedRequest,
)

T = TypeVar("T")
_LENGTH_SIZE = 4  # the size of the length before each reply


class ClientConnection(RepeatingConnection, Protocol):
    """A connection that keeps the context of its last request for the next one."""

    context: RequestContext | None


class Dispatcher:
    """The handlers of one broker, as its connections call them.

    versions: the lowest and highest version that is served, by API key.
    overlapping: keys of APIs whose requests may start while earlier ones of the same API wait.
    batched: `API key << 16 | version` of the requests that `handle_batch` may answer.
    repeated: `API key << 16 | version` of the requests that `handle_repeated` may answer.
    """

    __slots__ = (
        "_answer_batch", "_answer_repeated", "_answer_repeated_batch", "_broker", "_handlers", "_requests", "_timed",
        "_watched", "batched", "handle_batch", "handle_repeated", "handle_repeated_batch", "overlapping", "repeated",
        "versions",
    )  # fmt: skip

    #: Answers the request in a frame, and up to `most - 1` unread requests in the session; or leaves them all.
    handle_batch: Callable[[ClientConnection, memoryview, ServerSession, int], BatchReply]
    #: Answers a request, which begins with its length, if it repeats the connection's last one; or leaves it.
    handle_repeated: Callable[[ClientConnection, bytes, DirectOutput], RepeatReply | None]
    #: Answers requests, which begin with their lengths, if they repeat the connection's last batch; or leaves them.
    handle_repeated_batch: Callable[[ClientConnection, bytes, ServerSession], RepeatedBatch | None]

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._requests = STATISTICS.requests
        self._watched = False
        self._timed: dict[int, Handler] = {}
        self._choose_handlers()
        broker.client_quotas.subscribe(self._choose_handlers)
        broker.laggards.subscribe(self._choose_handlers)
        self.versions = served_versions()
        self.overlapping = overlapping_apis()
        self.batched = frozenset(ProduceRequest.API_KEY << 16 | version for version in range(FIRST, LAST + 1))
        self.repeated = frozenset(
            FetchRequest.API_KEY << 16 | version for version in range(FIRST_FAST, known_fetch.LAST + 1)
        )

    def handle(self, connection: ClientConnection, event: RequestReceived | UnsupportedRequest) -> Any:
        """Return the handler's result: a response, a Deferred of it, or None if the request has no reply.

        Raises CloseConnection for an API or version that is not served, except ApiVersions, which is answered at any
        version (KIP-511).
        """
        if isinstance(event, UnsupportedRequest):
            if event.api_key == ApiVersionsRequest.API_KEY:
                return unsupported_api_versions()
            raise CloseConnection(
                f"client {event.client_id!r} sent a request of API {event.api_key} version {event.version}, "
                "which is not served"
            )
        if type(event) is LargeRequest:
            return self._decode_first(connection, event)
        context = connection.context
        if context is None or context.version != event.version or context.client_id != event.client_id:
            context = RequestContext(self._broker, connection, event.version, event.client_id)
            connection.context = context
        self._requests[event.api_key] += 1
        return self._handlers[event.api_key](context, event.request)

    def _decode_first(self, connection: ClientConnection, event: LargeRequest) -> Deferred[Any]:
        """Have a thread decode a request, then handle it."""

        def decoded(request: Any) -> Any:
            return self.handle(
                connection,
                RequestReceived(event.api_key, event.version, event.correlation_id, event.client_id, request),
            )

        def refused(failure: Failure) -> Any:
            failure.trap(RemoteProtocolError)
            raise CloseConnection(failure.getErrorMessage())

        return self._broker.in_thread(event.request).addCallbacks(decoded, refused)

    def _choose_handlers(self, _active: bool = True) -> None:
        """Count what clients use only while a quota is set, and spare disks only while a disk is busy."""
        counted, handlers = self._broker.client_quotas.active, HANDLERS
        if self._broker.laggards.active:
            handlers = {**HANDLERS, FetchRequest.API_KEY: fetch_sparing_disks}
        self._handlers: Mapping[int, Handler] = metered_handlers(handlers) if counted else handlers
        self.handle_batch = self._answer_batch = partial(metered_batch if counted else answer_batch, self._broker)
        fetches_are_left = counted or self._broker.laggards.active
        self._answer_repeated = _leave if fetches_are_left else repeated_answers(self._broker, answer_after_wait)
        self.handle_repeated = self._answer_repeated
        self._answer_repeated_batch = _leave_batch if counted else repeated_batch_answers(self._broker)
        self.handle_repeated_batch = self._answer_repeated_batch
        if self._watched:
            self._handlers = watched = watched_handlers(self._handlers, STATISTICS)
            self._timed = timed_handlers(watched, STATISTICS, self._broker.clock.seconds)

    def watch(self) -> None:
        """Count errors of all APIs from now on, and measure requests after each call of `sample`."""
        self._watched = True
        self._choose_handlers()

    def sample(self) -> None:
        """Measure the next request of each API; see `statistics`. Call `watch` before."""
        assert isinstance(self._handlers, dict)
        self._handlers.update(self._timed)
        self.handle_batch = self._timed_batch
        self.handle_repeated = self._leave_one
        self.handle_repeated_batch = _leave_batch

    def _leave_one(self, _connection: ClientConnection, _data: bytes, _output: DirectOutput) -> None:
        """Leave the next request to the handler, which measures it."""
        self.handle_repeated = self._answer_repeated

    def _timed_batch(
        self, connection: ClientConnection, frame: memoryview, session: ServerSession, most: int
    ) -> BatchReply:
        self.handle_batch = self._answer_batch
        self.handle_repeated_batch = self._answer_repeated_batch
        seconds = self._broker.clock.seconds
        begun = seconds()
        reply: BatchReply = self._answer_batch(connection, frame, session, most)
        if reply.replies:
            STATISTICS.durations[PRODUCE].observe(seconds() - begun)
            STATISTICS.request_size(PRODUCE, len(frame))
            STATISTICS.response_size(PRODUCE, int.from_bytes(reply.replies[:_LENGTH_SIZE], "big"))
        return reply


def _leave(_connection: ClientConnection, _data: bytes, _output: DirectOutput) -> None:
    """Do nothing: the request is decoded, and its handler answers it. See `handle_repeated`."""


def _leave_batch(_connection: ClientConnection, _data: bytes, _session: ServerSession) -> None:
    """Leave requests that may repeat the last batch to `handle_batch`."""


class AuditingDispatcher(Dispatcher):
    """A dispatcher that reports administrative requests to the audit log, and tells handlers the name of their API.

    An administrative request that has begun is carried out even if its client disconnects.
    """

    __slots__ = ("_audit",)

    def __init__(self, broker: BrokerParts, audit: AuditLog) -> None:
        super().__init__(broker)
        self._audit = audit

    def handle(self, connection: ClientConnection, event: RequestReceived | UnsupportedRequest) -> Any:
        """See `Dispatcher`."""
        if isinstance(event, UnsupportedRequest):
            return super().handle(connection, event)
        if type(event) is LargeRequest:
            return self._decode_first(connection, event)
        api = REGISTRATIONS[event.api_key].name
        context = connection.context
        if (
            context is None
            or context.version != event.version
            or context.client_id != event.client_id
            or context.api != api
        ):
            context = RequestContext(self._broker, connection, event.version, event.client_id, api)
            connection.context = context
        request = event.request
        self._requests[event.api_key] += 1
        result = self._handlers[event.api_key](context, request)
        if api not in ADMINISTRATIVE:
            return result
        if isinstance(result, Deferred):
            # A disconnect would cancel the request, and the audit log would lack changes that were made in part.
            return shield(result.addCallback(partial(self._record, context, request)))
        return self._record(context, request, result)

    def _record(self, context: RequestContext, request: Any, response: T) -> T:
        self._audit.administrative(
            context.principal, context.connection.host, context.client_id, context.api,
            partial(describe, request, response, context.version),
        )  # fmt: skip
        return response


def ask_self(broker: BrokerParts, message: Any) -> Any:
    """Return the response to a request of a broker to itself, or a Deferred of it.

    The request goes directly to the handler that serves other brokers.
    """
    registered = REGISTRATIONS[message.API_KEY]
    answer = registered.handler(OwnContext(broker, registered.last, registered.name), message)

    def decoded(response: Any) -> Any:
        if not isinstance(response, bytes):
            return response
        return schema.response_codec(registered.api_key, registered.last).decode(memoryview(response))

    return then(answer, decoded)
