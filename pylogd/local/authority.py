"""A certificate authority for trials of TLS, which makes certificates for brokers and clients, as PEM files.

`pylogd cluster up --secure` and the tests use it. Not for production: the authority's key is beside the certificates,
unencrypted.

Needs the package cryptography (`pip install 'pylogd-broker[tls]'`).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pylogd.base.clock import wall_ms

_ORGANIZATION: Final = "pylogd test cluster"
_DAYS: Final = 825


class Issued(NamedTuple):
    """A private key and its certificate as PEM text.

    chain: the certificate, and the certificates of the authorities between it and the root.
    """

    key: str
    chain: str

    @property
    def pem(self) -> str:
        """All of it, in the form of a key store file."""
        return self.key + self.chain


class Authority:
    """A certificate authority. `certificate` is its own certificate as PEM text."""

    def __init__(self, name: str = "pylogd test authority", parent: Authority | None = None) -> None:
        """Make an authority. If there is a parent, it issues the authority's certificate."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        above: str = "" if parent is None else parent._chain
        issuer, key = (self._name, self._key) if parent is None else (parent._name, parent._key)
        self._certificate = (
            _builder(self._name, issuer, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            # Python's ssl requires this since 3.13
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.certificate = self._certificate.public_bytes(Encoding.PEM).decode()
        self._chain: str = "" if parent is None else self.certificate + above

    def issue(
        self,
        common_name: str,
        hosts: Iterable[str] = (),
        *,
        days: int = _DAYS,
        password: str | None = None,
        subject: Sequence[x509.NameAttribute[str]] = (),
    ) -> Issued:
        """Make a key and its certificate, for servers and clients.

        hosts: the names and addresses for which it is valid.
        password: the password that encrypts the key.
        subject: the whole subject, instead of only the common name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(subject) if subject else _subject(common_name)
        builder = (
            _builder(name, self._name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(_pem(key, password), certificate.public_bytes(Encoding.PEM).decode() + self._chain)

    # -- files

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Return the authority kept in `folder`, which is made at the first call (`authority.pem`, `authority.key`)."""
        certificate, key = folder / "authority.pem", folder / "authority.key"
        authority = cls()
        if certificate.exists() and key.exists():
            loaded = load_pem_private_key(key.read_bytes(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            authority._key = loaded
            authority.certificate = certificate.read_text()
            authority._certificate = x509.load_pem_x509_certificate(certificate.read_bytes())
            authority._name = authority._certificate.subject
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_secret(key, _pem(authority._key, None))
            certificate.write_text(authority.certificate)
        return authority


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read. Another process sees either the old or all of the new contents."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)  # an old file might be a link, or readable for others
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def _subject(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int = _DAYS
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(wall_ms() // 1000, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + datetime.timedelta(days=days)) - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=authority, crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> str:
    encryption: KeySerializationEncryption = NoEncryption()
    if password is not None:
        encryption = BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
