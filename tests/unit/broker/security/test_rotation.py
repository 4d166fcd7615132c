"""Certificates that are read again while a listener uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from pylogd.broker.security.rotation import ListenerCertificates
from pylogd.config import ConfigError, TlsOptions
from pylogd.credentials.certificates import fingerprint, read_credentials
from pylogd.local.authority import Authority
from tests.fakes.metadata import result_of
from tests.fakes.tls import TlsPair, authority, client_context, make_context, options


class Case:
    """The certificates of a listener in files, with a thread that the test runs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "key.pem"
        self.options = TlsOptions(keystore=str(self.path))
        self.held: list[tuple[Deferred[Any], Callable[[], Any]]] | None = None
        self.reads = 0
        self.write("first")
        self.certificates = ListenerCertificates("SSL", lambda: self.options, self.in_thread)

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        self.reads += 1
        if self.held is None:
            return maybeDeferred(function, *args)
        done: Deferred[Any] = Deferred()
        self.held.append((done, lambda: function(*args)))
        return done

    def write(self, name: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(authority().issue(name, ["localhost"]).pem)
        fresh.replace(self.path)

    def load(self) -> None:
        result_of(Deferred.fromCoroutine(self.certificates.load()))

    def shown(self) -> str:
        pair = TlsPair(context=self.certificates.context()).handshake()
        certificate: Any = pair.client.getpeercert()
        pair.close()
        return str(dict(part[0] for part in certificate["subject"])["commonName"])


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path)
    made.load()
    return made


def test_a_new_file_is_used_and_an_unchanged_one_is_not_read(case: Case) -> None:
    context = case.certificates.context()
    case.certificates.refresh()
    assert case.certificates.context() is context
    case.write("second")
    case.certificates.refresh()
    assert case.shown() == "second"


def test_a_file_with_the_same_contents_changes_nothing(case: Case) -> None:
    context = case.certificates.context()
    text = case.path.read_text()
    case.path.unlink()
    case.path.write_text(text)
    case.certificates.refresh()
    assert case.certificates.context() is context


@pytest.mark.parametrize("contents", ["", "no certificate", None])
def test_what_can_not_be_read_leaves_the_old_certificate(case: Case, contents: str | None) -> None:
    if contents is None:
        case.path.unlink()
    else:
        case.path.write_text(contents)
    case.certificates.refresh()
    assert case.shown() == "first"
    case.write("second")
    case.certificates.refresh()
    assert case.shown() == "second"


def test_changes_during_a_read_cause_one_more(case: Case) -> None:
    case.held = []
    case.reads = 0
    for _ in range(5):
        case.certificates.refresh()
    assert case.reads == 1
    done, work = case.held.pop()
    case.write("second")
    case.held, held = None, (done, work)
    maybeDeferred(held[1]).chainDeferred(held[0])
    assert case.reads == 2
    assert case.shown() == "second"


def test_other_settings_are_used_too(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(authority().issue("other", ["localhost"]).pem)
    case.options = TlsOptions(keystore=str(other))
    case.certificates.refresh()
    assert case.shown() == "other"


def test_a_directory_changes_with_its_files(tmp_path: Path) -> None:
    options = TlsOptions(keystore=str(tmp_path))
    (tmp_path / "a.pem").write_text(authority().issue("a", ["a"]).pem)
    before = fingerprint(options)
    assert fingerprint(options) == before
    (tmp_path / "b.pem").write_text(authority().issue("b", ["b"]).pem)
    assert fingerprint(options) != before
    assert [one.names for one in read_credentials(options).identities] == [("a",), ("b",)]


def test_a_key_and_a_certificate_that_do_not_belong_together() -> None:
    one, two = authority().issue("one"), authority().issue("two")
    with pytest.raises(ConfigError, match="does not belong"):
        read_credentials(TlsOptions(key=one.key, chain=two.chain))


@pytest.mark.parametrize(("password", "text"), [(None, "set ssl.key.password"), ("wrong", "password is wrong")])
def test_an_encrypted_key_without_its_password(password: str | None, text: str) -> None:
    identity = authority().issue("one", password="right")
    with pytest.raises(ConfigError, match=text) as caught:
        read_credentials(TlsOptions(key=identity.key, chain=identity.chain, key_password=password))
    assert "right" not in str(caught.value)


def test_certificates_in_any_order(tmp_path: Path) -> None:
    identity, other = authority().issue("one", ["localhost"]), authority().issue("two")
    options = TlsOptions(key=identity.key, chain=other.chain + identity.chain)
    (read,) = read_credentials(options).identities
    assert read.names == ("localhost",)


def test_authorities_from_a_directory(tmp_path: Path) -> None:
    other = Authority("other")
    (tmp_path / "one.pem").write_text(authority().certificate)
    (tmp_path / "two.pem").write_text(other.certificate)
    (tmp_path / "notes.txt").write_text("no certificate")
    given = options(trusted=None, truststore=str(tmp_path), client_auth="required")
    assert len(read_credentials(given).trusted) == 2
    for signer in (authority(), other):
        TlsPair(context=make_context(given), client=client_context(signer.issue("client"))).handshake().close()
