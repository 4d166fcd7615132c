"""Run the registry: read its topic, then serve HTTP until it is stopped."""

from __future__ import annotations

from typing import Any

from twisted.internet import defer
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort
from twisted.web.http import combinedLogFormatter, datetimeToLogString
from twisted.web.iweb import IRequest

from pylogd.client import SecurityOptions
from pylogd.clock import wall_ms
from pylogd.schemas.authentication import Authenticator
from pylogd.schemas.bodies import BoundedSite
from pylogd.schemas.checking import SchemaChecker
from pylogd.schemas.parsing import Compatibility
from pylogd.schemas.registry import Registry
from pylogd.schemas.store import SchemaStore
from pylogd.schemas.web import SchemaRegistryResource


class SchemaRegistryService:
    """Starts and stops the store and the HTTP server in order. `address`: (host, port) once it listens."""

    def __init__(
        self,
        reactor: Any,
        bootstrap: str,
        listen: str,
        topic: str,
        level: Compatibility = Compatibility.BACKWARD,
        security: SecurityOptions | None = None,
        *,
        authenticator: Authenticator | None = None,
        tls: Any = None,
    ) -> None:
        """`listen` is a Twisted server endpoint, such as `tcp:8081:interface=127.0.0.1`.

        security: of connections to brokers. authenticator: who may send requests; None for everybody. tls: a
        `tls.ReloadedTls`; None for plain HTTP.
        """
        self._reactor = reactor
        self._authenticator = Authenticator(reactor) if authenticator is None else authenticator
        self._tls = tls
        self._listen = listen
        self._store = SchemaStore(reactor, bootstrap, topic, Registry(level), security=security)
        self._checker = SchemaChecker(reactor)
        self._port: IListeningPort | None = None
        self.address = ("", 0)

    def start(self) -> defer.Deferred[None]:
        """Start. The Deferred fires once the port is open."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self._authenticator.start()
        await self._store.start()
        resource = SchemaRegistryResource(self._store, self._checker, self._authenticator)
        factory: Any = BoundedSite(resource, self._reactor, _access_line)
        if self._tls is not None:
            from twisted.protocols.tls import TLSMemoryBIOFactory  # noqa: PLC0415 - needs pyOpenSSL, an extra

            self._tls.start()
            factory = TLSMemoryBIOFactory(self._tls, isClient=False, wrappedFactory=factory)
        self._port = await serverFromString(self._reactor, self._listen).listen(factory)
        bound: Any = self._port.getHost()
        self.address = (bound.host, bound.port)

    def stop(self) -> defer.Deferred[None]:
        """Stop. The Deferred fires once the port and all connections are closed."""
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._port is not None:
            await defer.maybeDeferred(self._port.stopListening)
        if self._tls is not None:
            self._tls.stop()
        self._authenticator.stop()
        await self._checker.stop()
        await self._store.stop()


def _access_line(_: str, request: IRequest) -> str:
    """Return one line of the access log. Twisted's time stamp is the reactor's time, which is not the time of day."""
    line: str = combinedLogFormatter(datetimeToLogString(wall_ms() // 1000), request)
    return line
