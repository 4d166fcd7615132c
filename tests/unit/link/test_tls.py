"""TLS connections of a broker: who may connect, their principals, and handshakes that do not finish."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.internet.error import ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from pylogd.base.clock import wall_ms
from pylogd.broker.net.server import BrokerFactory, BrokerProtocol, ListenerSecurity, ServerLimits
from pylogd.broker.security.distinguished_names import subject_name
from pylogd.config import TlsOptions
from pylogd.config.tls import parse_rules
from pylogd.credentials.principal import ANONYMOUS, Principal
from pylogd.local.authority import Authority
from pylogd.wire.session import NOT_ANSWERED
from tests.fakes.tls import TlsPair, authority, client_context, make_context, options
from tests.fakes.transport import ManualReactor

LIMITS = ServerLimits(1 << 20, 100, 1 << 20, 1 << 20, -1, max_handshakes=3, handshake_ms=10_000)
API_VERSIONS_V0 = bytes.fromhex("0000000e00120000000000070004") + b"test"


class EchoHandler:
    """Answers every ApiVersions request with what the client sent."""

    versions: Mapping[int, tuple[int, int]] = MappingProxyType({18: (0, 0)})
    overlapping = batched = repeated = frozenset[int]()

    def __init__(self) -> None:
        self.principals: list[Principal] = []

    def handle(self, connection: Any, event: Any) -> Any:
        self.principals.append(connection.principal)
        return b"answer"

    def handle_batch(self, connection: Any, frame: Any, session: Any, most: int) -> Any:
        return NOT_ANSWERED

    def handle_repeated(self, connection: Any, data: bytes, _output: Any) -> None:
        raise AssertionError("no request is known")

    def handle_repeated_batch(self, connection: Any, data: bytes, _session: Any) -> None:
        raise AssertionError("no request is known")


class Listener:
    """A TLS listener without a port."""

    def __init__(self, given: TlsOptions | None = None, sasl: bool = False, rules: str = "DEFAULT") -> None:
        self.handler = EchoHandler()
        self.reactor = ManualReactor()
        self.context = make_context(given or options())
        parsed = parse_rules(rules)

        def principal(certificate: Any) -> Principal:
            names = [rule.apply(subject_name(certificate.subject)) for rule in parsed]
            found = next((name for name in names if name is not None), None)
            if found is None:
                raise ValueError("no rule matches")
            return Principal("User", found)

        self.later_ms = 0  # how much later it is than the clock says
        security = ListenerSecurity(
            "SASL_SSL" if sasl else "SSL", True, sasl, principal, now_ms=lambda: wall_ms() + self.later_ms
        )
        unused: Any = None
        self.factory = BrokerFactory(self.reactor, self.handler, unused, LIMITS, "SSL", security)

    def connect(self, client: ssl.SSLContext | None = None, **more: Any) -> TlsPair:
        return TlsPair(context=self.context, client=client, factory=self.factory, **more)

    @property
    def connection(self) -> BrokerProtocol:
        (found,) = self.factory.connections
        return found


@pytest.fixture
def lines() -> Any:
    """Return the lines of the log."""
    found: list[str] = []

    def note(event: Any) -> None:
        found.append(formatEvent(event))

    observer: Any = note
    globalLogPublisher.addObserver(observer)
    yield found
    globalLogPublisher.removeObserver(observer)


def assert_answers(pair: TlsPair) -> None:
    pair.deliver(API_VERSIONS_V0)
    assert pair.received() == bytes.fromhex("0000000a00000007") + b"answer"


def test_requests_are_answered_and_the_client_is_anonymous() -> None:
    listener = Listener()
    pair = listener.connect().handshake()
    assert_answers(pair)
    assert listener.handler.principals == [ANONYMOUS]
    assert listener.connection.security_protocol == "SSL"
    pair.close()


def test_no_request_is_taken_before_the_handshake_has_ended() -> None:
    listener = Listener()
    pair = listener.connect()
    assert not listener.connection.served
    assert len(listener.factory.handshakes) == 1
    pair.handshake()
    assert listener.connection.served
    assert len(listener.factory.handshakes) == 0
    pair.close()


def test_a_certificate_names_the_principal() -> None:
    listener = Listener(options(client_auth="required"), rules="RULE:^CN=(.*?),O=.*$/$1/L")
    pair = listener.connect(client_context(authority().issue("Alice"))).handshake()
    assert_answers(pair)
    assert listener.handler.principals == [Principal("User", "alice")]
    pair.close()


def test_a_resumed_session_has_the_principal_of_the_first() -> None:
    listener = Listener(options(client_auth="required"), rules="RULE:^CN=(.*?),O=.*$/$1/")
    client = client_context(authority().issue("bob"))
    first = listener.connect(client).handshake()
    assert_answers(first)
    session = first.client.session
    second = listener.connect(client, session=session).handshake()
    assert second.resumed()
    second.deliver(API_VERSIONS_V0)
    assert listener.handler.principals == [Principal("User", "bob")] * 2
    for pair in (first, second):
        pair.close()


@pytest.mark.parametrize("sasl", [False, True])
def test_a_certificate_that_has_expired_is_refused_in_a_resumed_session(sasl: bool, lines: list[str]) -> None:
    listener = Listener(options(client_auth="required"), sasl)
    client = client_context(authority().issue("bob", days=2))
    first = listener.connect(client).handshake()
    first.deliver(API_VERSIONS_V0)
    first.received()
    session = first.client.session
    listener.later_ms = 86_400_000
    second = listener.connect(client, session=session).handshake()
    assert second.resumed() and not second.aborting
    listener.later_ms *= 2
    third = listener.connect(client, session=session).handshake()
    assert third.resumed() and third.aborting
    assert not any("expired" in line for line in lines[:-1]) and "its certificate has expired at" in lines[-1]
    for pair in (first, second, third):
        pair.close()


def test_a_certificate_that_no_rule_matches_is_refused() -> None:
    listener = Listener(options(client_auth="requested"), rules="RULE:CN=x/x/")
    pair = listener.connect(client_context(authority().issue("bob")))
    pair.handshake()
    assert pair.aborting
    pair.close()


@pytest.mark.parametrize("auth", ["requested", "required"])
def test_a_certificate_of_another_authority_is_refused(auth: str, lines: list[str]) -> None:
    listener = Listener(options(client_auth=auth))
    pair = listener.connect(client_context(Authority("somebody").issue("eve")))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        pair.handshake()
        pair.client.read(1)
    assert not listener.connection.served
    lose(pair)
    assert any("TLS handshake with 192.0.2.1 failed" in line and "certificate" in line for line in lines)
    pair.close()


def test_without_a_certificate() -> None:
    pair = Listener(options(client_auth="requested")).connect().handshake()
    assert_answers(pair)
    pair.close()
    required = Listener(options(client_auth="required"))
    pair = required.connect()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        pair.handshake()
        pair.client.read(1)
    assert not required.connection.served
    pair.close()


def lose(pair: TlsPair) -> None:
    """Notify the broker that the connection has ended."""
    pair.tcp.protocol.connectionLost(Failure(ConnectionLost()))


def test_garbage_instead_of_a_handshake(lines: list[str]) -> None:
    listener = Listener()
    pair = listener.connect()
    pair.tcp.deliver(b"GET / HTTP/1.1\r\n\r\n")
    assert pair.tcp.disconnecting
    lose(pair)
    assert not listener.factory.connections
    assert len(listener.factory.handshakes) == 0
    assert [line for line in lines if line.startswith("The TLS handshake with 192.0.2.1 failed: ")]
    pair.close()


def test_a_client_without_tls_is_told_of_in_the_log(lines: list[str]) -> None:
    pair = Listener().connect()
    pair.tcp.deliver(API_VERSIONS_V0)
    assert pair.tcp.disconnecting
    lose(pair)
    assert [line for line in lines if "failed: " in line and "the client does not use TLS" in line]
    pair.close()


def test_garbage_after_the_handshake_closes_the_connection(lines: list[str]) -> None:
    listener = Listener()
    pair = listener.connect().handshake()
    pair.deliver(b"\xff" * 100)
    pair.pump()
    assert pair.tcp.disconnecting
    assert [line for line in lines if "frame length -1" in line]
    pair.close()


def test_a_client_that_closes_its_side_is_let_go() -> None:
    listener = Listener()
    pair = listener.connect().handshake()
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair._to_broker()
    pair.turns.turn()
    assert pair.tcp.disconnecting
    assert pair.tcp.producer is None
    pair.close()


def test_handshakes_that_do_not_end_in_time_are_closed() -> None:
    listener = Listener()
    pair = listener.connect()
    listener.reactor.advance(9.9)
    assert not pair.aborting
    listener.reactor.advance(0.2)
    assert pair.aborting
    pair.close()


def test_of_too_many_handshakes_the_oldest_is_closed() -> None:
    listener = Listener()
    pairs = [listener.connect() for _ in range(5)]
    assert [pair.aborting for pair in pairs] == [True, True, False, False, False]
    assert_answers(pairs[4].handshake())
    for pair in pairs:
        pair.close()


def test_an_unauthenticated_client_may_send_small_requests_only() -> None:
    listener = Listener(sasl=True)
    pair = listener.connect().handshake()
    connection = listener.connection
    assert not connection.authenticated
    assert len(listener.factory.handshakes) == 1, "until it has authenticated"
    connection.authentication_succeeded(Principal("User", "alice"))
    assert connection.authenticated
    assert len(listener.factory.handshakes) == 0
    pair.deliver((600_000).to_bytes(4, "big"))
    assert not pair.tcp.disconnecting
    other = Listener(sasl=True).connect().handshake()
    other.deliver((600_000).to_bytes(4, "big"))
    other.pump()
    assert other.tcp.disconnecting
    for one in (pair, other):
        one.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(version: ssl.TLSVersion) -> None:
    client = client_context()
    client.minimum_version = client.maximum_version = version
    name = version.name.replace("_", ".")
    pair = TlsPair(context=make_context(options(versions=(name,))), client=client).handshake()
    assert pair.client.version() == name
    pair.close()
    (other,) = {"TLSv1.2", "TLSv1.3"} - {name}
    pair = TlsPair(context=make_context(options(versions=(other,))), client=client)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        pair.handshake()
    pair.close()


@pytest.mark.parametrize(
    ("name", "version", "chosen"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_AES_128_GCM_SHA256", "TLSv1.3", "TLS_AES_128_GCM_SHA256"),
    ],
)
def test_cipher_suites(name: str, version: str, chosen: str) -> None:
    pair = TlsPair(context=make_context(options(versions=(version,), ciphers=(name,)))).handshake()
    cipher = pair.client.cipher()
    assert cipher is not None
    assert cipher[0] == chosen
    pair.close()


def test_the_server_name_chooses_the_certificate(tmp_path: Any) -> None:
    for host in ("a.example", "b.example"):
        (tmp_path / f"{host}.pem").write_text(authority().issue(host, [host]).pem)
    (tmp_path / "c.pem").write_text(authority().issue("wild", ["*.wild.example"]).pem)
    context = make_context(TlsOptions(keystore=str(tmp_path)))
    for host, name in (("a.example", "a.example"), ("b.example", "b.example"), ("x.wild.example", "wild")):
        pair = TlsPair(context=context, host=host).handshake()
        certificate: Any = pair.client.getpeercert()
        assert dict(part[0] for part in certificate["subject"])["commonName"] == name
        pair.close()
    unverified = client_context()
    unverified.check_hostname = False
    TlsPair(context=context, client=unverified, host="other").handshake().close()


def test_certificates_between_the_broker_and_its_authority_are_sent() -> None:
    between = Authority("between", authority())
    TlsPair(context=make_context(options(between.issue("broker", ["localhost"])))).handshake().close()


def test_encrypted_keys() -> None:
    identity = authority().issue("broker", ["localhost"], password="secret")
    TlsPair(context=make_context(options(identity, key_password="secret"))).handshake().close()


def test_a_large_request_arrives_in_one_piece_and_so_does_a_large_reply() -> None:
    received: list[bytes] = []

    class Reply(BrokerProtocol):
        def dataReceived(self, data: bytes) -> None:
            received.append(data)

    listener = Listener()
    listener.factory.buildProtocol = lambda addr: Reply(listener.factory, addr)  # type: ignore[method-assign]
    pair = listener.connect().handshake()
    pair.deliver(bytes(200_000))
    assert b"".join(received) == bytes(200_000)
    assert len(received) == 1
    pair.tls.write(b"x" * 300_000)
    assert pair.pump() == b"x" * 300_000
    pair.close()


def test_names_of_subjects_are_spelled_as_in_kafka() -> None:
    parts = [
        (NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Example, Inc."), (NameOID.COMMON_NAME, " a+b "),
        (NameOID.EMAIL_ADDRESS, "a@b"),
    ]  # fmt: skip
    subject = [x509.NameAttribute(oid, value) for oid, value in parts]
    identity = authority().issue("", subject=subject)
    (certificate, *_) = x509.load_pem_x509_certificates(identity.chain.encode())
    assert subject_name(certificate.subject) == (r"1.2.840.113549.1.9.1=#1603614062,CN=\ a\+b\ ,O=Example\, Inc.,C=DE")
