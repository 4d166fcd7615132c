"""DescribeUserScramCredentials, API key 50, versions 0. Lists which SCRAM credentials users have; neither salts nor
keys.

Generated from protocol/apis/describe_user_scram_credentials.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class UserName(Message):
    """A user asked for."""

    __slots__ = ("name",)

    #: The user's name.
    name: str

    def __init__(self, name: str = "") -> None:
        self.name = name


class CredentialInfo(Message):
    """A credential of a user."""

    __slots__ = ("mechanism", "iterations")

    #: The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
    mechanism: int
    #: How often the password was hashed.
    iterations: int

    def __init__(self, mechanism: int = 0, iterations: int = 0) -> None:
        self.mechanism = mechanism
        self.iterations = iterations


class DescribeUserScramCredentialsResult(Message):
    """A user's part of the response."""

    __slots__ = ("user", "error_code", "error_message", "credential_infos")

    #: The user's name.
    user: str
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The user's credentials.
    credential_infos: list[CredentialInfo]

    def __init__(
        self,
        user: str = "",
        error_code: int = 0,
        error_message: str | None = "",
        credential_infos: list[CredentialInfo] = UNSET,
    ) -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message
        self.credential_infos = [] if credential_infos is UNSET else credential_infos


class DescribeUserScramCredentialsRequest(Message):
    """The request of DescribeUserScramCredentials."""

    __slots__ = ("users",)

    API_KEY: ClassVar[int] = 50
    API_NAME: ClassVar[str] = "DescribeUserScramCredentials"

    #: The users asked for; null or empty for all.
    users: list[UserName] | None

    def __init__(self, users: list[UserName] | None = UNSET) -> None:
        self.users = [] if users is UNSET else users


class DescribeUserScramCredentialsResponse(Message):
    """The response of DescribeUserScramCredentials."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")

    API_KEY: ClassVar[int] = 50
    API_NAME: ClassVar[str] = "DescribeUserScramCredentials"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The users.
    results: list[DescribeUserScramCredentialsResult]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        results: list[DescribeUserScramCredentialsResult] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = [] if results is UNSET else results
