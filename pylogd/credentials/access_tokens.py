"""Access tokens: signed JSON web tokens (RFC 7519), checked with the keys of their issuer.

They are used by OAUTHBEARER and by the schema registry's HTTP API. The package `joserfc` is needed (`pip install
'pylogd-broker[oauth]'`). Only signatures with a public key are accepted: with a shared secret, anyone who can check a
token could make one. Every token needs an end (`exp`) and a subject.

Unsecured tokens (`alg` none) prove nothing. They are for development, and accepted only if the settings allow them.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pylogd.base.clock import wall_ms
from pylogd.credentials.conversation import AuthenticationFailed, MechanismUnavailable
from pylogd.credentials.oauthbearer import TokenOwner
from pylogd.credentials.principal import USER, Principal
from pylogd.web.client import open_url, read_body

#: Signatures with a public key. `none` and signatures with a shared secret (HS256 ...) are left out on purpose.
_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
_MOST_KEYS_BYTES: Final = 1 << 20
_FETCH_SECONDS: Final = 10.0
#: The most characters of a token; longer ones are not read.
_MOST_TOKEN: Final = 1 << 16
#: The latest end of a token, in seconds since 1970: the year 9999.
_LATEST: Final = 253_402_300_799


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The required contents of a token.

    Empty lists allow anything; all of `scopes` are required, and one of `audiences`.
    """

    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    scopes: tuple[str, ...] = ()
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    skew_seconds: int = 30


class IssuerKeys:
    """The public keys of an issuer, from a URL (https:, http: or file:). May be used from several threads.

    Keys are fetched at their first use, again after `refresh_seconds`, and when a token names an unknown key, but then
    at most every `retry_seconds`. While keys can't be fetched, the earlier ones are used.

    Once keys are known, a slow issuer holds few of the calling threads: one fetches, and one more waits for it if the
    key of a token is not known. Others continue with the known keys, or are refused.
    """

    def __init__(
        self,
        url: str,
        refresh_seconds: float,
        retry_seconds: float,
        fetch: Callable[[str], bytes] | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """fetch: reads the keys, a JSON web key set (RFC 7517); raises OSError or ValueError."""
        self._url = url
        self._refresh = refresh_seconds
        self._retry = retry_seconds
        self._fetch = fetch or fetch_keys
        self._seconds = seconds
        self._fetching = threading.Lock()
        self._waiting = threading.Lock()
        self._keys: Any = None
        self._failure = "not fetched yet"
        self._fetched = self._tried = float("-inf")

    def load(self) -> None:
        """Fetch the keys, if they are not known yet. Raises MechanismUnavailable."""
        if self._fetch_again(wait=True) is None:
            raise self._unavailable()

    def find(self, key_id: str | None) -> Any:
        """Return the key set with the key of this id. Raises AuthenticationFailed, MechanismUnavailable."""
        keys = self._keys
        if keys is not None and self._is_due(self._fetched, self._refresh):
            keys = self._fetch_again(wait=False)
        if keys is None or not _has(keys, key_id):
            keys = self._fetch_again(wait=True)
        if keys is None:
            raise self._unavailable()
        if not _has(keys, key_id):
            raise AuthenticationFailed(
                f"the token is signed with the key {key_id!r:.200}, which {self._url} does not have"
            )
        return keys

    def _unavailable(self) -> MechanismUnavailable:
        return MechanismUnavailable(f"can't get the keys of {self._url}: {self._failure}")

    def _is_due(self, since: float, seconds: float) -> bool:
        return self._seconds() - since >= seconds

    def _fetch_again(self, wait: bool) -> Any:
        """Return new keys; the known keys if the last attempt was just now, fails, or is made by another thread.

        wait: whether to wait for another thread's attempt, unless keys are known and a third thread already waits.
        """
        if not self._fetching.acquire(blocking=self._keys is None):
            if wait and self._waiting.acquire(blocking=False):
                try:
                    with self._fetching:
                        pass
                finally:
                    self._waiting.release()
            return self._keys
        try:
            if self._is_due(self._tried, self._retry):
                try:
                    self._keys = _parse_keys(self._fetch(self._url))
                    self._fetched = self._seconds()
                except (OSError, ValueError) as error:
                    self._failure = str(error)[:300]
                finally:
                    self._tried = self._seconds()  # set afterwards, so that a slow issuer is not asked all the time
            return self._keys
        finally:
            self._fetching.release()


class SignedTokens:
    """Checks tokens by their signature."""

    def __init__(self, keys: IssuerKeys, rules: TokenRules, now_ms: Callable[[], int] = wall_ms) -> None:
        """Raises MechanismUnavailable if joserfc is not installed."""
        _joserfc()
        self._keys = keys
        self._rules = rules
        self._now_ms = now_ms

    def check(self, token: str) -> TokenOwner:
        """Return the owner of `token`. Raises AuthenticationFailed, or MechanismUnavailable without keys."""
        jwt, errors = _joserfc()
        header, _ = _parts(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in _ALGORITHMS or not isinstance(key_id, str | None):
            raise AuthenticationFailed(f"the token is signed by {algorithm!r:.50}, which is not accepted")
        if "crit" in header:
            raise AuthenticationFailed("the token has extensions that must be understood (crit); there are none here")
        keys = self._keys.find(key_id)
        try:
            claims = jwt.decode(token, keys, algorithms=list(_ALGORITHMS)).claims
        except (errors.JoseError, ValueError, TypeError) as error:
            raise AuthenticationFailed(f"the token's signature can't be verified: {type(error).__name__}") from None
        return owner_of(claims, self._rules, self._now_ms())


class UnsecuredTokens:
    """Accepts tokens without a signature, for development only."""

    def __init__(self, rules: TokenRules, now_ms: Callable[[], int] = wall_ms) -> None:
        self._rules = rules
        self._now_ms = now_ms

    def check(self, token: str) -> TokenOwner:
        """Return the owner that `token` claims. Raises AuthenticationFailed."""
        header, claims = _parts(token)
        if header.get("alg") != "none" or not token.endswith("."):
            raise AuthenticationFailed("the token is signed, but only unsecured tokens are accepted here")
        return owner_of(claims, self._rules, self._now_ms())


def unverified_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token whose signature was checked elsewhere. Raises AuthenticationFailed."""
    return _parts(token)[1]


def owner_of(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> TokenOwner:
    """Check a token's claims and return its owner. Raises AuthenticationFailed.

    The token is accepted until its end plus the clock skew, and the session ends at that time too.
    """
    skew = rules.skew_seconds
    now = now_ms / 1000
    end = _time(claims, "exp")
    if end is None:
        raise AuthenticationFailed("the token has no end (exp)")
    if end + skew <= now:
        raise AuthenticationFailed(f"the token ended {now - end:.0f} s ago")
    begin, issued = _time(claims, "nbf"), _time(claims, "iat")
    if max(begin or 0, issued or 0) > now + skew:
        raise AuthenticationFailed("the token is not valid yet (nbf, iat)")
    if issued is not None and issued > end:
        raise AuthenticationFailed("the token ended before it was issued")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise AuthenticationFailed(f"the token's issuer is {claims.get('iss')!r:.200}")
    audiences = _words(claims.get("aud"), split=False)
    if rules.audiences and not set(audiences) & set(rules.audiences):
        raise AuthenticationFailed(f"the token is for {audiences!r:.200}")
    missing = set(rules.scopes) - set(_words(claims.get(rules.scope_claim), split=True))
    if missing:
        raise AuthenticationFailed(f"the token lacks the scope {', '.join(sorted(missing))}")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise AuthenticationFailed(f"the token has no subject ({rules.subject_claim})")
    return TokenOwner(Principal(USER, subject), int((end + skew) * 1000))


def fetch_keys(url: str) -> bytes:
    """Read a key set from a URL or a file. Waits. Raises OSError or ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            data = file.read(_MOST_KEYS_BYTES + 1)
    elif parts.scheme in ("http", "https"):
        with open_url(url, _FETCH_SECONDS) as response:
            return read_body(response, _MOST_KEYS_BYTES)
    else:
        raise ValueError("a key set is at an https:, http: or file: URL")
    if len(data) > _MOST_KEYS_BYTES:
        raise ValueError(f"the key set is larger than {_MOST_KEYS_BYTES} bytes")
    return data


def _joserfc() -> tuple[Any, Any]:
    try:
        from joserfc import errors, jwt  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MechanismUnavailable(
            f"OAUTHBEARER needs the package joserfc (pip install 'pylogd-broker[oauth]'): {error}"
        ) from None
    return jwt, errors


def _parse_keys(data: bytes) -> Any:
    """Return a key set without keys for other purposes, or of unknown types. Raises ValueError if none is left."""
    from joserfc import errors, jwk  # noqa: PLC0415 - optional

    document = json.loads(data)
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ValueError("it is not a key set")
    keys, failure = [], "none is for signatures"
    for key in found:
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig":
            try:
                keys += jwk.KeySet.import_key_set({"keys": [key]}).keys
            except (errors.JoseError, ValueError, TypeError, KeyError) as error:
                failure = type(error).__name__  # the library may not know the kind of a new key
    if not keys:
        raise ValueError(f"it has no keys that can be used: {failure}")
    return jwk.KeySet(keys)


def _has(keys: Any, key_id: str | None) -> bool:
    known = [key.kid for key in keys]
    return len(known) == 1 if key_id is None else key_id in known


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims of a token, unverified. Raises AuthenticationFailed."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MOST_TOKEN:
        raise AuthenticationFailed("the token is not a JSON web token")
    try:
        header, claims = (json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in parts[:2])
    except (ValueError, RecursionError):
        raise AuthenticationFailed("the token is not a JSON web token") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise AuthenticationFailed("the token is not a JSON web token")
    return header, claims


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time of a token in seconds since 1970, None if it is missing. Raises AuthenticationFailed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise AuthenticationFailed(f"the token's {name} is not a time")
    return value


def _words(value: object, split: bool) -> list[str]:
    """Return the texts of a claim that is a list, or one text that is split with `split`."""
    if isinstance(value, str):
        return value.split() if split else [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
