"""Certificates and keys of a TLS listener: read PEM, and make the contexts of pyOpenSSL from it.

Strategy: `read_credentials` reads the files that the settings name and checks that key and certificate belong together.
`server_context` makes a context of them, and one more for each further certificate; the client's server name (SNI, RFC
6066) chooses one. `fingerprint` tells whether the files have changed. All of these functions read files or compute: run
them in a thread. A context is never changed once connections use it: a change makes new ones.

Needs the packages pyOpenSSL and cryptography (`pip install 'pylogd-broker[tls]'`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL

from pylogd.config import ConfigError, TlsOptions
from pylogd.credentials.ciphers import DEFAULT_CIPHERS, split_ciphers

_VERSIONS: Final = {"TLSv1.2": SSL.TLS1_2_VERSION, "TLSv1.3": SSL.TLS1_3_VERSION}
_VERIFY: Final = {
    "none": SSL.VERIFY_NONE,
    "requested": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}
#: SSL_MODE_ENABLE_PARTIAL_WRITE. With it a write of many records returns after each record.
PARTIAL_WRITE: Final = 0x1
_SESSION_SECONDS: Final = 24 * 60 * 60


class Identity(NamedTuple):
    """A private key, and its certificate with the intermediate certificates."""

    key: Any
    chain: tuple[x509.Certificate, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The host names of the certificate, in lower case; `*.example` stands for all hosts below."""
        try:
            found = self.chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ()
        return tuple(name.lower() for name in found.get_values_for_type(x509.DNSName))


class Credentials(NamedTuple):
    """The certificates that a listener presents, and the authorities that it trusts.

    print: identifies the contents.
    """

    identities: tuple[Identity, ...]
    trusted: tuple[x509.Certificate, ...]
    print: str


def read_credentials(options: TlsOptions) -> Credentials:
    """Read the certificates and keys that the settings name. Raises ConfigError if that fails."""
    digest = hashlib.sha256()
    identities = []
    for source, text in _keystores(options):
        digest.update(text)
        identities.append(_identity(text, options.key_password, source))
    trusted: list[x509.Certificate] = []
    for source, text in _truststores(options):
        digest.update(text)
        trusted += _certificates(text, source)
    digest.update(repr(options).encode())
    return Credentials(tuple(identities), tuple(trusted), digest.hexdigest())


def fingerprint(options: TlsOptions) -> tuple[object, ...]:
    """Return a value that changes when a file changes, is added or is removed."""
    found: list[object] = [options]
    for location in (options.keystore, options.truststore):
        for path in _files(location):
            try:
                stat = path.stat()
            except OSError as error:
                found.append((str(path), error.errno))
            else:
                found.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def server_context(credentials: Credentials, options: TlsOptions, session_id: bytes) -> SSL.Context:
    """Return the context for the connections of a listener. Raises ConfigError.

    session_id: only listeners with the same id resume sessions; at most 32 bytes.
    """
    contexts = [_context(one, credentials.trusted, options, session_id) for one in credentials.identities]
    first = contexts[0]
    if len(contexts) > 1:
        by_name: dict[str, SSL.Context] = {}
        for identity, context in zip(credentials.identities, contexts, strict=True):
            for name in identity.names:
                by_name.setdefault(name, context)
        first.set_tlsext_servername_callback(lambda connection: _choose(connection, by_name))
    return first


def client_context(credentials: Credentials, options: TlsOptions) -> SSL.Context:
    """Return the context for connections to other brokers, with this one's certificate. Raises ConfigError.

    If the settings name no trusted authorities, those of the system are trusted.
    """
    context = _context(credentials.identities[0], credentials.trusted, options, b"")
    context.set_verify(SSL.VERIFY_PEER)
    if not credentials.trusted:
        context.set_default_verify_paths()
    return context


def _choose(connection: SSL.Connection, by_name: dict[str, SSL.Context]) -> None:
    """Continue a handshake with the certificate for the server name that the client sent."""
    name = (connection.get_servername() or b"").decode("ascii", "replace").lower()
    context = by_name.get(name) or by_name.get("*." + name.partition(".")[2])
    if context is not None:
        connection.set_context(context)


def _context(
    identity: Identity, trusted: Iterable[x509.Certificate], options: TlsOptions, session_id: bytes
) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_options(
        SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_SINGLE_ECDH_USE
    )
    versions = [_VERSIONS[version] for version in options.versions]
    context.set_min_proto_version(min(versions))
    context.set_max_proto_version(max(versions))
    context.clear_mode(PARTIAL_WRITE)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    try:
        older, newer = split_ciphers(options.ciphers)
        context.set_cipher_list(":".join(older or DEFAULT_CIPHERS).encode())
        if newer:
            context.set_tls13_ciphersuites(":".join(newer).encode())
        context.use_certificate(identity.chain[0])
        for certificate in identity.chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(identity.key)
        context.check_privatekey()
        store = context.get_cert_store()
        assert store is not None
        for certificate in trusted:
            store.add_cert(_as_x509(certificate))
            if options.client_auth != "none":
                context.add_client_ca(certificate)
    except SSL.Error as error:
        raise ConfigError(f"TLS: OpenSSL refuses the settings: {explain(error)}") from error
    if session_id:
        context.set_verify(_VERIFY[options.client_auth])
        context.set_session_cache_mode(SSL.SESS_CACHE_SERVER)
        context.set_timeout(_SESSION_SECONDS)
        context.set_session_id(session_id)
    return context


def explain(error: BaseException | None) -> str:
    """Return OpenSSL's text of an error, in one line."""
    entries = error.args[0] if error is not None and error.args and isinstance(error.args[0], list) else []
    return "; ".join(str(entry[-1]) for entry in entries) or str(error) or type(error).__name__


def _keystores(options: TlsOptions) -> Iterator[tuple[str, bytes]]:
    if options.keystore is None:
        yield "ssl.keystore.key", f"{options.key}\n{options.chain}\n".encode()
        return
    for path in _files(options.keystore):
        yield f"ssl.keystore.location = {path}", _read(path, "ssl.keystore.location")


def _truststores(options: TlsOptions) -> Iterator[tuple[str, bytes]]:
    if options.trusted is not None:
        yield "ssl.truststore.certificates", options.trusted.encode()
    for path in _files(options.truststore):
        yield f"ssl.truststore.location = {path}", _read(path, "ssl.truststore.location")


def _files(location: str | None) -> list[Path]:
    """Return the PEM files of a location, which is a file or a directory of files; never empty if it is given."""
    if location is None:
        return []
    path = Path(location)
    return (sorted(path.glob("*.pem")) if path.is_dir() else [path]) or [path / "*.pem"]


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: can't read {path}: {error.strerror or error}", setting) from error


def _identity(text: bytes, password: str | None, source: str) -> Identity:
    chain = _certificates(text, source)
    try:
        key = load_pem_private_key(_key_block(text), None if password is None else password.encode())
    except TypeError:
        hint = "is encrypted: set ssl.key.password" if password is None else "is not encrypted: unset ssl.key.password"
        raise ConfigError(f"{source}: the private key {hint}") from None
    except Exception:
        raise ConfigError(f"{source}: there is no private key that can be read, or its password is wrong") from None
    if key.public_key() != chain[0].public_key():
        for index, certificate in enumerate(chain):
            if certificate.public_key() == key.public_key():
                return Identity(key, (certificate, *chain[:index], *chain[index + 1 :]))
        raise ConfigError(f"{source}: the private key does not belong to the certificate")
    return Identity(key, tuple(chain))


def _certificates(text: bytes, source: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise ConfigError(f"{source}: there is no certificate that can be read: {error}") from None


def _key_block(text: bytes) -> bytes:
    """Return the PEM block of the private key, without surrounding certificates; the whole text if it has none."""
    begin = text.find(b"-----BEGIN ")
    while begin >= 0:
        label = text[begin + 11 : text.find(b"-----", begin + 11)]
        end_mark = b"-----END " + label + b"-----"
        end = text.find(end_mark, begin)
        if b"PRIVATE KEY" in label and end >= 0:
            return text[begin : end + len(end_mark)] + b"\n"
        begin = text.find(b"-----BEGIN ", begin + 11)
    return text


def _as_x509(certificate: x509.Certificate) -> Any:
    from OpenSSL import crypto  # noqa: PLC0415 - a store takes no other class

    return crypto.X509.from_cryptography(certificate)
