"""OAUTHBEARER: its messages, and which tokens are accepted."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from pylogd.credentials.access_tokens import (
    IssuerKeys,
    SignedTokens,
    TokenRules,
    UnsecuredTokens,
    fetch_keys,
)
from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MalformedMessage,
    MechanismUnavailable,
    SaslError,
    ServerNotTrusted,
    Success,
)
from pylogd.credentials.oauthbearer import OAuthBearerClient, OAuthBearerMechanism, TokenOwner, read_token
from pylogd.credentials.principal import USER, Principal
from pylogd.web import client as http_client

jwk = pytest.importorskip("joserfc.jwk")
jwt = pytest.importorskip("joserfc.jwt")

NOW = 1_700_000_000
RSA = jwk.RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "ec"})
OTHER = jwk.RSAKey.generate_key(2048, {"kid": "rsa"})
SECRET = jwk.OctKey.import_key("c2VjcmV0" * 8, {"kid": "oct"})
ALICE = Principal(USER, "alice")
CLAIMS = {"sub": "alice", "exp": NOW + 60, "iat": NOW - 1, "iss": "me", "aud": ["kafka", "x"], "scope": "read write"}


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=key is SECRET) for key in keys]}).encode()


def sign(key: Any = RSA, algorithm: str = "RS256", **claims: Any) -> str:
    merged = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return str(jwt.encode({"alg": algorithm, "kid": key.kid}, merged, key, algorithms=[algorithm]))


class Issuer:
    """An issuer that serves key sets, or fails."""

    def __init__(self, *keys: Any) -> None:
        self.answer: bytes | OSError = key_set(*keys)
        self.asked = 0
        self.now = 0.0
        self.keys = IssuerKeys("https://issuer/keys", 3600, 10, self.fetch, lambda: self.now)

    def fetch(self, url: str) -> bytes:
        assert url == "https://issuer/keys"
        self.asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def checker(*keys: Any, **rules: Any) -> SignedTokens:
    return SignedTokens(Issuer(*(keys or (RSA, EC, SECRET))).keys, TokenRules(**rules), lambda: NOW * 1000)


# -- tokens


def test_signed_tokens() -> None:
    check = checker(audiences=("kafka",), issuer="me", scopes=("write",))
    assert check.check(sign()) == TokenOwner(ALICE, (NOW + 60 + 30) * 1000)
    assert check.check(sign(EC, "ES256", aud="kafka", sub="Bob")).principal == Principal(USER, "Bob")
    lists = checker(subject_claim="client", scope_claim="roles", scopes=("a", "b"))
    assert lists.check(sign(client="carol", roles=["b", "a"])).principal.name == "carol"


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": NOW - 31}, "ended"),
        ({"exp": NOW - 30}, "ended"),
        ({"exp": None}, "no end"),
        ({"exp": "soon"}, "not a time"),
        ({"exp": -1}, "not a time"),
        ({"exp": 1e300}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"iat": NOW, "exp": NOW - 1}, "before it was issued"),
        ({"iss": "other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": ["me", "other"]}, "issuer"),
        ({"aud": "other"}, "is for"),
        ({"aud": "kafka x"}, "is for"),
        ({"aud": None}, "is for"),
        ({"scope": "read"}, "lacks the scope write"),
        ({"scope": "writer"}, "lacks the scope write"),
        ({"scope": {"write": 1}}, "lacks the scope write"),
        ({"sub": None}, "subject"),
        ({"sub": " "}, "subject"),
        ({"sub": ["alice"]}, "subject"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any], says: str) -> None:
    with pytest.raises(AuthenticationFailed, match=says):
        checker(audiences=("kafka",), issuer="me", scopes=("write",)).check(sign(**claims))


def test_a_token_within_the_clock_skew_still_has_a_positive_lifetime() -> None:
    owner = checker().check(sign(exp=NOW - 29, iat=None))
    assert owner.expires_ms - NOW * 1000 == 1000


def unsecured(**claims: Any) -> str:
    def encode(part: Any) -> str:
        return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    return f"{encode({'alg': 'none'})}.{encode({**CLAIMS, **claims})}."


@pytest.mark.parametrize(
    "token",
    [
        sign(OTHER),  # another key with the same id
        sign(SECRET, "HS256"),  # a shared secret, even if the issuer publishes one
        unsecured(),
        sign()[:-4] + "AAAA",
        "a.b.c",
        "e30.e30.",
        "e30",
        "",
        "." * 70_000,
        sign(jwk.RSAKey.generate_key(2048, {"kid": "unknown"})),
    ],
)
def test_signatures_that_are_refused(token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        checker().check(token)


def test_unsecured_tokens_are_accepted_where_they_are_allowed_only() -> None:
    check = UnsecuredTokens(TokenRules(scopes=("read",)), lambda: NOW * 1000)
    assert check.check(unsecured()).principal == ALICE
    for refused in (sign(), unsecured(exp=NOW - 100), unsecured(scope=""), unsecured() + "x"):
        with pytest.raises(AuthenticationFailed):
            check.check(refused)


# -- keys


def test_keys_are_fetched_once_and_again_when_they_are_old() -> None:
    issuer = Issuer(RSA)
    for _ in range(3):
        issuer.keys.find("rsa")
    assert issuer.asked == 1
    issuer.now = 3600.0
    issuer.keys.find("rsa")
    assert issuer.asked == 2


def test_an_unknown_key_is_looked_for_every_few_seconds() -> None:
    issuer = Issuer(RSA)
    issuer.keys.find("rsa")
    issuer.answer = key_set(RSA, EC)
    with pytest.raises(AuthenticationFailed, match="'ec'"):
        issuer.keys.find("ec")
    assert issuer.asked == 1, "tokens of strangers must not make the broker fetch all the time"
    issuer.now = 10.0
    issuer.keys.find("ec")
    assert issuer.asked == 2
    with pytest.raises(AuthenticationFailed):
        issuer.keys.find(None)


def test_known_keys_outlast_an_issuer_that_is_down() -> None:
    issuer = Issuer(RSA)
    issuer.keys.find(None)
    issuer.now, issuer.answer = 3600.0, OSError("down")
    issuer.keys.find("rsa")
    issuer.keys.find("rsa")
    assert issuer.asked == 2


@pytest.mark.parametrize("answer", [OSError("down"), b"", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "RSA"}]}'])
def test_without_keys_nobody_gets_in(answer: bytes | OSError) -> None:
    issuer = Issuer(RSA)
    issuer.answer = answer
    for _ in range(2):
        with pytest.raises(MechanismUnavailable, match="can't get the keys of https://issuer/keys"):
            issuer.keys.find("rsa")
    assert issuer.asked == 1
    issuer.now, issuer.answer = 10.0, key_set(RSA)
    issuer.keys.find("rsa")


def test_a_key_of_a_new_kind_does_not_keep_the_others_out() -> None:
    issuer = Issuer(RSA)
    known = RSA.as_dict(private=False)
    odd = [{"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA", "kid": "new"}, {"kty": "PQC"}, {"kty": "RSA"}, 7]
    issuer.answer = json.dumps({"keys": [*odd, known]}).encode()
    issuer.keys.find("rsa")
    with pytest.raises(AuthenticationFailed):
        issuer.keys.find("new")


def test_a_slow_issuer_holds_two_threads_at_most() -> None:
    """Whoever sends tokens with unknown keys must not keep all threads of authentication waiting for the issuer."""
    begun, go_on = threading.Event(), threading.Event()
    issuer = Issuer(RSA)
    issuer.keys.find("rsa")
    issuer.now = 10.0
    answer = issuer.answer
    assert isinstance(answer, bytes)

    def slow(url: str) -> bytes:
        issuer.asked += 1
        begun.set()
        assert go_on.wait(30)
        return answer

    issuer.keys._fetch = slow
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(issuer.keys.find, "unknown")
        assert begun.wait(30)
        others = [pool.submit(issuer.keys.find, "unknown") for _ in range(4)]
        refused = list(islice(as_completed(others, 30), 3))
        assert len(refused) == 3
        pool.submit(issuer.keys.find, "rsa").result(30)  # a known key needs no issuer
        issuer.now = 25.0
        go_on.set()
        for one in (first, *others):
            assert isinstance(one.exception(30), AuthenticationFailed)
    assert issuer.asked == 2
    with pytest.raises(AuthenticationFailed):
        issuer.keys.find("unknown")
    assert issuer.asked == 2, "the pause begins when the attempt has ended"


def test_an_issuer_that_sends_a_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = [0.0], threading.Semaphore(0)

    def monotonic() -> float:
        clock[0] += 1.0
        looks.release()  # for which the issuer sends another byte
        return clock[0]

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while looks.acquire(timeout=60):
                connection.sendall(b" ")

    monkeypatch.setattr(http_client, "time", SimpleNamespace(monotonic=monotonic))
    with socket.create_server(("127.0.0.1", 0)) as server:
        issuer = threading.Thread(target=serve)
        issuer.start()
        with pytest.raises(OSError, match="took too long"):
            fetch_keys(f"http://127.0.0.1:{server.getsockname()[1]}/keys")
        looks.release(1000)  # it finds that the connection is closed
        issuer.join(60)
    assert clock[0] < 15


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1}, {"crit": ["b64"], "b64": False}, {"crit": []}, {"b64": False},
        {"jwk": RSA.as_dict(private=False)}, {"jku": "https://evil/keys"}, {"kid": ["rsa"]}, {"kid": 7},
        {"alg": ["RS256"]}, {"alg": "none"}, {"alg": "NONE"}, {"alg": None}, {"alg": "HS256"}, {"kid": "x" * 5000},
    ],
    ids=lambda header: json.dumps(header)[:30],
)  # fmt: skip
def test_headers_that_attack(header: dict[str, Any]) -> None:
    """Neither a key that comes with the token, nor extensions that the broker does not know, nor another algorithm."""

    def part(value: Any) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    signed = f"{part({'alg': 'RS256', 'kid': 'rsa', **header})}.{part({**CLAIMS, 'sub': 'admin'})}"
    key = serialization.load_pem_private_key(OTHER.as_pem(private=True), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    own = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    public = RSA.as_pem(private=False)
    for signature in (own, hmac.digest(public, signed.encode(), "sha256"), b""):
        with pytest.raises(AuthenticationFailed):
            checker().check(f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}")


def test_extensions_that_must_be_understood_are_refused_though_the_signature_is_right() -> None:
    def part(value: Any) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    key = serialization.load_pem_private_key(RSA.as_pem(private=True), None)
    assert isinstance(key, rsa.RSAPrivateKey)

    def signed(**header: Any) -> str:
        text = f"{part({'alg': 'RS256', 'kid': 'rsa', **header})}.{part(CLAIMS)}"
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{urlsafe_b64encode(signature).decode().rstrip('=')}"

    assert checker().check(signed()).principal == ALICE
    for header in ({"crit": ["x"], "x": 1}, {"crit": ["b64"], "b64": True}, {"crit": ["b64"], "b64": False}):
        with pytest.raises(AuthenticationFailed):
            checker().check(signed(**header))


def test_keys_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "the keys.json"
    path.write_bytes(key_set(RSA))
    assert fetch_keys(path.as_uri()) == path.read_bytes()
    path.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="larger"):
        fetch_keys(path.as_uri())
    with pytest.raises(ValueError, match="https:"):
        fetch_keys("ftp://issuer/keys")


# -- messages


class Accept:
    """Accepts one token."""

    def check(self, token: str) -> TokenOwner:
        if token != "good":
            raise AuthenticationFailed("not good")
        return TokenOwner(ALICE, 1234)


def test_the_messages() -> None:
    mechanism = OAuthBearerMechanism(Accept())
    client = OAuthBearerClient(lambda: "good", {"logicalCluster": "lkc 1"})
    first = client.first()
    assert first == b"n,,\x01auth=Bearer good\x01logicalCluster=lkc 1\x01\x01"
    assert mechanism.start().is_slow(first)
    assert mechanism.start().step(first) == Success(ALICE, expires_ms=1234)
    assert client.step(b"") is None
    assert mechanism.start().step(b"n,a=alice,\x01auth=Bearer good\x01\x01") == Success(ALICE, expires_ms=1234)


@pytest.mark.parametrize("first", [b"n,,\x01auth=Bearer bad\x01\x01", b"n,a=bob,\x01auth=Bearer good\x01\x01"])
def test_a_refused_token(first: bytes) -> None:
    server, client = OAuthBearerMechanism(Accept()).start(), OAuthBearerClient("bad")
    challenge = server.step(first)
    assert challenge == Challenge(b'{"status":"invalid_token"}')
    answer = client.step(challenge.message)
    assert answer == b"\x01"
    assert not server.is_slow(answer)
    with pytest.raises(AuthenticationFailed):
        server.step(answer)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x011=2\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_malformed(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_token(message)


@given(st.binary(), st.binary())
def test_any_bytes_raise_typed_errors_only(first: bytes, second: bytes) -> None:
    server = OAuthBearerMechanism(checker()).start()
    for message in (first, b"n,,\x01auth=Bearer " + second + b"\x01\x01"):
        with contextlib.suppress(SaslError):
            server.step(message)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_any_claims_raise_typed_errors_only(claims: dict[str, Any]) -> None:
    with contextlib.suppress(SaslError):
        UnsecuredTokens(TokenRules(), lambda: NOW * 1000).check(unsecured(**claims))


def test_the_client_checks_what_it_sends() -> None:
    for token in ("", "a b", "a\x01b"):
        with pytest.raises(MalformedMessage):
            OAuthBearerClient(token).first()
    for extensions in ({"auth": "x"}, {"a1": "x"}, {"a": "\x01"}):
        with pytest.raises(MalformedMessage):
            OAuthBearerClient("good", extensions).first()
    with pytest.raises(ServerNotTrusted):
        OAuthBearerClient("good").step(b"hello")
