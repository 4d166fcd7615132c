"""PLAIN (RFC 4616): the client sends its name and password. Only for listeners with TLS.

The message is `[authorization id] NUL user NUL password`. As in Kafka, an authorization id must be the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    MalformedMessage,
    ServerNotTrusted,
    Success,
    decode_text,
    encode_text,
)
from pylogd.credentials.passwords import PasswordCheck
from pylogd.credentials.principal import USER, Principal

NAME: Final = "PLAIN"
_NUL: Final = "\0"
_MOST_REMEMBERED: Final = 4096  # the most bytes of a message that is remembered


class PlainMechanism:
    """PLAIN with the users of `check`."""

    name = NAME

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check

    def start(self) -> PlainServer:
        """Begin the conversation with one client."""
        return PlainServer(self._check)


class PlainServer:
    """The broker's side of PLAIN."""

    __slots__ = ("_check",)

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check

    def is_slow(self, message: bytes) -> bool:
        """Return whether checking the password takes long."""
        return self._check.slow

    def is_remembered(self, message: bytes) -> bool:
        """Return whether the user's password was right before."""
        parts = message.split(b"\0") if len(message) <= _MOST_REMEMBERED else ()
        return len(parts) == 3 and self._check.remembers(*(part.decode("utf-8", "replace") for part in parts[1:]))

    def step(self, message: bytes) -> Success:
        """Check the user's password."""
        parts = decode_text(message).split(_NUL)
        if len(parts) != 3:
            raise MalformedMessage("a PLAIN message has an authorization id, a user and a password")
        authorization_id, user, password = parts
        if not user or not password:
            raise MalformedMessage("a PLAIN message needs a user and a password")
        if authorization_id not in ("", user):
            raise AuthenticationFailed(f"{user!r:.200} asks to act as {authorization_id!r:.200}")
        if not self._check.is_right(user, password):
            raise AuthenticationFailed(f"unknown user or wrong password: {user!r:.200}")
        return Success(Principal(USER, user))


class PlainClient:
    """The client's side of PLAIN."""

    mechanism = NAME

    def __init__(self, user: str, password: str | Callable[[], str]) -> None:
        """password: the password, or a function that returns it and is called at each authentication."""
        self._user = user
        self._password = password

    def first(self) -> bytes:
        """Return the only message."""
        password = self._password if isinstance(self._password, str) else self._password()
        if not self._user or not password or _NUL in self._user + password:
            raise MalformedMessage("PLAIN needs a user and a password without NUL")
        return encode_text(f"{_NUL}{self._user}{_NUL}{password}")

    def step(self, challenge: bytes) -> None:
        """End the conversation. Raises ServerNotTrusted if the broker sent a challenge."""
        if challenge:
            raise ServerNotTrusted("the broker sent a challenge, which PLAIN does not have")
