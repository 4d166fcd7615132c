"""Identify the console's users: without a login, or by a password file, certificates, or an OIDC provider.

Strategy: passwords are checked by the same code as in brokers, in a few separate threads with a limited queue.
Addresses take turns in the queue, and a user whose password was right before does not wait for unknown users
(`limits.shares`). A wrong password is answered after a delay. A certificate was checked by TLS before any request; its
common name is the user. OpenID Connect is in `oidc`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogd.base.limits.shares import Crowded, FairWork, share_of
from pylogd.base.threads import ThreadPool
from pylogd.credentials.conversation import MechanismUnavailable
from pylogd.credentials.passwords import UsersFile
from pylogd.services.console.answers import Refused
from pylogd.services.console.roles import CERTIFICATE, EVERYTHING, USER, Identity, Role, Roles

log = Logger()

_THREADS: Final = 2
_MOST_WAITING: Final = 50
_DELAY_SECONDS: Final = 1.0


class Login:
    """Determine the user of a request, and the user's role.

    Without users, certificates and provider, everybody may use the console, and has no name.
    """

    def __init__(
        self, reactor: Any, users: UsersFile | None = None, *, certificates: bool = False, provider: bool = False,
        roles: Roles = EVERYTHING,
    ) -> None:  # fmt: skip
        """`certificates` is whether TLS requires browsers to send one. `provider` is whether there is an OpenID
        provider.
        """
        self._reactor = reactor
        self._users = users
        self._certificates = certificates
        self.provider = provider
        self._roles = roles
        self._pool = ThreadPool(reactor, _THREADS, "console-login")
        self._work = FairWork(self._pool.defer, _THREADS, _MOST_WAITING)

    @property
    def needed(self) -> bool:
        """Whether users have to log in."""
        return self._users is not None or self._certificates or self.provider

    @property
    def by_password(self) -> bool:
        """Whether users may log in with a password."""
        return self._users is not None

    def role_of(self, identity: Identity | None) -> Role:
        """Return the role of a user.

        identity: the user; None for a browser without a login.
        """
        if identity is None:
            return Role.NONE if self.needed else Role.ADMIN
        return self._roles.of(identity)

    async def start(self) -> None:
        """Read the file of users. Raises MechanismUnavailable if it can't be read."""
        if self._users is not None:
            await self._pool.defer(self._users.read)

    def stop(self) -> None:
        """End the threads that check passwords."""
        self._pool.stop()

    def by_certificate(self, request: Any) -> Identity | None:
        """Return the owner of the browser's certificate, by its common name; None without a certificate."""
        if not self._certificates:
            return None
        certificate = getattr(request.transport, "getPeerCertificate", lambda: None)()
        name = "" if certificate is None else str(certificate.get_subject().CN or "")
        return Identity(name, CERTIFICATE) if name else None

    async def by_header(self, header: str, host: str) -> Identity:
        """Return the user of a request with credentials (RFC 7617), which scripts send. Raises Refused."""
        kind, _, credentials = header.strip().partition(" ")
        if kind.lower() != "basic" or self._users is None:
            raise Refused(401, "Credentials of this kind are not accepted.")
        try:
            name, _, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise Refused(401, "The credentials can't be decoded.") from None
        return await self.check(name, password, host)

    async def check(self, name: str, password: str, host: str) -> Identity:
        """Return the user with a name, if the password is right. Raises Refused."""
        if self._users is None:
            raise Refused(503, "Passwords can't be checked here.")
        share, remembered = share_of(host), self._users.remembers(name, password)
        try:
            right = await self._work.run(share, self._users.is_right, name, password, remembered=remembered)
        except Crowded:
            raise Refused(503, "Passwords can't be checked at present; try again later.") from None
        except MechanismUnavailable as error:
            log.error("Can't check passwords: {error}", error=str(error))
            raise Refused(503, "Passwords can't be checked at present; see the console's log.") from None
        if not right:
            log.warn("Refused a login from {host}: wrong password, or unknown user {name}", host=host, name=name[:100])
            await deferLater(self._reactor, _DELAY_SECONDS, lambda: None)
            raise Refused(401, "The user or the password is wrong.")
        self._work.known.add(share)
        return Identity(name, USER)
