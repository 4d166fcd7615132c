"""Authentication of connections by SASL (KIP-43, KIP-152), re-authentication (KIP-368), and limits for attackers.

Strategy: each SASL listener has an `Authenticator`, and each of its connections an `Authentication`: a state machine
that says which requests are allowed, and that passes messages to the mechanism's conversation. Steps that take
milliseconds run in threads of their own, so that neither the reactor nor disk work waits for a password to be hashed.
Clients take turns with these threads by address, and clients whose password was right before do not wait for unknown
ones (`limits.shares`).

Rules: clients are told that authentication failed, never why; the log has the reason, without credentials. A refusal is
answered after `connection.failed.authentication.delay.ms`. A client that authenticates again has to keep its principal.
A session that has ended serves nothing but a new authentication.

Must not know: requests and responses, sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.base.limits.log_lines import COUNTS, LimitedLog
from pylogd.base.limits.shares import Crowded, FairWork, share_of
from pylogd.base.machine import MachineTable
from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MechanismUnavailable,
    SaslError,
    ServerConversation,
    ServerMechanism,
    Step,
    Success,
)
from pylogd.credentials.principal import Principal

log = Logger()

#: The seconds after an authentication before a client may authenticate again (as in Kafka).
_AGAIN_SECONDS = 1.0
#: The most failures that are logged, and the seconds to which this applies.
_LINES = 10
_LINES_SECONDS = 10.0


class AuthenticationState(Enum):
    """The state of the authentication of a connection."""

    WAITING = "The client has not chosen a mechanism yet."
    CONVERSING = "Client and broker exchange the messages of a mechanism."
    AUTHENTICATED = "The broker knows who the client is, and serves it until its session ends."
    REFUSED = "Authentication failed; the connection is closed when the client has been told."


class AuthenticationEvent(Enum):
    """An event of an authentication."""

    CHOSEN = "The client chose a mechanism that the listener offers."
    SUCCEEDED = "The mechanism has determined who the client is."
    FAILED = "The mechanism refuses the client, or the client violated the protocol."


AUTHENTICATION = MachineTable(
    "Authentication",
    "Determines by SASL who the client of a connection is. Authentication may begin again while the session lasts.",
    AuthenticationState.WAITING,
    {
        AuthenticationState.WAITING: {
            AuthenticationEvent.CHOSEN: AuthenticationState.CONVERSING,
            AuthenticationEvent.FAILED: AuthenticationState.REFUSED,
        },
        AuthenticationState.CONVERSING: {
            AuthenticationEvent.SUCCEEDED: AuthenticationState.AUTHENTICATED,
            AuthenticationEvent.FAILED: AuthenticationState.REFUSED,
        },
        AuthenticationState.AUTHENTICATED: {
            AuthenticationEvent.CHOSEN: AuthenticationState.CONVERSING,
            AuthenticationEvent.FAILED: AuthenticationState.REFUSED,
        },
        AuthenticationState.REFUSED: {},
    },
)


@dataclass(slots=True)
class AuthenticationCounts:
    """The counts of a listener.

    expired: connections that were closed because their session had ended.
    """

    succeeded: int = 0
    failed: int = 0
    renewed: int = 0
    expired: int = 0


class AuthenticationLimits(NamedTuple):
    """The limits of a listener, in milliseconds.

    session_ms: `connections.max.reauth.ms` by mechanism; 0 for no limit.
    failure_delay_ms: `connection.failed.authentication.delay.ms`.
    """

    session_ms: Mapping[str, int]
    failure_delay_ms: int = 0


class Answer(NamedTuple):
    """The answer to the client: an error, or the mechanism's message and, at the end, the session's length."""

    error: ErrorCode = ErrorCode.NONE
    text: str | None = None
    message: bytes = b""
    session_lifetime_ms: int = 0


class Connection(Protocol):
    """The part of a connection that its authentication uses."""

    host: str
    listener: str
    authentication: Any  # None once the connection is lost

    def spoke(self) -> None:
        """Note that the client has sent its first request."""

    def authentication_succeeded(self, principal: Principal) -> None:
        """Serve all requests from now on."""


class Authenticator:
    """Authenticates the connections of one listener.

    mechanisms: the offered mechanisms, by name.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, ServerMechanism],
        limits: AuthenticationLimits,
        clock: IReactorTime,
        work: FairWork,
        now_ms: Callable[[], int],
    ) -> None:
        """work: calls functions in threads, which the clients of all listeners share."""
        self.mechanisms = mechanisms
        self.limits = limits
        self.clock = clock
        self.work = work
        self.now_ms = now_ms
        self.counts = AuthenticationCounts()
        self._limited = LimitedLog(log, _LINES, _LINES_SECONDS, clock.seconds)

    def begin(self, connection: Connection) -> Authentication:
        """Return the authentication of a connection that has sent its first request."""
        connection.spoke()
        return Authentication(self, connection)

    def pause(self) -> Deferred[None]:
        """Wait before the answer to a failed authentication is sent."""
        done: Deferred[None] = Deferred(lambda _: call.cancel())
        call = self.clock.callLater(self.limits.failure_delay_ms / 1000, done.callback, None)
        return done

    def failed(self, connection: Connection, reason: str) -> None:
        """Count a failure, and log it unless many were logged recently."""
        self.counts.failed += 1
        self._limited.warn(
            "Authentication of {host} failed on listener {listener} ({count} failures so far): {reason}",
            event="authentications failed",
            host=connection.host, listener=connection.listener, count=self.counts.failed, reason=reason,
        )  # fmt: skip


class Authentication:
    """The authentication of the client of one connection.

    state: see `AuthenticationState`.
    mechanism: the name of the mechanism in use.
    by_token: whether the client used a delegation token.
    """

    __slots__ = (
        "_authenticator", "_began", "_connection", "_conversation", "_deadline", "_principal", "by_token", "mechanism",
        "state",
    )  # fmt: skip

    def __init__(self, authenticator: Authenticator, connection: Connection) -> None:
        self._authenticator = authenticator
        self._connection = connection
        self._conversation: ServerConversation | None = None
        self._principal: Principal | None = None  # set after the first success
        self._deadline: float | None = None  # when the session ends
        self._began = 0.0  # when the session began
        self.state = AUTHENTICATION.initial
        self.mechanism = ""
        self.by_token = False

    @property
    def offered(self) -> list[str]:
        """The mechanisms that the client may choose."""
        return list(self._authenticator.mechanisms)

    @property
    def in_session(self) -> bool:
        """Whether the client has authenticated, and its session has not ended."""
        return self.state is AuthenticationState.AUTHENTICATED and not self._has_ended()

    def _has_ended(self) -> bool:
        return self._deadline is not None and self._authenticator.clock.seconds() >= self._deadline

    def ensure_session(self) -> None:
        """Raise CloseConnection if the client's session has ended."""
        if self._has_ended():
            self._authenticator.counts.expired += 1
            COUNTS.add("sessions ended")
            raise CloseConnection(
                f"the session of {self._principal} has ended, and the client has not authenticated again "
                "(connections.max.reauth.ms, or the end of its token)"
            )

    @property
    def refused(self) -> bool:
        """Whether the connection must be closed when the answer was sent."""
        return self.state is AuthenticationState.REFUSED

    def choose(self, mechanism: str) -> Answer | Deferred[Answer]:
        """Begin to authenticate with a mechanism."""
        if self.state is AuthenticationState.AUTHENTICATED and not self._may_begin_again():
            return Answer(ErrorCode.ILLEGAL_SASL_STATE, "The client is authenticated, and its session has no end.")
        if self.state is AuthenticationState.CONVERSING:
            return self._refuse(ErrorCode.ILLEGAL_SASL_STATE, f"it chose again in the midst of {self.mechanism}")
        if mechanism not in self._authenticator.mechanisms:
            return self._refuse(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"the mechanism {mechanism!r:.100} is not enabled"
            )
        if self._principal is not None and mechanism != self.mechanism:
            return self._refuse(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"{self._principal} authenticated with {self.mechanism}, and may not do so again with {mechanism}",
            )
        self.state = AUTHENTICATION.next(self.state, AuthenticationEvent.CHOSEN)
        self.mechanism = mechanism
        self._conversation = self._authenticator.mechanisms[mechanism].start()
        return Answer()

    def step(self, message: bytes) -> Answer | Deferred[Answer]:
        """Give a message to the mechanism."""
        conversation = self._conversation
        if self.state is AuthenticationState.AUTHENTICATED:
            return Answer(ErrorCode.ILLEGAL_SASL_STATE, "The client is authenticated already.")
        if conversation is None:
            return self._refuse(ErrorCode.ILLEGAL_SASL_STATE, "it sent credentials before it chose a mechanism")
        if conversation.is_slow(message):
            return Deferred.fromCoroutine(self._step_in_thread(conversation, message))
        try:
            return self._go_on(conversation.step(message))
        except SaslError as error:
            return self._refuse_for(error)

    async def _step_in_thread(self, conversation: ServerConversation, message: bytes) -> Answer:
        connection, work = self._connection, self._authenticator.work
        try:
            result = await work.run(
                share_of(connection.host), conversation.step, message,
                remembered=conversation.is_remembered(message), wanted=lambda: connection.authentication is self,
            )  # fmt: skip
            return self._go_on(result)
        except Crowded:
            return await self._refuse_for(MechanismUnavailable("too many clients wait for a check of credentials"))
        except SaslError as error:
            return await self._refuse_for(error)

    def _go_on(self, result: Step) -> Answer:
        return Answer(message=result.message) if isinstance(result, Challenge) else self._succeed(result)

    def _may_begin_again(self) -> bool:
        return self._deadline is not None and self._authenticator.clock.seconds() >= self._began + _AGAIN_SECONDS

    def _succeed(self, success: Success) -> Answer:
        """Serve the client. Raises AuthenticationFailed for another principal than before, or expired credentials."""
        authenticator = self._authenticator
        principal, before = success.principal, self._principal
        if before is not None and principal != before:
            raise AuthenticationFailed(f"{before} authenticated again as {principal}")
        lifetimes = [authenticator.limits.session_ms.get(self.mechanism, 0)]
        if success.expires_ms is not None:
            lifetimes.append(success.expires_ms - authenticator.now_ms())
            if lifetimes[-1] <= 0:
                raise AuthenticationFailed(f"the credentials of {principal} have expired")
        lifetime = min((one for one in lifetimes if one > 0), default=0)
        self._began = authenticator.clock.seconds()
        self._deadline = self._began + lifetime / 1000 if lifetime else None
        self.state = AUTHENTICATION.next(self.state, AuthenticationEvent.SUCCEEDED)
        self._conversation = None
        self._principal = principal
        self.by_token = success.by_token
        authenticator.work.known.add(share_of(self._connection.host))
        if before is None:
            authenticator.counts.succeeded += 1
            self._connection.authentication_succeeded(principal)
        else:
            authenticator.counts.renewed += 1
        return Answer(message=success.message, session_lifetime_ms=lifetime)

    def _refuse_for(self, error: SaslError) -> Deferred[Answer]:
        return self._refuse(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self.mechanism}: {error}", error)

    def _refuse(self, error: ErrorCode, reason: str, cause: SaslError | None = None) -> Deferred[Answer]:
        """Refuse the client, after the delay for failures.

        reason: the reason, for the log.
        """
        self.state = AUTHENTICATION.next(self.state, AuthenticationEvent.FAILED)
        self._conversation = None
        self._authenticator.failed(self._connection, reason)
        text = error.text
        if isinstance(cause, MechanismUnavailable):
            text = f"The broker can't authenticate with {self.mechanism} at present; its log says why."
        elif cause is not None:
            text = f"Authentication with {self.mechanism} failed: invalid credentials."
        return self._authenticator.pause().addCallback(lambda _: Answer(error, text))
