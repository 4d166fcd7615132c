"""Partly received requests: they must make progress, and their memory is bounded over all connections."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection
from pylogd.broker.net.server import LEAST_PROGRESS_BYTES, BrokerFactory, ServerLimits
from pylogd.link.request_memory import RequestMemory
from pylogd.wire.session import NOT_ANSWERED
from tests.fakes.transport import ManualReactor, PairTransport

LIMITS = ServerLimits(100 << 20, 100, 1 << 20, 1 << 20, 600_000)
MIB = 1 << 20


class Handler:
    """Serves API 3 version 0; the first request of each connection is answered when the test says so."""

    overlapping = batched = repeated = frozenset[int]()

    def __init__(self) -> None:
        self.versions = {18: (0, 0)}
        self.waiting: list[Deferred[bytes]] = []

    def handle(self, connection: Any, event: Any) -> Any:
        if event.api_key != 18:
            raise CloseConnection("not served")
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def handle_batch(self, connection: Any, frame: Any, session: Any, most: int) -> Any:
        return NOT_ANSWERED

    def handle_repeated(self, connection: Any, data: bytes, _output: Any) -> None:
        raise AssertionError("no request is known")

    def handle_repeated_batch(self, connection: Any, data: bytes, _session: Any) -> None:
        raise AssertionError("no request is known")


class Server:
    def __init__(self, limit: int = -1) -> None:
        self.reactor = ManualReactor()
        self.handler = Handler()
        unused: Any = None
        memory = RequestMemory(self.reactor, limit)
        self.factory = BrokerFactory(self.reactor, self.handler, unused, LIMITS, memory=memory)
        self.factory.doStart()
        self.transports: list[PairTransport] = []

    def connect(self) -> PairTransport:
        protocol = self.factory.buildProtocol(None)
        transport = PairTransport(protocol, self.reactor, 1 << 20)
        protocol.makeConnection(transport)
        self.transports.append(transport)
        return transport

    def reading(self, transport: PairTransport) -> bool:
        return transport in self.reactor.readers

    def close(self) -> None:
        self.factory.doStop()
        for transport in self.transports:
            protocol: Any = transport.protocol
            protocol.connectionLost()
            transport.peer.close()
            transport.socket.close()
        self.factory.hangups.close()
        assert self.factory.memory.used == 0


@pytest.fixture
def server() -> Any:
    made = Server()
    yield made
    made.close()


def drip(server: Server, transport: PairTransport, seconds: int, size: int) -> bool:
    """Send `size` bytes each second; return whether the connection is open in the end."""
    for _ in range(seconds):
        if transport.disconnecting or transport.disconnected:
            return False
        transport.deliver(bytes(size))
        server.reactor.advance(1.0)
    return not transport.disconnecting


@pytest.mark.parametrize("length", [100, 1000, 1_000_000], ids=str)
def test_a_byte_a_second_is_too_slow(server: Server, length: int) -> None:
    transport = server.connect()
    transport.deliver(length.to_bytes(4, "big"))
    assert not drip(server, transport, 60, 1)


def test_a_length_that_does_not_arrive(server: Server) -> None:
    transport = server.connect()
    transport.deliver(b"\0\0")
    server.reactor.advance(29)
    assert not transport.disconnecting
    server.reactor.pump([10.0, 10.0])
    assert transport.disconnecting


def test_a_slow_but_steady_client_is_served(server: Server) -> None:
    transport = server.connect()
    transport.deliver((90 * MIB).to_bytes(4, "big"))
    assert drip(server, transport, 300, LEAST_PROGRESS_BYTES // 10)


def test_requests_that_wait_for_others_do_not_count_as_slow(server: Server) -> None:
    transport = server.connect()
    transport.deliver(bytes.fromhex("0000000a0012000000000007ffff"))
    (first,) = server.handler.waiting
    transport.deliver(bytes.fromhex("0000000a0012000000000008ffff") + (MIB).to_bytes(4, "big") + b"x")
    server.reactor.pump([10.0] * 10)
    assert not transport.disconnecting
    assert not server.reading(transport)
    first.callback(b"")
    assert server.handler.waiting[1:], "the second request begins"


def test_twelve_large_requests_share_the_memory() -> None:
    server = Server(limit=4 * MIB)
    memory = server.factory.memory
    transports = [server.connect() for _ in range(12)]
    size = 3 * MIB
    for transport in transports:
        transport.deliver(size.to_bytes(4, "big"))
    sent = dict.fromkeys(transports, 0)
    highest = 0
    for _ in range(10_000):
        for transport in transports:
            if server.reading(transport) and sent[transport] < size and not transport.disconnecting:
                data = min(1 << 16, size - sent[transport])
                sent[transport] += data
                transport.deliver(bytes(data))
                server.reactor.turn()
            highest = max(highest, memory.used)
        if all(one == size for one in sent.values()):
            break
    assert set(sent.values()) == {size}, "each has been received"
    assert highest <= 4 * MIB + size + 2 * MIB
    assert memory.waiting == 0
    server.close()


def test_announcing_a_large_request_takes_no_memory(server: Server) -> None:
    transport = server.connect()
    transport.deliver((90 * MIB).to_bytes(4, "big") + b"x" * 10)
    protocol: Any = transport.protocol
    assert protocol.session.partial_bytes < 8192
