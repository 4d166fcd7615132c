"""Users and their passwords for the registry's HTTP API: a file with scrypt hashes (RFC 7914).

A line is `name:$scrypt$ln=14,r=8,p=1$SALT$HASH`, with the base64 of RFC 4648 without padding; `ln` is the binary
logarithm of scrypt's N. Empty lines and lines that begin with `#` are skipped. `pylogd schema-registry --add-user`
writes such lines.

Rules: checks hash and read files, so they belong in a thread. An unknown user takes as long as a known one. The file is
read again when it has changed; while it can't be read or has an error, nobody is let in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pylogd.errors import PylogdError

_LINE: Final = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d)\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_LN, _R, _P = 14, 8, 1
_MOST_LN, _MOST_R = 18, 16  # 512 MB
_HASH_BYTES: Final = 32
_SALT_BYTES: Final = 16
_MOST_PASSWORD: Final = 1024  # bytes


class BadUsersFile(PylogdError):
    """The users file can't be read, or a line of it is wrong."""


@dataclass(frozen=True, slots=True, repr=False)
class PasswordHash:
    """A salted hash and the parameters of scrypt."""

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
        """Return the hash in the notation of the file. Raises ValueError."""
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError("write name:$scrypt$ln=...,r=...,p=...$SALT$HASH")
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
        """Return whether the password has this hash."""
        digest = _scrypt(password, self.ln, self.r, self.p, self.salt, len(self.digest))
        return hmac.compare_digest(digest, self.digest)


def _scrypt(password: str, ln: int, r: int, p: int, salt: bytes, size: int) -> bytes:
    memory = (128 * r << ln) + (1 << 20)
    data = password.encode("utf-8", "surrogatepass")[:_MOST_PASSWORD]
    return hashlib.scrypt(data, salt=salt, n=1 << ln, r=r, p=p, maxmem=memory, dklen=size)


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


def parse_users(text: str, path: str) -> dict[str, PasswordHash]:
    """Return the hashes in the text of a users file by name. Raises BadUsersFile with the number of the line."""
    found: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.partition(":")
        try:
            if not name or name in found:
                raise ValueError("each line needs another name")
            found[name] = PasswordHash.parse(hashed.strip())
        except ValueError as error:
            raise BadUsersFile(f"{path}, line {number}: {error}") from None
    return found


def add_user(path: Path, name: str, password: str) -> None:
    """Add a user to the file, or change the user's password. Raises BadUsersFile, OSError or ValueError."""
    if not name or ":" in name or name.startswith("#") or any(map(str.isspace, name)):
        raise ValueError("a user's name has no colon and no white space, and does not begin with #")
    old = path.read_text("utf-8") if path.exists() else ""
    parse_users(old, str(path))
    kept = [line for line in old.splitlines() if line.partition(":")[0] != name]
    partial = path.with_name(path.name + ".new")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join([*kept, f"{name}:{PasswordHash.of(password)}"]) + "\n")
    partial.replace(path)


class UsersFile:
    """The users of a file. May be used from several threads."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._users: Mapping[str, PasswordHash] = {}
        self._nobody = PasswordHash.of(secrets.token_hex())

    def read(self) -> tuple[int, ...]:
        """Read the file if it has changed. Return a value that differs after each change. Raises BadUsersFile."""
        with self._lock:
            try:
                stat = self._path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if stamp != self._stamp:
                    self._users = parse_users(self._path.read_text("utf-8"), str(self._path))
                    self._stamp = stamp
            except (OSError, UnicodeDecodeError) as error:
                raise BadUsersFile(f"can't read the users file {self._path}: {error}") from None
            return self._stamp

    def is_right(self, name: str, password: str) -> bool:
        """Return whether this is the user's password. Raises BadUsersFile."""
        self.read()
        known = self._users.get(name)
        matches = (known or self._nobody).matches(password)
        return matches and known is not None
