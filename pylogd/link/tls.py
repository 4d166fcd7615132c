"""TLS for the connections of a listener: Twisted's TLS layer, with fewer calls for each byte.

Strategy: `TlsTransport` is Twisted's `TLSMemoryBIOProtocol`, which encrypts and decrypts in memory between the socket
and the protocol. Three steps of it are replaced. All bytes of a read are decrypted and delivered at once, as one chunk,
as on a plain connection. A write is encrypted as a whole. A connection is closed without waiting for the peer's answer
to the closing alert. A pull producer is registered with the TCP transport, so it is asked for more when all encrypted
bytes are sent, as on a plain connection.

A large frame is decrypted into its own memory (`receive_into`, called by `pylogd.link.receiving`), without chunks.
Meanwhile the socket is read into memory that all connections share, about `MOST_RECEIVED` bytes in one turn of the
reactor. OpenSSL keeps the memory of a record for the next one, instead of allocating it for each.

`TlsFactory` gives each new connection the context that is current then (`context`), so that certificates can be
replaced while the broker runs. Connections that this process opens are in `client_tls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.credentials.certificates import explain
from pylogd.link.tls_records import decrypt, keep_buffers, receive, send

_RECORD_BYTES: Final = 1 << 14  # the most plain bytes in a TLS record
_OVERHEAD_BYTES: Final = 64  # the most other bytes of a record
_NOT_TLS: Final = ("wrong version number", "http request")  # OpenSSL's errors for bytes that are not TLS
_HANDSHAKE_BYTES: Final = 1 << 15
#: How many bytes are read from a socket in one turn of the reactor. The rest waits for the next turn, so that one
#: connection does not hold up the others.
MOST_RECEIVED: Final = 1 << 19
#: Decrypted bytes before they become a chunk. Used by the reactor's thread only, and empty between calls.
_DECRYPTED: Final = bytearray(1 << 18)


class TlsTransport(TLSMemoryBIOProtocol):
    """A TLS connection: the transport of a protocol, and the protocol of a TCP transport."""

    factory: TlsTransportFactory
    _in_place = False
    _left = 0  # bytes that may still be read from the socket in this turn
    _ended: tuple[Failure | None] | None = None  # set when the peer has closed TLS, or broken it
    _direct = False  # whether encrypted bytes go directly to the socket
    _tail = b""  # the encrypted bytes that the socket did not take

    def makeConnection(self, transport: Any) -> None:
        """Begin; the TCP transport calls this. Its interfaces are not declared again, since nobody asks for them."""
        self._tlsConnection = self.factory._creatorCallable(self)
        self._appSendBuffer: list[bytes] = []
        Protocol.makeConnection(self, transport)
        self.factory.registerProtocol(self)  # type: ignore[no-untyped-call]
        self.wrappedProtocol.makeConnection(self)
        if self.factory.begins:
            self._checkHandshakeStatus()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell the protocol that the TCP connection has ended. All received bytes have been delivered before."""
        self._lostTLSConnection = True
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    @property
    def bufferSize(self) -> int:
        """How many bytes the reactor reads from the socket at a time."""
        size: int = self._tcp.bufferSize
        return size

    @bufferSize.setter
    def bufferSize(self, size: int) -> None:
        self._tcp.bufferSize = size

    @property
    def in_place(self) -> bool:
        """Whether a large frame arrives. Then only one record is delivered, and the rest is left to `receive_into`."""
        return self._in_place

    @in_place.setter
    def in_place(self, arrives: bool) -> None:
        self._in_place = arrives
        if self._tlsConnection is not None:
            keep_buffers(self._tlsConnection, arrives)

    @property
    def _tcp(self) -> Any:
        return self.transport

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Have the TCP transport ask `producer`. Writes need never wait for reads, since renegotiation is refused."""
        self._tcp.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Stop asking the producer."""
        self._tcp.unregisterProducer()

    def send_now(self, data: Any) -> bool:
        """Write `data`, and send as much as the socket takes at once. Return whether all was sent."""
        tcp = self._tcp
        if self._lostTLSConnection or self._appSendBuffer or tcp._tempDataBuffer or len(tcp.dataBuffer) > tcp.offset:
            self._write(data)
            return False
        found = send(self._tlsConnection, tcp.socket, data)
        if found is None:
            return self._directly(self._write, data) and not self._appSendBuffer
        written, rest = found
        if written == len(data) and not rest:
            return True
        if rest:
            tcp.write(rest)
            self._flush(_HANDSHAKE_BYTES)
        self._write(data[written:])
        return False

    def _directly(self, step: Callable[[Any], None], argument: Any) -> bool:
        """Call `step`, and write the bytes that it encrypts to the socket at once. Return whether it took all."""
        tcp = self._tcp
        if tcp._tempDataBuffer or len(tcp.dataBuffer) > tcp.offset:
            step(argument)
            return False
        self._tail = b""
        self._direct = True
        try:
            step(argument)
        finally:
            self._direct = False
        if not self._tail:
            return True
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
        """Send what TLS itself has to send at once. This saves the reactor a turn for each flight of a handshake."""
        if self._direct or self._aborted or not self._tcp.connected:
            self._flush(_HANDSHAKE_BYTES)
        else:
            self._directly(self._flush, _HANDSHAKE_BYTES)

    def _flush(self, most: int) -> None:
        """Give the encrypted bytes to the TCP transport. `most`: how many bytes to expect."""
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
                sent = 0  # it is full, or broken; the TCP transport finds out which
            self._tail = data[sent:]

    def dataReceived(self, bytes: Any) -> None:
        """Take the bytes that the reactor has read from the socket."""
        self._left = MOST_RECEIVED
        super().dataReceived(bytes)  # type: ignore[no-untyped-call]

    def receive_into(self, buffer: memoryview, most: int) -> int:
        """Decrypt into `buffer`, at most `most` bytes, and read the socket for it. Called by the protocol.

        Return how many bytes were decrypted: none if the socket has no more, or this turn's share is used up. The end
        of the connection, and errors, are left to the reactor.
        """
        if self._ended is not None or self._lostTLSConnection:
            return 0
        got, why, taken = receive(self._tlsConnection, self._tcp.socket, buffer, min(most, len(buffer)), self._left)
        self._left -= taken
        if why is not None:
            self._wants_more(why)
        return got

    def _wants_more(self, why: SSL.Error) -> bool:
        """Return whether OpenSSL has decrypted everything that it had. If the connection has ended, note how."""
        if isinstance(why, SSL.WantReadError):
            return True
        self._ended = (None if isinstance(why, SSL.ZeroReturnError) else Failure(why),)
        return False

    def _flushReceiveBIO(self) -> None:
        """Decrypt received bytes, and deliver them in one chunk, unless a large frame arrives."""
        delivered = False
        while True:
            whole = not self.in_place
            data = self._decrypt()
            if not data:
                break
            delivered = True
            if not self._aborted:
                ProtocolWrapper.dataReceived(self, data)
            if self._tlsConnection is None:
                return
            if whole and not self.in_place:
                break
        ended, self._ended = self._ended, None
        if ended is not None and not self._lostTLSConnection:
            if ended[0] is None:
                self._shutdownTLS()
            self._tlsShutdownFinished(ended[0])
        if not delivered:  # otherwise TLS's own bytes are sent with the next reply
            self._flushSendBIO()

    def _decrypt(self) -> bytes:
        """Return the bytes that OpenSSL can decrypt, at most one record while a large frame arrives."""
        most = _RECORD_BYTES if self.in_place else len(_DECRYPTED)
        chunks: list[bytes] = []
        while self._ended is None and not self._lostTLSConnection:
            size, why = decrypt(self._tlsConnection, _DECRYPTED, most)
            if size:
                with memoryview(_DECRYPTED) as decrypted:
                    chunks.append(bytes(decrypted[:size]))
            if (why is not None and self._wants_more(why)) or self.in_place:
                break
        return b"".join(chunks) if len(chunks) != 1 else chunks[0]

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        """Close the TCP connection, since the peer has closed TLS, or broken it."""
        producer = self._tcp.producer
        if producer is not None:  # otherwise the transport would keep asking it
            self._tcp.unregisterProducer()
            producer.stopProducing()
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]

    def _shutdownTLS(self) -> None:
        """Send the closing alert, and close the connection when it is sent."""
        super()._shutdownTLS()  # type: ignore[no-untyped-call]
        self._tcp.loseConnection()


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Makes OpenSSL's side of a connection."""

    def __init__(self, context: Callable[[], SSL.Context]) -> None:
        self._context = context

    def serverConnectionForTLS(self, _protocol: Any) -> SSL.Connection:
        """Return a connection in the current context. Twisted calls this."""
        return SSL.Connection(self._context(), None)


class TlsTransportFactory(TLSMemoryBIOFactory):
    """Makes TLS connections around the protocols of another factory.

    begins: whether this side begins the handshake.
    """

    protocol = TlsTransport

    def __init__(self, creator: Any, begins: bool, factory: Factory, clock: IReactorTime) -> None:
        """creator: makes OpenSSL's side of a connection, as in Twisted."""
        super().__init__(creator, begins, factory, clock)
        self.begins = begins


class TlsFactory(TlsTransportFactory):
    """Makes the TLS connections of a listener."""

    def __init__(self, context: Callable[[], SSL.Context], factory: Factory, clock: IReactorTime) -> None:
        """context: returns the context of a new connection."""
        super().__init__(_Creator(context), False, factory, clock)


def peer_certificate(transport: Any, now_ms: int) -> Any:
    """Return the certificate (of cryptography's class) that a TLS client has shown, None if it has not shown one.

    Raises ValueError for an expired certificate, which OpenSSL accepts if a client resumes a session.
    """
    connection: SSL.Connection = transport.getHandle()
    certificate = connection.get_peer_certificate(as_cryptography=True)
    if certificate is not None and certificate.not_valid_after_utc.timestamp() * 1000 <= now_ms:
        raise ValueError(f"its certificate has expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return certificate


def explain_end(reason: Failure) -> str:
    """Return why the handshake of a listener's connection has failed, for the log."""
    text = explain(reason.value)
    if any(sign in text for sign in _NOT_TLS):
        text += ": the client does not use TLS; check its security protocol and the port"
    return text
