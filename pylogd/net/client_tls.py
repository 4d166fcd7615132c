"""TLS by pyOpenSSL for connections that this process opens with Twisted.

Rules: certificates and keys are PEM data; whoever calls has read the files. Imported only where TLS is used, since
pyOpenSSL and service-identity are optional.
"""

from __future__ import annotations

import re
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from OpenSSL import SSL, crypto
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IStreamClientEndpoint
from twisted.internet.ssl import (
    AcceptableCiphers,
    Certificate,
    CertificateOptions,
    TLSVersion,
    optionsForClientTLS,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

_VERSIONS = {"TLSv1.2": TLSVersion.TLSv1_2, "TLSv1.3": TLSVersion.TLSv1_3}
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


class ClientTls:
    """The TLS options of a client. Called with a host name, it returns those for a connection to that host."""

    def __init__(
        self,
        *,
        ca: bytes | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
        key_password: str = "",
        check_hostname: bool = True,
        min_version: str = "TLSv1.2",
        ciphers: str = "",
    ) -> None:
        """ca: certificates of the trusted authorities; None for those that the system trusts. certificate, key: this
        process's own; the key may stand behind the certificates. min_version: "TLSv1.2" or "TLSv1.3".

        Raises ValueError for data that can't be used.
        """
        self._check_hostname = check_hostname
        try:
            authorities = None if ca is None else [Certificate(found) for found in _certificates(ca)]
            self._trust = platformTrust() if authorities is None else trustRootFromCertificates(authorities)
            self._options: dict[str, Any] = {"raiseMinimumTo": _VERSIONS[min_version]}
            if ciphers:
                self._options["acceptableCiphers"] = AcceptableCiphers.fromOpenSSLCipherString(ciphers)
            if certificate is not None:
                own, *chain = _certificates(certificate)
                self._options.update(certificate=own, extraCertChain=chain)
                self._options["privateKey"] = _private_key(key or certificate, key_password)
        except (SSL.Error, crypto.Error, TypeError) as error:
            raise ValueError(f"a certificate or key can't be used: {error}") from error

    def __call__(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return what `TlsEndpoint` takes for a connection to `host`."""
        if self._check_hostname:
            creator: IOpenSSLClientConnectionCreator = optionsForClientTLS(
                host, trustRoot=self._trust, extraCertificateOptions=self._options
            )
            return creator
        return _AnyName(host, CertificateOptions(trustRoot=self._trust, **self._options).getContext())


@implementer(IStreamClientEndpoint)
class TlsEndpoint:
    """Open connections by another endpoint, and run TLS over them on the given reactor.

    Twisted's `wrapClientTLS` always uses the process's reactor.
    """

    def __init__(self, reactor: Any, creator: IOpenSSLClientConnectionCreator, endpoint: IStreamClientEndpoint) -> None:
        """creator: the TLS options of one connection."""
        self._reactor = reactor
        self._creator = creator
        self._endpoint = endpoint

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Connect. Fires with the protocol; the TLS handshake goes on behind it."""
        factory = TLSMemoryBIOFactory(self._creator, True, protocolFactory, self._reactor)
        outer: Deferred[Any] = self._endpoint.connect(factory)
        return outer.addCallback(lambda protocol: protocol.wrappedProtocol)


@implementer(IOpenSSLClientConnectionCreator)
class _AnyName:
    """TLS options that accept a trusted certificate for any name."""

    def __init__(self, host: str, context: SSL.Context) -> None:
        self._host = host
        self._context = context

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """Return a connection that sends the host's name (SNI)."""
        connection = SSL.Connection(self._context, None)
        if not isIPAddress(self._host) and not isIPv6Address(self._host):
            connection.set_tlsext_host_name(self._host.encode("idna"))
        return connection


def _certificates(data: bytes) -> list[crypto.X509]:
    """Return the certificates in PEM data. Raises ValueError if there is none."""
    return [crypto.X509.from_cryptography(found) for found in load_pem_x509_certificates(data)]


def _private_key(data: bytes, password: str) -> crypto.PKey:
    """Return the first private key in PEM data. Raises ValueError, TypeError for a password too many or too few."""
    found = _KEY.search(data)
    if found is None:
        raise ValueError("there is no private key in the PEM data")
    key: Any = load_pem_private_key(found[0], password.encode() or None)
    return crypto.PKey.from_cryptography_key(key)
