"""How a client connects: in plain or with TLS, and as whom."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.rawclient import RawClient

PATIENCE: Final = 120.0


@dataclass(frozen=True)
class Access:
    """Where and how to connect.

    address: of a listener. authority: the PEM file of who signed its certificate; empty without TLS. user: who
    authenticates with PLAIN, with the password that `password_of` gives; empty for nobody.
    """

    address: str
    authority: str = ""
    user: str = ""

    @property
    def who(self) -> str:
        """Who the client is, for a report; empty where nobody has a name."""
        return f" (as {self.user})" if self.user else ""

    def connect(self, patience: float = PATIENCE) -> RawClient:
        """Return a connection that has authenticated, where that is wanted."""
        client = RawClient(self.address, patience=patience, tls=tls_context(self.authority) if self.authority else None)
        if self.user:
            try:
                authenticate(client, self.user, password_of(self.user))
            except BaseException:
                client.close()
                raise
        return client

    def words(self) -> list[str]:
        """Return this as words of a command line, which `access_of` reads."""
        return ["--address", self.address, "--authority", self.authority, "--user", self.user]


def access_of(words: Sequence[str]) -> Access:
    """Return the access that `Access.words` has written."""
    parser = argparse.ArgumentParser()
    for name in ("address", "authority", "user"):
        parser.add_argument(f"--{name}", default="")
    found = parser.parse_args(words)
    return Access(found.address, found.authority, found.user)


def password_of(user: str) -> str:
    """Return the password of a user of the tests' brokers."""
    return f"{user}-secret"


def authenticate(client: RawClient, user: str, password: str) -> None:
    """Authenticate with PLAIN. Raises PermissionError if the broker refuses."""
    client.request(SaslHandshakeRequest("PLAIN"), 1)
    answer = client.request(SaslAuthenticateRequest(f"\0{user}\0{password}".encode()), 2)
    if answer.error_code:
        raise PermissionError(answer.error_message)


@cache
def tls_context(authority: str) -> ssl.SSLContext:
    """Return the context of clients that trust an authority."""
    return ssl.create_default_context(cafile=authority)
