"""A TLS connection on a socket pair, turned by hand: the broker's end is Twisted's, the client's is Python's `ssl`."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet.protocol import Factory, Protocol

from pylogd.config import TlsOptions
from pylogd.credentials.certificates import read_credentials, server_context
from pylogd.link.tls import TlsFactory, TlsTransport
from pylogd.local.authority import Authority, Issued
from tests.fakes.transport import ManualReactor, PairTransport


@lru_cache(1)
def authority() -> Authority:
    """The authority of all tests in this process."""
    return Authority("unit tests")


@lru_cache(1)
def server_identity() -> Issued:
    """A certificate for localhost."""
    return authority().issue("broker", ["localhost", "127.0.0.1"])


def options(identity: Issued | None = None, **more: Any) -> TlsOptions:
    """The settings of a listener with a certificate of the authority's, which it trusts."""
    identity = identity or server_identity()
    values = {"key": identity.key, "chain": identity.chain, "trusted": authority().certificate, **more}
    return TlsOptions(**values)


def make_context(given: TlsOptions) -> SSL.Context:
    """The context of a listener with these settings."""
    return server_context(read_credentials(given), given, b"tests")


def client_context(identity: Issued | None = None, ciphers: str | None = None) -> ssl.SSLContext:
    """A client that trusts the authority, and shows a certificate if it is given one."""
    context = ssl.create_default_context(cadata=authority().certificate)
    if identity is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "client.pem"
            path.write_text(identity.pem)
            context.load_cert_chain(path)
    if ciphers is not None:
        context.set_ciphers(ciphers)
    return context


class TlsPair:
    """Both ends of a connection: what the client sends and gets, and how far the handshake is.

    tls: the broker's transport. tcp: the one below it.
    """

    def __init__(
        self,
        protocol: Protocol | None = None,
        context: SSL.Context | None = None,
        client: ssl.SSLContext | None = None,
        *,
        host: str = "localhost",
        session: ssl.SSLSession | None = None,
        make: Callable[[Factory], Factory] | None = None,
        factory: Factory | None = None,
        buffer_bytes: int = 1 << 16,
    ) -> None:
        """`factory` makes the broker's protocol, by default `protocol`; `make` puts another factory around TLS's."""
        self.reactor = self.turns = ManualReactor()
        inner = factory or Factory.forProtocol(lambda: protocol or Protocol())
        chosen = context or make_context(options())
        outer: Any = TlsFactory(lambda: chosen, inner, self.reactor)
        built: Any = (make(outer) if make else outer).buildProtocol(None)
        self.tcp = PairTransport(built, self.reactor, buffer_bytes)
        self.peer, self.socket = self.tcp.peer, self.tcp.socket
        built.makeConnection(self.tcp)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        wrap = (client or client_context()).wrap_bio
        self.client = wrap(self._incoming, self._outgoing, server_hostname=host, session=session)

    @property
    def tls(self) -> TlsTransport:
        """The broker's transport."""
        found = self.tcp.protocol
        assert isinstance(found, TlsTransport)
        return found

    def handshake(self) -> TlsPair:
        """Finish the handshake. Raises ssl.SSLError if the client refuses, ConnectionError if the broker does."""
        for _ in range(10):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self._step()
            else:
                self._step()
                return self
        raise ConnectionError("the broker does not go on with the handshake")

    def _step(self) -> None:
        self._to_broker()
        self.turns.turn()
        self._incoming.write(self.tcp.received())

    def _to_broker(self) -> None:
        data = self._outgoing.read()
        if data and not self.tcp.disconnected and not self.tcp.disconnecting:
            self.tcp.deliver(data)

    def deliver(self, data: bytes) -> None:
        """Send from the client."""
        self.client.write(data)
        self._to_broker()

    def received(self) -> bytes:
        """What the client can read now."""
        self._incoming.write(self.tcp.received())
        return self._plain()

    def pump(self) -> bytes:
        """Turn until nothing is left to write, with a client that reads all; what it read."""
        self._incoming.write(self.tcp.pump())
        return self._plain()

    def _plain(self) -> bytes:
        chunks: list[bytes] = []
        while True:
            try:
                chunk = self.client.read(1 << 20)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Close both ends of the socket pair."""
        self.socket.close()
        self.peer.close()

    @property
    def aborting(self) -> bool:
        """Whether the broker has aborted the connection."""
        return bool(self.tcp._aborting)

    def resumed(self) -> bool:
        """Whether an earlier session was resumed."""
        return bool(self.client.session_reused)


def names(certificates: Sequence[Any]) -> list[str]:
    """The common names of certificates."""
    return [certificate.subject.rfc4514_string() for certificate in certificates]
