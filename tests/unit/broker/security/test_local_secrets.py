"""Files with secrets that `pylogd cluster up --secure` makes: only their owner can read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.local.authority import Authority, write_secret


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_secret_is_its_owners(tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "bob.properties"
    path.write_text("old")
    (tmp_path / "bob.properties.new").write_text("left by a run that was killed, and readable for all")
    write_secret(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert os.listdir(tmp_path) == [path.name]


def test_a_secret_does_not_follow_links(tmp_path: Path, open_umask: None) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / "secret.new").symlink_to(elsewhere)
    write_secret(tmp_path / "secret", "new")
    assert elsewhere.read_text() == "untouched" and not (tmp_path / "secret").is_symlink()


def test_the_key_of_an_authority_is_its_owners(tmp_path: Path, open_umask: None) -> None:
    Authority.open(tmp_path / "tls")
    assert mode(tmp_path / "tls" / "authority.key") == 0o600
