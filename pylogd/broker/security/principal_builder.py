"""The interface of `principal.builder.class`, which names the principal of an authenticated connection.

A builder may give clients other names than their certificates or SASL users have, for example the name of a team for
all of its services. It is called once for each authentication of a connection, on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from pylogd.config import Settings
from pylogd.credentials.principal import Principal

#: The setting that names the class of the builder.
BUILDER_CLASS: Final = "principal.builder.class"


class Authentication(NamedTuple):
    """The properties of an authenticated connection.

    listener: the name of the listener.
    protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    host: the client's address.
    name: the SASL user (with OAUTHBEARER and GSSAPI after the mapping rules), or the name that
        `ssl.principal.mapping.rules` make of the certificate's subject; None without authentication.
    mechanism: the SASL mechanism.
    certificate: the client's certificate, in DER encoding, if it has one.
    """

    listener: str
    protocol: str
    host: str
    name: str | None = None
    mechanism: str | None = None
    certificate: bytes | None = None


class PrincipalBuilder(Protocol):
    """Names principals. A class named by `principal.builder.class` is made with the broker's settings."""

    def build(self, authentication: Authentication) -> Principal:
        """Return the principal of the connection. An exception closes the connection."""


def encode_certificate(certificate: Any) -> bytes:
    """Return a certificate (of cryptography's class) in DER encoding."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - only with TLS

    encoded: bytes = certificate.public_bytes(Encoding.DER)
    return encoded


class ConfiguredBuilder:
    """The principal builder in the settings.

    current: None without `principal.builder.class`.
    make: makes the builder of a class. Raises ConfigError.
    """

    __slots__ = ("_name", "_settings", "current", "make")

    def __init__(self, settings: Settings, make: Callable[[str | None], PrincipalBuilder | None]) -> None:
        self.make = make
        self._settings = settings
        self._name = settings.text(BUILDER_CLASS)
        self.current = make(self._name)

    def refresh(self) -> bool:
        """Make another builder if the setting has changed. Return whether it has. Raises ConfigError."""
        name = self._settings.text(BUILDER_CLASS)
        if name == self._name:
            return False
        self.current = self.make(name)
        self._name = name
        return True
