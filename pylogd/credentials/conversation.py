"""The common part of all SASL mechanisms: the interface of the two sides, their results and their errors.

A conversation serves one authentication and is used once. Errors never contain credentials. The broker logs them, and
clients get the same text for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from pylogd.base.errors import PylogdError
from pylogd.credentials.principal import Principal


class SaslError(PylogdError):
    """An authentication that did not succeed."""


class MalformedMessage(SaslError):
    """The peer sent a message that the mechanism does not allow here."""


class AuthenticationFailed(SaslError):
    """The broker does not accept the client: it is unknown, its password is wrong, or its token is not valid."""


class ServerNotTrusted(SaslError):
    """The client does not accept the broker, which did not prove that it knows the client's credentials."""


class MechanismUnavailable(SaslError):
    """A mechanism can't be used here: a package is missing, or the credentials that it needs are."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The broker's next message. The client has to answer it."""

    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Success:
    """The client is authenticated.

    message: the broker's last message.
    expires_ms: when the credentials expire, in milliseconds since 1970; None for never.
    by_token: whether the client used a delegation token.
    """

    principal: Principal
    message: bytes = field(default=b"", repr=False)
    expires_ms: int | None = None
    by_token: bool = False


Step: TypeAlias = Challenge | Success


class ServerConversation(Protocol):
    """The broker's side of one authentication."""

    def is_slow(self, message: bytes) -> bool:
        """Return whether `step(message)` may take milliseconds or wait. If so, call it in a thread."""

    def is_remembered(self, message: bytes) -> bool:
        """Return whether these credentials were right before. Then `step` takes almost no time."""

    def step(self, message: bytes) -> Step:
        """Take the client's next message and return the answer. If it raises SaslError, the conversation is over."""


class ServerMechanism(Protocol):
    """A mechanism that a listener offers.

    name: the name in SaslHandshake.
    """

    name: str

    def start(self) -> ServerConversation:
        """Begin the conversation with one client."""


class ClientConversation(Protocol):
    """The client's side of one authentication.

    mechanism: the mechanism's name for SaslHandshake.
    """

    mechanism: str

    def first(self) -> bytes:
        """Return the client's first message. Raises SaslError."""

    def step(self, challenge: bytes) -> bytes | None:
        """Take the broker's message. Return the next one, or None when the client is satisfied. Raises SaslError.

        The authentication has succeeded when this has returned None and the broker has reported no error.
        """


def decode_text(message: bytes) -> str:
    """Return a message as text. Raises MalformedMessage if it is not UTF-8."""
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage("the message is not UTF-8") from None


def encode_text(message: str) -> bytes:
    """Return a message as bytes. Raises MalformedMessage if it has no UTF-8 form."""
    try:
        return message.encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedMessage("a name or a password can't be written as UTF-8") from None
