"""PLAIN: its users in settings and files, and Kafka's syntax for credentials."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.security.principal import USER, Principal
from pylogd.security.sasl.conversation import (
    AuthenticationFailed,
    MalformedMessage,
    MechanismUnavailable,
    SaslError,
    ServerNotTrusted,
    Success,
)
from pylogd.security.sasl.jaas import LoginModule, parse_jaas
from pylogd.security.sasl.passwords import KnownPasswords, UsersFile, format_hashed
from pylogd.security.sasl.plain import PlainClient, PlainMechanism
from pylogd.security.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512, make_credential

MECHANISM = PlainMechanism(KnownPasswords({"alice": "secret", "bob": "pass=word"}))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(TEXT, TEXT)
def test_the_right_password(user: str, password: str) -> None:
    client = PlainClient(user, password)
    server = PlainMechanism(KnownPasswords({user: password})).start()
    assert server.step(client.first()) == Success(Principal(USER, user))
    client.step(b"")


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0nobody\0secret",
        b"\0Alice\0secret",
        b"bob\0alice\0secret",
        b"\0alice\0" + b"x" * 100_000,
    ],
)
def test_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        MECHANISM.start().step(message)


def test_an_authorization_id_may_repeat_the_user() -> None:
    assert MECHANISM.start().step(b"alice\0alice\0secret").principal == Principal(USER, "alice")


@pytest.mark.parametrize(
    "message", [b"", b"alice\0secret", b"\0\0secret", b"\0alice\0", b"\0a\0b\0c", b"\0alice\0\xff"]
)
def test_malformed(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MECHANISM.start().step(message)


@given(st.binary())
def test_any_bytes_raise_typed_errors_only(message: bytes) -> None:
    with pytest.raises(SaslError) as caught:
        MECHANISM.start().step(message)
    assert "secret" not in str(caught.value)


def test_the_client() -> None:
    assert PlainClient("alice", lambda: "fresh").first() == b"\0alice\0fresh"
    for user, password in (("", "x"), ("a", ""), ("a\0b", "x"), ("a", "x\0"), ("\ud800", "x")):
        with pytest.raises(MalformedMessage):
            PlainClient(user, password).first()
    with pytest.raises(ServerNotTrusted):
        PlainClient("alice", "secret").step(b"more")


def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    hashed = format_hashed(SCRAM_SHA_512, make_credential(SCRAM_SHA_512, "hashed", b"salt"))
    path.write_text(f"# people\nalice:secret\n\nbob:{hashed}\ncarol:with:colon\n")
    users = UsersFile(str(path))
    assert users.slow
    for user, password in (("alice", "secret"), ("bob", "hashed"), ("carol", "with:colon")):
        assert users.is_right(user, password)
        assert not users.is_right(user, "wrong")
    assert not users.is_right("bob", hashed)
    assert not users.is_right("nobody", "hashed")
    assert not users.is_right("nobody", "")
    path.write_text("alice:changed\n")
    os.utime(path, ns=(1, 1))
    assert users.is_right("alice", "changed") and not users.is_right("alice", "secret")
    assert not users.is_right("bob", "hashed")
    path.unlink()
    with pytest.raises(MechanismUnavailable, match="No such file"):
        users.is_right("alice", "changed")


def test_where_some_passwords_are_hashed_each_check_hashes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = format_hashed(SCRAM_SHA_256, make_credential(SCRAM_SHA_256, "hashed", b"salt"))
    (tmp_path / "users").write_text(f"alice:secret\nbob:{hashed}\n")
    users = UsersFile(str(tmp_path / "users"))
    hashes: list[str] = []

    def count(algorithm: object, password: str, salt: bytes, iterations: int) -> object:
        hashes.append(password)
        return make_credential(SCRAM_SHA_256, password, salt, iterations)

    monkeypatch.setattr("pylogd.security.sasl.passwords.make_credential", count)
    for user in ("alice", "bob", "nobody"):
        users.is_right(user, "guess")
    assert len(hashes) == 3


@pytest.mark.parametrize("text", ["alice\n", ":secret\n", "alice:\n", "alice:a\nalice:b\n"])
def test_a_malformed_users_file_names_the_line_but_no_password(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(MechanismUnavailable, match=r"line [12]: ") as caught:
        UsersFile(str(tmp_path / "users")).is_right("alice", "a")
    assert "secret" not in str(caught.value)


def test_a_hash_that_is_not_base64(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:SCRAM-SHA-256$4096:a$b:c\n")
    with pytest.raises(MechanismUnavailable, match="base64"):
        UsersFile(str(tmp_path / "users")).is_right("alice", "a")


def test_jaas() -> None:
    text = """org.apache.kafka.common.security.plain.PlainLoginModule required
        username="admin" password='it"s' user_alice="a \\"quoted\\" word" serviceName=kafka ;"""
    assert parse_jaas(text) == LoginModule(
        "PlainLoginModule",
        {"username": "admin", "password": 'it"s', "user_alice": 'a "quoted" word', "serviceName": "kafka"},
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Module required",
        "Module sometimes a=b;",
        'Module required a="secret;',
        "Module required a=;",
        "Module required a b;",
        "Module required a=secret a=secret;",
        "One required a=b; Two required a=b;",
    ],
)
def test_malformed_jaas(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_jaas(text)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_any_jaas_raises_value_errors_only(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_jaas(text)
