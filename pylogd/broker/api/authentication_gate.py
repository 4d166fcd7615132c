"""The handler of SASL listeners. It serves nothing but authentication to clients that are not authenticated.

Strategy: it stands in front of the dispatcher, so listeners without SASL pay nothing. The state of the connection's
`Authentication` decides which requests are allowed; any other request closes the connection, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from twisted.internet.interfaces import IReactorTime

from pylogd.base.errors import CloseConnection
from pylogd.base.limits.shares import FairWork
from pylogd.broker.api.dispatch import ClientConnection, Dispatcher
from pylogd.broker.security.authentication import Authentication, AuthenticationState, Authenticator
from pylogd.broker.security.authentication import Connection as AuthenticatedConnection
from pylogd.broker.security.mechanisms import ListenerSettings, authentication_limits, make_mechanisms
from pylogd.credentials.scram import ScramUsers
from pylogd.wire.messages import ApiKey
from pylogd.wire.session import (
    NOT_ANSWERED,
    BatchReply,
    DirectOutput,
    RepeatedBatch,
    RepeatReply,
    RequestReceived,
    ServerSession,
    UnsupportedRequest,
)

MakeAuthenticator = Callable[[ListenerSettings], Awaitable[Authenticator]]
_HANDSHAKE = ApiKey.SASL_HANDSHAKE
_ALLOWED: Mapping[AuthenticationState, frozenset[int]] = {
    AuthenticationState.WAITING: frozenset({ApiKey.API_VERSIONS, _HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
    AuthenticationState.CONVERSING: frozenset({_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
    AuthenticationState.REFUSED: frozenset(),
}


class SaslConnection(ClientConnection, AuthenticatedConnection, Protocol):
    """A connection of a SASL listener.

    authentication: None before the first request.
    """

    authentication: Authentication | None


async def guarded(
    handler: Dispatcher,
    values: ListenerSettings,
    users: ScramUsers,
    clock: IReactorTime,
    work: FairWork,
    now_ms: Callable[[], int],
) -> AuthenticationGate:
    """Return the handler of a SASL listener with these settings. Raises ConfigError.

    users: the users with SCRAM credentials.
    work: calls functions in threads, which the clients of all listeners share.
    """

    async def make(values: ListenerSettings) -> Authenticator:
        mechanisms = await work.run("", make_mechanisms, values, users, remembered=True)
        return Authenticator(mechanisms, authentication_limits(values, mechanisms), clock, work, now_ms)

    return AuthenticationGate(handler, await make(values), make)


class AuthenticationGate:
    """Hands the requests of authenticated clients to another handler."""

    __slots__ = ("_authenticator", "_handler", "_make", "batched", "overlapping", "repeated", "versions")

    def __init__(self, handler: Dispatcher, authenticator: Authenticator, make: MakeAuthenticator) -> None:
        """make: makes another authenticator for other settings of the listener."""
        self._handler = handler
        self._authenticator = authenticator
        self._make = make
        self.versions = handler.versions
        self.overlapping = handler.overlapping
        self.batched = handler.batched
        self.repeated = handler.repeated

    async def check(self, values: ListenerSettings) -> None:
        """Raise ConfigError if the listener can't offer the mechanisms in these settings."""
        await self._make(values)

    async def use(self, values: ListenerSettings) -> None:
        """Authenticate new connections by these settings from now on. If it raises ConfigError, nothing has changed."""
        self._authenticator = await self._make(values)

    def handle(self, connection: SaslConnection, event: RequestReceived | UnsupportedRequest) -> Any:
        """Let a request pass, or raise CloseConnection."""
        authentication = connection.authentication
        if authentication is None:
            authentication = connection.authentication = self._authenticator.begin(connection)
        api_key = event.api_key
        if authentication.state is AuthenticationState.AUTHENTICATED:
            if api_key != _HANDSHAKE:
                authentication.ensure_session()
        elif api_key not in _ALLOWED[authentication.state]:
            raise CloseConnection(f"a request of API {api_key} came from a client that is not authenticated")
        return self._handler.handle(connection, event)

    def handle_batch(
        self, connection: SaslConnection, frame: memoryview, session: ServerSession, most: int
    ) -> BatchReply:
        """Let the requests of an authenticated client pass. Leave others to `handle`, which reads what they are."""
        if not _in_session(connection):
            return NOT_ANSWERED
        return self._handler.handle_batch(connection, frame, session, most)

    def handle_repeated(self, connection: SaslConnection, data: bytes, output: DirectOutput) -> RepeatReply | None:
        """Do the same as `handle_batch`."""
        return self._handler.handle_repeated(connection, data, output) if _in_session(connection) else None

    def handle_repeated_batch(
        self, connection: SaslConnection, data: bytes, session: ServerSession
    ) -> RepeatedBatch | None:
        """Do the same as `handle_batch`."""
        return self._handler.handle_repeated_batch(connection, data, session) if _in_session(connection) else None


def _in_session(connection: SaslConnection) -> bool:
    """Return whether the client has authenticated in a session that has not ended. Later it may authenticate again."""
    authentication = connection.authentication
    return authentication is not None and authentication.in_session
