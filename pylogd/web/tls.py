"""TLS for the registry's HTTP API: certificates come from PEM files, which are read again when they change.

Needs pyOpenSSL (extra `pylogd-broker[tls]`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from OpenSSL import SSL, crypto
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    PrivateCertificate,
    TLSVersion,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from pylogd.base.errors import PylogdError

log = Logger()

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_CHECK_SECONDS: Final = 30.0


class BadCertificate(PylogdError):
    """A certificate or key can't be read, or they do not belong together."""


class TlsFiles(NamedTuple):
    """Paths of PEM files: the certificate with its chain, its key, and the authorities of clients' certificates.

    key: None if the key is in the file of the certificate.
    client_authorities: None if clients need no certificate.
    """

    certificate: str
    key: str | None = None
    client_authorities: str | None = None

    def stamp(self) -> tuple[int, ...]:
        """Return a value that differs after a change of a file. Raises OSError."""
        found = [Path(path).stat() for path in self if path is not None]
        return tuple(number for stat in found for number in (stat.st_mtime_ns, stat.st_size, stat.st_ino))

    def load(self) -> CertificateOptions:
        """Read the files. Raises BadCertificate."""
        try:
            first, *chain = _certificates(Path(self.certificate))
            key = crypto.load_privatekey(crypto.FILETYPE_PEM, Path(self.key or self.certificate).read_bytes(), b"")
            trusted = None if self.client_authorities is None else _certificates(Path(self.client_authorities))
            options = CertificateOptions(
                privateKey=key, certificate=first, extraCertChain=chain, caCerts=trusted, verify=trusted is not None,
                raiseMinimumTo=TLSVersion.TLSv1_2,
            )  # fmt: skip
            options.getContext().check_privatekey()
        except OSError as error:
            raise BadCertificate(f"can't read {error.filename}: {error.strerror}") from None
        except (SSL.Error, crypto.Error, ValueError, TypeError) as error:
            raise BadCertificate(f"{self.certificate}: can't use the certificate or its key: {error!r:.200}") from None
        return options


@implementer(IPolicyForHTTPS)
class LeaderTls:
    """TLS of connections to the leader of the registries: its certificate is checked, and must name its host."""

    def __init__(self, authorities: str | None, own: TlsFiles) -> None:
        """authorities: the PEM file of the authorities that sign registries' certificates; None for the system's.

        own: this registry's certificate, which is sent if the leader asks for one.

        Raises BadCertificate.
        """
        try:
            self._trusted = None if authorities is None else trustRootFromCertificates(
                [Certificate(each) for each in _certificates(Path(authorities))]
            )  # fmt: skip
            pem = Path(own.certificate).read_bytes() + (b"" if own.key is None else Path(own.key).read_bytes())
            self._own = PrivateCertificate.loadPEM(pem)
        except OSError as error:
            raise BadCertificate(f"can't read {error.filename}: {error.strerror}") from None
        except (SSL.Error, crypto.Error, ValueError, TypeError) as error:
            raise BadCertificate(
                f"can't use the certificates of {authorities or own.certificate}: {error!r:.200}"
            ) from None

    def creatorForNetloc(self, hostname: bytes, _: int) -> Any:
        """Return the object that makes TLS connections to a host."""
        trust = {} if self._trusted is None else {"trustRoot": self._trusted}
        return optionsForClientTLS(hostname.decode("ascii"), clientCertificate=self._own, **trust)


@implementer(IOpenSSLContextFactory)
class ReloadedTls:
    """The TLS of new connections, from files that are checked for changes every 30 s. Errors in files are logged."""

    def __init__(self, reactor: Any, files: TlsFiles) -> None:
        """Read the files. Raises BadCertificate."""
        self._reactor = reactor
        self._files = files
        self._options = files.load()
        self._stamp = files.stamp()
        self._look = LoopingCall(self._check)
        self._look.clock = reactor

    def getContext(self) -> Any:
        """Return the OpenSSL context for a new connection."""
        return self._options.getContext()

    def start(self) -> None:
        """Begin to check for changes."""
        self._look.start(_CHECK_SECONDS, now=False)

    def stop(self) -> None:
        """Stop checking for changes."""
        if self._look.running:
            self._look.stop()

    def _check(self) -> Any:
        done = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._read)
        return done.addCallbacks(self._use, self._failed)

    def _read(self) -> tuple[tuple[int, ...], CertificateOptions | None]:
        stamp = self._files.stamp()
        return stamp, None if stamp == self._stamp else self._files.load()

    def _use(self, found: tuple[tuple[int, ...], CertificateOptions | None]) -> None:
        self._stamp, options = found
        if options is not None:
            self._options = options
            log.info("Read the changed certificate {path}", path=self._files.certificate)

    def _failed(self, failure: Failure) -> None:
        log.error(
            "Can't read the changed certificate, the old one stays in use: {error}", error=failure.getErrorMessage()
        )


def _certificates(path: Path) -> list[crypto.X509]:
    found = [crypto.load_certificate(crypto.FILETYPE_PEM, pem) for pem in _CERTIFICATE.findall(path.read_bytes())]
    if not found:
        raise ValueError(f"{path} has no certificate in PEM")
    return found
