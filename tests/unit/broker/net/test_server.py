"""What a factory gives to all of its connections: the bound on elements, and notice of their end."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher

from pylogd.broker.net.server import BrokerFactory, ServerLimits
from pylogd.client.evented.tls import tls_error
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fakes.transport import ManualReactor, PairTransport
from tests.rawclient import encode, frame

METADATA = 3


class Handler:
    """Serves Metadata, without ever responding."""

    versions: ClassVar = {METADATA: (0, 13)}
    overlapping = batched = repeated = frozenset[int]()

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, connection: Any, event: Any) -> None:
        self.handled += 1


class Rig:
    """A factory on a fake clock, its connections, and the log."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.handler = Handler()
        limits = ServerLimits(1 << 20, 100, 1 << 20, 1 << 20, -1, -1, -1, max_elements=1000)
        self.factory = BrokerFactory(self.clock, cast(Any, self.handler), cast(Any, None), limits)
        self.lines: list[str] = []
        self._transports: list[PairTransport] = []

    def observe(self, event: LogEvent) -> None:
        self.lines.append(formatEvent(event))

    def send(self, data: bytes) -> Any:
        """Send bytes on a new connection; return its protocol."""
        protocol: Any = self.factory.buildProtocol(None)
        transport = PairTransport(protocol, ManualReactor())
        self._transports.append(transport)
        protocol.makeConnection(transport)
        transport.deliver(data)
        return protocol

    def close(self) -> None:
        for transport in self._transports:
            transport.peer.close()
            transport.socket.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    observer = cast(ILogObserver, made.observe)
    globalLogPublisher.addObserver(observer)
    yield made
    globalLogPublisher.removeObserver(observer)
    made.close()


def test_too_many_elements_close_the_connection(rig: Rig) -> None:
    names = [MetadataRequestTopic(name=str(number)) for number in range(1001)]
    rig.send(frame(encode(MetadataRequest(names[:1000]), 9)))
    assert rig.handler.handled == 1
    rig.send(frame(encode(MetadataRequest(names), 9)))
    assert rig.handler.handled == 1
    assert "1001 elements are over the limit of 1000 in a message" in rig.lines[-1]


def test_the_end_of_a_connection_is_told_once(rig: Rig) -> None:
    ended: list[str] = []
    protocol = rig.send(b"")
    protocol.on_lost = lambda: ended.append("lost")
    protocol.connectionLost()
    protocol.connectionLost()
    assert ended == ["lost"]


def test_a_client_that_begins_with_tls_is_told_that_there_is_none(rig: Rig) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    protocol = rig.send(hello)
    assert rig.handler.handled == 0
    assert protocol.transport.received() == b"This listener does not use TLS.\n"
    assert protocol.transport.disconnecting
    assert "the other side uses TLS on this connection and this side does not" in rig.lines[-1]
    client = ssl.create_default_context().wrap_bio(incoming := ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(b"This listener does not use TLS.\n")
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert "does not use TLS" in str(tls_error("broker", caught.value)), "its library sees at once what is wrong"


def test_connections_read_little_at_a_time_while_memory_is_scarce(rig: Rig) -> None:
    before, usual = rig.send(b""), rig.send(b"").transport.bufferSize
    memory = rig.factory.memory
    memory.scarce = True
    rig.factory.memory_is_scarce(True)
    during = rig.send(b"")
    assert before.transport.bufferSize == during.transport.bufferSize < usual
    memory.scarce = False
    rig.factory.memory_is_scarce(False)
    assert before.transport.bufferSize == during.transport.bufferSize == usual
