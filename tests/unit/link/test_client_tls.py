"""TLS of connections that this process opens: whose certificate is accepted, and for which host."""

from __future__ import annotations

from typing import Any

import pytest
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from pylogd.config import TlsOptions
from pylogd.credentials.certificates import client_context, read_credentials
from pylogd.link.client import connection_error
from pylogd.link.client_tls import ClientTls, HostTls, TlsEndpoint
from pylogd.link.tls import TlsFactory
from pylogd.local.authority import Authority
from tests.fakes.tls import authority, make_context, options
from tests.fakes.transport import ManualReactor, PairTransport


class End(Protocol):
    """What one end received, and why its connection ended."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: BaseException | None = None

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason.value


class Ends:
    """A listener and a client, joined by hand."""

    def __init__(self, creator: Any, given: TlsOptions | None = None) -> None:
        """creator: the TLS options of the client's connection. given: those of the listener."""
        self.reactor = ManualReactor()
        self.broker, self.client = End(), End()
        context = make_context(given or options())
        accepted: Any = TlsFactory(lambda: context, Factory.forProtocol(lambda: self.broker), self.reactor)
        self._broker = PairTransport(accepted.buildProtocol(None), self.reactor)
        self._broker.protocol.makeConnection(self._broker)
        endpoint: Any = self
        TlsEndpoint(self.reactor, creator, endpoint).connect(Factory.forProtocol(lambda: self.client))

    def connect(self, factory: Any) -> Any:
        """Connect, as an endpoint does."""
        built = factory.buildProtocol(None)
        self._client = PairTransport(built, self.reactor)
        built.makeConnection(self._client)
        return _Connected()

    def turn(self) -> Ends:
        """Carry bytes to and fro until there are none."""
        for _ in range(20):
            self.reactor.turn()
            for one, other in ((self._broker, self._client), (self._client, self._broker)):
                data = one.received()
                if data and not other.disconnected:
                    other.deliver(data)
        return self

    def close(self) -> None:
        for transport in (self._broker, self._client):
            transport.socket.close()
            transport.peer.close()


class _Connected:
    """A Deferred that nobody waits for."""

    def addCallback(self, _callback: Any) -> None:
        """Do nothing."""


def between_brokers(trusted: str) -> SSL.Context:
    """The context of a broker for connections to others."""
    given = options(trusted=trusted)
    return client_context(read_credentials(given), given)


def assert_speaks(ends: Ends) -> None:
    ends.turn()
    assert ends.client.transport is not None and ends.broker.transport is not None
    ends.client.transport.write(b"question" * 50_000)
    ends.broker.transport.write(b"answer" * 50_000)
    ends.turn()
    assert (ends.broker.received, ends.client.received) == (b"question" * 50_000, b"answer" * 50_000)
    ends.close()


def why(ends: Ends) -> str:
    """The error of the client, whose connection has to have ended."""
    ends.turn()
    assert ends._client.disconnecting or ends._client._aborting
    tls: Any = ends._client.protocol
    tls.connectionLost(Failure(ConnectionError("lost")))
    assert not ends.broker.received
    ends.close()
    return str(connection_error("broker", ends.client.lost))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("kind", ["broker", "client"])
def test_a_certificate_that_names_the_host(kind: str, host: str) -> None:
    trusted = authority().certificate
    if kind == "broker":
        assert_speaks(Ends(HostTls(between_brokers(trusted), host, check_host=True)))
    else:
        assert_speaks(Ends(ClientTls(ca=trusted.encode())(host)))


@pytest.mark.parametrize("host", ["elsewhere.example", "192.0.2.7"])
def test_a_certificate_for_another_host(host: str) -> None:
    trusted = authority().certificate
    creator = HostTls(between_brokers(trusted), host, check_host=True)
    ends = Ends(creator)
    assert "does not name this host" in why(ends)
    assert isinstance(ends.client.lost, VerificationError)
    assert "does not name this host" in why(Ends(ClientTls(ca=trusted.encode())(host)))
    assert_speaks(Ends(HostTls(between_brokers(trusted), host, check_host=False)))
    assert_speaks(Ends(ClientTls(ca=trusted.encode(), check_hostname=False)(host)))


@pytest.mark.parametrize("check", [False, True])
def test_an_authority_that_is_not_trusted(check: bool) -> None:
    other = Authority("other").certificate
    assert "certificate verify failed" in why(Ends(HostTls(between_brokers(other), "localhost", check)))
    assert "certificate verify failed" in why(Ends(ClientTls(ca=other.encode(), check_hostname=check)("localhost")))


def test_a_broker_shows_its_own_certificate() -> None:
    creator = HostTls(between_brokers(authority().certificate), "localhost", check_host=True)
    assert_speaks(Ends(creator, options(client_auth="required")))


def test_a_client_shows_its_certificate() -> None:
    identity = authority().issue("alice", password="hush")
    tls = ClientTls(
        ca=authority().certificate.encode(), certificate=identity.chain.encode(), key=identity.key.encode(),
        key_password="hush",
    )  # fmt: skip
    assert_speaks(Ends(tls("localhost"), options(client_auth="required")))


def test_a_peer_without_tls() -> None:
    ends = Ends(ClientTls(ca=authority().certificate.encode())("localhost"))
    ends._client.deliver(b"This listener does not use TLS.\n")
    assert "the listener does not use TLS" in why(ends)
