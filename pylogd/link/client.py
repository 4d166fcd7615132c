"""A connection to a broker on Twisted. It sends requests, and receives replies in the same order, each as a Deferred.

Strategy: requests are pipelined: each is sent at once, even while others await their replies. A request without others
before it is written to the socket directly, which saves the reactor a turn; Twisted's transport joins the requests
after it. The first exchange is ApiVersions. After that each request is sent in the highest version that both sides
know. Large replies are received in place: records in a reply are views of its frame, without a copy, and the frame
lives as long as they do. One timer serves all requests.

With TLS the transport encrypts. With SASL, `connect` authenticates before the connection is used. Before the broker
ends the session, the connection authenticates again, and requests wait meanwhile (KIP-368).

A request without a reply is done when the transport has taken its bytes. The transport takes them at once unless too
many bytes wait.

Rules: replies come in the order of the requests, so a late reply holds up all after it. If a request is not answered in
time, the connection is closed. When the connection ends, every waiting request fails with the cause, and the listeners
of `on_lost` are called once. A reply over `max_reply_bytes` ends the connection before memory is allocated. The caller
limits how many requests are in flight.

Must not know: clusters, leaders, retries.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from twisted.internet import defer
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectingCancelledError, ConnectionDone
from twisted.internet.interfaces import (
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd import __version__
from pylogd.base.errors import BrokerUnavailable, ClientError, InvalidReply, PylogdError, RequestTimedOut, TlsFailed
from pylogd.link.receiving import MEMORY, Receiver
from pylogd.link.sending import send_now
from pylogd.wire.authentication import Authentication, Conversation
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.session import ClientSession

MAX_REPLY_BYTES = 128 * 1024 * 1024
#: The most bytes that one read takes from the socket.
RECEIVE_BYTES = 1 << 19
#: After which share of a session's lifetime to authenticate again; a random value between both is used.
_SESSION_SHARES = 0.85, 0.95
_CLOSE_SECONDS = 5.0  # after `close` written bytes may take this long to be sent


class ConnectionSecurity(NamedTuple):
    """How connections are secured.

    tls: returns the TLS options for a host name, such as `client_tls.ClientTls`; None for plain TCP.
    conversation: begins a SASL authentication at a host; None without SASL.
    in_thread: makes a call that may take long in a thread.
    """

    tls: Callable[[str], IOpenSSLClientConnectionCreator] | None = None
    conversation: Callable[[str], Conversation] | None = None
    in_thread: Callable[[Callable[[], bytes | None]], Deferred[bytes | None]] = deferToThread


NOT_SECURED = ConnectionSecurity()


class _PendingReply:
    """A request whose reply is awaited, even if its caller has cancelled the request."""

    __slots__ = ("deadline", "reply")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reply: Deferred[Any] = Deferred()


@implementer(IPushProducer)
class BrokerConnection(Protocol):
    """A connection to one broker. `connect` returns an open one with the broker's versions. Times are in seconds."""

    def __init__(
        self,
        clock: IReactorTime,
        address: str,
        *,
        client_id: str | None = "pylogd",
        timeout: float = 30.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        software: tuple[str, str] = ("pylogd", __version__),
    ) -> None:
        """address: appears in error messages.

        timeout: the timeout of a request without its own, in seconds.
        software: the software name and version to send to the broker.
        """
        self.address = address
        self.timeout = timeout
        self._clock = clock
        self._session = ClientSession(max_reply_bytes, client_id, MEMORY)
        self._negotiation = Negotiation(address, software)
        self._awaited: deque[_PendingReply] = deque()
        self._unsent: deque[_PendingReply] = deque()  # requests without a reply, while the transport is congested
        self._congested = False
        self._receiver: Receiver
        self._timer: IDelayedCall | None = None
        self._wakes_at = 0.0
        self._connected = True
        self._failure: PylogdError | None = None
        self._listeners: list[Callable[[PylogdError], object]] = []
        self._authenticate: Callable[[], Deferred[None]] | None = None
        self._authenticate_at = float("inf")
        self._held: deque[tuple[Callable[[], Deferred[Any]], Deferred[Any]]] | None = None  # while it authenticates

    # State

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._failure is not None

    @property
    def in_flight(self) -> int:
        """How many replies are awaited."""
        return len(self._awaited)

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """The lowest and the highest version that the broker serves, by API key."""
        return self._negotiation.versions

    def version_for(self, request: Any, highest: int | None = None) -> int:
        """Return the highest version that both sides know, at most `highest`. Raises UnsupportedByBroker."""
        return self._negotiation.version_for(request, highest)

    def on_lost(self, listener: Callable[[PylogdError], object]) -> None:
        """Call `listener` with the cause when the connection ends. If it has ended, call it at once."""
        if self._failure is None:
            self._listeners.append(listener)
        else:
            listener(self._failure)

    # Requests

    def request(
        self, message: Any, *, version: int | None = None, timeout: float | None = None, expect_reply: bool = True
    ) -> Deferred[Any]:
        """Send a request. The Deferred fires with the response, or with None if there is none (Produce with acks=0).

        Fails with BrokerUnavailable, RequestTimedOut or InvalidReply, all of which end the connection; and with
        UnsupportedByBroker or LocalProtocolError, where nothing was sent. Cancel the Deferred to ignore the reply; the
        connection stays.
        """
        if self._failure is not None:
            return fail(self._failure)
        if self._held is None and self._clock.seconds() >= self._authenticate_at:
            self._begin_authenticating()
        if self._held is not None:
            held: Deferred[Any] = Deferred()
            self._held.append(
                (lambda: self._send(message, version=version, timeout=timeout, expect_reply=expect_reply), held)
            )
            return held
        return self._send(message, version=version, timeout=timeout, expect_reply=expect_reply)

    def _send(self, message: Any, *, version: int | None, timeout: float | None, expect_reply: bool) -> Deferred[Any]:
        if self._failure is not None:
            return fail(self._failure)
        try:
            if version is None:
                version = self._negotiation.version_for(message)
            parts = self._session.encode_request(message, version, expect_reply=expect_reply)
        except PylogdError:
            return fail(Failure())
        transport: Any = self.transport
        transport.writeSequence(parts if self._awaited else send_now(transport, parts, least=0))
        if not expect_reply and not self._congested:
            return succeed(None)
        awaited = _PendingReply(self._clock.seconds() + (self.timeout if timeout is None else timeout))
        (self._awaited if expect_reply else self._unsent).append(awaited)
        self._watch(awaited.deadline)
        return awaited.reply

    def close(self) -> None:
        """Close the connection when all written bytes were sent. Unanswered requests fail with BrokerUnavailable."""
        if self._failure is None:
            transport: Any = self.transport
            self._end(BrokerUnavailable(f"{self.address}: the connection was closed"))
            transport.unregisterProducer()  # otherwise the transport would wait for more
            transport.loseConnection()
            if self._connected:  # abort the connection if the peer does not read
                self._timer = self._clock.callLater(_CLOSE_SECONDS, transport.abortConnection)

    # Bytes

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self._receiver = Receiver(transport, self._session, RECEIVE_BYTES)
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        transport.registerProducer(self, True)

    def pauseProducing(self) -> None:
        self._congested = True

    def resumeProducing(self) -> None:
        self._congested = False
        while self._unsent and not self._congested:
            self._unsent.popleft().reply.callback(None)

    def stopProducing(self) -> None:
        """Do nothing. `connectionLost` is called next, with the reason."""

    def dataReceived(self, data: bytes) -> None:
        try:
            self._session.receive_data(data)
            self._take_replies()
            if self._failure is None and self._receiver.more():
                self._take_replies()
        except RemoteProtocolError as error:
            failure = InvalidReply(f"{self.address}: {error}")
            failure.__cause__ = error
            self._abort(failure)

    def _take_replies(self) -> None:
        while self._failure is None and (event := self._session.next_event()) is not None:
            self._awaited.popleft().reply.callback(event.response)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._connected = False
        if reason.check(ConnectionDone):
            self._end(BrokerUnavailable(f"{self.address}: the broker closed the connection"))
        else:
            self._end(connection_error(f"{self.address}: the connection was lost", reason.value))

    def _abort(self, failure: PylogdError) -> None:
        transport: Any = self.transport
        self._end(failure)
        transport.abortConnection()

    def _end(self, failure: PylogdError) -> None:
        """Fail waiting requests, and call the listeners. Only the first call has an effect."""
        self._stop_timer()
        if self._failure is not None:
            return
        self._failure = failure
        awaited, self._awaited = self._awaited, deque()
        awaited += self._unsent
        self._unsent.clear()
        for waiting in awaited:
            waiting.reply.errback(failure)
        for _, held in self._held or ():
            held.errback(failure)
        self._held = None
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(failure)

    # Time

    def _watch(self, deadline: float) -> None:
        """Let the timer fire at `deadline` or before."""
        if self._timer is not None:
            if self._wakes_at <= deadline:
                return
            self._stop_timer()
        self._wakes_at = deadline
        self._timer = self._clock.callLater(max(0.0, deadline - self._clock.seconds()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        earliest = min((waiting.deadline for waiting in chain(self._awaited, self._unsent)), default=None)
        if earliest is None:
            return
        if earliest <= self._clock.seconds():
            self._abort(RequestTimedOut(f"{self.address}: no reply in time"))
        else:
            self._watch(earliest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            if self._timer.active():
                self._timer.cancel()
            self._timer = None

    # Versions

    async def negotiate(self, timeout: float) -> None:
        """Ask which versions the broker serves, in the first exchange. Raises as `request` does, and KafkaError."""
        step: tuple[Any, int] | None = self._negotiation.question()
        while step is not None:
            message, version = step
            step = self._negotiation.answer(await self.request(message, version=version, timeout=timeout))

    # Authentication

    async def authenticate(self, security: ConnectionSecurity, host: str, timeout: float) -> None:
        """Authenticate by SASL, and again before the session ends. Raises as `request`, or AuthenticationFailed."""
        assert security.conversation is not None
        conversation = security.conversation(host)
        authentication = Authentication(self.address, conversation, self._negotiation)
        step: tuple[Any, int] | None = authentication.question()
        while step is not None:
            message, version = step
            response = await self._send(message, version=version, timeout=timeout, expect_reply=True)
            outcome: bytes | None = None
            failure: BaseException | None = None
            try:
                outcome = await security.in_thread(authentication.answer(response)).addTimeout(timeout, self._clock)
            except defer.TimeoutError:
                failure = RequestTimedOut(f"there are no credentials after {timeout:g} s")
            except Exception as error:
                failure = error
            step = authentication.follow(outcome, failure)
        lifetime = authentication.lifetime_ms / 1000 * random.uniform(*_SESSION_SHARES)
        self._authenticate_at = self._clock.seconds() + lifetime if lifetime else float("inf")
        self._authenticate = lambda: Deferred.fromCoroutine(self.authenticate(security, host, timeout))

    def _begin_authenticating(self) -> None:
        """Authenticate again; requests are held until that is done."""
        assert self._authenticate is not None
        self._held = deque()
        self._authenticate().addCallbacks(lambda _: self._release(), self._not_authenticated)

    def _release(self) -> None:
        held, self._held = self._held or deque(), None
        for send, waiting in held:
            send().chainDeferred(waiting)

    def _not_authenticated(self, failure: Failure) -> None:
        error = failure.value
        if not isinstance(error, PylogdError):
            error = ClientError(f"{self.address}: can't authenticate: {error!r}")
        if self._failure is None:
            self._abort(error)


def connect(
    reactor: Any,
    host: str,
    port: int,
    *,
    client_id: str | None = "pylogd",
    timeout: float = 10.0,
    request_timeout: float = 30.0,
    security: ConnectionSecurity = NOT_SECURED,
    max_reply_bytes: int = MAX_REPLY_BYTES,
    software: tuple[str, str] = ("pylogd", __version__),
) -> Deferred[BrokerConnection]:
    """Open a connection, ask which versions the broker serves, and authenticate, each within `timeout` seconds.

    software: the software name and version to send to the broker.

    Fails with BrokerUnavailable, RequestTimedOut, InvalidReply, KafkaError, AuthenticationFailed or TlsFailed.
    Cancelling the Deferred closes the connection.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    endpoint = _endpoint(reactor, host, port, timeout)
    if security.tls is not None:
        from pylogd.link.client_tls import TlsEndpoint  # noqa: PLC0415 - pyOpenSSL is optional

        endpoint = TlsEndpoint(reactor, security.tls(host), endpoint)
    factory: Any = Factory()
    factory.noisy = False
    factory.protocol = lambda: BrokerConnection(
        reactor, address, client_id=client_id, timeout=request_timeout, max_reply_bytes=max_reply_bytes,
        software=software,
    )  # fmt: skip
    return Deferred.fromCoroutine(_open(endpoint, factory, address, timeout, security, host))


async def _open(
    endpoint: Any, factory: Any, address: str, timeout: float, security: ConnectionSecurity, host: str
) -> BrokerConnection:
    try:
        connection: BrokerConnection = await endpoint.connect(factory)
    except ConnectingCancelledError as error:
        raise CancelledError from error
    except Exception as error:
        raise connection_error(f"{address}: can't connect", error) from error
    try:
        await connection.negotiate(timeout)
        if security.conversation is not None:
            await connection.authenticate(security, host, timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _endpoint(reactor: Any, host: str, port: int, timeout: float) -> Any:
    """Return an endpoint. Addresses are used directly; for names the reactor makes look-ups in a thread."""
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port, timeout)
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port, timeout)
    return HostnameEndpoint(reactor, host, port, timeout)


def connection_error(what: str, cause: BaseException | None) -> ClientError:
    """Return the error for a connection that was not made or was lost: TlsFailed if TLS is the cause."""
    # The classes are named by their modules, since both packages are optional.
    module = type(cause).__module__
    failure: ClientError
    if module.startswith("service_identity"):
        failure = TlsFailed(f"{what}: the broker's certificate does not name this host; connect by a name that it has")
    elif module.startswith("OpenSSL") and cause is not None and cause.args and isinstance(cause.args[0], list):
        reasons = "; ".join(str(reason[-1]) for reason in cause.args[0]) or "the handshake failed"
        if "wrong version number" in reasons:
            return TlsFailed(f"{what}: the listener does not use TLS; check the protocol and the port")
        failure = TlsFailed(f"{what}: TLS failed: {reasons}; check both sides' certificates and their authorities")
    else:
        failure = BrokerUnavailable(f"{what}: {_text(cause)}")
    failure.__cause__ = cause
    return failure


def _text(cause: BaseException | None) -> str:
    system = getattr(cause, "osError", None)
    return (isinstance(system, OSError) and system.strerror) or str(cause) or type(cause).__name__
