"""The interface of `principal.builder.class`, which names the principal of an authenticated connection.

A builder may give clients other names than their certificates or SASL users have, for example the name of a team for
all of its services. It is called once for each authentication of a connection, on the reactor's thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pylogd.credentials.principal import Principal


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
