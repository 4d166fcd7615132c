"""TLS by pyOpenSSL for connections that this process opens with Twisted, to brokers.

Strategy: `HostTls` has the options of one connection: a context, the host, and whether its certificate has to name the
host. Brokers have a context already (`pylogd.credentials.certificates`); `ClientTls` makes one from a client's options.
`TlsEndpoint` connects. The transport is that of a listener's connections (`pylogd.link.tls`), so large replies are
decrypted into their own memory. It needs a context without `PARTIAL_WRITE`.

Rules: certificates and keys are PEM data; the caller has read the files. This module is imported only if TLS is used,
since pyOpenSSL and service-identity are optional.
"""

from __future__ import annotations

import re
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from OpenSSL import SSL, crypto
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IStreamClientEndpoint
from twisted.internet.ssl import (
    AcceptableCiphers,
    Certificate,
    CertificateOptions,
    TLSVersion,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.credentials.certificates import PARTIAL_WRITE
from pylogd.link.tls import TlsTransportFactory

_VERSIONS = {"TLSv1.2": TLSVersion.TLSv1_2, "TLSv1.3": TLSVersion.TLSv1_3}
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


class ClientTls:
    """The TLS options of a client. A call with a host name returns the options of a connection to that host."""

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
        """Make the options. Raises ValueError for data that can't be used.

        ca: certificates of the trusted authorities; None for the authorities that the system trusts.
        certificate: this process's certificate chain.
        key: the key of the certificate; one file may contain both.
        min_version: "TLSv1.2" or "TLSv1.3".
        """
        self._check_hostname = check_hostname
        try:
            authorities = None if ca is None else [Certificate(found) for found in _certificates(ca)]
            trust = platformTrust() if authorities is None else trustRootFromCertificates(authorities)
            options: dict[str, Any] = {"raiseMinimumTo": _VERSIONS[min_version], "trustRoot": trust}
            if ciphers:
                options["acceptableCiphers"] = AcceptableCiphers.fromOpenSSLCipherString(ciphers)
            if certificate is not None:
                own, *chain = _certificates(certificate)
                options.update(certificate=own, extraCertChain=chain)
                options["privateKey"] = _private_key(key or certificate, key_password)
            self._context: SSL.Context = CertificateOptions(**options).getContext()
            self._context.clear_mode(PARTIAL_WRITE)  # the transport writes all bytes at once
        except (SSL.Error, crypto.Error, TypeError) as error:
            raise ValueError(f"a certificate or key can't be used: {error}") from error

    def __call__(self, host: str) -> HostTls:
        """Return the options that `TlsEndpoint` needs for a connection to `host`."""
        return HostTls(self._context, host, self._check_hostname)


@implementer(IOpenSSLClientConnectionCreator)
class HostTls:
    """The TLS options of a connection to one host."""

    def __init__(self, context: SSL.Context, host: str, check_host: bool) -> None:
        """check_host: whether the certificate must name `host`."""
        self._context = context
        self._host = host
        self._check_host = check_host

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """Return OpenSSL's side of a connection, which sends the host's name (SNI). Twisted calls this."""
        connection = SSL.Connection(self._context, None)
        address = isIPAddress(self._host) or isIPv6Address(self._host)
        if not address:
            connection.set_tlsext_host_name(self._host.encode("idna"))
        verify = verify_ip_address if address else verify_hostname

        def handshaken(one: SSL.Connection, where: int, _result: int) -> None:
            if where & SSL.SSL_CB_HANDSHAKE_DONE:
                try:
                    verify(one, self._host)
                except Exception:  # exceptions must not pass through OpenSSL
                    tlsProtocol.failVerification(Failure())

        if self._check_host:
            connection.set_info_callback(handshaken)
        return connection


@implementer(IStreamClientEndpoint)
class TlsEndpoint:
    """Opens connections by another endpoint, and runs TLS over them on the given reactor.

    Twisted's `wrapClientTLS` always uses the process's reactor.
    """

    def __init__(self, reactor: Any, creator: IOpenSSLClientConnectionCreator, endpoint: IStreamClientEndpoint) -> None:
        """creator: the TLS options of one connection."""
        self._reactor = reactor
        self._creator = creator
        self._endpoint = endpoint

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Connect. The Deferred fires with the protocol, before the TLS handshake has ended."""
        factory = TlsTransportFactory(self._creator, True, protocolFactory, self._reactor)
        outer: Deferred[Any] = self._endpoint.connect(factory)
        return outer.addCallback(lambda protocol: protocol.wrappedProtocol)


def _certificates(data: bytes) -> list[crypto.X509]:
    """Return the certificates in PEM data. Raises ValueError if it has no certificate."""
    return [crypto.X509.from_cryptography(found) for found in load_pem_x509_certificates(data)]


def _private_key(data: bytes, password: str) -> crypto.PKey:
    """Return the first private key in PEM data. Raises ValueError, TypeError for a missing or a needless password."""
    found = _KEY.search(data)
    if found is None:
        raise ValueError("there is no private key in the PEM data")
    key: Any = load_pem_private_key(found[0], password.encode() or None)
    return crypto.PKey.from_cryptography_key(key)
