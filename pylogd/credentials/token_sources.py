"""Access tokens of clients that authenticate by OAUTHBEARER, from an OAuth 2 token endpoint or a file.

Another program keeps the file up to date. Clients use these, and brokers that authenticate to each other.

Rules: they wait for other servers or the disk, so call them in threads. They can be pickled, for Spark's tasks. Errors
never have a secret or a token.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from pylogd.base.errors import AuthenticationFailed
from pylogd.web.client import open_url, read_body

_SECONDS = 10.0  # the seconds within which the token endpoint must answer
_FRESH = 0.8  # the share of a token's lifetime in which the token is used again


class ClientCredentials:
    """Fetches tokens by the client credentials grant (RFC 6749, 4.4), and uses each for most of its lifetime."""

    def __init__(self, url: str, client: str, secret: str, scope: str = "") -> None:
        """client, secret: the credentials of the client. Raises ValueError for a URL that is not http or https."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("a token endpoint is an https, http or file URL")
        self._url = url
        self._client = client
        self._secret = secret
        self._scope = scope
        self._token = ""
        self._fresh_until = 0.0

    def __repr__(self) -> str:
        return f"ClientCredentials({self._url!r}, {self._client!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_token": "", "_fresh_until": 0.0}

    def __call__(self) -> str:
        """Return a token. Raises AuthenticationFailed."""
        if not self._token or time.monotonic() >= self._fresh_until:
            self._token, lifetime = self._fetch()
            self._fresh_until = time.monotonic() + lifetime * _FRESH
        return self._token

    def _fetch(self) -> tuple[str, float]:
        """Return a new token, and for how many seconds it is valid; 0 if the endpoint does not say."""
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        login = f"{urllib.parse.quote_plus(self._client)}:{urllib.parse.quote_plus(self._secret)}"
        request = urllib.request.Request(
            self._url, urllib.parse.urlencode(form).encode(), {
                "Accept": "application/json",
                "Authorization": "Basic " + base64.b64encode(login.encode()).decode(),
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )  # fmt: skip
        try:
            with open_url(request, _SECONDS) as response:
                answer = json.loads(read_body(response))
            token, lifetime = answer["access_token"], float(answer.get("expires_in", 0))
        except urllib.error.HTTPError as error:
            raise self._failure(f"it answers {error.code} {error.reason}; check the client's id and secret") from None
        except OSError as error:
            raise self._failure(str(getattr(error, "reason", error))) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._failure("its answer has no access_token") from None
        if not isinstance(token, str) or not token:
            raise self._failure("its answer has no access_token")
        return token, lifetime

    def _failure(self, text: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"no access token from {self._url}: {text}")


class TokenFile:
    """Reads a token from a file at each authentication."""

    def __init__(self, url: str) -> None:
        """url: a file URL, `file:///path`."""
        self._path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)

    def __repr__(self) -> str:
        return f"TokenFile({self._path!r})"

    def __call__(self) -> str:
        """Return the token. Raises AuthenticationFailed."""
        try:
            token = Path(self._path).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a token"
            raise AuthenticationFailed(f"no access token in {self._path}: {reason}") from None
        if not token:
            raise AuthenticationFailed(f"no access token in {self._path}: it is empty")
        return token


def token_source(url: str, client: str, secret: str, scope: str) -> ClientCredentials | TokenFile:
    """Return the token source that the properties `sasl.oauthbearer.*` describe.

    url: the URL of the token endpoint, or of a file.
    client, secret, scope: the values for the endpoint.

    Raises ValueError, which names the invalid property.
    """
    name = "sasl.oauthbearer.token.endpoint.url"
    if not url:
        raise ValueError(f"{name}: needed for OAUTHBEARER")
    if url.startswith("file:"):
        return TokenFile(url)
    if not client or not secret:
        raise ValueError(
            "sasl.oauthbearer.client.credentials.client.id and .secret: needed for the token endpoint, there or as "
            "clientId and clientSecret in sasl.jaas.config"
        )
    try:
        return ClientCredentials(url, client, secret, scope)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
