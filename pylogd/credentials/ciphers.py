"""Names of TLS cipher suites: IANA's, which Kafka uses, and OpenSSL's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: TLS 1.2 suites with forward secrecy and authenticated encryption. OpenSSL's own list applies to TLS 1.3.
DEFAULT_CIPHERS: Final = ("ECDHE+AESGCM", "ECDHE+CHACHA20", "DHE+AESGCM", "!aNULL", "!eNULL", "!MD5", "!DSS")


def split_ciphers(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the suites for TLS 1.2 and the suites for TLS 1.3, by OpenSSL's names, in the given order."""
    older, newer = [], []
    for name in names:
        if name.startswith("TLS_") and "_WITH_" not in name:
            newer.append(name)
        else:
            older.append(openssl_name(name))
    return older, newer


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite. Other names are returned unchanged.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 becomes ECDHE-RSA-AES128-GCM-SHA256.
    """
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    parts = cipher.split("_")
    if parts[0] == "AES" and len(parts) > 1:
        parts[:2] = [f"AES{parts[1]}"]
    if parts[0] == "CHACHA20":
        parts = parts[:2]  # drop the hash
    parts = [part for part in parts if part != "CBC"]
    keys = [] if exchange == "RSA" else exchange.split("_")
    return "-".join([*keys, *parts])
