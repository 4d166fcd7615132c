"""How a client reaches a secured registry: its URL, TLS and credentials, by the property names of Confluent's clients.

| property | meaning |
| --- | --- |
| `basic.auth.credentials.source` | `USER_INFO` (`basic.auth.user.info`), or `URL`: user and password in the URL |
| `basic.auth.user.info` | `user:password` |
| `bearer.auth.credentials.source` | `STATIC_TOKEN` |
| `bearer.auth.token` | the token |
| `ssl.truststore.location` | PEM file with the authorities that sign the registry's certificate; else the system's |
| `ssl.keystore.location` | PEM file with the client's certificate and key, for a registry that requires one |
| `ssl.key.password` | the password of that key |

Names may begin with `schema.registry.`. Blocking, without Twisted: it runs in Spark's executors too.
"""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

_PREFIX: Final = "schema.registry."
_BASIC, _USER_INFO = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER, _TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
_TRUSTED, _OWN, _KEY_PASSWORD = "ssl.truststore.location", "ssl.keystore.location", "ssl.key.password"
_KNOWN: Final = frozenset({_BASIC, _USER_INFO, _BEARER, _TOKEN, _TRUSTED, _OWN, _KEY_PASSWORD})


class Access:
    """The way to a registry. `url`: its address without user and password, for requests and for messages."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        """Raises ValueError for settings that are unknown or contradict each other, OSError for unreadable files."""
        own = {name.removeprefix(_PREFIX): value for name, value in settings.items()}
        if unknown := sorted(own.keys() - _KNOWN):
            raise ValueError(f"the schema registry's client has no setting {unknown[0]!r}")
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the schema registry's URL must begin with http:// or https:// and a host")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._authorization = _authorization(parts, own)
        handlers: list[Any] = [_NoRedirects()]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=_context(own)))
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        """Send a request with the credentials. Return the response. Raises HTTPError or OSError."""
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        return self._opener.open(request, timeout=timeout)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirects: they would take schemas, and credentials, to another place than the settings say."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _authorization(parts: SplitResult, settings: Mapping[str, str]) -> str | None:
    """Return the value of the Authorization header, None without credentials."""
    basic, bearer = settings.get(_BASIC), settings.get(_BEARER)
    if basic is not None and bearer is not None:
        raise ValueError(f"set {_BASIC} or {_BEARER}, not both")
    if bearer is not None:
        if bearer != "STATIC_TOKEN" or not settings.get(_TOKEN):
            raise ValueError(f"{_BEARER} must be STATIC_TOKEN, with {_TOKEN}")
        return f"Bearer {settings[_TOKEN]}"
    if basic is None and _USER_INFO in settings:
        raise ValueError(f"{_USER_INFO} needs {_BASIC}=USER_INFO")
    if basic == "USER_INFO":
        info = settings.get(_USER_INFO, "")
    elif basic in (None, "URL"):
        if parts.username is None:
            return None
        info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    else:
        raise ValueError(f"{_BASIC} must be USER_INFO or URL")
    if ":" not in info:
        raise ValueError(f"{_USER_INFO} must be user:password")
    return "Basic " + base64.b64encode(info.encode()).decode("ascii")


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get(_TRUSTED))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if _OWN in settings:
        context.load_cert_chain(settings[_OWN], password=settings.get(_KEY_PASSWORD, ""))
    return context
