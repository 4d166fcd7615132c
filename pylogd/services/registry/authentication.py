"""Find out who sends a request to the registry's HTTP API: by password (RFC 7617) or by bearer token (RFC 6750).

Strategy: checks run in a few separate threads with a bounded queue, since hashing a password takes tens of milliseconds
on purpose, and keys of tokens may have to be fetched. Addresses take turns, and a user whose password was right before
does not wait for unknown users (`limits.shares`). A wrong password is answered after a delay. Users and tokens are
checked by the same code as in brokers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogd.base.clock import wall_ms
from pylogd.base.limits.shares import Crowded, FairWork, share_of
from pylogd.base.threads import ThreadPool
from pylogd.credentials.access_tokens import IssuerKeys, SignedTokens, TokenRules
from pylogd.credentials.conversation import AuthenticationFailed, MechanismUnavailable
from pylogd.credentials.passwords import UsersFile
from pylogd.services.registry.errors import Overloaded, Unauthorized

log = Logger()

_THREADS: Final = 2
_MOST_WAITING: Final = 50
_DELAY_SECONDS: Final = 1.0
_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 10.0


class RegistryTokens:
    """Checks bearer tokens."""

    def __init__(
        self, keys: str, issuer: str | None, audience: str | None, now_ms: Callable[[], int] = wall_ms
    ) -> None:
        """Raises MechanismUnavailable if joserfc is not installed.

        keys: the issuer's keys, a JSON web key set in a file or at a URL.
        issuer, audience: the issuer and the audience that a token must name; None accepts any.
        """
        url = keys if "://" in keys else Path(keys).absolute().as_uri()
        self._keys = IssuerKeys(url, _REFRESH_SECONDS, _RETRY_SECONDS)
        audiences = () if audience is None else (audience,)
        self._tokens = SignedTokens(self._keys, TokenRules(audiences, issuer), now_ms)

    def load(self) -> None:
        """Read the issuer's keys. Raises MechanismUnavailable."""
        self._keys.load()

    def owner(self, token: str) -> str:
        """Return the subject of a valid token. Raises AuthenticationFailed, MechanismUnavailable."""
        return self._tokens.check(token).principal.name


class Authenticator:
    """Finds out who sends a request. Without users and tokens, everybody may send any request, and has no name."""

    def __init__(self, reactor: Any, users: UsersFile | None = None, tokens: RegistryTokens | None = None) -> None:
        self._reactor = reactor
        self._users = users
        self._tokens = tokens
        self._pool = ThreadPool(reactor, _THREADS, "schemas-authentication")
        self._work = FairWork(self._pool.defer, _THREADS, _MOST_WAITING)

    @property
    def challenges(self) -> list[str]:
        """The values of WWW-Authenticate: the ways in which a client can authenticate."""
        realm = 'realm="pylogd schema registry"'
        basic = [f'Basic {realm}, charset="UTF-8"'] if self._users is not None else []
        return basic + ([f"Bearer {realm}"] if self._tokens is not None else [])

    async def start(self) -> None:
        """Read users and keys. Raises MechanismUnavailable."""
        if self._users is not None:
            await self._pool.defer(self._users.read)
        if self._tokens is not None:
            await self._pool.defer(self._tokens.load)

    def stop(self) -> None:
        """End the threads."""
        self._pool.stop()

    async def name(self, header: str | None, host: str) -> str:
        """Return the user's name; "" if no credentials are required. Raises Unauthorized, Overloaded.

        header: the value of the request's Authorization header.
        host: the sender's host, for the log.
        """
        if self._users is None and self._tokens is None:
            return ""
        kind, _, credentials = (header or "").strip().partition(" ")
        share = share_of(host)
        try:
            if kind.lower() == "basic" and self._users is not None:
                name = await self._by_password(credentials.strip(), self._users, share)
            elif kind.lower() == "bearer" and self._tokens is not None:
                name = str(await self._work.run(share, self._tokens.owner, credentials.strip()))
            else:
                raise Unauthorized("credentials are required")
            self._work.known.add(share)
            return name
        except Crowded:
            raise Overloaded("too many requests wait for a check of their credentials; try again later") from None
        except (AuthenticationFailed, _Refused) as error:
            log.warn("Refused a request of {host}: {error}", host=host, error=str(error))
            await deferLater(self._reactor, _DELAY_SECONDS, lambda: None)
            raise Unauthorized("the credentials are not valid") from None
        except MechanismUnavailable as error:
            log.error("Can't check credentials: {error}", error=str(error))
            raise Overloaded("credentials can't be checked at present; see the registry's log") from None

    async def _by_password(self, credentials: str, users: UsersFile, share: str) -> str:
        try:
            name, colon, password = base64.b64decode(credentials, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise _Refused("its Basic credentials can't be decoded") from None
        remembered = users.remembers(name, password)
        if not colon or not await self._work.run(share, users.is_right, name, password, remembered=remembered):
            raise _Refused(f"wrong password, or unknown user {name!r:.100}")
        return name


class _Refused(Exception):
    """The credentials are wrong."""
