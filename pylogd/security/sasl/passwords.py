"""Passwords of PLAIN's users: from the settings in clear text, or from a file in clear text or hashed.

A line of the file is `user:password`, or `user:SCRAM-SHA-256$iterations:salt$stored key:server key` with base64 parts,
the notation of PostgreSQL. Empty lines and those that begin with `#` don't count. A user's name can't contain a colon.

Rules: to check the password of an unknown user takes as long as for a known one; texts are compared in constant time.
"""

from __future__ import annotations

import binascii
import hmac
import os
import re
import secrets
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from pylogd.security.sasl.conversation import MechanismUnavailable
from pylogd.security.sasl.scram import SCRAM_MECHANISMS, Algorithm, ScramCredential, make_credential

_HASHED: Final = re.compile(
    r"(SCRAM-SHA-(?:256|512))\$([1-9][0-9]{0,6}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
#: What an unknown user's password is compared with.
_NOBODY: Final = secrets.token_hex(32)
_KEY: Final = secrets.token_bytes(32)

Hashed = tuple[Algorithm, ScramCredential]


class PasswordCheck(Protocol):
    """Checks passwords. slow: whether it hashes them or reads a file."""

    slow: bool

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password. Raises SaslError if that can't be found out."""


def same_text(first: str, second: str) -> bool:
    """Compare two texts in a time that does not depend on them."""
    one, other = (hmac.digest(_KEY, text.encode("utf-8", "surrogatepass"), "sha256") for text in (first, second))
    return hmac.compare_digest(one, other)


class KnownPasswords:
    """Users with passwords in clear text."""

    slow = False

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password."""
        return same_text(self._passwords.get(user, _NOBODY), password)


class UsersFile:
    """Users in a file, which is read again when it has changed. May be used from several threads."""

    slow = True

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._secrets: Mapping[str, str | Hashed] = {}
        self._decoy: Hashed | None = None

    def read(self) -> None:
        """Read the file if it has changed. Raises MechanismUnavailable if it can't be used."""
        with self._lock:
            self._read_if_changed()

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password. Raises MechanismUnavailable if the file can't be used."""
        with self._lock:
            self._read_if_changed()
            found, decoy = self._secrets.get(user), self._decoy
        # Where some passwords are hashed, each check hashes one, so that its time tells nothing of the user.
        hashed = found if isinstance(found, tuple) else decoy
        hashes = hashed is not None and _is_hash_of(hashed, password)
        same = same_text(found if isinstance(found, str) else _NOBODY, password)
        return hashes if isinstance(found, tuple) else same

    def _read_if_changed(self) -> None:
        try:
            stat = os.stat(self._path)
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp == self._stamp:
                return
            text = self._path.read_text("utf-8")
        except OSError as error:
            raise MechanismUnavailable(f"can't read the users in {self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise MechanismUnavailable(f"can't read the users in {self._path}: it is not UTF-8 text") from None
        self._secrets = parse_users(text, str(self._path))
        self._decoy = next((secret for secret in self._secrets.values() if isinstance(secret, tuple)), None)
        self._stamp = stamp


def _is_hash_of(hashed: Hashed, password: str) -> bool:
    algorithm, credential = hashed
    again = make_credential(algorithm, password, credential.salt, credential.iterations)
    return hmac.compare_digest(again.stored_key, credential.stored_key)


def parse_users(text: str, path: str) -> dict[str, str | Hashed]:
    """Return the secrets in the text of a users file by user. Raises MechanismUnavailable with the line at fault."""
    found: dict[str, str | Hashed] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, secret = line.partition(":")
        if not colon or not user or not secret or user in found:
            raise MechanismUnavailable(f"{path}, line {number}: write user:password, each user once")
        hashed = _HASHED.fullmatch(secret)
        found[user] = _hashed(hashed, f"{path}, line {number}") if hashed else secret
    return found


def _hashed(match: re.Match[str], where: str) -> Hashed:
    try:
        salt, stored_key, server_key = (b64decode(match[part], validate=True) for part in (3, 4, 5))
    except binascii.Error:
        raise MechanismUnavailable(f"{where}: the hashed password is not base64") from None
    algorithm = SCRAM_MECHANISMS[match[1]]
    return algorithm, ScramCredential(salt, stored_key, server_key, int(match[2]))


def format_hashed(algorithm: Algorithm, credential: ScramCredential) -> str:
    """Return a credential as a users file has it."""
    salt, stored, server = (
        b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"{algorithm.mechanism}${credential.iterations}:{salt}${stored}:{server}"
