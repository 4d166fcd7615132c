"""Authenticate on a connection by SASL: the client's side of SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

Strategy: SaslHandshake chooses the mechanism. After that each SaslAuthenticate carries a message of the mechanism, and
its answer carries the broker's next message, until the mechanism has finished. To compute a message may take
milliseconds, or need another server: `answer` returns a function that computes it, and the owner of the connection
passes the outcome to `follow`.

Rules: no I/O. The owner sends what `question` and `follow` return. Errors say what to do, and never have credentials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pylogd.base.errors import AuthenticationFailed, ErrorCode, PylogdError, error_for
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from pylogd.wire.negotiation import Negotiation

_FIRST_HANDSHAKE = 1  # the version from which messages are carried by SaslAuthenticate


class Conversation(Protocol):
    """The client's side of a mechanism. `mechanism` is its name."""

    mechanism: str

    def first(self) -> bytes:
        """Return the client's first message. Raises PylogdError."""
        ...

    def step(self, challenge: bytes) -> bytes | None:
        """Process the broker's message, and return the next one, or None at the end. Raises PylogdError."""
        ...


class Authentication:
    """One authentication on a connection whose versions are known."""

    __slots__ = ("_address", "_conversation", "_negotiation", "lifetime_ms")

    def __init__(self, address: str, conversation: Conversation, negotiation: Negotiation) -> None:
        """`address` names the broker in error messages."""
        self._address = address
        self._conversation = conversation
        self._negotiation = negotiation
        #: the milliseconds after which the broker ends the session; 0 for never; known at the end
        self.lifetime_ms = 0

    def question(self) -> tuple[SaslHandshakeRequest, int]:
        """Return the request to send first, and its version. Raises AuthenticationFailed."""
        _, highest = self._negotiation.versions.get(SaslHandshakeRequest.API_KEY, (0, -1))
        if highest < _FIRST_HANDSHAKE:
            raise self._failure("it does not offer SASL here; check security.protocol and the port")
        request = SaslHandshakeRequest(self._conversation.mechanism)
        return request, self._negotiation.version_for(SaslHandshakeRequest)

    def answer(self, response: SaslHandshakeResponse | SaslAuthenticateResponse) -> Callable[[], bytes | None]:
        """Take an answer. Return a function that computes the next message, or None at the end.

        Raises AuthenticationFailed.
        """
        if isinstance(response, SaslHandshakeResponse):
            if response.error_code:
                raise self._refused(response)
            return self._conversation.first
        if response.error_code:
            text = response.error_message or error_for(response.error_code).text
            raise self._failure(f"{text} (mechanism {self._conversation.mechanism}); check the credentials")
        self.lifetime_ms = response.session_lifetime_ms
        challenge = response.auth_bytes
        return lambda: self._conversation.step(challenge)

    def follow(self, message: bytes | None, error: BaseException | None) -> tuple[SaslAuthenticateRequest, int] | None:
        """Return the request that carries a message, and its version; None: the client is authenticated.

        message, error: the result or the exception of the function.

        Raises AuthenticationFailed.
        """
        if error is not None:
            if isinstance(error, AuthenticationFailed):
                raise error
            text = str(error) if isinstance(error, PylogdError) else f"{type(error).__name__}: {error}"
            failure = self._failure(text)
            raise failure from error
        if message is None:
            return None
        return SaslAuthenticateRequest(message), self._negotiation.version_for(SaslAuthenticateRequest)

    def _refused(self, response: SaslHandshakeResponse) -> AuthenticationFailed:
        mechanism = self._conversation.mechanism
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            return self._failure(f"it does not offer the mechanism {mechanism}; it offers {offered}")
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            return self._failure("it does not expect SASL here; check security.protocol and the port")
        return self._failure(error_for(response.error_code).text)

    def _failure(self, text: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self._address}: authentication failed: {text}")
