"""Run the registry: read its topic, then serve HTTP until it is stopped."""

from __future__ import annotations

import json
import socket
from typing import Any, Final, NamedTuple

from twisted.internet import defer

from pylogd.client import SecurityOptions
from pylogd.client.deferred import Cluster
from pylogd.services.registry.authentication import Authenticator
from pylogd.services.registry.checking import SchemaChecker
from pylogd.services.registry.election import Identity, LeaderElection
from pylogd.services.registry.errors import BodyTooLarge, Overloaded
from pylogd.services.registry.forwarding import Forwarder
from pylogd.services.registry.handlers import Handlers
from pylogd.services.registry.model import Compatibility
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.store import SchemaStore
from pylogd.services.registry.web import CONTENT_TYPE, SchemaRegistryResource, error_document
from pylogd.web.bodies import BoundedServer, RefusalForm

_EVERYWHERE: Final = ("0.0.0.0", "::")
_JOIN_SECONDS: Final = 10.0


def _refusal(status: int, message: str) -> bytes:
    """Return the document that refuses a request because of its body."""
    return json.dumps(error_document((BodyTooLarge if status == 413 else Overloaded)(message))).encode()


REFUSALS: Final = RefusalForm(CONTENT_TYPE, _refusal)


class RegistryMember(NamedTuple):
    """The options of a registry for the election of a leader among the registries of a topic.

    group: the name of the registries' group.
    advertised: host and port at which other registries reach it; ("", 0) for the address of its listener.
    eligible: whether it may lead.
    session_timeout: the seconds without a heartbeat after which it no longer leads.
    """

    group: str = "schema-registry"
    advertised: tuple[str, int] = ("", 0)
    eligible: bool = True
    session_timeout: float = 10.0


class SchemaRegistryService:
    """Starts and stops the store and the HTTP server in order."""

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
        forwarder: Forwarder | None = None,
        membership: RegistryMember | None = None,
    ) -> None:
        """listen: a Twisted server endpoint, such as `tcp:8081:interface=127.0.0.1`.

        security: the security of connections to brokers.
        authenticator: who may send requests; None for everybody.
        tls: a `tls.ReloadedTls`; None for plain HTTP.
        forwarder: sends changes to the leader.
        """
        self._reactor = reactor
        self._authenticator = Authenticator(reactor) if authenticator is None else authenticator
        self._tls = tls
        self._server = BoundedServer(reactor, listen, tls, REFUSALS)
        self._bootstrap, self._security = bootstrap, security
        self._store = SchemaStore(reactor, bootstrap, topic, Registry(level), security=security)
        self._checker = SchemaChecker(reactor)
        self._forwarder = Forwarder(reactor) if forwarder is None else forwarder
        self._membership = membership or RegistryMember()
        self._election: LeaderElection | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) once it listens."""
        return self._server.address

    def start(self) -> defer.Deferred[None]:
        """Start. The Deferred fires once the port is open."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self._authenticator.start()
        await self._store.start()
        await self._server.start()
        self._election = self._make_election()
        handlers = Handlers(self._store, self._checker, self._membership.group)
        resource = SchemaRegistryResource(handlers, self._authenticator, self._election, self._forwarder)
        self._server.site.resource = resource
        self._election.start()

    def _make_election(self) -> LeaderElection:
        member = self._membership
        host, port = member.advertised
        host = host or (socket.getfqdn() if self.address[0] in _EVERYWHERE else self.address[0])
        scheme = "http" if self._tls is None else "https"
        identity = Identity(host, port or self.address[1], scheme, member.eligible)
        # A JoinGroup is answered once all members have joined, which takes up to the session timeout.
        cluster = Cluster(
            self._bootstrap, request_timeout=2 * member.session_timeout + _JOIN_SECONDS, reactor=self._reactor,
            security=self._security,
        )  # fmt: skip
        return LeaderElection(cluster, member.group, identity, self._store.catch_up, member.session_timeout)

    def stop(self) -> defer.Deferred[None]:
        """Stop. The Deferred fires once the port and all connections are closed."""
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._server.stop()
        if self._election is not None:
            await self._election.stop()
        await self._forwarder.stop()
        self._authenticator.stop()
        await self._checker.stop()
        await self._store.stop()
