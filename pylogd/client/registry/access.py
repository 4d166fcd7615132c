"""Read how a client reaches a secured registry: URL, TLS and credentials, by the property names of Confluent's clients.

| property | meaning |
| --- | --- |
| `basic.auth.credentials.source` | `USER_INFO` (`basic.auth.user.info`), `URL`: user and password in the URL, or `SASL_INHERIT`: those of `sasl.jaas.config` |
| `basic.auth.user.info` | `user:password` |
| `bearer.auth.credentials.source` | `STATIC_TOKEN` (`bearer.auth.token`), `OAUTHBEARER`: from a token endpoint, or `SASL_OAUTHBEARER_INHERIT`: as `sasl.*` says |
| `bearer.auth.token` | the token |
| `bearer.auth.issuer.endpoint.url`, `bearer.auth.client.id`, `bearer.auth.client.secret`, `bearer.auth.scope` | the token endpoint, or a `file:` URL with a token; who asks, and for what |
| `ssl.truststore.location` | PEM file with the authorities that sign the registry's certificate; else the system's |
| `ssl.keystore.location` | PEM file with the client's certificate and key, for a registry that requires one |
| `ssl.key.password` | the password of that key |

The other `ssl.*` and `sasl.*` properties are those of Kafka's clients (`client.properties`). Names may begin with
`schema.registry.`. Blocking, without Twisted: it runs in Spark's executors too.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from pylogd.client.core.errors import TlsFailed
from pylogd.client.evented.tls import make_context
from pylogd.client.properties import is_security, security_from
from pylogd.credentials.jaas import parse_jaas
from pylogd.credentials.token_sources import token_source
from pylogd.web.client import open_url

_PREFIX: Final = "schema.registry."
_BASIC, _USER_INFO = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER, _TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
_ENDPOINT, _CLIENT = "bearer.auth.issuer.endpoint.url", "bearer.auth.client.id"
_SECRET, _SCOPE = "bearer.auth.client.secret", "bearer.auth.scope"
_JAAS: Final = "sasl.jaas.config"
_KNOWN: Final = frozenset({_BASIC, _USER_INFO, _BEARER, _TOKEN, _ENDPOINT, _CLIENT, _SECRET, _SCOPE})


class Access:
    """The way to a registry.

    url: the address without user and password, for requests and for messages.
    """

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        """Raises ValueError for settings that are unknown or contradict each other, and for unreadable files."""
        own = {name.removeprefix(_PREFIX): value for name, value in settings.items()}
        if unknown := sorted(name for name in own if name not in _KNOWN and not is_security(name)):
            raise ValueError(f"the schema registry's client has no setting {unknown[0]!r}")
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the schema registry's URL must begin with http:// or https:// and a host")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._authorization = _authorization(parts, own)
        self._context = _context(own) if parts.scheme == "https" else None

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        """Send a request with the credentials, and return the response.

        timeout: the seconds within which the whole answer must arrive.

        Raises HTTPError, OSError, or AuthenticationFailed if there is no token.
        """
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization())
        return open_url(request, timeout, self._context)


def _authorization(parts: SplitResult, settings: Mapping[str, str]) -> Callable[[], str] | None:
    """Return a function that returns the value of the Authorization header; None without credentials."""
    basic, bearer = settings.get(_BASIC), settings.get(_BEARER)
    if basic is not None and bearer is not None:
        raise ValueError(f"set {_BASIC} or {_BEARER}, not both")
    if bearer is not None:
        token = _token(bearer, settings)
        return lambda: f"Bearer {token()}"
    info = _user_info(basic, parts, settings)
    if info is None:
        return None
    if ":" not in info:
        raise ValueError(f"{_USER_INFO} must be user:password")
    header = "Basic " + base64.b64encode(info.encode()).decode("ascii")
    return lambda: header


def _user_info(source: str | None, parts: SplitResult, settings: Mapping[str, str]) -> str | None:
    """Return `user:password`; None without credentials."""
    if source == "USER_INFO" or (source is None and _USER_INFO in settings):
        return settings.get(_USER_INFO, "")
    if source in (None, "URL"):
        return None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if source != "SASL_INHERIT":
        raise ValueError(f"{_BASIC} must be USER_INFO, URL or SASL_INHERIT")
    try:
        options = parse_jaas(settings.get(_JAAS, "")).options
        return f"{options['username']}:{options['password']}"
    except (ValueError, KeyError):
        raise ValueError(f"{_BASIC}=SASL_INHERIT needs {_JAAS} with username and password") from None


def _token(source: str, settings: Mapping[str, str]) -> Callable[[], str]:
    """Return a function that returns a bearer token."""
    if source == "STATIC_TOKEN" and settings.get(_TOKEN):
        token = settings[_TOKEN]
        return lambda: token
    if source == "OAUTHBEARER":
        try:
            return token_source(*(settings.get(name, "") for name in (_ENDPOINT, _CLIENT, _SECRET, _SCOPE)))
        except ValueError:
            raise ValueError(f"{_BEARER}=OAUTHBEARER needs {_ENDPOINT}, {_CLIENT} and {_SECRET}") from None
    if source == "SASL_OAUTHBEARER_INHERIT":
        sasl = {name: value for name, value in settings.items() if name.startswith("sasl.")}
        options = security_from(
            {"sasl.mechanism": "OAUTHBEARER", **sasl, "security.protocol": "SASL_PLAINTEXT"},
        )
        if options is not None and options.sasl_token is not None:
            return options.sasl_token
    raise ValueError(f"{_BEARER} must be STATIC_TOKEN with {_TOKEN}, OAUTHBEARER, or SASL_OAUTHBEARER_INHERIT")


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for the `ssl.*` properties."""
    tls = {name: value for name, value in settings.items() if name.startswith("ssl.")}
    options = security_from({**tls, "security.protocol": "SSL"})
    assert options is not None
    try:
        return make_context(options)
    except TlsFailed as error:
        raise ValueError(f"ssl.*: {error}") from None
