"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): keys, messages, and both sides.

The package `scramp` is not used here, because Kafka's dialect differs: names and passwords are taken as they are,
without SASLprep (which would make two users one), and a first message may carry `tokenauth=true`, an extension whose
name has more than one letter. The tests compare this code with scramp where the two agree.

As in Kafka, channel binding is not offered.

The client's side also checks that the broker knows the user's keys. On the broker's side, an unknown user also gets a
salt and an iteration count, always the same for a name, and fails only at the proof, like a wrong password. So neither
messages nor their timing tell whether a user exists.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MalformedMessage,
    ServerNotTrusted,
    Step,
    Success,
    decode_text,
    encode_text,
)
from pylogd.credentials.principal import Principal

#: The least and the most iterations of a password's hash.
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
SALT_BYTES: Final = 24
_NONCE_BYTES: Final = 24


class Algorithm(NamedTuple):
    """A variant of SCRAM.

    code: the code in AlterUserScramCredentials.
    digest: the hash function's name.
    size: the bytes of its result.
    """

    mechanism: str
    code: int
    digest: str
    size: int

    def hash(self, data: bytes) -> bytes:
        """Return H(data)."""
        return hashlib.new(self.digest, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return HMAC(key, data)."""
        return hmac.digest(key, data, self.digest)


SCRAM_SHA_256: Final = Algorithm("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512: Final = Algorithm("SCRAM-SHA-512", 2, "sha512", 64)
#: The variants by the mechanism's name.
SCRAM_MECHANISMS: Mapping[str, Algorithm] = MappingProxyType(
    {algorithm.mechanism: algorithm for algorithm in (SCRAM_SHA_256, SCRAM_SHA_512)}
)
#: The variants by their codes.
SCRAM_CODES: Mapping[int, Algorithm] = MappingProxyType(
    {algorithm.code: algorithm for algorithm in SCRAM_MECHANISMS.values()}
)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored form of a password at a broker. Its keys can check a proof, but can't be used to log in."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(algorithm: Algorithm, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password: Hi(password, salt, iterations) of RFC 5802.

    It takes milliseconds, so a reactor should call it in a thread.
    """
    return hashlib.pbkdf2_hmac(algorithm.digest, password.encode("utf-8", "surrogatepass"), salt, iterations)


def credential_of(algorithm: Algorithm, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    client_key = algorithm.hmac(salted, b"Client Key")
    return ScramCredential(salt, algorithm.hash(client_key), algorithm.hmac(salted, b"Server Key"), iterations)


def make_credential(
    algorithm: Algorithm, password: str, salt: bytes | None = None, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Return the credential of a password. Takes milliseconds.

    salt: random if None.
    """
    salt = new_salt() if salt is None else salt
    return credential_of(algorithm, salted_password(algorithm, password, salt, iterations), salt, iterations)


def new_salt() -> bytes:
    """Return random bytes for a credential."""
    return secrets.token_bytes(SALT_BYTES)


def new_nonce() -> str:
    """Return a random nonce."""
    return secrets.token_urlsafe(_NONCE_BYTES)


def encode_credential(credential: ScramCredential) -> str:
    """Return a credential in Kafka's stored form: `salt=...,stored_key=...,server_key=...,iterations=...`."""
    salt, stored, server = (_base64(part) for part in (credential.salt, credential.stored_key, credential.server_key))
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


_STORED: Final = re.compile(
    r"salt=([A-Za-z0-9+/=]*),stored_key=([A-Za-z0-9+/=]+),server_key=([A-Za-z0-9+/=]+),iterations=([1-9][0-9]{0,8})"
)


def decode_credential(text: str) -> ScramCredential:
    """Return a credential from its stored form. Raises ValueError, without the text."""
    match = _STORED.fullmatch(text)
    if match is None:
        raise ValueError("not a SCRAM credential")
    try:
        salt, stored, server = (b64decode(part, validate=True) for part in match.groups()[:3])
    except binascii.Error:
        raise ValueError("a SCRAM credential with a key that is not base64") from None
    return ScramCredential(salt, stored, server, int(match[4]))


# -- messages

_NAME: Final = r"(?:[^,=\0]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"((?:,[A-Za-z]+=[^,\0]+)*)"
_BASE64: Final = r"((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"
_CLIENT_FIRST: Final = re.compile(rf"(([ny]),(?:a=({_NAME}))?,)(n=({_NAME}),r=({_NONCE}){_EXTENSIONS})")
_SERVER_FIRST: Final = re.compile(rf"r=({_NONCE}),s={_BASE64},i=([1-9][0-9]{{0,8}}){_EXTENSIONS}")
_CLIENT_FINAL: Final = re.compile(rf"(c={_BASE64},r=({_NONCE}){_EXTENSIONS}),p={_BASE64}")
_SERVER_FINAL: Final = re.compile(rf"(?:v={_BASE64}|e=([^,\0]+)){_EXTENSIONS}")


class ClientFirst(NamedTuple):
    """The client's first message.

    header: the GS2 header.
    bare: the rest, which is signed.
    """

    header: str
    bare: str
    user: str
    nonce: str
    authorization_id: str
    token: bool


class ServerFirst(NamedTuple):
    """The broker's first message."""

    text: str
    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(NamedTuple):
    """The client's last message.

    signed: the part before the proof.
    """

    signed: str
    binding: bytes
    nonce: str
    proof: bytes


def write_client_first(user: str, nonce: str, token: bool) -> ClientFirst:
    """Return the client's first message.

    token: whether `user` is the id of a delegation token.
    """
    bare = f"n={_escape(user)},r={nonce}" + (",tokenauth=true" if token else "")
    return ClientFirst("n,,", bare, user, nonce, "", token)


def read_client_first(message: bytes) -> ClientFirst:
    """Parse the client's first message. Raises MalformedMessage."""
    text = decode_text(message)
    match = _CLIENT_FIRST.fullmatch(text)
    if match is None:
        if text.startswith("p="):
            raise MalformedMessage("the client wants channel binding, which is not offered")
        raise MalformedMessage("the client's first SCRAM message is malformed")
    header, _, authorization_id, bare, user, nonce, extensions = match.groups()
    token = "tokenauth=true" in extensions.lower().split(",")
    return ClientFirst(header, bare, _unescape(user), nonce, _unescape(authorization_id or ""), token)


def write_server_first(nonce: str, credential: ScramCredential) -> ServerFirst:
    """Return the broker's first message.

    nonce: the client's nonce followed by the broker's.
    """
    text = f"r={nonce},s={_base64(credential.salt)},i={credential.iterations}"
    return ServerFirst(text, nonce, credential.salt, credential.iterations)


def read_server_first(message: bytes) -> ServerFirst:
    """Parse the broker's first message. Raises MalformedMessage."""
    text = decode_text(message)
    match = _SERVER_FIRST.fullmatch(text)
    if match is None:
        raise MalformedMessage("the broker's first SCRAM message is malformed")
    return ServerFirst(text, match[1], b64decode(match[2]), int(match[3]))


def write_client_final(header: str, nonce: str) -> str:
    """Return the client's last message without the proof."""
    return f"c={_base64(header.encode())},r={nonce}"


def write_client_proof(final: str, proof: bytes) -> bytes:
    """Return the client's last message.

    final: the message without the proof.
    """
    return f"{final},p={_base64(proof)}".encode()


def read_client_final(message: bytes) -> ClientFinal:
    """Parse the client's last message. Raises MalformedMessage."""
    match = _CLIENT_FINAL.fullmatch(decode_text(message))
    if match is None:
        raise MalformedMessage("the client's last SCRAM message is malformed")
    return ClientFinal(match[1], b64decode(match[2]), match[3], b64decode(match[5]))


def write_server_final(signature: bytes) -> bytes:
    """Return the broker's last message."""
    return b"v=" + b64encode(signature)


def read_server_final(message: bytes) -> tuple[bytes, str | None]:
    """Parse the broker's last message: (signature, error). Raises MalformedMessage."""
    match = _SERVER_FINAL.fullmatch(decode_text(message))
    if match is None:
        raise MalformedMessage("the broker's last SCRAM message is malformed")
    return b64decode(match[1] or ""), match[2]


def signed_text(first: ClientFirst, server_first: ServerFirst, final: str) -> bytes:
    """Return RFC 5802's AuthMessage."""
    return f"{first.bare},{server_first.text},{final}".encode()


def xor(first: bytes, second: bytes) -> bytes:
    """Return the exclusive or of two texts of the same length."""
    return (int.from_bytes(first) ^ int.from_bytes(second)).to_bytes(len(first))


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


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
