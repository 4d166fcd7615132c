"""OAUTHBEARER (RFC 7628): the client sends an OAuth 2 access token.

The message is `n,[a=authorization id],^Aauth=Bearer token^A[name=value^A]*^A`, where ^A is the byte 1. If the broker
refuses a token, it answers with JSON. The client confirms that with a single byte 1, and the authentication fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MalformedMessage,
    ServerNotTrusted,
    Step,
    Success,
    decode_text,
    encode_text,
)
from pylogd.credentials.principal import Principal

NAME: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"
_HEADER: Final = re.compile(r"n,(?:a=((?:[^,=\0\x01]|=2C|=3D)+))?,")
_BEARER: Final = re.compile(r"[Bb]earer +([A-Za-z0-9._~+/-]+=*)")
_NAME: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]*")


class TokenOwner(NamedTuple):
    """The owner of a token.

    expires_ms: when the token expires, in milliseconds since 1970.
    """

    principal: Principal
    expires_ms: int


class TokenCheck(Protocol):
    """Checks access tokens."""

    def check(self, token: str) -> TokenOwner:
        """Return the owner of `token`. Raises SaslError. It may fetch keys, so it is called in a thread."""


class OAuthBearerMechanism:
    """OAUTHBEARER with the tokens that `check` accepts."""

    name = NAME

    def __init__(self, check: TokenCheck) -> None:
        self._check = check

    def start(self) -> OAuthBearerServer:
        """Begin the conversation with one client."""
        return OAuthBearerServer(self._check)


class OAuthBearerServer:
    """The broker's side of OAUTHBEARER."""

    __slots__ = ("_check", "_refused")

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._refused: AuthenticationFailed | None = None

    def is_slow(self, message: bytes) -> bool:
        """Return True, since a signature must be verified, and its key may have to be fetched."""
        return self._refused is None

    def is_remembered(self, message: bytes) -> bool:
        """Return False, since no tokens are remembered."""
        return False

    def step(self, message: bytes) -> Step:
        """Check the token. If it is refused, answer with JSON, and raise an error at the client's confirmation."""
        if self._refused is not None:
            raise self._refused
        authorization_id, token = read_token(message)
        try:
            owner = self._check.check(token)
            if authorization_id not in ("", owner.principal.name):
                raise AuthenticationFailed(f"{owner.principal} asks to act as {authorization_id!r:.200}")
        except AuthenticationFailed as error:
            self._refused = error
            return Challenge(b'{"status":"invalid_token"}')
        return Success(owner.principal, expires_ms=owner.expires_ms)


def read_token(message: bytes) -> tuple[str, str]:
    """Parse the client's first message: (authorization id, token). Raises MalformedMessage."""
    header, separator, rest = decode_text(message).partition(_SEPARATOR)
    match = _HEADER.fullmatch(header)
    if match is None or not separator or not rest.endswith(_SEPARATOR * 2):
        raise MalformedMessage("the OAUTHBEARER message is malformed")
    token = ""
    for pair in rest[:-2].split(_SEPARATOR):
        name, equals, value = pair.partition("=")
        if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise MalformedMessage("a field of the OAUTHBEARER message is malformed")
        if name == "auth":
            bearer = _BEARER.fullmatch(value)
            if bearer is None or token:
                raise MalformedMessage("the OAUTHBEARER message has no single bearer token")
            token = bearer[1]
    if not token:
        raise MalformedMessage("the OAUTHBEARER message has no token")
    return (match[1] or "").replace("=2C", ",").replace("=3D", "="), token


class OAuthBearerClient:
    """The client's side of OAUTHBEARER."""

    mechanism = NAME

    def __init__(self, token: str | Callable[[], str], extensions: Mapping[str, str] = MappingProxyType({})) -> None:
        """Begin for one authentication.

        token: the token, or a function that returns it and is called at each authentication.
        extensions: as in KIP-342.
        """
        self._token = token
        self._extensions = dict(extensions)

    def first(self) -> bytes:
        """Return the message with the token."""
        token = self._token if isinstance(self._token, str) else self._token()
        if not _BEARER.fullmatch(f"Bearer {token}"):
            raise MalformedMessage("the access token is empty, or has characters that a bearer token can't have")
        fields = [f"auth=Bearer {token}"]
        for name, value in self._extensions.items():
            if name == "auth" or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise MalformedMessage(f"the extension {name!r:.200} can't be sent: use letters, and a value of ASCII")
            fields.append(f"{name}={value}")
        return encode_text("n,," + "".join(_SEPARATOR + field for field in fields) + _SEPARATOR * 2)

    def step(self, challenge: bytes) -> bytes | None:
        """Confirm the refusal if the token was refused."""
        if not challenge:
            return None
        try:
            answer = json.loads(challenge)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ServerNotTrusted("the broker sent a challenge that OAUTHBEARER does not have")
        return _SEPARATOR.encode()
