"""The PROXY protocol, versions 1 and 2: a load balancer tells the address of the client behind a connection.

Strategy: `parse` reads a header from the first bytes of a connection. `ProxiedProtocol` receives bytes until the header
is complete. Then it hands the transport to the protocol that a factory makes for the client's address, so that no layer
is left in between.

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Any, Final, NamedTuple, TypeAlias

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol, ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.limits.log_lines import LimitedLog
from pylogd.broker.net.connection_quotas import plain_address
from pylogd.broker.net.handshakes import Handshakes

_limited = LimitedLog(Logger())

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_V2_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_HEAD: Final = struct.Struct(">12sBBH")
_V1_PREFIX: Final = b"PROXY "
_V1_MOST_BYTES: Final = 107
_V2_MOST_BYTES: Final = 4096  # the most bytes of addresses and extensions
_LOCAL, _PROXIED = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_PORTS: Final = struct.Struct(">HH")


class InvalidProxyHeader(Exception):
    """The first bytes of a connection are not a header of the PROXY protocol."""


class ProxyHeader(NamedTuple):
    """A header.

    size: the length of the header in bytes.
    client: the client's address; None if the proxy itself connects, or does not know it.
    """

    size: int
    client: IPv4Address | IPv6Address | None


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the beginning of `data`, None if more bytes are needed. Raises InvalidProxyHeader."""
    if data[:12] == _V2_SIGNATURE[: len(data)]:
        return _parse_v2(data)
    if data[:6] == _V1_PREFIX[: len(data)]:
        return _parse_v1(data)
    raise InvalidProxyHeader("it begins with no header of the PROXY protocol")


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_MOST_BYTES)
    if end < 0:
        if len(data) >= _V1_MOST_BYTES:
            raise InvalidProxyHeader("its PROXY line is too long")
        return None
    words = data[:end].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return ProxyHeader(end + 2, None)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise InvalidProxyHeader("its PROXY line is malformed")
    return ProxyHeader(end + 2, _address(words[1] == b"TCP6", words[2].decode("latin-1"), words[4].decode("latin-1")))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD.size:
        return None
    _, command, family, length = _V2_HEAD.unpack_from(data)
    if command not in (_LOCAL, _PROXIED) or length > _V2_MOST_BYTES:
        raise InvalidProxyHeader("its PROXY header is malformed")
    size = _V2_HEAD.size + length
    if len(data) < size:
        return None
    if command == _LOCAL or family not in (_TCP4, _TCP6):
        return ProxyHeader(size, None)
    width = 4 if family == _TCP4 else 16
    if length < 2 * width + _PORTS.size:
        raise InvalidProxyHeader("its PROXY header is too short for its addresses")
    at = _V2_HEAD.size
    host = str(ipaddress.ip_address(data[at : at + width]))
    port, _ = _PORTS.unpack_from(data, at + 2 * width)
    return ProxyHeader(size, _address(family == _TCP6, host, str(port)))


def _address(six: bool, host: str, port: str) -> IPv4Address | IPv6Address:
    try:
        parsed = ipaddress.IPv6Address(host) if six else ipaddress.IPv4Address(host)
        if not (port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
            raise ValueError(port)
    except ValueError:
        raise InvalidProxyHeader("its PROXY header names no address") from None
    return IPv6Address("TCP", str(parsed), int(port)) if six else IPv4Address("TCP", str(parsed), int(port))


class ProxiedProtocol(Protocol):
    """Receives the header of a connection, and then gives its transport to the protocol of the client."""

    def __init__(self, factory: ProxiedFactory, proxy: IAddress | None) -> None:
        self.factory: ProxiedFactory = factory
        self._proxy = proxy
        self._received = b""

    def connectionMade(self) -> None:
        self.factory.handshakes.begin(self, getattr(self._proxy, "host", None) or "")

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        try:
            header = parse(self._received)
        except InvalidProxyHeader as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        self.factory.handshakes.end(self)
        transport: Any = self.transport
        protocol = self.factory.clients.buildProtocol(header.client or self._proxy)
        assert protocol is not None
        rest = self._received[header.size :]
        transport.protocol = protocol
        protocol.makeConnection(transport)
        if rest:
            protocol.dataReceived(rest)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.factory.handshakes.end(self)

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""
        self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        transport: Any = self.transport
        _limited.warn("Closing the connection from {peer} to a listener with proxy.protocol=true: {reason}",
                      event="connections with a wrong PROXY header",
                      peer=transport.getPeer(), reason=reason)  # fmt: skip
        transport.abortConnection()


class ProxiedFactory(ServerFactory):
    """Makes the protocols of a listener whose connections come from load balancers."""

    noisy = False

    def __init__(self, clients: Factory, handshakes: Handshakes, networks: tuple[Network, ...] = ()) -> None:
        """Make protocols.

        clients: makes the protocols that get the bytes after the header.
        networks: the networks of the load balancers; () for all. A Unix socket has no address, and is accepted.
        """
        self.clients = clients
        self.handshakes = handshakes
        self._networks = networks

    def buildProtocol(self, addr: IAddress | None) -> ProxiedProtocol | None:  # type: ignore[override]
        host = getattr(addr, "host", None)
        if self._networks and host is not None and not self._is_balancer(host):
            _limited.warn("Refused a connection from {host}, which is not a load balancer of this listener "
                          "(proxy.protocol.networks)", event="connections refused", host=host)  # fmt: skip
            return None
        return ProxiedProtocol(self, addr)

    def _is_balancer(self, host: str) -> bool:
        address = ipaddress.ip_address(plain_address(host))
        return any(address in network for network in self._networks)

    def doStart(self) -> None:
        super().doStart()  # type: ignore[no-untyped-call]
        self.clients.doStart()

    def doStop(self) -> None:
        super().doStop()  # type: ignore[no-untyped-call]
        self.clients.doStop()
