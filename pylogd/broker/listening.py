"""The listeners of a broker: bind, protect, limit and close them in order.

Strategy: for each listener a `BrokerFactory` makes the connections, wrapped in TLS and the PROXY protocol if the
settings say so. All listeners share one count of connections and one limit of the memory of requests. When settings
change at run time, limits are replaced, certificates read again, and new connections authenticated by the new settings;
open connections stay. New listeners are bound; removed or moved ones are closed like at a stop: replies leave first.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pylogd.base.limits.log_lines import COUNTS
from pylogd.broker.metadata.image import Endpoint
from pylogd.broker.net.connection_quotas import UNLIMITED, ConnectionQuotas, QuotaLimits
from pylogd.broker.net.proxy_protocol import ProxiedFactory
from pylogd.broker.net.request_handler import RequestHandler
from pylogd.broker.net.sender import Warm
from pylogd.broker.net.server import BrokerFactory, ListenerSecurity, ServerLimits
from pylogd.broker.net.shared_port import SharedPortEndpoint
from pylogd.broker.net.turns import Turns
from pylogd.broker.net.work_meter import WorkMeter
from pylogd.broker.security.principal_builder import (
    BUILDER_CLASS,
    Authentication,
    ConfiguredBuilder,
    PrincipalBuilder,
    encode_certificate,
)
from pylogd.config import ConfigError, Listener, ListenerValues, Settings, Value
from pylogd.config.listeners import check_change, inter_broker_listener, listeners_of, parse_networks, parse_overrides
from pylogd.config.tls import TlsOptions, tls_options
from pylogd.credentials.conversation import ClientConversation
from pylogd.credentials.principal import ANONYMOUS, Principal
from pylogd.link.client import ConnectionSecurity
from pylogd.link.receiving import MEMORY
from pylogd.link.request_memory import RequestMemory

if TYPE_CHECKING:
    from pylogd.broker.security.inter_broker import BrokerLogins
    from pylogd.broker.security.rotation import ListenerCertificates

log = Logger()

#: The seconds between two checks of certificate files.
_CERTIFICATE_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0
_ADDRESSES: Final = frozenset({"listeners", "listener.security.protocol.map", "advertised.listeners"})
_EXPOSED: Final = (
    "Listener {listener} accepts connections from other machines and does not encrypt them: passwords and records can "
    "be read on the way{anybody}. Make it an SSL or SASL_SSL listener (listeners, listener.security.protocol.map, "
    "ssl.keystore.location), or have it listen on 127.0.0.1"
)


@dataclass(slots=True)
class _OpenListener:
    """A listener that is bound.

    wanted: the listener in the settings.
    bound: the same with its port.
    """

    wanted: Listener
    bound: Listener
    factory: BrokerFactory
    port: Any


@runtime_checkable
class _Authenticating(Protocol):
    """A handler that authenticates connections by changeable settings."""

    async def check(self, values: ListenerValues) -> None:
        """Raise ConfigError if these settings can't be used."""

    async def use(self, values: ListenerValues) -> None:
        """Use these settings for new connections."""


class Listeners:
    """The listeners of one broker.

    connections, memory: the limits that all of them share.
    on_moved: called when listeners were added, removed or moved.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        handler: Callable[[Listener], Awaitable[RequestHandler]],
        warm: Warm,
        in_thread: Callable[..., Deferred[Any]],
        make_builder: Callable[[str | None], PrincipalBuilder | None] = lambda _: None,
    ) -> None:
        """`handler` makes the handler of a listener's requests. `warm` is passed to `Sender`. `make_builder` makes the
        principal builder of the class `principal.builder.class`.
        """
        self._builder = ConfiguredBuilder(settings, make_builder)
        self.on_moved: Callable[[], object] = lambda: None
        self._settings = settings
        self._reactor = reactor
        self._handler = handler
        self._warm = warm
        self._in_thread = in_thread
        self._open: dict[str, _OpenListener] = {}  # listeners by name, in the order of the settings
        self._leaving: set[BrokerFactory] = set()  # factories of removed listeners, while replies leave
        self._accepting = self._stopped = False
        self._changes = DeferredLock()
        self.connections = ConnectionQuotas()
        self.memory = RequestMemory(reactor)
        self._turns = Turns(reactor)
        self.memory.on_scarce = self._memory_is_scarce
        self._work_meter: WorkMeter | None = None
        self._advertised: dict[str, tuple[str, int]] = {}
        self._certificates: dict[str, ListenerCertificates] = {}
        self._unsubscribe: Callable[[], None] = lambda: None
        self._calls = (
            (LoopingCall(_report_events), _REPORT_SECONDS), (LoopingCall(self.read_certificates), _CERTIFICATE_SECONDS)
        )  # fmt: skip
        for call, _ in self._calls:
            call.clock = reactor

    @cached_property
    def _logins(self) -> BrokerLogins:
        """Return how this broker authenticates at others if the listener between brokers uses SASL."""
        from pylogd.broker.security.inter_broker import BrokerLogins  # noqa: PLC0415 - imports all mechanisms of SASL

        between = self._settings.inter_broker_listener.name
        return BrokerLogins(lambda: self._settings.for_listener(between), between)

    # -- addresses

    @property
    def bound(self) -> tuple[Listener, ...]:
        """The listeners with their bound ports."""
        return tuple(one.bound for one in self._open.values())

    @property
    def _factories(self) -> list[BrokerFactory]:
        return [*(one.factory for one in self._open.values()), *self._leaving]

    def advertised(self, listener: str) -> tuple[str, int]:
        """Return the (host, port) that a client of `listener` should connect to."""
        return self._advertised[listener]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses to register, which are the advertised ones."""
        return tuple(Endpoint(one.name, *self._advertised[one.name], one.protocol.value) for one in self.bound)

    @property
    def between_brokers(self) -> ConnectionSecurity:
        """The security of connections to other brokers."""
        listener = self._settings.inter_broker_listener
        certificates = self._certificates.get(listener.name)
        encrypt: Callable[[str], Any] | None = None
        conversation: Callable[[str], ClientConversation] | None = None
        if certificates is not None:
            from pylogd.link.client_tls import HostTls  # noqa: PLC0415 - imports OpenSSL

            encrypt = lambda host: HostTls(  # noqa: E731
                certificates.context_between_brokers(), host, certificates.check_hostname
            )
        if listener.protocol.sasl:
            conversation = lambda host: self._logins.current().begin(host)  # noqa: E731
        return ConnectionSecurity(encrypt, conversation)

    def principal_between_brokers(self) -> Principal | None:
        """Return this broker's principal for other brokers; None if only its token has it.

        Raises ConfigError if the listener between brokers uses SASL without settings for authentication.
        """
        listener = self._settings.inter_broker_listener
        certificates = self._certificates.get(listener.name)
        principal, mechanism, encoded = ANONYMOUS, None, None
        if listener.protocol.sasl:
            login = self._logins.current()
            if login.principal is None:
                return None
            principal, mechanism = login.principal, login.mechanism
        elif certificates is not None:
            certificate = certificates.credentials.identities[0].chain[0]
            principal, encoded = certificates.principal(certificate), encode_certificate(certificate)
        if self._builder.current is None:
            return principal
        name = None if principal == ANONYMOUS else principal.name
        return self._builder.current.build(
            Authentication(listener.name, listener.protocol.value, listener.host, name, mechanism, encoded)
        )

    # -- start and stop

    async def bind(self) -> None:
        """Bind all listeners. Connections wait in the kernel until `accept`.

        Raises ConfigError or CannotListenError.
        """
        self._builder.refresh()  # settings may have been changed at run time before this start
        self._unsubscribe = self._settings.subscribe(self._settings_changed)
        await self._changes.run(lambda: Deferred.fromCoroutine(self._bind_all()))
        self._apply_limits()
        for call, seconds in self._calls:
            call.start(seconds, now=False)

    async def _bind_all(self) -> None:
        for listener in self._settings.listeners:
            await self._bind(listener)

    async def _bind(self, listener: Listener) -> None:
        protocol = listener.protocol
        security = ListenerSecurity(protocol.value, protocol.tls, protocol.sasl, builder=self._builder.current)
        certificates = await self._load_certificates(listener) if protocol.tls else None
        if certificates is not None:
            security = security._replace(principal=certificates.principal)
        handler = await self._handler(listener)
        factory = BrokerFactory(
            self._reactor, handler, self._warm, self._limits(listener.name), listener.name, security,
            self.connections, self.memory, self._turns,
        )  # fmt: skip
        factory.measure_work(self._work_meter)
        outer: Any = factory
        if certificates is not None:
            from pylogd.link.tls import TlsFactory  # noqa: PLC0415 - imports OpenSSL

            outer = TlsFactory(certificates.context, factory, self._reactor)
        values = self._settings.for_listener(listener.name)
        if values.flag("proxy.protocol"):
            outer = ProxiedFactory(outer, factory.handshakes, parse_networks(values.words("proxy.protocol.networks")))
        port: Any = await self._endpoint(listener, values.flag("socket.reuse.port")).listen(outer)
        port.stopReading()  # connections wait in the backlog until the broker has started
        number = getattr(port.getHost(), "port", listener.port)
        bound = Listener(listener.name, listener.host, number, listener.endpoint, listener.protocol)
        self._open[listener.name] = _OpenListener(listener, bound, factory, port)
        self._advertised[listener.name] = self._advertise(bound)
        if listener.exposed and not listener.protocol.tls:
            anybody = "" if listener.protocol.sasl else ", and whoever connects may change everything"
            log.warn(_EXPOSED, listener=bound, anybody=anybody)

    def _endpoint(self, listener: Listener, shared: bool) -> IStreamServerEndpoint:
        backlog = self._settings.integer("socket.listen.backlog.size")
        if shared:
            return SharedPortEndpoint(self._reactor, listener.host, listener.port, backlog)
        description = listener.endpoint
        if description.startswith("tcp") and "backlog=" not in description:
            description += f":backlog={backlog}"
        endpoint: IStreamServerEndpoint = serverFromString(self._reactor, description)
        return endpoint

    async def _load_certificates(self, listener: Listener) -> ListenerCertificates:
        certificates = self._new_certificates(listener.name, partial(self._settings.tls_options, listener.name))
        await certificates.load()
        self._certificates[listener.name] = certificates
        return certificates

    def _new_certificates(self, name: str, options: Callable[[], TlsOptions]) -> ListenerCertificates:
        from pylogd.broker.security.rotation import ListenerCertificates  # noqa: PLC0415 - imports OpenSSL

        return ListenerCertificates(name, options, self._in_thread)

    def _advertise(self, bound: Listener) -> tuple[str, int]:
        for told in self._settings.advertised_listeners:
            if told.name == bound.name:
                return told.host, told.port or bound.port
        return socket.gethostname() if bound.wildcard else bound.host, bound.port

    def accept(self) -> None:
        """Begin to accept connections."""
        self._accepting = True
        for one in self._open.values():
            one.factory.admission.open(one.port)

    def _memory_is_scarce(self) -> None:
        MEMORY.be_scarce(self.memory.scarce)
        for factory in self._factories:
            factory.memory_is_scarce(self.memory.scarce)

    def measure_work(self, meter: WorkMeter | None) -> None:
        """Measure the work for all connections with `meter`; None stops measuring."""
        self._work_meter = meter
        for factory in self._factories:
            factory.measure_work(meter)

    async def stop(self) -> None:
        """Stop listening. Connections stay open."""
        self._unsubscribe()
        self._unsubscribe = lambda: None
        for call, _ in self._calls:
            if call.running:
                call.stop()
        if not self._stopped:
            self._stopped = True
            await self._changes.acquire()  # kept for good; listeners that are being added are bound first
            for one in self._open.values():
                await self._stop_listening(one)

    async def _stop_listening(self, one: _OpenListener) -> None:
        one.factory.admission.close()
        await maybeDeferred(one.port.stopListening)

    def counts(self) -> list[tuple[str, int]]:
        """Return the number of connections of each listener."""
        return [(factory.listener, len(factory.connections)) for factory in self._factories]

    def served(self) -> list[tuple[str, int]]:
        """Return the number of connections that each listener has accepted since the start."""
        return [(factory.listener, factory.admission.total) for factory in self._factories]

    async def drain(self, seconds: float) -> None:
        """Let replies leave, and close the remaining connections after `seconds`."""
        for factory in self._factories:
            drained = factory.drain()
            abort = self._reactor.callLater(seconds, factory.abort)
            await drained
            if abort.active():
                abort.cancel()

    def abort(self) -> None:
        """Close every connection at once."""
        for factory in self._factories:
            factory.abort()

    def read_certificates(self) -> None:
        """Read changed certificates again."""
        for certificates in self._certificates.values():
            certificates.refresh()

    async def check(self, values: Mapping[str, Value]) -> None:
        """Raise ConfigError if listeners can't use these settings (by name), or their certificates or mechanisms."""
        now = {name: self._settings[name] for name in self._settings}
        changed = {name for name in {*now, *values} if now.get(name) != values.get(name)}
        listeners = listeners_of(values)
        between = inter_broker_listener(values, listeners)
        check_change(listeners, between, self._settings.listeners, self._settings.inter_broker_listener)
        if BUILDER_CLASS in changed:
            await self._in_thread(self._builder.make, values[BUILDER_CLASS])
        for listener in listeners:
            own, name = ListenerValues(values, listener.name), listener.name
            if listener.protocol.tls:
                await self._check_certificates(name, tls_options(own.__getitem__, name))
            known = self._open.get(name)
            handler = None if known is None else known.factory.handler
            if isinstance(handler, _Authenticating) and any("sasl." in one for one in changed):
                await handler.check(own)
            if known is None or known.wanted != listener:
                await self._try(listener, own.flag("socket.reuse.port"))

    async def _check_certificates(self, name: str, options: TlsOptions) -> None:
        known = self._certificates.get(name)
        await (known.check(options) if known else self._new_certificates(name, lambda: options).load())

    async def _try(self, listener: Listener, shared: bool) -> None:
        """Raise ConfigError if the address of a listener can't be bound."""
        if shared or listener.port in {0, *(one.port for one in self.bound)}:
            return
        try:
            port: Any = await self._endpoint(listener, shared).listen(Factory())
        except CannotListenError as error:
            raise ConfigError(f"listeners: can't listen on {listener}: {error}", "listeners") from error
        await maybeDeferred(port.stopListening)

    def _settings_changed(self, names: frozenset[str]) -> None:
        self._apply_limits()
        self.read_certificates()
        if BUILDER_CLASS in names:
            self._use_builder()
        if not _ADDRESSES.isdisjoint(names):
            self._change(self._rebind)
        if any("sasl." in name for name in names):
            self._change(self._use_authentication_settings)

    def _change(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._changes.run(lambda: Deferred.fromCoroutine(work())).addErrback(
            lambda failure: log.failure("Could not change the listeners", failure)
        )

    def _use_builder(self) -> None:
        """Use the principal builder in the settings for new connections."""
        try:
            changed = self._builder.refresh()
        except ConfigError as error:
            log.error("{error}. Clients keep the principals of the former class", error=str(error))
            return
        for factory in self._factories if changed else ():
            factory.security = factory.security._replace(builder=self._builder.current)

    async def _use_authentication_settings(self) -> None:
        """Authenticate new connections by the present settings."""
        for name, one in self._open.items():
            if isinstance(one.factory.handler, _Authenticating):
                try:
                    await one.factory.handler.use(self._settings.for_listener(name))
                except ConfigError as error:
                    log.error("Listener {name} keeps its former mechanisms: {error}", name=name, error=str(error))

    async def _rebind(self) -> None:
        """Close the listeners that are no longer in the settings, and bind the new ones."""
        wanted = {listener.name: listener for listener in self._settings.listeners}
        for name, one in list(self._open.items()):
            if wanted.get(name) != one.wanted:
                del self._open[name]
                await self._leave(one)
        for name, listener in wanted.items():
            if name not in self._open:
                try:
                    await self._bind(listener)
                except (ConfigError, CannotListenError) as error:
                    log.error("Can't listen on {listener}: {error}. Set listeners again", listener=listener,
                              error=str(error))  # fmt: skip
                    continue
                if self._accepting:
                    self._open[name].factory.admission.open(self._open[name].port)
                log.info("Now listening on {listener}", listener=self._open[name].bound)
        self._open = {name: self._open[name] for name in wanted if name in self._open}
        self._apply_limits()
        self.on_moved()

    async def _leave(self, one: _OpenListener) -> None:
        """Stop listening there, and close the connections once their replies have left."""
        factory = one.factory
        await self._stop_listening(one)
        self._certificates.pop(one.bound.name, None)
        self._leaving.add(factory)
        seconds = self._settings.integer("controlled.shutdown.drain.ms") / 1000
        abort = self._reactor.callLater(seconds, factory.abort)

        def left(_: object) -> None:
            if abort.active():
                abort.cancel()
            self._leaving.discard(factory)
            self.connections.listeners.remove(factory.admission)

        factory.drain().addCallback(left)
        log.info("Listening no more on {listener}", listener=one.bound)

    def _apply_limits(self) -> None:
        settings = self._settings
        self.memory.limit = settings.integer("queued.max.request.bytes")
        self.memory.patience = settings.integer("request.receive.timeout.ms") / 1000
        self.memory.check()
        between = settings.inter_broker_listener.name
        for factory in self._factories:
            factory.limits = self._limits(factory.listener)
            factory.admission.exempt = factory.listener == between and len(self._factories) > 1
        self.connections.set_limits(
            QuotaLimits(
                settings.integer("max.connections"),
                settings.integer("max.connections.per.ip"),
                parse_overrides(settings.words("max.connections.per.ip.overrides")),
                settings.integer("max.connection.creation.rate"),
            )
        )

    def _limits(self, listener: str) -> ServerLimits:
        values = self._settings.for_listener(listener)
        integer = values.integer
        return ServerLimits(
            max_request_bytes=integer("socket.request.max.bytes"),
            max_in_flight=integer("connection.max.inflight.requests"),
            max_unsent_bytes=integer("connection.max.queued.response.bytes"),
            max_sendfile_bytes=integer("sendfile.max.bytes"),
            max_idle_ms=integer("connections.max.idle.ms"),
            send_buffer_bytes=integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=integer("socket.receive.buffer.bytes"),
            max_connections=_own(values, "max.connections"),
            connection_rate=_own(values, "max.connection.creation.rate"),
            max_handshakes=integer("max.connections.handshaking"),
            handshake_ms=integer("connection.handshake.timeout.ms"),
            receive_ms=integer("request.receive.timeout.ms"),
            max_unauthenticated_bytes=integer("sasl.server.max.receive.size"),
            max_elements=integer("request.max.elements"),
        )


def _report_events() -> None:
    """Log the numbers of connections and clients that were refused, cut off or closed since the last report."""
    events = COUNTS.report()
    if events:
        log.info("In the last {seconds:.0f} s: {events}", seconds=_REPORT_SECONDS, events=events)


def _own(values: ListenerValues, name: str) -> int:
    """Return a listener's own limit, which applies in addition to the broker's."""
    value = values.own(name)
    return value if isinstance(value, int) else UNLIMITED
