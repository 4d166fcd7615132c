"""Limits on connections: of the broker, of an address, of a listener, and in a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from pylogd.net.connection_quotas import ConnectionQuotas, ConnectionRate, QuotaLimits, plain_address
from pylogd.net.server import BrokerFactory, BrokerProtocol, ServerLimits
from tests.fakes.transport import ManualReactor, PairTransport

LIMITS = ServerLimits(1 << 20, 100, 1 << 20, 1 << 20, -1)


class Handler:
    versions: dict[int, tuple[int, int]]
    overlapping = batched = frozenset[int]()

    def __init__(self) -> None:
        self.versions = {}


class Port:
    """A port that says whether it accepts."""

    connected = accepting = True

    def stopReading(self) -> None:
        self.accepting = False

    def startReading(self) -> None:
        self.accepting = True


class Listener:
    def __init__(self, quotas: ConnectionQuotas, **limits: int) -> None:
        self.reactor = ManualReactor()
        unused: Any = None
        self.factory = BrokerFactory(self.reactor, Handler(), unused, replace(LIMITS, **limits), "A", None, quotas)  # type: ignore[arg-type]
        self.port = self.factory.port = Port()
        self.opened: list[PairTransport] = []

    def connect(self, host: str = "10.0.0.1") -> bool:
        """Connect from an address; whether the broker took the connection."""
        protocol = self.factory.buildProtocol(IPv4Address("TCP", host, 5))
        transport = PairTransport(protocol, self.reactor)
        self.opened.append(transport)
        protocol.makeConnection(transport)
        return not transport._aborting

    def disconnect(self) -> None:
        protocol = self.opened.pop(0).protocol
        assert isinstance(protocol, BrokerProtocol)
        protocol.connectionLost()


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("2001:db8::1", "2001:db8::1"),
        ("", ""), ("::ffff:no", "::ffff:no"), ("::ffff:a00:1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)  # fmt: skip
def test_one_address_has_one_spelling(host: str, plain: str) -> None:
    assert plain_address(host) == plain


def test_an_ipv4_client_of_an_ipv6_listener_has_the_limits_of_its_address() -> None:
    quotas = ConnectionQuotas(QuotaLimits(per_host_overrides={"10.0.0.1": 2}))
    asked: list[str] = []

    def admit(host: str) -> bool:
        asked.append(host)
        return True

    quotas.admit_address = admit
    listener = Listener(quotas)
    assert [listener.connect("::ffff:10.0.0.1") for _ in range(3)] == [True, True, False]
    assert not listener.connect("10.0.0.1")
    assert set(asked) == {"10.0.0.1"}


def test_listeners_share_the_limit_of_the_broker() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=3))
    one, two = Listener(quotas), Listener(quotas)
    assert [one.connect(), two.connect(), one.connect(), two.connect()] == [True, True, True, False]
    one.disconnect()
    assert two.connect()


def test_an_exempt_listener_is_always_open_but_counts() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=1))
    one, between = Listener(quotas), Listener(quotas)
    between.factory.exempt = True
    assert [between.connect(), between.connect(), one.connect()] == [True, True, False]


def test_a_listener_has_a_limit_of_its_own() -> None:
    quotas = ConnectionQuotas()
    one, two = Listener(quotas, max_connections=1), Listener(quotas)
    assert [one.connect(), one.connect(), two.connect()] == [True, False, True]
    one.factory.limits = replace(LIMITS, max_connections=2)
    assert one.connect()


def test_addresses_with_and_without_a_limit_of_their_own() -> None:
    quotas = ConnectionQuotas(QuotaLimits(per_host=1, per_host_overrides={"10.0.0.2": 2, "10.0.0.3": 0}))
    one = Listener(quotas)
    assert [one.connect(), one.connect()] == [True, False]
    assert [one.connect("10.0.0.2") for _ in range(3)] == [True, True, False]
    assert not one.connect("10.0.0.3")
    one.disconnect()
    assert one.connect()
    assert quotas.count == 3


def test_a_rate_holds_on_average_and_lets_a_second_s_worth_come_at_once() -> None:
    rate = ConnectionRate()
    pauses = [rate.accept(100.0, 10) for _ in range(20)]
    assert pauses[:10] == [0.0] * 9 + [pauses[9]]
    assert abs(pauses[9]) < 1e-9
    assert abs(pauses[-1] - 1.0) < 1e-9, "20 connections take two seconds, of which one has passed"
    assert rate.accept(100.0, 2**31 - 1) == 0.0


def test_connections_wait_in_the_kernel_while_they_come_too_fast() -> None:
    listener = Listener(ConnectionQuotas(), connection_rate=2)
    listener.reactor.advance(100)
    accepted = 0
    for _ in range(1000):
        if listener.port.accepting:
            assert listener.connect()
            accepted += 1
        listener.reactor.advance(0.01)
    assert 20 <= accepted <= 23, "ten seconds at 2 a second, and those of the second before"
