"""The broker's side of SCRAM.

Strategy: an unknown user also gets a salt and an iteration count, always the same for a name, and fails only at the
proof, like a wrong password. So neither messages nor their timing tell whether a user exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pylogd.credentials.conversation import AuthenticationFailed, Challenge, Step, Success
from pylogd.credentials.principal import Principal
from pylogd.credentials.scram import (
    MIN_ITERATIONS,
    Algorithm,
    ClientFirst,
    ScramCredential,
    ServerFirst,
    new_nonce,
    read_client_final,
    read_client_first,
    signed_text,
    write_server_final,
    write_server_first,
    xor,
)


class ScramIdentity(NamedTuple):
    """A user or a delegation token, with its credential.

    expires_ms: when it expires, in milliseconds since 1970; None for never.
    """

    principal: Principal
    credential: ScramCredential
    expires_ms: int | None = None


class ScramUsers(Protocol):
    """The users and delegation tokens that the broker knows."""

    def user(self, algorithm: Algorithm, name: str) -> ScramIdentity | None:
        """Return a user who has a credential for `algorithm`."""

    def token(self, algorithm: Algorithm, token_id: str) -> ScramIdentity | None:
        """Return a delegation token that is valid now. May take milliseconds; called in a thread."""

    def decoy(self, algorithm: Algorithm, name: str) -> ScramCredential:
        """Return a credential for an unknown name, the same each time."""


class ScramMechanism:
    """SCRAM with one hash function.

    name: the mechanism's name.
    """

    def __init__(self, algorithm: Algorithm, users: ScramUsers, nonce: Callable[[], str] = new_nonce) -> None:
        self.name = algorithm.mechanism
        self._algorithm = algorithm
        self._users = users
        self._nonce = nonce

    def start(self) -> ScramServer:
        """Begin the conversation with one client."""
        return ScramServer(self._algorithm, self._users, self._nonce())


class ScramServer:
    """The broker's side of one authentication."""

    __slots__ = ("_algorithm", "_credential", "_first", "_identity", "_nonce", "_server_first", "_users", "_weak")

    def __init__(self, algorithm: Algorithm, users: ScramUsers, nonce: str) -> None:
        self._algorithm = algorithm
        self._users = users
        self._nonce = nonce
        self._first: ClientFirst | None = None
        self._server_first: ServerFirst
        self._identity: ScramIdentity | None
        self._credential: ScramCredential
        self._weak = False  # whether the user's credential has too few iterations

    def is_slow(self, message: bytes) -> bool:
        """Return whether the message names a delegation token, since its credential has to be computed."""
        return self._first is None and b"tokenauth" in message.lower()

    def is_remembered(self, message: bytes) -> bool:
        """Return False, since no credentials are remembered."""
        return False

    def step(self, message: bytes) -> Step:
        """Take the client's first message, then the last one."""
        if self._first is None:
            return self._begin(message)
        return self._finish(self._first, message)

    def _begin(self, message: bytes) -> Challenge:
        first = self._first = read_client_first(message)
        if first.authorization_id not in ("", first.user):
            raise AuthenticationFailed(f"{first.user!r:.200} asks to act as {first.authorization_id!r:.200}")
        find = self._users.token if first.token else self._users.user
        identity = self._identity = find(self._algorithm, first.user)
        decoy = self._users.decoy(self._algorithm, first.user)
        if identity is not None and identity.credential.iterations < MIN_ITERATIONS:
            identity = self._identity = None
            self._weak = True  # the client learns this at the proof, where an unknown user fails too
        self._credential = decoy if identity is None else identity.credential
        server_first = self._server_first = write_server_first(first.nonce + self._nonce, self._credential)
        return Challenge(server_first.text.encode())

    def _finish(self, first: ClientFirst, message: bytes) -> Success:
        algorithm, credential, identity = self._algorithm, self._credential, self._identity
        final = read_client_final(message)
        if final.binding != first.header.encode():
            raise AuthenticationFailed("the channel binding does not match the first message")
        # librdkafka before 2.6.1, as in Debian 12, repeats its own nonce before the whole nonce (librdkafka's issue
        # 4895). Kafka 3.9 accepts that too: the message has the whole nonce of this conversation, and the proof signs
        # the text as it was sent.
        expected = self._server_first.nonce
        if not hmac.compare_digest(final.nonce[-len(expected) :].encode(), expected.encode()):
            raise AuthenticationFailed("the nonce does not match the first message")
        if len(final.proof) != algorithm.size:
            raise AuthenticationFailed("the proof has the wrong length")
        signed = signed_text(first, self._server_first, final.signed)
        client_key = xor(final.proof, algorithm.hmac(credential.stored_key, signed))
        right = hmac.compare_digest(algorithm.hash(client_key), credential.stored_key)
        signature = algorithm.hmac(credential.server_key, signed)
        if self._weak:
            raise AuthenticationFailed(
                f"{first.user!r:.200} has a credential of less than {MIN_ITERATIONS} iterations: set the password again"
            )
        if not right or identity is None:
            what = "delegation token" if first.token else "user"
            raise AuthenticationFailed(f"unknown {what} or wrong password: {first.user!r:.200}")
        return Success(identity.principal, write_server_final(signature), identity.expires_ms, by_token=first.token)
