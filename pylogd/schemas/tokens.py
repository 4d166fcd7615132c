"""Bearer tokens for the registry's HTTP API: JSON web tokens (RFC 7519) signed with a key of the issuer (RFC 7517).

Needs the package `joserfc` (extra `pylogd-broker[oauth]`). Only signatures with a public key are accepted: with a
shared secret, whoever can check a token could make one. A token must name a subject and have an end.

Rules: checks may fetch keys, so they belong in a thread.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pylogd.clock import wall_ms
from pylogd.errors import PylogdError

_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_PUBLIC: Final = ("RSA", "EC", "OKP")
_MOST_KEYS_BYTES: Final = 1 << 20
_MOST_TOKEN: Final = 1 << 14  # characters
_FETCH_SECONDS: Final = 10.0
_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 10.0


class BadToken(PylogdError):
    """The token is not accepted. The text is for the log, not for the client."""


class KeysUnavailable(PylogdError):
    """The issuer's keys can't be read."""


class IssuerKeys:
    """The keys of an issuer, from a file or a URL. May be used from several threads.

    They are read again every five minutes, and when a token names a key that is not known, at most every ten seconds.
    If that fails, the keys read before stay in use.
    """

    def __init__(self, source: str, seconds: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._seconds = seconds
        self._lock = threading.Lock()
        self._keys: Any = None
        self._read = self._tried = float("-inf")

    def get(self, key_id: str | None = None) -> Any:
        """Return the key set, with that key if the issuer has it. Raises KeysUnavailable."""
        with self._lock:
            now = self._seconds()
            unknown = self._keys is not None and key_id is not None and key_id not in [key.kid for key in self._keys]
            due = self._keys is None or unknown or now - self._read >= _REFRESH_SECONDS
            if due and (self._keys is None or now - self._tried >= _RETRY_SECONDS):
                self._tried = now
                try:
                    self._keys = _parse(self._fetch())
                    self._read = now
                except (OSError, ValueError) as error:
                    if self._keys is None:
                        raise KeysUnavailable(f"can't read the keys in {self._source}: {error}") from None
            return self._keys

    def _fetch(self) -> bytes:
        if self._source.startswith(("https://", "http://")):
            with urllib.request.urlopen(self._source, timeout=_FETCH_SECONDS) as reply:
                data: bytes = reply.read(_MOST_KEYS_BYTES + 1)
        else:
            with Path(self._source.removeprefix("file://")).open("rb") as file:
                data = file.read(_MOST_KEYS_BYTES + 1)
        if len(data) > _MOST_KEYS_BYTES:
            raise ValueError(f"more than {_MOST_KEYS_BYTES} bytes")
        return data


class TokenCheck:
    """Checks tokens. issuer, audience: what a token must name, None for any. skew: seconds that clocks may differ."""

    def __init__(
        self,
        keys: IssuerKeys,
        *,
        issuer: str | None,
        audience: str | None,
        skew: int = 30,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        from joserfc.jwt import JWTClaimsRegistry  # noqa: PLC0415 - optional

        wanted: dict[str, Any] = {"exp": {"essential": True}, "sub": {"essential": True}}
        for name, value in (("iss", issuer), ("aud", audience)):
            if value is not None:
                wanted[name] = {"essential": True, "value": value}
        self._keys = keys
        self._claims = JWTClaimsRegistry(lambda: now_ms() // 1000, skew, **wanted)

    def read_keys(self) -> None:
        """Read the issuer's keys. Raises KeysUnavailable."""
        self._keys.get()

    def owner(self, token: str) -> str:
        """Return the subject of a valid token. Raises BadToken, KeysUnavailable."""
        from joserfc import errors, jws, jwt  # noqa: PLC0415 - optional

        if len(token) > _MOST_TOKEN:
            raise BadToken("the token is too long")
        try:
            key_id = jws.extract_compact(token.encode()).headers().get("kid")
            found = jwt.decode(token, self._keys.get(key_id if isinstance(key_id, str) else None), _ALGORITHMS)
            self._claims.validate(found.claims)
        except (errors.JoseError, ValueError, TypeError, KeyError) as error:
            raise BadToken(f"the token is not valid: {type(error).__name__}: {error}") from None
        subject = found.claims["sub"]
        if not isinstance(subject, str) or not subject:
            raise BadToken("the token's subject is not a name")
        return subject


def _parse(data: bytes) -> Any:
    """Return the key set without keys of shared secrets. Raises ValueError."""
    from joserfc import errors, jwk  # noqa: PLC0415 - optional

    document = json.loads(data)
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ValueError("not a JSON web key set")
    usable = [key for key in found if isinstance(key, dict) and key.get("kty") in _PUBLIC and key.get("use") != "enc"]
    try:
        return jwk.KeySet.import_key_set({"keys": usable})
    except (errors.JoseError, TypeError, KeyError) as error:
        raise ValueError(f"a key can't be used: {error}") from None
