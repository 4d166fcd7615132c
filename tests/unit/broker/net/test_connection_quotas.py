"""Limits on connections: of the broker, of an address, of a listener, and per second."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from pylogd.broker.net.connection_quotas import ConnectionQuotas, QuotaLimits, plain_address
from pylogd.broker.net.server import BrokerFactory, BrokerProtocol, ServerLimits
from tests.fakes.transport import ManualReactor, PairTransport

LIMITS = ServerLimits(1 << 20, 100, 1 << 20, 1 << 20, -1)


class Handler:
    versions: dict[int, tuple[int, int]]
    overlapping = batched = repeated = frozenset[int]()

    def __init__(self) -> None:
        self.versions = {}


class Port:
    """A port that knows whether it accepts connections."""

    connected = True
    accepting = False
    numberAccepts = 100

    def stopReading(self) -> None:
        self.accepting = False

    def startReading(self) -> None:
        self.accepting = True


class Listener:
    """A listener whose clients connect by hand; connections that wait for their turn are served later."""

    def __init__(self, quotas: ConnectionQuotas, reactor: ManualReactor | None = None, **limits: int) -> None:
        self.reactor = reactor or ManualReactor()
        unused: Any = None
        self.quotas = quotas
        self.factory = BrokerFactory(self.reactor, Handler(), unused, LIMITS._replace(**limits), "A", None, quotas)  # type: ignore[arg-type]
        self.port = Port()
        self.factory.admission.open(self.port)
        self.factory.hangups._reactor = ManualReactor()
        self.opened: list[PairTransport] = []

    def connect(self, host: str = "10.0.0.1") -> str:
        """Connect from an address. Return what became of the connection."""
        protocol = self.factory.buildProtocol(IPv4Address("TCP", host, 5))
        transport = PairTransport(protocol, self.reactor)
        self.opened.append(transport)
        protocol.makeConnection(transport)
        return self.state(-1)

    def state(self, number: int) -> str:
        """Return what became of a connection: served, waits, or closed."""
        transport = self.opened[number]
        if transport._aborting:
            return "closed"
        protocol = transport.protocol
        assert isinstance(protocol, BrokerProtocol)
        return "served" if protocol.served else "waits"

    @property
    def served(self) -> list[int]:
        """Which of all connections are served now, in the order in which they came."""
        return [number for number in range(len(self.opened)) if self.state(number) == "served"]

    def disconnect(self, number: int = 0) -> None:
        transport = self.opened.pop(number)
        protocol = transport.protocol
        assert isinstance(protocol, BrokerProtocol)
        protocol.connectionLost()
        transport.socket.close()
        transport.peer.close()


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
    states = [listener.connect("::ffff:10.0.0.1") for _ in range(3)]
    assert states == ["served", "served", "closed"]
    assert listener.connect("10.0.0.1") == "closed"
    assert set(asked) == {"10.0.0.1"}


def two(quotas: ConnectionQuotas) -> tuple[Listener, Listener]:
    reactor = ManualReactor()
    return Listener(quotas, reactor), Listener(quotas, reactor)


def test_listeners_share_the_limit_of_the_broker_and_later_ones_wait() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=3))
    one, other = two(quotas)
    assert [one.connect(), other.connect()] == ["served"] * 2
    assert one.port.accepting and other.port.accepting
    assert one.connect() == "served"
    assert not one.port.accepting and not other.port.accepting
    assert [other.connect(), one.connect(), other.connect()] == ["waits"] * 3, "accepted in the same turn"
    one.disconnect()
    assert other.state(1) == "served", "the one that has waited longest, of whichever listener"
    other.disconnect()
    assert one.state(1) == "served"
    other.disconnect()
    one.disconnect()
    assert other.served == [0] and not quotas.waiting
    assert one.port.accepting and other.port.accepting


def test_one_that_waits_is_not_read_from_and_loses_nothing() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=1))
    one = Listener(quotas)
    one.connect()
    one.connect()
    waiting = one.opened[1]
    assert waiting not in one.reactor.readers
    received: list[bytes] = []
    protocol: Any = waiting.protocol
    waiting.deliver(b"behind a proxy's header")
    protocol.__class__ = type("Noting", (BrokerProtocol,), {"dataReceived": lambda _, data: received.append(data)})
    one.disconnect()
    assert protocol.served and waiting in one.reactor.readers
    assert received == [b"behind a proxy's header"]


def test_one_that_leaves_while_it_waits_is_forgotten() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=1))
    one = Listener(quotas)
    assert [one.connect(), one.connect()] == ["served", "waits"]
    one.disconnect(1)
    assert not quotas.waiting
    one.disconnect()
    assert (quotas.count, one.port.accepting) == (0, True)


def test_an_exempt_listener_is_always_open_and_the_most_idle_of_others_is_closed_for_it() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=2))
    one, between = two(quotas)
    between.factory.admission.exempt = True
    assert [one.connect(), one.connect()] == ["served"] * 2
    one.reactor.advance(1)
    protocol = one.opened[0].protocol
    assert isinstance(protocol, BrokerProtocol)
    protocol.last_active = one.reactor.seconds()
    assert between.connect() == "served"
    assert (one.state(0), one.state(1)) == ("served", "closed")
    assert between.connect() == "served"
    assert one.served == []
    assert between.connect() == "served", "it may exceed the limit by itself"
    assert one.connect() == "waits"


def test_a_lower_limit_closes_the_most_idle_and_a_higher_one_lets_those_in_that_wait() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=3))
    one = Listener(quotas)
    for _ in range(3):
        one.reactor.advance(1)
        one.connect()
    quotas.set_limits(QuotaLimits(connections=1))
    assert one.served == [2]
    for _ in range(2):
        one.disconnect()
    assert [one.connect(), one.connect()] == ["waits"] * 2
    quotas.set_limits(QuotaLimits(connections=2))
    assert one.served == [0, 1]
    quotas.set_limits(QuotaLimits())
    assert one.served == [0, 1, 2]
    assert one.port.accepting


def test_a_listener_has_a_limit_of_its_own() -> None:
    quotas = ConnectionQuotas()
    one, other = Listener(quotas, max_connections=1), Listener(quotas)
    assert [one.connect(), one.connect(), other.connect()] == ["served", "waits", "served"]
    assert (one.port.accepting, other.port.accepting) == (False, True)
    one.factory.limits = LIMITS._replace(max_connections=2)
    quotas.set_limits(quotas.limits)
    assert one.served == [0, 1]
    one.disconnect()
    assert one.port.accepting


def test_addresses_with_and_without_a_limit_of_their_own() -> None:
    quotas = ConnectionQuotas(QuotaLimits(per_host=1, per_host_overrides={"10.0.0.2": 2, "10.0.0.3": 0}))
    one = Listener(quotas)
    assert [one.connect(), one.connect()] == ["served", "closed"]
    assert [one.connect("10.0.0.2") for _ in range(3)] == ["served", "served", "closed"]
    assert one.connect("10.0.0.3") == "closed"
    one.disconnect()
    assert one.connect() == "served"
    assert quotas.count == 3


def test_an_address_does_not_get_more_by_waiting() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=1, per_host=1))
    one = Listener(quotas)
    assert [one.connect("10.0.0.9"), one.connect(), one.connect()] == ["served", "waits", "waits"]
    quotas.set_limits(QuotaLimits(connections=5, per_host=1))
    assert [one.state(number) for number in range(3)] == ["served", "served", "closed"]


def test_a_rate_holds_however_many_come_at_once() -> None:
    """Many accepted in one turn are served one by one, in their order, and those in the kernel's queue after them."""
    listener = Listener(ConnectionQuotas(), connection_rate=2)
    listener.reactor.advance(100)
    for _ in range(10):
        listener.connect()
    assert listener.served == [0, 1]
    assert not listener.port.accepting
    listener.reactor.advance(0.5)  # a second's worth may come at once
    for number in range(2, 10):
        listener.reactor.advance(0.499)
        assert listener.served == list(range(number))
        listener.reactor.advance(0.001)
        assert listener.served == list(range(number + 1))
    assert not listener.port.accepting
    listener.reactor.advance(0.5)
    assert listener.port.accepting


def test_the_rate_of_the_broker_is_shared_but_not_by_an_exempt_listener() -> None:
    quotas = ConnectionQuotas(QuotaLimits(rate=1))
    one, between = two(quotas)
    between.factory.admission.exempt = True
    assert [one.connect(), one.connect(), between.connect(), between.connect()] == ["served", "waits"] + ["served"] * 2
    quotas.set_limits(QuotaLimits())
    assert one.served == [0, 1]


def test_a_port_accepts_few_in_one_turn_however_many_come() -> None:
    """Twisted raises the number after each turn in which all of them came."""
    one = Listener(ConnectionQuotas())
    few = one.port.numberAccepts
    assert few < 100
    for _ in range(few):
        one.connect()
    one.port.numberAccepts += 20
    one.reactor.advance(0)
    assert one.port.numberAccepts == few
    one.connect()
    one.factory.admission.close()
    assert not one.reactor.getDelayedCalls()


def test_a_stop_closes_those_that_wait() -> None:
    quotas = ConnectionQuotas(QuotaLimits(connections=1, rate=1))
    one = Listener(quotas)
    one.connect()
    one.connect()
    one.factory.admission.close()
    one.factory.drain()
    assert one.state(1) == "closed"
    assert not quotas.waiting
    one.reactor.advance(0)
    assert not one.reactor.getDelayedCalls()
