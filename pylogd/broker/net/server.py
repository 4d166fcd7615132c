"""The server side of connections: connects session, pipeline and sender to a Twisted transport.

A connection is served after the TLS handshake, whose certificate may name a principal. With SASL, only requests that
authenticate are then taken, until `authentication_succeeded`. Until then it counts among the listener's handshakes.

Must not know: any single API. Requests go to the one `RequestHandler` that the factory was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress, IHandshakeListener, IReactorTime
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.clock import wall_ms
from pylogd.base.errors import CloseConnection
from pylogd.base.limits.elements import MAX_ELEMENTS, element_bounds
from pylogd.base.limits.log_lines import LimitedLog
from pylogd.broker.net.bare_tokens import BareTokens
from pylogd.broker.net.connection_quotas import UNLIMITED, Admission, ConnectionQuotas, Verdict, plain_address
from pylogd.broker.net.handshakes import Handshakes
from pylogd.broker.net.hangups import HangupWatch
from pylogd.broker.net.pipeline import Pipeline
from pylogd.broker.net.request_handler import RequestHandler
from pylogd.broker.net.sender import CopyingSender, Sender, Warm
from pylogd.broker.net.turns import Turns
from pylogd.broker.net.work_meter import WorkMeter
from pylogd.broker.security.peers import PeerClaim
from pylogd.broker.security.principal_builder import Authentication, PrincipalBuilder, encode_certificate
from pylogd.credentials.principal import ANONYMOUS, Principal
from pylogd.link.receiving import MEMORY, read_little
from pylogd.link.request_memory import MemoryShare, RequestMemory
from pylogd.link.socket_options import descriptors_left, tune, unread_bytes
from pylogd.wire.session import ServerSession

log = Logger()
_limited = LimitedLog(log)

_IDLE_SWEEP_SECONDS = 10.0
_SWEEP_JITTER_SECONDS = 0.5  # otherwise a time that is a multiple of the interval would be noticed an interval late
_COMMON_ENDS = (ConnectionAborted, ConnectionDone, ConnectionLost)
LEAST_PROGRESS_BYTES = 1 << 15  # least progress of an unfinished request in each `request.receive.timeout.ms`


class ServerLimits(NamedTuple):
    """Limits of the connections of one listener. The comment after each names its setting."""

    max_request_bytes: int  # socket.request.max.bytes
    max_in_flight: int  # connection.max.inflight.requests
    max_unsent_bytes: int  # connection.max.queued.response.bytes
    max_sendfile_bytes: int  # sendfile.max.bytes
    max_idle_ms: int  # connections.max.idle.ms
    send_buffer_bytes: int = -1  # socket.send.buffer.bytes, -1 for the system's
    receive_buffer_bytes: int = -1  # socket.receive.buffer.bytes, -1 for the system's
    max_connections: int = UNLIMITED  # listener.name.<listener>.max.connections
    connection_rate: int = UNLIMITED  # listener.name.<listener>.max.connection.creation.rate
    max_handshakes: int = 1000  # max.connections.handshaking
    handshake_ms: int = 15_000  # connection.handshake.timeout.ms
    receive_ms: int = 30_000  # request.receive.timeout.ms
    max_unauthenticated_bytes: int = 524_288  # sasl.server.max.receive.size
    max_elements: int = MAX_ELEMENTS  # request.max.elements


class ListenerSecurity(NamedTuple):
    """How the connections of a listener are protected, and how their clients authenticate.

    name: the security protocol.
    tls, sasl: whether the protocol includes them.
    principal: makes the principal of a TLS client's certificate; raises ValueError to refuse it.
    builder: makes another principal for a client (`principal.builder.class`); None to keep the principal.
    now_ms: the wall clock.
    """

    name: str = "PLAINTEXT"
    tls: bool = False
    sasl: bool = False
    principal: Callable[[Any], Principal] = lambda _certificate: ANONYMOUS
    builder: PrincipalBuilder | None = None
    now_ms: Callable[[], int] = wall_ms


@implementer(IHandshakeListener)
class BrokerProtocol(Protocol):
    """One client's connection.

    host: the client's address; behind a proxy, the proxy's if the proxy does not tell the client's.
    authenticated: whether the client has authenticated; always true without SASL.
    authentication, context, produce_shape, known_fetch: the handler keeps them here from one request to the next.
    on_lost: called when the connection has ended.
    claim: which broker of the cluster the client says that it is, if any.
    software: the name and version of the client's software, once the client has sent them.
    """

    pipeline: Pipeline
    session: ServerSession
    host: str
    authentication: Any = None
    last_active: float
    principal: Principal = ANONYMOUS
    authenticated = True
    context: Any = None
    produce_shape: Any = None
    known_fetch: Any = None
    tokens: BareTokens | None = None  # while it sends SASL messages without headers
    progress: tuple[int, int, float] | None = None  # an unfinished request: which one, its bytes, since when
    on_lost: Callable[[], object] | None = None
    claim: PeerClaim | None = None
    software = ("", "")
    _early: list[bytes]  # bytes received before its turn

    def __init__(self, factory: BrokerFactory, peer: IAddress | None = None) -> None:
        """peer: the client's address; None for the transport's peer."""
        self.factory: BrokerFactory = factory
        self.listener = factory.listener
        self._peer = peer

    @property
    def port(self) -> int:
        """The port of the peer; 0 if it has none."""
        return getattr(self._peer or self.transport.getPeer(), "port", 0)  # type: ignore[union-attr]

    @property
    def security_protocol(self) -> str:
        """The security protocol of the listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return self.factory.security.name

    def connectionMade(self) -> None:
        transport: Any = self.transport
        peer = self._peer or transport.getPeer()
        self.host = plain_address(getattr(peer, "host", "") or "")  # a Unix socket has no host
        self.last_active = self.factory.clock.seconds()
        verdict = self.factory.admit(self)
        if verdict is Verdict.TAKEN:
            self._begin()
        elif verdict is Verdict.WAITS:
            self._early = []
            # Bytes that arrive nevertheless were received with a proxy's header.
            self.dataReceived = self._early.append  # type: ignore[assignment, method-assign]
            self.pause_reading()
        else:
            self.dataReceived = _ignore  # type: ignore[assignment, method-assign]
            transport.abortConnection()

    def admitted(self) -> None:
        """Serve the client, which has waited for other connections to end."""
        early = self._early
        del self.dataReceived, self._early
        self._begin()
        self.resume_reading()
        for data in early if self.served else ():
            self.dataReceived(data)

    def _begin(self) -> None:
        factory, security = self.factory, self.factory.security
        limits = factory.limits
        tune(self.transport, limits.max_idle_ms, limits.send_buffer_bytes, limits.receive_buffer_bytes)
        self.last_active = factory.clock.seconds()
        if security.tls or security.sasl:
            factory.handshakes.begin(self, self.host)
        if not security.tls and (security.sasl or self._accept_as(ANONYMOUS)):
            self._serve(Sender)

    def handshakeCompleted(self) -> None:
        """Serve the client, which has finished the TLS handshake. The transport calls this."""
        from pylogd.link.tls import peer_certificate  # noqa: PLC0415 - only if there is a TLS listener

        security = self.factory.security
        try:
            certificate = peer_certificate(self.transport, security.now_ms())
            principal = ANONYMOUS if certificate is None or security.sasl else security.principal(certificate)
        except ValueError as error:
            self.give_up(str(error))
            return
        if not security.sasl:
            if not self._accept_as(principal, certificate):
                return
            self.factory.handshakes.end(self, known=self.principal != ANONYMOUS)
        self.spoke()
        self._serve(CopyingSender)

    def _serve(self, sender_class: type[Sender]) -> None:
        factory, limits = self.factory, self.factory.limits
        self.authenticated = not factory.security.sasl
        most = limits.max_request_bytes
        self.session = ServerSession(
            most if self.authenticated else min(most, limits.max_unauthenticated_bytes),
            factory.handler.versions,
            MEMORY,
            element_bounds(limits.max_elements),
        )
        sender = sender_class(
            self.transport, factory.warm, self, max_chunk=limits.max_sendfile_bytes, max_unsent=limits.max_unsent_bytes
        )
        self.pipeline = Pipeline(
            self, self.session, factory.handler, sender, limits.max_in_flight, factory.hangups, factory.turns
        )
        if factory.memory.scarce:
            read_little(self.transport, True)
        if factory.work_meter is not None:
            factory.work_meter.add(self)

    def _accept_as(self, principal: Principal, certificate: Any = None) -> bool:
        """Set the client's principal. Return False, with the connection closed, if the builder's class refuses it."""
        try:
            self._set_principal(principal, None, certificate)
        except CloseConnection as error:
            self.give_up(str(error))
            return False
        return True

    def _set_principal(self, principal: Principal, mechanism: str | None, certificate: Any) -> None:
        """Set the client's principal, or the one that `principal.builder.class` makes of it. Raises CloseConnection."""
        builder = self.factory.security.builder
        if builder is not None:
            known = Authentication(
                self.listener, self.security_protocol, self.host, None if principal == ANONYMOUS else principal.name,
                mechanism, None if certificate is None else encode_certificate(certificate),
            )  # fmt: skip
            try:
                principal = builder.build(known)
            except Exception as error:  # the operator's code may raise anything
                raise CloseConnection(f"principal.builder.class fails for {principal}: {error!r}") from error
        if principal != ANONYMOUS:  # the class already has this default
            self.principal = principal

    def lift_element_bounds(self) -> None:
        """Accept requests with more elements than `request.max.elements`, since the client is another broker."""
        self.session.lift_element_bounds()

    def authentication_succeeded(self, principal: Principal) -> None:
        """Take requests of all kinds from now on, since the client has authenticated as `principal`.

        Raises CloseConnection if `principal.builder.class` refuses it.
        """
        self._set_principal(principal, getattr(self.authentication, "mechanism", None), None)
        self.authenticated = True
        self.context = None
        self.factory.handshakes.end(self, known=True)
        self.session.limit(self.factory.limits.max_request_bytes)

    def spoke(self) -> None:
        """Note that the client has begun to authenticate, so the connection does not count as silent."""
        self.factory.handshakes.spoke(self)

    def receive_tokens(self, step: Callable[[bytes], Any]) -> None:
        """Take SASL messages without headers, which `step` answers, until the client is authenticated."""
        BareTokens(self, step, self.factory.limits.max_unauthenticated_bytes)

    def dataReceived(self, data: bytes) -> None:
        self.last_active = self.factory.clock.seconds()
        self.pipeline.receive(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        factory = self.factory
        factory.handshakes.end(self)
        factory.hangups.forget(self.transport)
        if factory.work_meter is not None:
            factory.work_meter.remove(self)
        if self.tokens is not None:
            self.tokens.lost()
        if factory.dismiss(self):
            self.context = self.authentication = None  # these objects refer to the connection
            if self.served:
                self.pipeline.lost()
                del self.pipeline  # else they keep each other, and a partial frame, until the garbage collector runs
                del self.session
                on_lost, self.on_lost = self.on_lost, None
                if on_lost is not None:
                    on_lost()
            elif not reason.check(*_COMMON_ENDS):
                from pylogd.link.tls import explain_end  # noqa: PLC0415 - only if there is a TLS listener

                _limited.warn("The TLS handshake with {host} failed: {reason}", event="TLS handshakes failed",
                              host=self.host, reason=explain_end(reason))  # fmt: skip

    def finish(self) -> None:
        """Take no more requests, and close the connection when all replies are sent."""
        pipeline: Pipeline | None = getattr(self, "pipeline", None)
        if pipeline is not None:
            pipeline.finish()

    def mute(self, seconds: float) -> None:
        """Take no further request for this many seconds, since the client is over its quota. It counts as active."""
        clock = self.factory.clock
        self.last_active = max(self.last_active, clock.seconds() + seconds)
        pipeline: Pipeline | None = getattr(self, "pipeline", None)  # None if the connection is gone
        if pipeline is not None:
            pipeline.mute(seconds, clock)

    def drained(self) -> None:
        """Continue, since everything has been sent."""
        pipeline: Pipeline | None = getattr(self, "pipeline", None)
        if pipeline is not None:
            pipeline.drained()

    def give_up(self, reason: str) -> None:
        """Close the connection at once, since it has not authenticated, or is not admitted."""
        transport: Any = self.transport
        event = "connections cut off" if self.served and self.authenticated else "handshakes given up"
        _limited.warn("Closing the connection from {host}: {reason}", event=event, host=self.host, reason=reason)
        transport.abortConnection()

    @property
    def served(self) -> bool:
        """Whether requests are taken: the TLS handshake, if any, has ended."""
        return hasattr(self, "pipeline")

    # The methods that the bound on the memory of requests calls

    @property
    def request_memory(self) -> MemoryShare:
        """A new share for the large request that has begun to arrive."""
        return self.factory.memory.share(self)

    @property
    def partial_bytes(self) -> int:
        """The memory of a request that has partly arrived; 0 without one."""
        return self.session.partial_bytes if self.served else 0

    @property
    def announced_bytes(self) -> int:
        """The length of a request that has partly arrived; 0 without one."""
        return self.session.announced_bytes if self.served else 0

    def pause_reading(self) -> None:
        """Read nothing more from the peer until `resume_reading`."""
        transport: Any = self.transport
        transport.pauseProducing()
        self.factory.hangups.watch(transport)

    def resume_reading(self) -> None:
        """Continue to read, if there is no other reason for a pause."""
        transport: Any = self.transport
        if self.factory.hangups.unwatch(transport):
            transport.resumeProducing()

    def cut(self, reason: str) -> None:
        """Close the connection at once."""
        self.give_up(reason)


def _ignore(_data: bytes) -> None:
    """Ignore received bytes, since the connection was refused."""


class BrokerFactory(ServerFactory):
    """Makes the connections of one listener, limits them, and closes those that are idle or too slow.

    limits: may be replaced at any time; then call `set_limits` of the `ConnectionQuotas`.
    admission: decides which connections are admitted; these are in `connections`.
    work_meter: measures the work for the connections; None if it is not measured.
    """

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        handler: RequestHandler,
        warm: Warm,
        limits: ServerLimits,
        listener: str = "PLAINTEXT",
        security: ListenerSecurity | None = None,
        quotas: ConnectionQuotas | None = None,
        memory: RequestMemory | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`warm` reads files ahead for a `Sender`. All listeners of the broker share `quotas`, `memory` and `turns`."""
        self.clock = clock
        self.handler = handler
        self.warm = warm
        self.limits = limits
        self.listener = listener
        self.security = security or ListenerSecurity()
        self.quotas = quotas or ConnectionQuotas()
        self.memory = memory or RequestMemory(clock)
        self.turns = turns or Turns(clock)
        self.admission = Admission(
            clock, self.quotas, listener, lambda: (self.limits.max_connections, self.limits.connection_rate)
        )
        self.connections: set[BrokerProtocol] = self.admission.taken
        self.hangups = HangupWatch(clock)
        self.handshakes = Handshakes(clock, lambda: (self.limits.max_handshakes, self.limits.handshake_ms / 1000))
        self._sweep = LoopingCall(self._close_slow)
        self._sweep.clock = clock
        self._drained: Deferred[None] | None = None
        self.work_meter: WorkMeter | None = None

    def measure_work(self, meter: WorkMeter | None) -> None:
        """Measure the work for all connections, present and future, with `meter`; None to stop measuring."""
        before, self.work_meter = self.work_meter, meter
        for connection in self.connections:
            if before is not None:
                before.remove(connection)
            if meter is not None and connection.served:
                meter.add(connection)

    def buildProtocol(self, addr: IAddress | None) -> BrokerProtocol:  # type: ignore[override]
        return BrokerProtocol(self, addr)

    def doStart(self) -> None:
        super().doStart()  # type: ignore[no-untyped-call]
        if not self._sweep.running:
            self._sweep.start(_IDLE_SWEEP_SECONDS, now=False)

    def doStop(self) -> None:
        super().doStop()  # type: ignore[no-untyped-call]
        if self._sweep.running:
            self._sweep.stop()

    def admit(self, connection: BrokerProtocol) -> Verdict:
        """Decide whether the limits allow `connection`."""
        if not descriptors_left(connection.transport):
            self.admission.refuse(
                connection, "the file descriptors left are kept for files; raise LimitNOFILE or ulimit -n"
            )
            return Verdict.REFUSED
        return self.admission.arrived(connection)

    def dismiss(self, connection: BrokerProtocol) -> bool:
        """Remove `connection`. Return whether it had been admitted."""
        if not self.admission.dismiss(connection):
            return False
        if self._drained is not None and not self.connections:
            self.hangups.close()
            drained, self._drained = self._drained, None
            drained.callback(None)
        return True

    def drain(self) -> Deferred[None]:
        """Take no more requests. The Deferred fires when all replies have been sent and all connections are closed."""
        done: Deferred[None] = Deferred()
        self.admission.give_up_waiting("the broker stops")
        if not self.connections:
            self.hangups.close()
            done.callback(None)
            return done
        self._drained = done
        for connection in list(self.connections):
            if connection.served:
                connection.pipeline.finish()
            else:
                connection.give_up("the broker stops")
        return done

    def memory_is_scarce(self, scarce: bool) -> None:
        """Have all connections read little at a time, or the usual amount."""
        for connection in self.connections:
            if connection.served:
                read_little(connection.transport, scarce)

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections):
            transport: Any = connection.transport
            transport.abortConnection()

    def _close_slow(self) -> None:
        """Close connections that are idle, or whose unfinished request does not progress."""
        now, limits = self.clock.seconds(), self.limits
        idle_since = now - limits.max_idle_ms / 1000 if limits.max_idle_ms >= 0 else float("-inf")
        for connection in list(self.connections):
            if not connection.served:
                continue
            if connection.last_active < idle_since and connection.pipeline.idle:
                connection.pipeline.close("idle for longer than connections.max.idle.ms")
            elif connection.session.pending and not self.hangups.watches(connection.transport):
                self._check_progress(connection, now, limits.receive_ms / 1000)
            else:
                connection.progress = None
        self.memory.check()

    def _check_progress(self, connection: BrokerProtocol, now: float, patience: float) -> None:
        """Close a connection that has received too little of an unfinished request in `patience` seconds."""
        found = connection.session.progress
        before, connection.progress = connection.progress, None
        if found is None:  # a few bytes of the request's length are missing
            if connection.last_active < now - patience:
                connection.pipeline.close("an unfinished request has not progressed in request.receive.timeout.ms")
            return
        number, size = found[0], found[1] + unread_bytes(connection.transport)
        if before is None or before[0] != number or size - before[1] >= LEAST_PROGRESS_BYTES:
            connection.progress = (number, size, now)
        elif now - before[2] >= patience - _SWEEP_JITTER_SECONDS:
            connection.pipeline.close(
                f"an unfinished request has received {size - before[1]} bytes in {now - before[2]:.0f} s "
                "(request.receive.timeout.ms)"
            )
        else:
            connection.progress = before
