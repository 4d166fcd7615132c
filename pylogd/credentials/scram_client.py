"""The client's side of SCRAM. It also checks that the broker knows the user's keys."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from pylogd.credentials.conversation import MalformedMessage, ServerNotTrusted, encode_text
from pylogd.credentials.scram import (
    MIN_ITERATIONS,
    Algorithm,
    ClientFirst,
    new_nonce,
    read_server_final,
    read_server_first,
    salted_password,
    signed_text,
    write_client_final,
    write_client_first,
    write_client_proof,
    xor,
)

#: More iterations would let a false broker keep the client busy; Kafka's brokers store at most 16,384.
_MOST_ITERATIONS: Final = 1_000_000


class ScramClient:
    """The client's side of one authentication."""

    def __init__(
        self,
        algorithm: Algorithm,
        user: str,
        password: str | Callable[[], str],
        *,
        token: bool = False,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        """token: whether `user` and `password` are the id and the HMAC, in base64, of a delegation token.

        password: the password, or a function that returns it and is called at each authentication.
        """
        self.mechanism = algorithm.mechanism
        self._algorithm = algorithm
        self._user = user
        self._password = password
        self._token = token
        self._nonce = nonce()
        self._first: ClientFirst | None = None
        self._signature: bytes | None = None  # the signature that the broker has to send

    def first(self) -> bytes:
        """Return the first message: the user's name and a nonce."""
        if not self._user or "\0" in self._user:
            raise MalformedMessage("SCRAM needs a user's name, without NUL")
        first = self._first = write_client_first(self._user, self._nonce, self._token)
        return encode_text(first.header + first.bare)

    def step(self, challenge: bytes) -> bytes | None:
        """Answer the broker's first message with the proof; check the last one. The proof takes milliseconds."""
        if self._first is None:
            raise MalformedMessage("the broker sent a challenge before the client's first message")
        if self._signature is None:
            return self._prove(self._first, challenge)
        signature, error = read_server_final(challenge)
        if error is not None:
            raise ServerNotTrusted(f"the broker refuses the authentication: {error[:100]}")
        if not hmac.compare_digest(signature, self._signature):
            raise ServerNotTrusted("the broker does not know the user's keys: its signature is wrong")
        return None

    def _prove(self, first: ClientFirst, challenge: bytes) -> bytes:
        algorithm = self._algorithm
        server_first = read_server_first(challenge)
        if not server_first.nonce.startswith(first.nonce) or server_first.nonce == first.nonce:
            raise ServerNotTrusted("the broker's nonce does not continue the client's")
        if not MIN_ITERATIONS <= server_first.iterations <= _MOST_ITERATIONS:
            raise ServerNotTrusted(
                f"the broker asks for {server_first.iterations} iterations; at least {MIN_ITERATIONS} are safe, and "
                f"at most {_MOST_ITERATIONS} accepted"
            )
        password = self._password if isinstance(self._password, str) else self._password()
        salted = salted_password(algorithm, password, server_first.salt, server_first.iterations)
        client_key = algorithm.hmac(salted, b"Client Key")
        final = write_client_final(first.header, server_first.nonce)
        signed = signed_text(first, server_first, final)
        proof = xor(client_key, algorithm.hmac(algorithm.hash(client_key), signed))
        self._signature = algorithm.hmac(algorithm.hmac(salted, b"Server Key"), signed)
        return write_client_proof(final, proof)
