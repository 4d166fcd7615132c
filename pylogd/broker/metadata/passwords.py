"""Encrypt passwords that are set at run time and kept in the metadata store (`password.encoder.secret`).

Strategy: as in Kafka with ZooKeeper, the key is a secret that only the brokers' configuration files have. Each value is
encrypted separately with AES-GCM, and bound to the name of its setting. Its key is derived by scrypt with the value's
own salt. Values that an earlier release stored in clear text can still be read, and are encrypted with the next change
of their node.

Rules: without a secret nothing is stored. A former secret (`password.encoder.old.secret`) decrypts the values that it
encrypted, so the secret can be changed broker by broker.

Must not know: where settings are stored.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from pylogd.config import ConfigError, broker_setting

_PREFIX: Final = "pylogd:aes-gcm:"  # encrypted values begin with it; no key, certificate or chain does
_SALT, _NONCE, _KEY = 16, 12, 32  # their sizes in bytes
_COST: Final = 1 << 12  # scrypt's cost: some 10 ms, once for each value, since the secret may be short


class PasswordEncoder:
    """Encrypts and decrypts the values of sensitive settings.

    secrets: the current secret first, then a former one.
    """

    def __init__(self, secrets: Callable[[], tuple[str | None, str | None]]) -> None:
        self._secrets = secrets

    def encode(self, configs: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
        """Return settings with the sensitive values encrypted.

        stored: the settings in the store now.

        Raises ConfigError if there is no secret to encrypt a new value.
        """
        secret, _ = self._secrets()
        encoded = {}
        for name, value in configs.items():
            kept = stored.get(name) == value and (secret is None or value.startswith(_PREFIX))
            encoded[name] = value if kept or not _sensitive(name) else self._encode(name, value, secret)
        return encoded

    def decode(self, configs: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return settings with the sensitive values decrypted, and the names of values that no secret decrypts."""
        found: dict[str, str] = {}
        failed = []
        for name, value in configs.items():
            decoded = self._decode(name, value) if _sensitive(name) and value.startswith(_PREFIX) else value
            if decoded is None:
                failed.append(name)
            else:
                found[name] = decoded
        return found, failed

    def _encode(self, name: str, value: str, secret: str | None) -> str:
        if secret is None:
            raise ConfigError(
                f"{name} is a secret, and would be readable in the metadata store: set password.encoder.secret in the "
                "configuration files of all brokers first, or set it in the configuration file instead",
                name,
            )
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        try:
            sealed = _cipher(secret, salt).encrypt(nonce, value.encode(), name.encode())
        except ImportError as error:
            raise ConfigError(f"{name} can't be encrypted: install pylogd-broker[tls]", name) from error
        return _PREFIX + b64encode(salt + nonce + sealed).decode()

    def _decode(self, name: str, value: str) -> str | None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - of the extra `tls`, as the settings are

            data = b64decode(value.removeprefix(_PREFIX), validate=True)
        except (ImportError, ValueError):
            return None
        salt, nonce, sealed = data[:_SALT], data[_SALT : _SALT + _NONCE], data[_SALT + _NONCE :]
        for secret in self._secrets():
            try:
                if secret is not None and len(nonce) == _NONCE:
                    plain: bytes = _cipher(secret, salt).decrypt(nonce, sealed, name.encode())
                    return plain.decode()
            except InvalidTag:
                continue
        return None


def _sensitive(name: str) -> bool:
    setting = broker_setting(name)
    return setting is not None and setting.sensitive


@lru_cache(64)
def _cipher(secret: str, salt: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - of the extra `tls`

    return AESGCM(hashlib.scrypt(secret.encode(), salt=salt, n=_COST, r=8, p=1, dklen=_KEY))
