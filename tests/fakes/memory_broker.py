"""The fake broker without sockets or threads, and a reactor in which clients reach it: for clients on Twisted."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IReactorTCP
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.wire.messages.fetch import FetchRequest, FetchResponse
from pylogd.wire.session import ServerSession
from tests.fakes.broker import FakeBroker
from tests.fakes.group_broker import GroupBroker
from tests.fakes.peer import PeerTransport


class MemoryBroker(FakeBroker):
    """One that clients reach by a `MemoryReactor`. `delay` is how many seconds its answers take; a fetch that finds
    nothing takes as long as it may.
    """

    def __init__(self, reactor: MemoryReactor, host: str = "192.0.2.1", **options: Any) -> None:
        super().__init__(**options)
        self._listener.close()
        self.reactor = reactor
        self.host, self.port = host, 9092
        self.up = True
        self.delay = 0.001
        self._hold = 0.0
        self.lines: list[_BrokerEnd] = []
        reactor.brokers[self.host, self.port] = self

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        response = super()._fetch(request)
        answers = [answer for topic in response.responses for answer in topic.partitions]
        if not any(answer.error_code or answer.records for answer in answers):
            self._hold = request.max_wait_ms / 1000
        return response

    def take_hold(self) -> float:
        """How long to hold the answer that was just made."""
        hold, self._hold = self._hold, 0.0
        return hold

    def drop(self) -> None:
        """Cut every connection."""
        lines, self.lines = self.lines, []
        for line in lines:
            line.transport.end(ConnectionDone())


class MemoryGroupBroker(MemoryBroker, GroupBroker):
    """The same with a group coordinator, until `end`."""

    def __init__(self, reactor: MemoryReactor, **options: Any) -> None:
        super().__init__(reactor, **options)
        self._tick()

    def _now(self) -> float:
        return self.reactor.seconds()

    def _tick(self) -> None:
        self.groups.tick(self._now())
        self.consumers.tick(self._now())
        self._timer = self.reactor.callLater(0.05, self._tick)

    def end(self) -> None:
        """Let no more time pass for the groups."""
        self._timer.cancel()


class _BrokerEnd:
    """The broker's end of a connection, with a socket's `sendall` for the fake."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.session = ServerSession(1 << 27, broker.versions)
        self.transport: Any = None
        broker.connections += 1
        broker.lines.append(self)

    def received(self, data: bytes) -> None:
        self.broker.reactor.callLater(self.broker.delay, self._serve, data)

    def _serve(self, data: bytes) -> None:
        if not self.transport.connected:
            return
        self.session.receive_data(data)
        while (event := self.session.next_event()) is not None:
            if not self.broker._answer(self, self.session, event):  # type: ignore[arg-type]
                self.broker.reactor.callLater(0, self.transport.end, ConnectionDone())
                return

    def sendall(self, data: bytes) -> None:
        self.broker.reactor.callLater(self.broker.take_hold(), self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.transport.connected and not self.transport.aborted and not self.transport.disconnecting:
            self.transport.protocol.dataReceived(data)


@implementer(IReactorTCP)
class MemoryReactor(Clock):
    """A reactor whose time a test advances, with connections to running brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers: dict[tuple[str, int], MemoryBroker] = {}

    def connectTCP(self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None) -> Any:
        broker = self.brokers.get((host, port))
        connector = _Connector()
        factory.startedConnecting(connector)
        self.callLater(0, self._connect, broker, factory, connector)
        return connector

    def listenTCP(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("clients do not listen")

    def _connect(self, broker: MemoryBroker | None, factory: Any, connector: _Connector) -> None:
        if connector.stopped:
            return
        if broker is None or not broker.up:
            factory.clientConnectionFailed(connector, Failure(ConnectionRefusedError()))
            return
        line = _BrokerEnd(broker)
        protocol = factory.buildProtocol(IPv4Address("TCP", broker.host, broker.port))
        line.transport = PeerTransport(self, protocol, line)  # type: ignore[arg-type]
        protocol.makeConnection(line.transport)

    def run(self, seconds: float, step: float = 0.01) -> None:
        """Advance the time in small steps."""
        for _ in range(round(seconds / step)):
            self.advance(step)

    def result(self, deferred: Deferred[Any], seconds: float = 10.0) -> Any:
        """Return the result of a Deferred, or raise its failure, within `seconds` of this reactor's time."""
        fired: list[Any] = []
        deferred.addBoth(fired.append)
        left = seconds
        while not fired and left > 0:
            self.advance(0.01)
            left -= 0.01
        assert fired, f"no result within {seconds} s"
        if isinstance(fired[0], Failure):
            fired[0].raiseException()
        return fired[0]


class _Connector:
    stopped = False

    def stopConnecting(self) -> None:
        self.stopped = True

    def getDestination(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 9092)
