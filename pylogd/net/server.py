"""The server side of a connection: wires session, pipeline and sender to a Twisted transport.

Knows no API: requests go to the one dispatch function that the factory was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.net.pipeline import Pipeline
from pylogd.net.sender import Sender, Warm
from pylogd.wire.session import RequestReceived, ServerSession, UnsupportedRequest

log = Logger()

#: The most that one read takes from a socket. Large batches come in few reads; many small requests come in one.
RECEIVE_BYTES = 1 << 18
_IDLE_SWEEP_SECONDS = 10.0


@dataclass(slots=True, frozen=True)
class ServerLimits:
    """What one connection may cost. Bytes, requests, milliseconds, connections."""

    max_request_bytes: int
    max_in_flight: int
    max_idle_ms: int
    max_connections: int


#: (connection, event) -> a response message, a Deferred of one, or None where no reply is due.
Dispatch = Callable[["BrokerProtocol", RequestReceived | UnsupportedRequest], Any]


class BrokerProtocol(Protocol):
    """One client's connection. `host` is the peer's address; `listener` names the endpoint that it came in by."""

    pipeline: Pipeline
    host: str
    last_active: float

    def __init__(self, factory: BrokerFactory) -> None:
        self.factory: BrokerFactory = factory
        self.listener = factory.listener

    def connectionMade(self) -> None:
        transport: Any = self.transport
        if not self.factory.admit(self):
            transport.abortConnection()
            return
        transport.setTcpNoDelay(True)
        transport.bufferSize = RECEIVE_BYTES
        self.host = transport.getPeer().host
        self.last_active = self.factory.clock.seconds()
        limits = self.factory.limits
        session = ServerSession(limits.max_request_bytes, self.factory.versions)
        sender = Sender(transport, self.factory.warm, self._drained)
        self.pipeline = Pipeline(session, self._handle, sender, transport, limits.max_in_flight)

    def dataReceived(self, data: bytes) -> None:
        self.last_active = self.factory.clock.seconds()
        self.pipeline.receive(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.factory.dismiss(self):
            self.pipeline.lost()

    def _handle(self, event: RequestReceived | UnsupportedRequest) -> Any:
        return self.factory.dispatch(self, event)

    def _drained(self) -> None:
        pipeline: Pipeline | None = getattr(self, "pipeline", None)
        if pipeline is not None:
            pipeline.drained()


class BrokerFactory(ServerFactory):
    """Makes the connections of one listener, counts them, and closes those that are idle."""

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        dispatch: Dispatch,
        versions: Mapping[int, tuple[int, int]],
        warm: Warm,
        limits: ServerLimits,
        listener: str = "PLAINTEXT",
    ) -> None:
        self.clock = clock
        self.dispatch = dispatch
        self.versions = versions
        self.warm = warm
        self.limits = limits
        self.listener = listener
        self.connections: set[BrokerProtocol] = set()
        self._refused = 0
        self._sweep = LoopingCall(self._close_idle)
        self._sweep.clock = clock
        self._drained: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> BrokerProtocol:
        return BrokerProtocol(self)

    def doStart(self) -> None:
        super().doStart()
        if not self._sweep.running:
            self._sweep.start(_IDLE_SWEEP_SECONDS, now=False)

    def doStop(self) -> None:
        super().doStop()
        if self._sweep.running:
            self._sweep.stop()

    def admit(self, connection: BrokerProtocol) -> bool:
        """Whether there is room for `connection`, which is then counted."""
        if len(self.connections) >= self.limits.max_connections:
            self._refused += 1
            if self._refused.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... so that a flood does not fill the log
                log.warn(
                    "refused {count} connections so far: max.connections={limit} are open",
                    count=self._refused,
                    limit=self.limits.max_connections,
                )
            return False
        self.connections.add(connection)
        return True

    def dismiss(self, connection: BrokerProtocol) -> bool:
        """Forget `connection`. False where it was never admitted."""
        if connection not in self.connections:
            return False
        self.connections.discard(connection)
        if self._drained is not None and not self.connections:
            drained, self._drained = self._drained, None
            drained.callback(None)
        return True

    def drain(self) -> Deferred[None]:
        """Stop taking requests, let those in flight end and their replies leave; fires when no connection is left."""
        done: Deferred[None] = Deferred()
        if not self.connections:
            done.callback(None)
            return done
        self._drained = done
        for connection in list(self.connections):
            connection.pipeline.finish()
        return done

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections):
            transport: Any = connection.transport
            transport.abortConnection()

    def _close_idle(self) -> None:
        oldest = self.clock.seconds() - self.limits.max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.last_active < oldest and not connection.pipeline.in_flight:
                connection.pipeline.close("idle for longer than connections.max.idle.ms")

