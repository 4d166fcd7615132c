"""Headers of the PROXY protocol, whole and in pieces."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol

from pylogd.broker.net.handshakes import Handshakes
from pylogd.broker.net.proxy_protocol import InvalidProxyHeader, ProxiedFactory, parse
from pylogd.config import ConfigError, Settings
from pylogd.config.listeners import parse_networks
from tests.fakes.tls import TlsPair
from tests.fakes.transport import ManualReactor, PairTransport

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


PORTS = struct.pack(">HH", 50000, 9092)
V4 = v2(0x21, 0x11, socket.inet_aton("203.0.113.7") + socket.inet_aton("10.0.0.1") + PORTS)
V6 = v2(0x21, 0x21, socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + PORTS + b"\x04\x00\x01x")
V1 = b"PROXY TCP4 203.0.113.7 10.0.0.1 50000 9092\r\n"


@pytest.mark.parametrize(
    ("header", "host"),
    [
        (V1, "203.0.113.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 50000 9092\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (V4, "203.0.113.7"),
        (V6, "2001:db8::7"),
        (v2(0x20, 0x00, b""), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
def test_headers_in_any_pieces(header: bytes, host: str | None) -> None:
    for size in range(len(header)):
        assert parse(header[:size]) is None
    found = parse(header + b"the request")
    assert found is not None
    assert found.size == len(header)
    assert (found.client and found.client.host) == host
    assert found.client is None or found.client.port == 50000


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x10", b"PROXZ", b"PROXY TCP4 1.2.3.4\r\n", b"PROXY TCP4 1.2.3.4.5 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 70000 2\r\n", b"PROXY TCP4 ::1 ::1 1 2\r\n", b"PROXY " + b"x" * 200,
        v2(0x31, 0x11, bytes(12)), v2(0x21, 0x11, bytes(4)), SIGNATURE + b"\x21\x11\xff\xff",
    ],
)  # fmt: skip
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        parse(data)


class Recorder(Protocol):
    def __init__(self, address: Any) -> None:
        self.address = address
        self.data = b""

    def dataReceived(self, data: bytes) -> None:
        self.data += data


class Recorders(Factory):
    def __init__(self) -> None:
        self.made: list[Recorder] = []

    def buildProtocol(self, addr: IAddress | None) -> Recorder:
        self.made.append(Recorder(addr))
        return self.made[-1]


def proxied(clients: Factory, *networks: str) -> tuple[ProxiedFactory, ManualReactor]:
    reactor = ManualReactor()
    return ProxiedFactory(clients, Handshakes(reactor, lambda: (2, 5.0)), parse_networks(networks)), reactor


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("10.1.0.7", True), ("10.1.0.8", False), ("10.2.255.1", True), ("203.0.113.7", False),
        ("::ffff:10.1.0.7", True), ("::ffff:203.0.113.7", False), ("2001:db8::5", True), ("2001:db9::5", False),
    ],
)  # fmt: skip
def test_only_load_balancers_may_claim_addresses(host: str, accepted: bool) -> None:
    factory, _ = proxied(Recorders(), "10.1.0.7", "10.2.0.0/16", "2001:db8::/32")
    address = (IPv6Address if ":" in host else IPv4Address)("TCP", host, 5)
    assert (factory.buildProtocol(address) is not None) is accepted
    assert factory.buildProtocol(UNIXAddress("/run/balancer")) is not None
    assert proxied(Recorders())[0].buildProtocol(address) is not None


@pytest.mark.parametrize("text", ["example.com", "10.0.0.0/33", ""])
@pytest.mark.parametrize("name", ["proxy.protocol.networks", "listener.name.a.proxy.protocol.networks"])
def test_networks_that_are_none(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"proxy\.protocol\.networks"):
        Settings({name: [text]})


def test_the_client_s_protocol_gets_the_transport_itself() -> None:
    clients = Recorders()
    factory, reactor = proxied(clients)
    protocol = factory.buildProtocol(IPv4Address("TCP", "10.9.9.9", 1))
    assert protocol is not None
    transport = PairTransport(protocol, reactor)
    protocol.makeConnection(transport)
    for byte in V1[:-1]:
        transport.deliver(bytes([byte]))
    assert not clients.made
    transport.deliver(V1[-1:] + b"a request")
    (client,) = clients.made
    assert (client.address.host, client.data) == ("203.0.113.7", b"a request")
    assert client.transport is transport
    transport.deliver(b" and more")
    assert client.data == b"a request and more"
    assert len(factory.handshakes) == 0
    reactor.advance(100)
    assert not transport._aborting


def test_a_proxy_that_checks_its_backend_is_itself_the_client() -> None:
    clients = Recorders()
    factory, reactor = proxied(clients)
    protocol = factory.buildProtocol(IPv4Address("TCP", "10.9.9.9", 1))
    assert protocol is not None
    transport = PairTransport(protocol, reactor)
    protocol.makeConnection(transport)
    transport.deliver(v2(0x20, 0, b""))
    assert clients.made[0].address.host == "10.9.9.9"


@pytest.mark.parametrize("data", [b"\0\0\0\x10", b""])
def test_without_a_header_nobody_is_served(data: bytes) -> None:
    clients = Recorders()
    factory, reactor = proxied(clients)
    protocol = factory.buildProtocol(None)
    assert protocol is not None
    transport = PairTransport(protocol, reactor)
    protocol.makeConnection(transport)
    if data:
        transport.deliver(data)
    reactor.advance(5.1)
    assert transport._aborting
    assert not clients.made


def test_tls_begins_behind_the_header() -> None:
    clients = Recorders()
    pair = TlsPair(factory=clients, make=lambda tls: proxied(tls)[0])
    pair.tcp.deliver(V4)
    pair.handshake().deliver(b"secret")
    (client,) = clients.made
    assert (client.address.host, client.data) == ("203.0.113.7", b"secret")
    pair.close()
