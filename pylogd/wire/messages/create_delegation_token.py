"""CreateDelegationToken, API key 38, versions 1-3. Makes a delegation token, with which other processes can
authenticate as its owner for a while.

Generated from protocol/apis/create_delegation_token.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class CreatableRenewers(Message):
    """A principal that may renew the token."""

    __slots__ = ("principal_type", "principal_name")

    #: The principal's type, such as User.
    principal_type: str
    #: The principal's name.
    principal_name: str

    def __init__(self, principal_type: str = "", principal_name: str = "") -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class CreateDelegationTokenRequest(Message):
    """The request of CreateDelegationToken."""

    __slots__ = ("owner_principal_type", "owner_principal_name", "renewers", "max_lifetime_ms")

    API_KEY: ClassVar[int] = 38
    API_NAME: ClassVar[str] = "CreateDelegationToken"

    #: The type of the owner, if it is not the client itself; null for the client. Versions 3+.
    owner_principal_type: str | None
    #: The name of the owner, if it is not the client itself; null for the client. Versions 3+.
    owner_principal_name: str | None
    #: Who may renew the token besides its owner.
    renewers: list[CreatableRenewers]
    #: How many milliseconds the token may be renewed for; -1 for the broker's limit.
    max_lifetime_ms: int

    def __init__(
        self,
        owner_principal_type: str | None = None,
        owner_principal_name: str | None = None,
        renewers: list[CreatableRenewers] = UNSET,
        max_lifetime_ms: int = 0,
    ) -> None:
        self.owner_principal_type = owner_principal_type
        self.owner_principal_name = owner_principal_name
        self.renewers = [] if renewers is UNSET else renewers
        self.max_lifetime_ms = max_lifetime_ms


class CreateDelegationTokenResponse(Message):
    """The response of CreateDelegationToken."""

    __slots__ = (
        "error_code",
        "principal_type",
        "principal_name",
        "token_requester_principal_type",
        "token_requester_principal_name",
        "issue_timestamp_ms",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
        "token_id",
        "hmac",
        "throttle_time_ms",
    )

    API_KEY: ClassVar[int] = 38
    API_NAME: ClassVar[str] = "CreateDelegationToken"

    #: The error code; 0 if all went well.
    error_code: int
    #: The type of the owner.
    principal_type: str
    #: The name of the owner.
    principal_name: str
    #: The type of the principal that asked for the token. Versions 3+.
    token_requester_principal_type: str
    #: The name of the principal that asked for the token. Versions 3+.
    token_requester_principal_name: str
    #: When the token was made, in milliseconds since 1970.
    issue_timestamp_ms: int
    #: When the token expires unless it is renewed, in milliseconds since 1970.
    expiry_timestamp_ms: int
    #: Up to when the token can be renewed, in milliseconds since 1970.
    max_timestamp_ms: int
    #: The token's id, the user name of SCRAM.
    token_id: str
    #: The token's secret; its base64 form is the password of SCRAM.
    hmac: bytes
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int

    def __init__(
        self,
        error_code: int = 0,
        principal_type: str = "",
        principal_name: str = "",
        token_requester_principal_type: str = "",
        token_requester_principal_name: str = "",
        issue_timestamp_ms: int = 0,
        expiry_timestamp_ms: int = 0,
        max_timestamp_ms: int = 0,
        token_id: str = "",
        hmac: bytes = b"",
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.principal_type = principal_type
        self.principal_name = principal_name
        self.token_requester_principal_type = token_requester_principal_type
        self.token_requester_principal_name = token_requester_principal_name
        self.issue_timestamp_ms = issue_timestamp_ms
        self.expiry_timestamp_ms = expiry_timestamp_ms
        self.max_timestamp_ms = max_timestamp_ms
        self.token_id = token_id
        self.hmac = hmac
        self.throttle_time_ms = throttle_time_ms
