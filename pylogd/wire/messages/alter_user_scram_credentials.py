"""AlterUserScramCredentials, API key 51, versions 0. Sets and deletes SCRAM credentials of users.

Generated from protocol/apis/alter_user_scram_credentials.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ScramCredentialDeletion(Message):
    """A credential to delete."""

    __slots__ = ("name", "mechanism")

    #: The user's name.
    name: str
    #: The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
    mechanism: int

    def __init__(self, name: str = "", mechanism: int = 0) -> None:
        self.name = name
        self.mechanism = mechanism


class ScramCredentialUpsertion(Message):
    """A credential to set."""

    __slots__ = ("name", "mechanism", "iterations", "salt", "salted_password")

    #: The user's name.
    name: str
    #: The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
    mechanism: int
    #: How often the password was hashed.
    iterations: int
    #: Random bytes that the client made.
    salt: bytes
    #: The password, hashed with the salt that many times (Hi of RFC 5802).
    salted_password: bytes

    def __init__(
        self, name: str = "", mechanism: int = 0, iterations: int = 0, salt: bytes = b"", salted_password: bytes = b""
    ) -> None:
        self.name = name
        self.mechanism = mechanism
        self.iterations = iterations
        self.salt = salt
        self.salted_password = salted_password


class AlterUserScramCredentialsResult(Message):
    """A user's part of the response."""

    __slots__ = ("user", "error_code", "error_message")

    #: The user's name.
    user: str
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(self, user: str = "", error_code: int = 0, error_message: str | None = "") -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message


class AlterUserScramCredentialsRequest(Message):
    """The request of AlterUserScramCredentials."""

    __slots__ = ("deletions", "upsertions")

    API_KEY: ClassVar[int] = 51
    API_NAME: ClassVar[str] = "AlterUserScramCredentials"

    #: The credentials to delete.
    deletions: list[ScramCredentialDeletion]
    #: The credentials to set.
    upsertions: list[ScramCredentialUpsertion]

    def __init__(
        self, deletions: list[ScramCredentialDeletion] = UNSET, upsertions: list[ScramCredentialUpsertion] = UNSET
    ) -> None:
        self.deletions = [] if deletions is UNSET else deletions
        self.upsertions = [] if upsertions is UNSET else upsertions


class AlterUserScramCredentialsResponse(Message):
    """The response of AlterUserScramCredentials."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 51
    API_NAME: ClassVar[str] = "AlterUserScramCredentials"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The users.
    results: list[AlterUserScramCredentialsResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[AlterUserScramCredentialsResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
