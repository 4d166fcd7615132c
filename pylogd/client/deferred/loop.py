"""A Twisted reactor as a `Loop`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError, TlsFailed
from pylogd.client.core.link import Link
from pylogd.client.core.security import SecurityOptions
from pylogd.client.evented.tls import read_pem
from pylogd.link.client import connection_error
from pylogd.link.receiving import Receiver
from pylogd.link.sending import send_now

#: The most bytes of one read from the socket.
_RECEIVE_BYTES = 1 << 19

_CLOSE_SECONDS = 5.0  # the time after `close` in which written bytes may still be sent


class TwistedPromise:
    """A promise on a Deferred."""

    __slots__ = ("_deferred",)

    def __init__(self) -> None:
        self._deferred: Deferred[Any] = Deferred()

    @property
    def done(self) -> bool:
        """Whether the promise has a value or an error, or was cancelled."""
        return self._deferred.called

    def succeed(self, value: Any) -> None:
        """Set the value, unless the promise is done."""
        if not self._deferred.called:
            self._deferred.callback(value)

    def fail(self, error: BaseException) -> None:
        """Set an error, unless the promise is done."""
        if not self._deferred.called:
            self._deferred.errback(Failure(error))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._deferred.__await__()


class _Timer:
    """A delayed call that may be cancelled at any time."""

    __slots__ = ("_call",)

    def __init__(self, call: IDelayedCall) -> None:
        self._call = call

    def cancel(self) -> None:
        """Cancel the call, unless it was made already."""
        if self._call.active():
            self._call.cancel()


@implementer(IPushProducer)
class TwistedTransport(Protocol):
    """A connection on Twisted. Large replies are received in place."""

    transport: Any

    def __init__(self, link: Link, happened: Callable[[], None], now: Callable[[], float]) -> None:
        """Not connected yet."""
        self._link = link
        self._happened = happened
        self._now = now
        self._receiver: Receiver | None = None
        self._attempt: Deferred[Any] | None = None
        self._grace: IDelayedCall | None = None
        self._reactor: Any = None
        self._closed = False

    def connect(self, reactor: Any, timeout: float) -> None:
        """Begin to connect."""
        self._reactor = reactor
        endpoint = _endpoint(reactor, self._link.host, self._link.port, timeout)
        tls = self._link.connections.tls
        if tls is not None:
            from pylogd.link.client_tls import TlsEndpoint  # noqa: PLC0415 - pyOpenSSL is optional

            endpoint = TlsEndpoint(reactor, tls(self._link.host), endpoint)
        factory: Any = Factory()
        factory.noisy = False
        factory.protocol = lambda: self
        self._attempt = endpoint.connect(factory)
        self._attempt.addErrback(self._not_connected)

    def _not_connected(self, failure: Failure) -> None:
        link = self._link
        if not failure.check(CancelledError):
            self._lost(connection_error(f"{link.address}: can't connect", failure.value))

    # What Twisted calls

    def connectionMade(self) -> None:
        """Report that the connection is open."""
        if self._closed:
            self.transport.abortConnection()
            return
        self.transport.setTcpNoDelay(True)
        self._receiver = Receiver(self.transport, _InPlace(self._link, self._now), _RECEIVE_BYTES)
        self.transport.setTcpKeepAlive(True)
        self.transport.registerProducer(self, True)
        self._link.opened(self._now())
        self._happened()

    def pauseProducing(self) -> None:
        """Report that the transport holds too many unsent bytes."""
        self._link.pause_writing()

    def resumeProducing(self) -> None:
        """Report that the transport has sent most of its buffer."""
        if not self._closed:
            self._link.resume_writing(self._now())
            self._happened()

    def stopProducing(self) -> None:
        """Do nothing: `connectionLost` reports the reason."""

    def dataReceived(self, data: bytes) -> None:
        """Report received bytes, and receive the rest of a large reply in place."""
        if self._closed:
            return
        self._link.received(data, self._now())
        if not self._closed and self._receiver is not None:
            self._receiver.more()
        self._happened()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report that the connection has ended."""
        link = self._link
        if self._grace is not None and self._grace.active():
            self._grace.cancel()
        clean = reason.check(ConnectionDone)
        self._lost(None if clean else connection_error(f"{link.address}: the connection was lost", reason.value))

    def _lost(self, error: PylogdError | None) -> None:
        if not self._closed:
            self._closed = True
            self._link.lost(error, self._now())
            self._happened()

    # What the driver calls

    def write(self, parts: list[Any]) -> None:
        """Write all parts, in order."""
        if self.transport is not None and not self._closed:
            left = send_now(self.transport, parts)
            if left:
                self.transport.writeSequence([bytes(part) if isinstance(part, memoryview) else part for part in left])

    def close(self) -> None:
        """Close when all written bytes were sent, and report no more events."""
        if self.transport is not None:
            if not self._closed:
                self.transport.unregisterProducer()  # otherwise `loseConnection` waits for the producer
                self.transport.loseConnection()
                self._grace = self._reactor.callLater(_CLOSE_SECONDS, self.transport.abortConnection)
        elif self._attempt is not None:
            self._attempt.cancel()
        self._closed = True


class _InPlace:
    """A link in the form that `link.receiving.Receiver` uses to receive large frames in place."""

    __slots__ = ("_link", "_now", "receive_buffer")

    def __init__(self, link: Link, now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self.receive_buffer = link.receive_buffer

    def filled(self, size: int) -> None:
        """Record that `size` bytes were received into `receive_buffer()`."""
        self._link.filled(size, self._now())


class TwistedLoop:
    """A reactor as a `Loop`."""

    def __init__(self, reactor: Any) -> None:
        """`reactor` may be any of Twisted's reactors."""
        self.reactor = reactor

    def now(self) -> float:
        """Return the time."""
        now: float = self.reactor.seconds()
        return now

    now_ms = staticmethod(wall_ms)

    def later(self, seconds: float, call: Callable[[], object]) -> _Timer:
        """Call a function after `seconds` seconds."""
        return _Timer(self.reactor.callLater(seconds, call))

    def from_thread(self, call: Callable[[], object]) -> None:
        """Call a function soon in the reactor's thread. Any thread may ask for it."""
        self.reactor.callFromThread(call)

    def promise(self) -> TwistedPromise:
        """Return a new promise."""
        return TwistedPromise()

    def tls_reader(self, link: Link) -> Callable[[], Any] | None:
        """Return a function that reads certificates and makes the TLS options; None if no new options are needed."""
        connections = link.connections
        security = connections.options.security
        return partial(_make_tls, security) if security.uses_tls and connections.tls is None else None

    def open(self, link: Link, timeout: float, happened: Callable[[], None]) -> TwistedTransport:
        """Connect to a link's address."""
        transport = TwistedTransport(link, happened, self.now)
        transport.connect(self.reactor, timeout)
        return transport


def _endpoint(reactor: Any, host: str, port: int, timeout: float) -> Any:
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port, timeout)
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port, timeout)
    return HostnameEndpoint(reactor, host, port, timeout)


def _make_tls(options: SecurityOptions) -> Callable[[str], Any]:
    """Read certificates and keys, which may block. Return a function from host to TLS options. Raises TlsFailed."""
    try:
        from pylogd.link.client_tls import ClientTls  # noqa: PLC0415 - pyOpenSSL is optional
    except ImportError as error:
        raise TlsFailed(f"TLS on Twisted needs pip install 'pylogd-broker[tls]': {error}") from error
    try:
        return ClientTls(
            ca=read_pem(options.ssl_ca, "ssl_ca") if options.ssl_ca else None,
            certificate=read_pem(options.ssl_certificate, "ssl_certificate") if options.ssl_certificate else None,
            key=read_pem(options.ssl_key, "ssl_key") if options.ssl_key else None,
            key_password=options.ssl_key_password,
            check_hostname=options.ssl_check_hostname,
            min_version=options.ssl_min_version,
            ciphers=options.ssl_ciphers,
        )
    except ValueError as error:
        raise TlsFailed(f"a TLS option can't be used: {error}") from error
