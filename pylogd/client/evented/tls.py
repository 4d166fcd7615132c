"""Make TLS contexts of the standard library from a client's options, for the blocking face and asyncio.

Rules: certificates and keys are read when a client first connects; an event loop reads them in a thread. Errors name
the option, and never repeat a key.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from pylogd.base.errors import PylogdError
from pylogd.client.core.errors import BrokerUnavailable, TlsFailed
from pylogd.client.core.link import Link
from pylogd.client.core.security import SecurityOptions

_TEXT = "-----BEGIN "
_SUFFIXES = (".pem", ".crt")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: OpenSSL's reasons for errors that a retry can't solve.
_HOPELESS = (
    "CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "UNSUPPORTED_PROTOCOL",
    "PROTOCOL_VERSION", "BAD_RECORD_TYPE", "NO_SHARED_CIPHER", "UNKNOWN_PSK", "HTTP_REQUEST", "RECORD_LAYER_FAILURE",
)  # fmt: skip


def read_pem(value: str, option: str) -> bytes:
    """Return PEM data from a text, a file, or all files of a directory. Raises TlsFailed if it can't be read."""
    if _TEXT in value:
        return value.encode()
    try:
        path = Path(value)
        files = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES) if path.is_dir() else [path]
        return b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise TlsFailed(f"can't read {option} {value!r}: {error.strerror}") from error


def context_of(link: Link) -> ssl.SSLContext | None:
    """Return the TLS context for a connection; None for plain TCP. It is made once for a client. Raises TlsFailed."""
    connections = link.connections
    if connections.tls is None and connections.options.security.uses_tls:
        connections.tls = make_context(connections.options.security)
    context: ssl.SSLContext | None = connections.tls
    return context


def make_context(security: SecurityOptions) -> ssl.SSLContext:
    """Return a context for connections with these options. Raises TlsFailed if a file can't be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.ssl_check_hostname
    context.minimum_version = _VERSIONS[security.ssl_min_version]
    option = "ssl_ciphers"
    try:
        if security.ssl_ciphers:
            context.set_ciphers(security.ssl_ciphers)
        option = "ssl_ca"
        if security.ssl_ca:
            context.load_verify_locations(cadata=read_pem(security.ssl_ca, option).decode("ascii", "replace"))
        else:
            context.load_default_certs()
        option = "ssl_certificate"
        if security.ssl_certificate:
            _load_own(context, security)
    except (ssl.SSLError, ValueError) as error:
        raise TlsFailed(f"{option} can't be used: {_reason(error)}") from error
    return context


def _load_own(context: ssl.SSLContext, security: SecurityOptions) -> None:
    """Load the client's certificate and key."""
    key = security.ssl_key or security.ssl_certificate
    with (
        _as_file(read_pem(security.ssl_certificate, "ssl_certificate")) as certificate,
        _as_file(read_pem(key, "ssl_key")) as key_file,
    ):
        context.load_cert_chain(certificate, key_file, lambda: security.ssl_key_password)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Give the path of a file in memory with this data, because `ssl` reads keys only from files."""
    descriptor = os.memfd_create("pem")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def tls_error(address: str, error: BaseException) -> PylogdError:
    """Return the client's error for an error of `ssl`: TlsFailed if a retry can't solve it."""
    text = f"{address}: no TLS connection: {_reason(error)}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"{text}; check ssl_ca, and that the certificate names the host")
    if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in (error.reason or ""):
        return TlsFailed(f"{address}: the listener does not use TLS; check the protocol and the port")
    if isinstance(error, ssl.SSLError) and any(hint in (error.reason or "") for hint in _HOPELESS):
        return TlsFailed(f"{text}; check that the listener uses TLS, and that it accepts ssl_certificate")
    return BrokerUnavailable(text)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or "the certificate is not valid"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
