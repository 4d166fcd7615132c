"""PLAIN: its users in settings and files, and Kafka's syntax for credentials."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    MalformedMessage,
    MechanismUnavailable,
    SaslError,
    ServerNotTrusted,
    Success,
)
from pylogd.credentials.jaas import LoginModule, parse_jaas
from pylogd.credentials.passwords import KnownPasswords, PasswordHash, UsersFile, add_user
from pylogd.credentials.plain import PlainClient, PlainMechanism
from pylogd.credentials.principal import USER, Principal

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
    hashed = PasswordHash.of("hashed")
    path.write_text(f"# people\nalice:secret\n\nbob:{hashed}\ncarol:with:colon\n")
    users = UsersFile(str(path))
    assert users.slow
    for user, password in (("alice", "secret"), ("bob", "hashed"), ("carol", "with:colon")):
        assert users.is_right(user, password)
        assert not users.is_right(user, "wrong")
    assert not users.is_right("bob", str(hashed))
    assert not users.is_right("nobody", "hashed")
    assert not users.is_right("nobody", "")
    path.write_text("alice:changed\n")
    os.utime(path, ns=(1, 1))
    assert users.is_right("alice", "changed") and not users.is_right("alice", "secret")
    assert not users.is_right("bob", "hashed")
    path.unlink()
    with pytest.raises(MechanismUnavailable, match="No such file"):
        users.is_right("alice", "changed")


def test_a_hash_is_read_as_it_was_written() -> None:
    written = PasswordHash.of("secret")
    read = PasswordHash.parse(str(written))
    assert read == written and read.matches("secret") and not read.matches("secretx")
    assert "secret" not in str(written) and str(written) not in repr(written)
    assert str(PasswordHash.of("secret")) != str(written), "each hash has a salt of its own"


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were hashed."""
    found: list[str] = []
    matches = PasswordHash.matches

    def count(self: PasswordHash, password: str) -> bool:
        found.append(password)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", count)
    return found


def test_where_some_passwords_are_hashed_each_check_hashes_one(tmp_path: Path, hashes: list[str]) -> None:
    (tmp_path / "users").write_text(f"alice:secret\nbob:{PasswordHash.of('hashed')}\n")
    users = UsersFile(str(tmp_path / "users"))
    for user in ("alice", "bob", "nobody"):
        assert not users.is_right(user, "guess")
    assert len(hashes) == 3


def test_a_right_password_is_hashed_once_until_the_file_changes(tmp_path: Path, hashes: list[str]) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "secret")
    users = UsersFile(str(path))
    assert all(users.is_right("ada", "secret") for _ in range(3)) and len(hashes) == 1
    assert not users.is_right("ad", "a:secret") and not users.is_right("ada", "wrong") and len(hashes) == 3
    add_user(path, "ada", "another")
    assert not users.is_right("ada", "secret") and users.is_right("ada", "another")


def test_a_user_is_added_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "first")
    add_user(path, "bob", "b")
    users = UsersFile(str(path))
    assert users.is_right("ada", "first") and users.is_right("bob", "b")
    assert not users.is_right("ada", "b") and not users.is_right("eve", "b")
    add_user(path, "ada", "second")
    assert users.is_right("ada", "second") and not users.is_right("ada", "first")
    assert users.is_right("bob", "b")
    assert path.stat().st_mode & 0o777 == 0o600 and "second" not in path.read_text()
    with pytest.raises(ValueError, match="colon"):
        add_user(path, "a:b", "x")


@pytest.mark.parametrize(
    "text",
    [
        "alice\n", ":secret\n", "alice:\n", "alice:a\nalice:b\n", "alice:$scrypt$secret", ":$scrypt$secret",
        "alice:$2b$secret",
        "alice:$scrypt$ln=30,r=8,p=1$c2FsdA$aGFzaA", "alice:$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA",
    ],
)  # fmt: skip
def test_a_malformed_users_file_names_the_line_but_no_password(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(MechanismUnavailable, match=r"line [12]: ") as caught:
        UsersFile(str(tmp_path / "users")).is_right("alice", "a")
    assert "secret" not in str(caught.value)


def test_nobody_is_let_in_while_the_file_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "secret")
    users = UsersFile(str(path))
    assert users.is_right("ada", "secret")
    path.write_text("nonsense")
    with pytest.raises(MechanismUnavailable):
        users.is_right("ada", "secret")


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


def test_a_message_with_a_password_that_was_right_is_remembered(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ada", "secret")
    server = PlainMechanism(UsersFile(str(tmp_path / "users"))).start()
    assert not server.is_remembered(b"\0ada\0secret")
    server.step(b"\0ada\0secret")
    assert server.is_remembered(b"\0ada\0secret") and server.is_remembered(b"ada\0ada\0secret")
    for message in (b"\0ada\0wrong", b"\0ada", b"\xff\0\xff\0\xff", b"\0ada\0secret" + bytes(5000)):
        assert not server.is_remembered(message)
