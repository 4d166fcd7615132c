"""DescribeDelegationToken, API key 41, versions 1-3. Lists delegation tokens, with their secrets.

Generated from protocol/apis/describe_delegation_token.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DescribeDelegationTokenOwner(Message):
    """An owner asked for."""

    __slots__ = ("principal_type", "principal_name")

    #: The principal's type, such as User.
    principal_type: str
    #: The principal's name.
    principal_name: str

    def __init__(self, principal_type: str = "", principal_name: str = "") -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class DescribedDelegationTokenRenewer(Message):
    """A principal that may renew the token."""

    __slots__ = ("principal_type", "principal_name")

    #: The principal's type, such as User.
    principal_type: str
    #: The principal's name.
    principal_name: str

    def __init__(self, principal_type: str = "", principal_name: str = "") -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class DescribedDelegationToken(Message):
    """A delegation token."""

    __slots__ = (
        "principal_type",
        "principal_name",
        "token_requester_principal_type",
        "token_requester_principal_name",
        "issue_timestamp",
        "expiry_timestamp",
        "max_timestamp",
        "token_id",
        "hmac",
        "renewers",
    )

    #: The type of the owner.
    principal_type: str
    #: The name of the owner.
    principal_name: str
    #: The type of the principal that asked for the token. Versions 3+.
    token_requester_principal_type: str
    #: The name of the principal that asked for the token. Versions 3+.
    token_requester_principal_name: str
    #: When the token was made, in milliseconds since 1970.
    issue_timestamp: int
    #: When the token expires unless it is renewed, in milliseconds since 1970.
    expiry_timestamp: int
    #: Up to when the token can be renewed, in milliseconds since 1970.
    max_timestamp: int
    #: The token's id, the user name of SCRAM.
    token_id: str
    #: The token's secret; its base64 form is the password of SCRAM.
    hmac: bytes
    #: Who may renew the token besides its owner.
    renewers: list[DescribedDelegationTokenRenewer]

    def __init__(
        self,
        principal_type: str = "",
        principal_name: str = "",
        token_requester_principal_type: str = "",
        token_requester_principal_name: str = "",
        issue_timestamp: int = 0,
        expiry_timestamp: int = 0,
        max_timestamp: int = 0,
        token_id: str = "",
        hmac: bytes = b"",
        renewers: list[DescribedDelegationTokenRenewer] = UNSET,
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name
        self.token_requester_principal_type = token_requester_principal_type
        self.token_requester_principal_name = token_requester_principal_name
        self.issue_timestamp = issue_timestamp
        self.expiry_timestamp = expiry_timestamp
        self.max_timestamp = max_timestamp
        self.token_id = token_id
        self.hmac = hmac
        self.renewers = [] if renewers is UNSET else renewers


class DescribeDelegationTokenRequest(Message):
    """The request of DescribeDelegationToken."""

    __slots__ = ("owners",)

    API_KEY: ClassVar[int] = 41
    API_NAME: ClassVar[str] = "DescribeDelegationToken"

    #: The owners asked for; null for all.
    owners: list[DescribeDelegationTokenOwner] | None

    def __init__(self, owners: list[DescribeDelegationTokenOwner] | None = UNSET) -> None:
        self.owners = [] if owners is UNSET else owners


class DescribeDelegationTokenResponse(Message):
    """The response of DescribeDelegationToken."""

    __slots__ = ("error_code", "tokens", "throttle_time_ms")

    API_KEY: ClassVar[int] = 41
    API_NAME: ClassVar[str] = "DescribeDelegationToken"

    #: The error code; 0 if all went well.
    error_code: int
    #: The tokens.
    tokens: list[DescribedDelegationToken]
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int

    def __init__(
        self, error_code: int = 0, tokens: list[DescribedDelegationToken] = UNSET, throttle_time_ms: int = 0
    ) -> None:
        self.error_code = error_code
        self.tokens = [] if tokens is UNSET else tokens
        self.throttle_time_ms = throttle_time_ms
