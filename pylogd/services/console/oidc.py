"""Log in at an OpenID provider, by the authorization code flow with PKCE. Needs `joserfc` (extra `oauth`).

Strategy: the browser is sent to the provider with a state, a nonce and a challenge that only this session knows, and
comes back with a code. The console exchanges the code for an id token at the provider itself and checks the token's
signature, issuer, audience, expiry and nonce. Requests to the provider run in a thread.

Source: OpenID Connect Core 1.0, section 3.1; RFC 7636 (PKCE); RFC 9207 (issuer in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twisted.logger import Logger

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool
from pylogd.credentials.access_tokens import IssuerKeys, SignedTokens, TokenRules, unverified_claims
from pylogd.credentials.conversation import AuthenticationFailed, MechanismUnavailable
from pylogd.services.console.answers import Answer, PageRequest, Refused, redirect
from pylogd.services.console.configuration import BadConfiguration, read_toml
from pylogd.services.console.roles import EMAIL, OIDC, Identity, claims_of, has_verified_email
from pylogd.services.console.web import Route, route
from pylogd.web.client import open_url, read_body

log = Logger()

_SECONDS: Final = 10.0
_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 10.0
_THREADS: Final = 2
_CALLBACK: Final = "/login/oidc/callback"
_REQUIRED: Final = ("issuer", "client_id", "public_url")
_OPTIONAL: Final = ("client_secret", "user_claim", "scope")


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """The options of a provider.

    issuer: the provider's URL.
    public_url: the console's URL for browsers.
    user_claim: the claim of the id token that names the user.
    """

    issuer: str
    client_id: str
    public_url: str
    client_secret: str = field(default="", repr=False)
    user_claim: str = "sub"
    scope: str = "openid profile email"


def read_options(path: Path) -> ProviderOptions:
    """Return the options of a TOML file. Raises BadConfiguration."""
    table = read_toml(path)
    for name, value in table.items():
        if name not in (*_REQUIRED, *_OPTIONAL) or not isinstance(value, str):
            raise BadConfiguration(f"{path}: write texts named {', '.join((*_REQUIRED, *_OPTIONAL))}; {name} is wrong")
    missing = [name for name in _REQUIRED if not table.get(name)]
    if missing:
        raise BadConfiguration(f"{path}: {missing[0]} is missing")
    return ProviderOptions(**table)


class ProviderFailed(PylogdError):
    """The provider can't be reached, or sent an invalid answer."""


class Provider:
    """Asks the provider. Blocking: its methods are called in threads."""

    def __init__(self, options: ProviderOptions, now_ms: Callable[[], int] = wall_ms) -> None:
        self.options = options
        self._now_ms = now_ms
        self._document: Mapping[str, Any] | None = None
        self._tokens: SignedTokens | None = None

    @property
    def callback(self) -> str:
        """The URL to which the provider sends browsers back."""
        return self.options.public_url.rstrip("/") + _CALLBACK

    def authorization(self, state: str, nonce: str, verifier: str) -> str:
        """Return the URL to which the browser is sent. Raises ProviderFailed."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code", "client_id": self.options.client_id, "redirect_uri": self.callback,
            "scope": self.options.scope, "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        }  # fmt: skip
        where = str(self._discovered()["authorization_endpoint"])
        return where + ("&" if "?" in where else "?") + urllib.parse.urlencode(query)

    def user(self, code: str, nonce: str, verifier: str) -> Identity:
        """Return the user that a code identifies. Raises ProviderFailed, AuthenticationFailed, MechanismUnavailable."""
        options = self.options
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self.callback,
            "client_id": options.client_id, "code_verifier": verifier,
        }  # fmt: skip
        if options.client_secret:
            form["client_secret"] = options.client_secret
        answer = self._ask(str(self._discovered()["token_endpoint"]), urllib.parse.urlencode(form).encode())
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderFailed("the provider sent no id token")
        assert self._tokens is not None
        owner = self._tokens.check(token)
        claims = unverified_claims(token)  # `check` has verified them
        if not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise AuthenticationFailed("the id token is for another login (nonce)")
        if options.user_claim == EMAIL and not has_verified_email(claims):
            raise AuthenticationFailed("the provider has not verified the user's email (email_verified)")
        return Identity(owner.principal.name, OIDC, claims_of(claims))

    def _discovered(self) -> Mapping[str, Any]:
        if self._document is None:
            found = self._ask(self.options.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if found.get("issuer") != self.options.issuer:
                raise ProviderFailed(f"the provider says that it is {found.get('issuer')!r:.200}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not str(found.get(name, "")).startswith(("https://", "http://")):
                    raise ProviderFailed(f"the provider names no {name}")
            keys = IssuerKeys(str(found["jwks_uri"]), _REFRESH_SECONDS, _RETRY_SECONDS)
            rules = TokenRules((self.options.client_id,), self.options.issuer, subject_claim=self.options.user_claim)
            self._tokens = SignedTokens(keys, rules, self._now_ms)
            self._document = found
        return self._document

    def _ask(self, url: str, form: bytes | None = None) -> Mapping[str, Any]:
        try:
            with open_url(urllib.request.Request(url, form), _SECONDS) as reply:
                document = json.loads(read_body(reply))
        except (OSError, ValueError) as error:
            raise ProviderFailed(f"can't ask the OpenID provider at {url.partition('?')[0]}: {error}") from error
        if not isinstance(document, dict):
            raise ProviderFailed(f"the OpenID provider's answer at {url.partition('?')[0]} is not an object")
        return document


class OpenIdLogin:
    """The pages of a login at a provider."""

    def __init__(self, reactor: Any, provider: Provider, log_in: Callable[[PageRequest, Identity], Answer]) -> None:
        """`log_in` is called with the user's name after a successful login, and opens the session."""
        self._provider = provider
        self._log_in = log_in
        self._pool = ThreadPool(reactor, _THREADS, "console-oidc")

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/login/oidc", self.begin, public=True),
            route("GET", _CALLBACK, self.end, public=True),
        ]

    def stop(self) -> None:
        """End the threads that wait for the provider."""
        self._pool.stop()

    async def begin(self, asked: PageRequest) -> Answer:
        """Return an answer that sends the browser to the provider. Raises Refused, ProviderFailed."""
        if asked.session is None:
            raise Refused(400, "This login needs a browser with cookies.")
        pending = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        asked.session.pending = pending
        where: str = await self._pool.defer(
            self._provider.authorization, pending["state"], pending["nonce"], pending["verifier"]
        )
        return redirect(where)

    async def end(self, asked: PageRequest) -> Answer:
        """Return an answer with a session of the user whom the provider sent back. Raises Refused, ProviderFailed."""
        session, options = asked.session, asked.options
        pending = {} if session is None else session.pending
        if session is None or not pending or not hmac.compare_digest(pending["state"], options.get("state", "")):
            raise Refused(400, "This login was not begun here, or took too long: begin again.")
        session.pending = {}  # a code is valid for one try
        if "iss" in options and options["iss"] != self._provider.options.issuer:
            raise Refused(400, "This answer is of another provider.")
        if "error" in options:
            raise Refused(401, f"The provider refused the login: {options['error'][:200]}")
        try:
            user = await self._pool.defer(
                self._provider.user, options.get("code", ""), pending["nonce"], pending["verifier"]
            )
        except AuthenticationFailed as error:
            log.warn("Refused a login by OpenID: {error}", error=str(error))
            raise Refused(401, "The provider's token is not valid; see the console's log.") from None
        except MechanismUnavailable as error:
            log.error("Can't check id tokens: {error}", error=str(error))
            raise Refused(503, "Logins can't be checked at present; see the console's log.") from None
        return self._log_in(asked, user)
