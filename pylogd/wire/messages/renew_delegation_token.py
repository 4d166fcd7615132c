"""RenewDelegationToken, API key 39, versions 1-2. Moves the time at which a delegation token expires.

Generated from protocol/apis/renew_delegation_token.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class RenewDelegationTokenRequest(Message):
    """The request of RenewDelegationToken."""

    __slots__ = ("hmac", "renew_period_ms")

    API_KEY: ClassVar[int] = 39
    API_NAME: ClassVar[str] = "RenewDelegationToken"

    #: The token's secret.
    hmac: bytes
    #: The token expires that many milliseconds from now; -1 for the broker's default.
    renew_period_ms: int

    def __init__(self, hmac: bytes = b"", renew_period_ms: int = 0) -> None:
        self.hmac = hmac
        self.renew_period_ms = renew_period_ms


class RenewDelegationTokenResponse(Message):
    """The response of RenewDelegationToken."""

    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")

    API_KEY: ClassVar[int] = 39
    API_NAME: ClassVar[str] = "RenewDelegationToken"

    #: The error code; 0 if all went well.
    error_code: int
    #: When the token expires, in milliseconds since 1970.
    expiry_timestamp_ms: int
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int

    def __init__(self, error_code: int = 0, expiry_timestamp_ms: int = 0, throttle_time_ms: int = 0) -> None:
        self.error_code = error_code
        self.expiry_timestamp_ms = expiry_timestamp_ms
        self.throttle_time_ms = throttle_time_ms
