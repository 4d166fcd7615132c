"""SaslAuthenticate, API key 36, versions 0-2. Carries one message of a SASL mechanism from the client, and the broker's
next one back.

Generated from protocol/apis/sasl_authenticate.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class SaslAuthenticateRequest(Message):
    """The request of SaslAuthenticate."""

    __slots__ = ("auth_bytes",)

    API_KEY: ClassVar[int] = 36
    API_NAME: ClassVar[str] = "SaslAuthenticate"

    #: The mechanism's message from the client.
    auth_bytes: bytes

    def __init__(self, auth_bytes: bytes = b"") -> None:
        self.auth_bytes = auth_bytes


class SaslAuthenticateResponse(Message):
    """The response of SaslAuthenticate."""

    __slots__ = ("error_code", "error_message", "auth_bytes", "session_lifetime_ms")

    API_KEY: ClassVar[int] = 36
    API_NAME: ClassVar[str] = "SaslAuthenticate"

    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The mechanism's message from the broker.
    auth_bytes: bytes
    #: With the last message: milliseconds after which the broker closes the connection unless the client has
    #: authenticated again; 0 for no limit. Versions 1+.
    session_lifetime_ms: int

    def __init__(
        self, error_code: int = 0, error_message: str | None = "", auth_bytes: bytes = b"", session_lifetime_ms: int = 0
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.auth_bytes = auth_bytes
        self.session_lifetime_ms = session_lifetime_ms
