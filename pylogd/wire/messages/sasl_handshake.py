"""SaslHandshake, API key 17, versions 0-1. Chooses the SASL mechanism by which the client authenticates. (No version is
flexible yet.)

Generated from protocol/apis/sasl_handshake.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class SaslHandshakeRequest(Message):
    """The request of SaslHandshake."""

    __slots__ = ("mechanism",)

    API_KEY: ClassVar[int] = 17
    API_NAME: ClassVar[str] = "SaslHandshake"

    #: The mechanism's name, such as SCRAM-SHA-512.
    mechanism: str

    def __init__(self, mechanism: str = "") -> None:
        self.mechanism = mechanism


class SaslHandshakeResponse(Message):
    """The response of SaslHandshake."""

    __slots__ = ("error_code", "mechanisms")

    API_KEY: ClassVar[int] = 17
    API_NAME: ClassVar[str] = "SaslHandshake"

    #: The error code; 0 if all went well.
    error_code: int
    #: The mechanisms that the listener offers.
    mechanisms: list[str]

    def __init__(self, error_code: int = 0, mechanisms: list[str] = UNSET) -> None:
        self.error_code = error_code
        self.mechanisms = [] if mechanisms is UNSET else mechanisms
