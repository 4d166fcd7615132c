"""TLS for the connections of a listener: Twisted's TLS layer, with fewer calls for each byte.

Strategy: `TlsTransport` is Twisted's `TLSMemoryBIOProtocol`, which encrypts and decrypts in memory between the socket
and the protocol. Three steps of it are replaced: all that a read brought is decrypted and delivered at once, as one
chunk, like that of a plain connection; a write is encrypted as a whole; and a connection is closed without waiting for
the peer's answer to the closing alert. A pull producer is the TCP transport's own, so it is asked for more when all
encrypted bytes have left, as on a plain connection.

`TlsFactory` gives each new connection the context that is current then (`context`), so that certificates can be
replaced while the broker runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from OpenSSL import SSL
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IReactorTime,
)
from twisted.internet.protocol import Factory
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

_RECORD_BYTES: Final = 1 << 14  # the most plain bytes in a TLS record
_OVERHEAD_BYTES: Final = 64  # at most, that a record has besides
_HANDSHAKE_BYTES: Final = 1 << 15


class TlsTransport(TLSMemoryBIOProtocol):
    """A TLS connection: the transport of a protocol, and the protocol of a TCP transport."""

    _direct = False  # encrypted bytes go to the socket, as many as it takes
    _tail = b""  # those that it did not take

    @property
    def bufferSize(self) -> int:
        """How many bytes the reactor reads from the socket at a time."""
        size: int = self._tcp.bufferSize
        return size

    @bufferSize.setter
    def bufferSize(self, size: int) -> None:
        self._tcp.bufferSize = size

    @property
    def _tcp(self) -> Any:
        return self.transport

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Have the TCP transport ask `producer`. Writes need never wait for reads, since renegotiation is refused."""
        self._tcp.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Ask the producer no more."""
        self._tcp.unregisterProducer()

    def send_now(self, data: Any) -> bool:
        """Write `data`; as much as the socket takes leaves at once. Return whether all has left."""
        tcp = self._tcp
        if tcp._tempDataBuffer or len(tcp.dataBuffer) > tcp.offset:
            self._write(data)
            return False
        self._tail = b""
        self._direct = True
        try:
            self._write(data)
        finally:
            self._direct = False
        if not self._tail:
            return not self._appSendBuffer
        tcp.write(self._tail)
        self._tail = b""
        return False

    def _write(self, data: Any) -> None:
        """Encrypt all of `data`, and give it to the TCP transport."""
        if self._lostTLSConnection or not data:
            return
        try:
            sent = self._tlsConnection.send(data)
        except SSL.WantReadError:
            self._bufferedWrite(bytes(data))  # type: ignore[no-untyped-call] # the handshake has not ended
            return
        except SSL.Error:
            self._tlsShutdownFinished(Failure())
            return
        assert sent == len(data)
        self._flush(len(data) + (len(data) // _RECORD_BYTES + 2) * _OVERHEAD_BYTES)

    def _flushSendBIO(self) -> None:
        self._flush(_HANDSHAKE_BYTES)

    def _flush(self, most: int) -> None:
        """Give the TCP transport what was encrypted. `most`: how many bytes to expect."""
        while True:
            try:
                data = self._tlsConnection.bio_read(most)
            except SSL.WantReadError:
                return
            self._pass_on(data)
            if len(data) < most:
                return

    def _pass_on(self, data: bytes) -> None:
        if not self._direct:
            self._tcp.write(data)
        elif self._tail:
            self._tail += data
        else:
            try:
                sent = self._tcp.socket.send(data)
            except OSError:
                sent = 0  # full, or broken: the TCP transport finds out which
            self._tail = data[sent:]

    def _flushReceiveBIO(self) -> None:
        """Decrypt what was received, and deliver it in one chunk."""
        chunks: list[bytes] = []
        ended: tuple[Failure | None] | None = None
        while not self._lostTLSConnection:
            try:
                chunks.append(self._tlsConnection.recv(_RECORD_BYTES))
            except SSL.WantReadError:
                break
            except SSL.ZeroReturnError:
                ended = (None,)
                break
            except SSL.Error:
                ended = (Failure(),)
                break
        if chunks and not self._aborted:
            ProtocolWrapper.dataReceived(self, b"".join(chunks) if len(chunks) > 1 else chunks[0])
        if self._tlsConnection is None:
            return
        if ended is not None and not self._lostTLSConnection:
            if ended[0] is None:
                self._shutdownTLS()
            self._tlsShutdownFinished(ended[0])
        self._flushSendBIO()

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        """Close the TCP connection: the peer has closed the TLS one, or broken it."""
        producer = self._tcp.producer
        if producer is not None:  # or the transport would keep asking it
            self._tcp.unregisterProducer()
            producer.stopProducing()
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]

    def _shutdownTLS(self) -> None:
        """Send the closing alert, and close the connection when it has left."""
        super()._shutdownTLS()  # type: ignore[no-untyped-call]
        self._tcp.loseConnection()


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Makes OpenSSL's side of a connection."""

    def __init__(self, context: Callable[[], SSL.Context]) -> None:
        self._context = context

    def serverConnectionForTLS(self, _protocol: Any) -> SSL.Connection:
        """Return a connection in the current context; called by Twisted."""
        return SSL.Connection(self._context(), None)


@implementer(IOpenSSLClientConnectionCreator)
class BrokerCreator:
    """Makes OpenSSL's side of a connection to another broker, for `wrapClientTLS`."""

    def __init__(self, context: SSL.Context, host: str, check_host: bool) -> None:
        """`check_host`: whether the broker's certificate has to name `host`."""
        self._context = context
        self._host = host
        self._check_host = check_host

    def clientConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """Return a connection; called by Twisted."""
        connection = SSL.Connection(self._context, None)
        address = isIPAddress(self._host) or isIPv6Address(self._host)
        if not address:
            connection.set_tlsext_host_name(self._host.encode("idna"))
        verify = verify_ip_address if address else verify_hostname

        def handshaken(one: SSL.Connection, where: int, _result: int) -> None:
            if where & SSL.SSL_CB_HANDSHAKE_DONE:
                try:
                    verify(one, self._host)
                except Exception:  # it must not pass through OpenSSL
                    protocol.failVerification(Failure())

        if self._check_host:
            connection.set_info_callback(handshaken)
        return connection


class TlsFactory(TLSMemoryBIOFactory):
    """Makes the TLS connections of a listener, around the protocols of another factory."""

    protocol = TlsTransport

    def __init__(self, context: Callable[[], SSL.Context], factory: Factory, clock: IReactorTime) -> None:
        """`context` returns the context for a new connection."""
        super().__init__(_Creator(context), False, factory, clock)


def peer_certificate(transport: Any) -> Any:
    """Return the certificate (of cryptography's class) that a TLS client has shown, None if it has not shown one."""
    connection: SSL.Connection = transport.getHandle()
    return connection.get_peer_certificate(as_cryptography=True)
