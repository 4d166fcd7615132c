"""Passwords of users: from the settings in clear text, or from a file in clear text or hashed.

This module checks the users of PLAIN on a broker's listener and those of the schema registry's HTTP API. A line of the
file is `user:password`, or `user:$scrypt$ln=14,r=8,p=1$SALT$HASH` (RFC 7914), with base64 without padding; `ln` is the
binary logarithm of scrypt's N. Empty lines and those that begin with `#` are ignored. A user's name can't contain a
colon. A password in clear text can't begin with `$`, so that no other hash is mistaken for a password. `pylogd users
hash` and `pylogd schema-registry --add-user` make hashed passwords.

Rules: checking the password of an unknown user takes as long as for a known user, and texts are compared in constant
time. A hashed password that was right is remembered until the file changes, as a keyed hash, so that clients that
connect often cost little. A file with an error lets nobody in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pylogd.credentials.conversation import MechanismUnavailable

_HASHED: Final = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d)\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_LN, _R, _P = 14, 8, 1  # 16 MB, and about 50 ms
_MOST_LN, _MOST_R = 18, 16  # 512 MB
_HASH_BYTES, _SALT_BYTES = 32, 16
_MOST_PASSWORD: Final = 1024  # bytes
_MOST_REMEMBERED: Final = 1000
#: The hash with which an unknown user's password is compared.
_NOBODY: Final = secrets.token_hex(32)
_KEY: Final = secrets.token_bytes(32)


class PasswordCheck(Protocol):
    """Checks passwords.

    slow: whether it hashes passwords or reads a file.
    """

    slow: bool

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password. Raises SaslError if that can't be determined."""

    def remembers(self, user: str, password: str) -> bool:
        """Return whether this was the user's password before, so that checking it again needs no hash."""


@dataclass(frozen=True, slots=True, repr=False)
class PasswordHash:
    """A salted hash and the parameters of scrypt. `str()` returns the notation of users files."""

    ln: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        """Hash a password with a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(_LN, _R, _P, salt, _scrypt(password, _LN, _R, _P, salt, _HASH_BYTES))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Return the hash in the notation of users files. Raises ValueError."""
        match = _HASHED.fullmatch(text)
        if match is None:
            raise ValueError("write $scrypt$ln=...,r=...,p=...$SALT$HASH")
        ln, r, p = (int(match[part]) for part in (1, 2, 3))
        if not 10 <= ln <= _MOST_LN or not 1 <= r <= _MOST_R or not 1 <= p <= 4:
            raise ValueError(f"scrypt's parameters must be ln 10 to {_MOST_LN}, r 1 to {_MOST_R}, p 1 to 4")
        salt, digest = _decode(match[4]), _decode(match[5])
        if len(digest) < 16:
            raise ValueError("the hash is shorter than 16 bytes")
        return cls(ln, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.ln},r={self.r},p={self.p}${salt}${digest}"

    def matches(self, password: str) -> bool:
        """Return whether the password has this hash. Takes about 50 ms."""
        digest = _scrypt(password, self.ln, self.r, self.p, self.salt, len(self.digest))
        return hmac.compare_digest(digest, self.digest)


def _scrypt(password: str, ln: int, r: int, p: int, salt: bytes, size: int) -> bytes:
    memory = (128 * r << ln) + (1 << 20)
    data = password.encode("utf-8", "surrogatepass")[:_MOST_PASSWORD]
    return hashlib.scrypt(data, salt=salt, n=1 << ln, r=r, p=p, maxmem=memory, dklen=size)


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


def _digest(text: str) -> bytes:
    return hmac.digest(_KEY, text.encode("utf-8", "surrogatepass"), "sha256")


def _remembered_as(user: str, password: str) -> bytes:
    return _digest(f"{len(user)}:{user}:{password}")


def same_text(first: str, second: str) -> bool:
    """Compare two texts in a time that does not depend on them."""
    return hmac.compare_digest(_digest(first), _digest(second))


class KnownPasswords:
    """Users with passwords in clear text."""

    slow = False

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password."""
        return same_text(self._passwords.get(user, _NOBODY), password)

    def remembers(self, user: str, password: str) -> bool:
        """Return False, since no check needs a hash."""
        return False


class UsersFile:
    """Users in a file, which is read again when it has changed. May be used from several threads."""

    slow = True

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._secrets: Mapping[str, str | PasswordHash] = {}
        self._decoy: PasswordHash | None = None
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # right passwords

    def read(self) -> None:
        """Read the file if it has changed. Raises MechanismUnavailable if it can't be used."""
        with self._lock:
            self._read_if_changed()

    def is_right(self, user: str, password: str) -> bool:
        """Return whether this is the user's password. Raises MechanismUnavailable if the file can't be used."""
        key = _remembered_as(user, password)
        with self._lock:
            self._read_if_changed()
            found, decoy, stamp = self._secrets.get(user), self._decoy, self._stamp
            if key in self._remembered:
                return True
        # If some passwords are hashed, each check hashes one, so that its time tells nothing about the user.
        hashed = found if isinstance(found, PasswordHash) else decoy
        matches = hashed is not None and hashed.matches(password)
        same = same_text(found if isinstance(found, str) else _NOBODY, password)
        if not isinstance(found, PasswordHash):
            return same
        if matches:
            self._remember(key, stamp)
        return matches

    def remembers(self, user: str, password: str) -> bool:
        """Return whether this password was right for the user since the file was last read.

        The file is not read for this, so the password may have been changed meanwhile.
        """
        return _remembered_as(user, password) in self._remembered

    def _remember(self, key: bytes, stamp: object) -> None:
        with self._lock:
            if stamp == self._stamp:
                self._remembered[key] = None
                if len(self._remembered) > _MOST_REMEMBERED:
                    self._remembered.popitem(last=False)

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
        self._decoy = next((secret for secret in self._secrets.values() if isinstance(secret, PasswordHash)), None)
        self._remembered.clear()
        self._stamp = stamp


def parse_users(text: str, path: str) -> dict[str, str | PasswordHash]:
    """Return the secrets in the text of a users file, by user. Raises MechanismUnavailable with the invalid line."""
    found: dict[str, str | PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, secret = line.partition(":")
        if not colon or not user or not secret or user in found:
            raise MechanismUnavailable(f"{path}, line {number}: write user:password, each user once")
        try:
            found[user] = PasswordHash.parse(secret) if secret.startswith("$") else secret
        except ValueError as error:
            raise MechanismUnavailable(f"{path}, line {number}: {error}") from None
    return found


def add_user(path: Path, name: str, password: str) -> None:
    """Add a user to a file, with a hashed password, or change the user's password.

    Raises MechanismUnavailable for an invalid line, OSError, or ValueError for a name that the file can't have.
    """
    if not name or ":" in name or name.startswith("#") or any(map(str.isspace, name)):
        raise ValueError("a user's name has no colon and no white space, and does not begin with #")
    old = path.read_text("utf-8") if path.exists() else ""
    parse_users(old, str(path))
    kept = [line for line in old.splitlines() if line.partition(":")[0] != name]
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join([*kept, f"{name}:{PasswordHash.of(password)}"]) + "\n")
    fresh.replace(path)
