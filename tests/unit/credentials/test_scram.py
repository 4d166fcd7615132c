"""SCRAM: the examples of the RFCs, refused messages, and a comparison with scramp."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MalformedMessage,
    SaslError,
    ServerNotTrusted,
    Success,
)
from pylogd.credentials.principal import USER, Principal
from pylogd.credentials.scram import (
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Algorithm,
    ScramClient,
    ScramCredential,
    ScramIdentity,
    ScramMechanism,
    decode_credential,
    encode_credential,
    make_credential,
    read_client_first,
    write_client_final,
)

#: RFC 5802's examples use this hash, which pylogd does not offer.
SHA_1 = Algorithm("SCRAM-SHA-1", 0, "sha1", 20)
ALICE = Principal(USER, "alice")
SALT = b"0123456789abcdef"
SECRET = make_credential(SCRAM_SHA_256, "secret", SALT)
BOTH = pytest.mark.parametrize("algorithm", SCRAM_MECHANISMS.values(), ids=SCRAM_MECHANISMS)


class Users:
    """Users with one credential each, and delegation tokens by their ids."""

    def __init__(self, users: dict[str, ScramCredential], tokens: dict[str, ScramIdentity] | None = None) -> None:
        self.users = users
        self.tokens = tokens or {}

    def user(self, _algorithm: Algorithm, name: str) -> ScramIdentity | None:
        found = self.users.get(name)
        return None if found is None else ScramIdentity(Principal(USER, name), found)

    def token(self, _algorithm: Algorithm, token_id: str) -> ScramIdentity | None:
        return self.tokens.get(token_id)

    def decoy(self, algorithm: Algorithm, name: str) -> ScramCredential:
        return ScramCredential(name.encode().ljust(16), bytes(algorithm.size), bytes(algorithm.size), 4096)


def converse(client: ScramClient, mechanism: ScramMechanism) -> Success:
    """Exchange messages until the broker accepts the client, and then the client the broker."""
    server = mechanism.start()
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge)
    proof = client.step(challenge.message)
    assert proof is not None
    success = server.step(proof)
    assert isinstance(success, Success)
    assert client.step(success.message) is None
    return success


@pytest.mark.parametrize(
    ("algorithm", "client_nonce", "server_nonce", "salt", "proof", "signature"),
    [
        (
            SHA_1, "fyko+d2lbbFgONRv9qkxdawL", "3rfcNHYJY1ZVvWVs7j", "QSXCR+Q6sek8bf92",
            "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=", "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (
            SCRAM_SHA_256, "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", "W22ZaJ0SNY7soEsUEjb6gQ==",
            "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ],
    ids=["RFC 5802", "RFC 7677"],
)  # fmt: skip
def test_the_examples_of_the_rfcs(
    algorithm: Algorithm, client_nonce: str, server_nonce: str, salt: str, proof: str, signature: str
) -> None:
    users = Users({"user": make_credential(algorithm, "pencil", b64decode(salt))})
    server = ScramMechanism(algorithm, users, lambda: server_nonce).start()
    client = ScramClient(algorithm, "user", "pencil", nonce=lambda: client_nonce)
    nonce = client_nonce + server_nonce
    first = client.first()
    assert first == f"n,,n=user,r={client_nonce}".encode()
    challenge = server.step(first)
    assert challenge == Challenge(f"r={nonce},s={salt},i=4096".encode())
    final = client.step(challenge.message)
    assert final == f"c=biws,r={nonce},p={proof}".encode()
    success = server.step(final)
    assert success == Success(Principal(USER, "user"), f"v={signature}".encode())
    assert client.step(success.message) is None


@BOTH
@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    password=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_name_and_password_pass_unchanged(algorithm: Algorithm, name: str, password: str) -> None:
    mechanism = ScramMechanism(algorithm, Users({name: make_credential(algorithm, password, SALT)}))
    assert converse(ScramClient(algorithm, name, password), mechanism).principal == Principal(USER, name)


@BOTH
def test_scramp_agrees(algorithm: Algorithm) -> None:
    scramp = pytest.importorskip("scramp")
    theirs = scramp.ScramMechanism(algorithm.mechanism)
    assert theirs.make_auth_info("secret", 4096, SALT) == (
        SALT, *_keys(make_credential(algorithm, "secret", SALT)), 4096,
    )  # fmt: skip
    server = ScramMechanism(algorithm, Users({"alice": make_credential(algorithm, "secret", SALT)})).start()
    client = scramp.ScramClient([algorithm.mechanism], "alice", "secret")
    challenge = server.step(client.get_client_first().encode())
    client.set_server_first(challenge.message.decode())
    client.set_server_final(server.step(client.get_client_final().encode()).message.decode())

    other = theirs.make_server(lambda _name: theirs.make_auth_info("secret", 4096, SALT))
    ours = ScramClient(algorithm, "alice", "secret")
    other.set_client_first(ours.first().decode())
    other.set_client_final((ours.step(other.get_server_first().encode()) or b"").decode())
    assert ours.step(other.get_server_final().encode()) is None


def _keys(credential: ScramCredential) -> tuple[bytes, bytes]:
    return credential.stored_key, credential.server_key


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "secret"), ("Alice", "secret")])
def test_unknown_users_and_wrong_passwords_look_the_same(name: str, password: str) -> None:
    mechanism = ScramMechanism(SCRAM_SHA_256, Users({"alice": SECRET}))
    client, server = ScramClient(SCRAM_SHA_256, name, password), mechanism.start()
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge)
    salt = read_salt(challenge.message)
    assert len(salt) == 16
    with pytest.raises(AuthenticationFailed, match="unknown user or wrong password"):
        server.step(client.step(challenge.message) or b"")
    again = mechanism.start().step(ScramClient(SCRAM_SHA_256, name, password).first())
    assert read_salt(again.message) == salt, "a decoy that changes would be told from a user"


def read_salt(message: bytes) -> bytes:
    return b64decode(message.split(b",s=")[1].split(b",")[0])


def test_the_decoys_proof_is_refused_even_if_it_is_right() -> None:
    """The test knows the decoy's stored key; nobody knows a password for a real one."""

    class Guessable(Users):
        def decoy(self, algorithm: Algorithm, name: str) -> ScramCredential:
            return make_credential(algorithm, "guessed", SALT)

    with pytest.raises(AuthenticationFailed):
        converse(ScramClient(SCRAM_SHA_256, "nobody", "guessed"), ScramMechanism(SCRAM_SHA_256, Guessable({})))


def test_a_delegation_token_speaks_for_its_owner() -> None:
    identity = ScramIdentity(ALICE, SECRET, expires_ms=1234)
    mechanism = ScramMechanism(SCRAM_SHA_256, Users({}, {"token-1": identity}))
    client = ScramClient(SCRAM_SHA_256, "token-1", "secret", token=True)
    assert client.first().endswith(b",tokenauth=true")
    success = converse(client, mechanism)
    assert (success.principal, success.expires_ms, success.by_token) == (ALICE, 1234, True)
    server = mechanism.start()
    assert server.is_slow(client.first()) and not server.is_slow(b"n,,n=token-1,r=abc")
    with pytest.raises(AuthenticationFailed):
        converse(ScramClient(SCRAM_SHA_256, "token-1", "secret"), mechanism)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "malformed"),
        (b"n,,n=alice", "malformed"),
        (b"n,,n=,r=abc", "malformed"),
        (b"n,,n=al=ice,r=abc", "malformed"),
        (b"n,,m=x,n=alice,r=abc", "malformed"),
        (b"n,,n=alice,r=abc,", "malformed"),
        (b"n,,n=alice,r=abc\0", "malformed"),
        (b"n,,n=alice,r=abc\n", "malformed"),
        (b"p=tls-unique,,n=alice,r=abc", "channel binding"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
    ],
)
def test_malformed_first_messages(message: bytes, says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        ScramMechanism(SCRAM_SHA_256, Users({})).start().step(message)


def test_names_are_escaped() -> None:
    first = read_client_first(b"n,a=a=3D=2Cb,n=a=3D2C=2Cb,r=abc,tokenauth=TRUE")
    assert (first.user, first.authorization_id, first.token) == ("a=2C,b", "a=,b", True)


def test_nobody_acts_as_another() -> None:
    server = ScramMechanism(SCRAM_SHA_256, Users({"alice": SECRET})).start()
    with pytest.raises(AuthenticationFailed, match="act as"):
        server.step(b"n,a=bob,n=alice,r=abc")


@pytest.mark.parametrize(
    "change",
    [
        (b"c=biws", b"c=eSws"),  # y,, in place of n,,
        (b"r=abc", b"r=abd"),
        (b",p=", b",p=AAAA"),
    ],
)
def test_changed_last_messages(change: tuple[bytes, bytes]) -> None:
    server = ScramMechanism(SCRAM_SHA_256, Users({"alice": SECRET})).start()
    client = ScramClient(SCRAM_SHA_256, "alice", "secret", nonce=lambda: "abc")
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.step(challenge.message) or b""
    assert change[0] in final
    with pytest.raises(SaslError):
        server.step(final.replace(*change))


@pytest.mark.parametrize(("prefix", "suffix", "accepted"), [("abc", "", True), ("", "x", False), ("abc", "x", False)])
def test_librdkafka_before_2_6_1_repeats_its_nonce(
    monkeypatch: pytest.MonkeyPatch, prefix: str, suffix: str, accepted: bool
) -> None:
    """The broker's own nonce has to be there, at the end, and the proof has to be right for what was sent."""
    monkeypatch.setattr(
        "pylogd.credentials.scram.write_client_final",
        lambda header, nonce: write_client_final(header, prefix + nonce + suffix),
    )
    client = ScramClient(SCRAM_SHA_256, "alice", "secret", nonce=lambda: "abc")
    mechanism = ScramMechanism(SCRAM_SHA_256, Users({"alice": SECRET}))
    if accepted:
        assert converse(client, mechanism).principal == Principal(USER, "alice")
    else:
        with pytest.raises(AuthenticationFailed, match="nonce"):
            converse(client, mechanism)


def test_credentials_with_few_iterations_are_refused() -> None:
    """The right password too, and only with the proof: up to there an unknown user looks the same."""
    weak = make_credential(SCRAM_SHA_256, "secret", SALT, 100)
    server = ScramMechanism(SCRAM_SHA_256, Users({"alice": weak})).start()
    client = ScramClient(SCRAM_SHA_256, "alice", "secret")
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge) and challenge.message.endswith(b",i=4096")
    with pytest.raises(AuthenticationFailed, match="less than 4096 iterations"):
        server.step(client.step(challenge.message) or b"")


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        (b"r=abcdef,s=c2FsdA==,i=100", "iterations"),
        (b"r=abcdef,s=c2FsdA==,i=99999999", "iterations"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=xyz,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abcdef,s=!,i=4096", "malformed"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_client_does_not_trust_any_broker(challenge: bytes, says: str) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "secret", nonce=lambda: "abc")
    client.first()
    with pytest.raises(SaslError, match=says):
        client.step(challenge)


@pytest.mark.parametrize("last", [b"v=AAAA", b"e=other-error"])
def test_a_client_wants_a_broker_that_knows_the_keys(last: bytes) -> None:
    client = ScramClient(SCRAM_SHA_512, "alice", "secret", nonce=lambda: "abc")
    client.first()
    assert client.step(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(ServerNotTrusted):
        client.step(last)


def test_a_client_needs_a_name() -> None:
    for name in ("", "a\0b", "\ud800"):
        with pytest.raises(MalformedMessage):
            ScramClient(SCRAM_SHA_256, name, "secret").first()
    with pytest.raises(MalformedMessage):
        ScramClient(SCRAM_SHA_256, "alice", "secret").step(b"")


@given(st.binary() | st.text().map(str.encode), st.binary())
def test_any_bytes_raise_typed_errors_only(first: bytes, second: bytes) -> None:
    for side in (
        ScramMechanism(SCRAM_SHA_256, Users({"alice": SECRET})).start(),
        ScramClient(SCRAM_SHA_256, "alice", "secret"),
    ):
        try:
            if isinstance(side, ScramClient):
                side.first()
            side.step(first)
            side.step(second)
        except SaslError as error:
            assert "secret" not in str(error)


def test_credentials_are_stored_as_kafka_does() -> None:
    text = encode_credential(SECRET)
    assert text.startswith("salt=MDEyMzQ1Njc4OWFiY2RlZg==,stored_key=") and text.endswith(",iterations=4096")
    assert decode_credential(text) == SECRET
    for bad in (
        "",
        text[:-1] + "x",
        text.replace("salt=MD", "salt=M"),
        "salt=a,stored_key=b,server_key=c,iterations=1",
    ):
        with pytest.raises(ValueError, match="SCRAM credential"):
            decode_credential(bad)
    assert "MDEy" not in repr(SECRET) and repr(SALT) not in repr(SECRET)
