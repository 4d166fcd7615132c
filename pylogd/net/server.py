"""The server side of connections: connects session, pipeline and sender to a Twisted transport.

Must not know: any single API. Requests go to the one `RequestHandler` that the factory was given.
"""

from __future__ import annotations

import resource
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.net.hangups import HangupWatch
from pylogd.net.pipeline import Pipeline, RequestHandler
from pylogd.net.receiving import MEMORY
from pylogd.net.sender import Sender, Warm
from pylogd.security.principal import ANONYMOUS, Principal
from pylogd.wire.session import ServerSession

log = Logger()

_IDLE_SWEEP_SECONDS = 10.0
_MOST_MS = (1 << 31) - 1
_DESCRIPTORS_FOR_FILES = 256  # or a quarter of what the process may have, if that is less


@dataclass(slots=True, frozen=True)
class ServerLimits:
    """Limits of connections; each is the setting named behind it."""

    max_request_bytes: int  # socket.request.max.bytes
    max_in_flight: int  # connection.max.inflight.requests
    max_unsent_bytes: int  # connection.max.queued.response.bytes
    max_sendfile_bytes: int  # sendfile.max.bytes
    max_idle_ms: int  # connections.max.idle.ms
    max_connections: int  # max.connections
    max_connections_per_host: int  # max.connections.per.ip
    send_buffer_bytes: int  # socket.send.buffer.bytes, -1 for the system's
    receive_buffer_bytes: int  # socket.receive.buffer.bytes, -1 for the system's


class BrokerProtocol(Protocol):
    """One client's connection.

    host: the peer's address. listener: the name of the listener that accepted it. principal: who the client is.
    context: kept here by the handler from one request to the next.
    """

    pipeline: Pipeline
    host: str
    last_active: float
    principal: Principal = ANONYMOUS
    context: Any = None

    def __init__(self, factory: BrokerFactory) -> None:
        self.factory: BrokerFactory = factory
        self.listener = factory.listener

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self.host = getattr(transport.getPeer(), "host", "") or ""  # a Unix socket has none
        if not self.factory.admit(self):
            transport.abortConnection()
            return
        limits = self.factory.limits
        _tune(transport, limits)
        self.last_active = self.factory.clock.seconds()
        factory = self.factory
        session = ServerSession(limits.max_request_bytes, factory.handler.versions, MEMORY)
        sender = Sender(
            transport,
            factory.warm,
            self,
            max_chunk=limits.max_sendfile_bytes,
            max_unsent=limits.max_unsent_bytes,
        )
        self.pipeline = Pipeline(self, session, factory.handler, sender, limits.max_in_flight, factory.hangups)

    def dataReceived(self, data: bytes) -> None:
        self.last_active = self.factory.clock.seconds()
        self.pipeline.receive(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.factory.dismiss(self):
            self.context = None  # it refers to us
            self.pipeline.lost()
            del self.pipeline  # or they keep each other, and a partial frame, until the garbage collector runs

    def mute(self, seconds: float) -> None:
        """Take no further request for so many seconds: the client is over its quota. It counts as active meanwhile."""
        clock = self.factory.clock
        self.last_active = max(self.last_active, clock.seconds() + seconds)
        pipeline: Pipeline | None = getattr(self, "pipeline", None)  # None if the connection is gone
        if pipeline is not None:
            pipeline.mute(seconds, clock)

    def drained(self) -> None:
        """Continue: everything has been sent."""
        pipeline: Pipeline | None = getattr(self, "pipeline", None)
        if pipeline is not None:
            pipeline.drained()


def _tune(transport: Any, limits: ServerLimits) -> None:
    handle: socket.socket = transport.getHandle()
    if handle.family in (socket.AF_INET, socket.AF_INET6):
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        if limits.max_idle_ms > 0:  # only the kernel sees a peer that takes no bytes
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(limits.max_idle_ms, _MOST_MS))
    for option, size in (
        (socket.SO_SNDBUF, limits.send_buffer_bytes),
        (socket.SO_RCVBUF, limits.receive_buffer_bytes),
    ):
        if size > 0:
            handle.setsockopt(socket.SOL_SOCKET, option, size)


def _descriptors_left(transport: Any) -> bool:
    """Return whether enough descriptors are left for files. The kernel gives out the lowest free number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or transport.fileno() < limit - min(limit // 4, _DESCRIPTORS_FOR_FILES)


class BrokerFactory(ServerFactory):
    """Makes the connections of one listener, limits their number, and closes idle ones."""

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        handler: RequestHandler,
        warm: Warm,
        limits: ServerLimits,
        listener: str = "PLAINTEXT",
    ) -> None:
        """`warm`: reads a part of a file into the page cache, as `Sender` asks for. `listener`: its name."""
        self.clock = clock
        self.handler = handler
        self.warm = warm
        self.limits = limits
        self.listener = listener
        self.connections: set[BrokerProtocol] = set()
        self._by_host: Counter[str] = Counter()
        self.hangups = HangupWatch(clock)
        #: Counts a new connection of an IP address; returns whether its rate is within the quota.
        self.admit_address: Callable[[str], bool] = lambda _: True
        self._refused = 0
        self._sweep = LoopingCall(self._close_idle)
        self._sweep.clock = clock
        self._drained: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> BrokerProtocol:  # type: ignore[override]
        return BrokerProtocol(self)

    def doStart(self) -> None:
        super().doStart()  # type: ignore[no-untyped-call]
        if not self._sweep.running:
            self._sweep.start(_IDLE_SWEEP_SECONDS, now=False)

    def doStop(self) -> None:
        super().doStop()  # type: ignore[no-untyped-call]
        if self._sweep.running:
            self._sweep.stop()

    def admit(self, connection: BrokerProtocol) -> bool:
        """Return whether the limits allow `connection`, which then counts."""
        limits = self.limits
        if not self.admit_address(connection.host):
            return self._refuse(connection, "the quota connection_creation_rate of its address is exceeded")
        if len(self.connections) >= limits.max_connections:
            return self._refuse(connection, f"max.connections={limits.max_connections} is reached")
        if self._by_host[connection.host] >= limits.max_connections_per_host:
            return self._refuse(connection, f"max.connections.per.ip={limits.max_connections_per_host} is reached")
        if not _descriptors_left(connection.transport):
            return self._refuse(
                connection, "the file descriptors left are kept for files; raise LimitNOFILE or ulimit -n"
            )
        self.connections.add(connection)
        self._by_host[connection.host] += 1
        return True

    def _refuse(self, connection: BrokerProtocol, reason: str) -> bool:
        self._refused += 1
        if self._refused.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... so that a flood does not fill the log
            log.warn(
                "Refused a connection from {host}, {count} so far: {reason}",
                host=connection.host,
                count=self._refused,
                reason=reason,
            )
        return False

    def dismiss(self, connection: BrokerProtocol) -> bool:
        """Remove `connection`. Return whether it had been admitted."""
        if connection not in self.connections:
            return False
        self.connections.discard(connection)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        if self._drained is not None and not self.connections:
            self.hangups.close()
            drained, self._drained = self._drained, None
            drained.callback(None)
        return True

    def drain(self) -> Deferred[None]:
        """Take no more requests. The Deferred fires when all replies have been sent and all connections are closed."""
        done: Deferred[None] = Deferred()
        if not self.connections:
            self.hangups.close()
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
        if self.limits.max_idle_ms < 0:
            return
        oldest = self.clock.seconds() - self.limits.max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.last_active < oldest and connection.pipeline.idle:
                connection.pipeline.close("idle for longer than connections.max.idle.ms")
