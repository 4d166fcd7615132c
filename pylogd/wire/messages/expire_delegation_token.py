"""ExpireDelegationToken, API key 40, versions 1-2. Has a delegation token expire at another time, or at once.

Generated from protocol/apis/expire_delegation_token.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class ExpireDelegationTokenRequest(Message):
    """The request of ExpireDelegationToken."""

    __slots__ = ("hmac", "expiry_time_period_ms")

    API_KEY: ClassVar[int] = 40
    API_NAME: ClassVar[str] = "ExpireDelegationToken"

    #: The token's secret.
    hmac: bytes
    #: The token expires that many milliseconds from now; negative: at once.
    expiry_time_period_ms: int

    def __init__(self, hmac: bytes = b"", expiry_time_period_ms: int = 0) -> None:
        self.hmac = hmac
        self.expiry_time_period_ms = expiry_time_period_ms


class ExpireDelegationTokenResponse(Message):
    """The response of ExpireDelegationToken."""

    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")

    API_KEY: ClassVar[int] = 40
    API_NAME: ClassVar[str] = "ExpireDelegationToken"

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
