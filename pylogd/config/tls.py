"""The settings of TLS, with Kafka's names: certificates, trust, protocol versions, ciphers, principals.

Strategy: a table of settings, and `TlsOptions` with the values for one listener. Every setting can be given for a
single listener, as `listener.name.<listener>.ssl...`, and changed at run time: new connections use the new values.

Must not know: OpenSSL, files (paths are only text here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.config.principal_rules import check_rules
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_STRING, _LIST, _PASSWORD = ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD
_GROUP: Final = "TLS"
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


def _setting(name: str, kind: ConfigType, default: Any, doc: str, **more: Any) -> Setting:
    return Setting(
        name, kind, default, doc, _GROUP, mode=Mode.DYNAMIC, per_listener=True, nullable=default is None, **more
    )


TLS_SETTINGS: Final = [
    _setting(
        "ssl.keystore.type",
        _STRING,
        "PEM",
        "The format of the certificate and key: PEM files, or PEM text in `ssl.keystore.certificate.chain`. (Kafka's "
        "default is JKS, which is not supported.)",
        choices=("PEM",),
    ),
    _setting(
        "ssl.keystore.location",
        _STRING,
        None,
        "The PEM file with the broker's private key and its certificate chain, without the authority's certificate. "
        "Or a directory of such files (`*.pem`): the server name (SNI) that a client sends selects the file; without "
        "a match, the first file by name is used. The file is read again when it changes, and on SIGHUP.",
    ),
    _setting(
        "ssl.keystore.key",
        _PASSWORD,
        None,
        "The private key as PEM text, instead of `ssl.keystore.location`; needs `ssl.keystore.certificate.chain`.",
    ),
    _setting(
        "ssl.keystore.certificate.chain",
        _PASSWORD,
        None,
        "The certificate as PEM text, followed by the certificates between it and its authority; needs "
        "`ssl.keystore.key`.",
    ),
    _setting("ssl.key.password", _PASSWORD, None, "The password of an encrypted private key."),
    _setting(
        "ssl.truststore.type",
        _STRING,
        "PEM",
        "The format of the trusted certificates. (Kafka's default is JKS.)",
        choices=("PEM",),
    ),
    _setting(
        "ssl.truststore.location",
        _STRING,
        None,
        "The PEM file, or directory of PEM files (`*.pem`), with the certificate authorities that clients' and other "
        "brokers' certificates are checked against. It is read again when it changes, and on SIGHUP.",
    ),
    _setting(
        "ssl.truststore.certificates",
        _PASSWORD,
        None,
        "The certificate authorities as PEM text, instead of `ssl.truststore.location`.",
    ),
    _setting(
        "ssl.client.auth",
        _STRING,
        "none",
        "Whether clients present a certificate. `none`: no; `requested`: they may, and an invalid certificate is "
        "refused; `required`: they must. The principal of a client on an SSL listener comes from its certificate, "
        "see `ssl.principal.mapping.rules`; without one it is `User:ANONYMOUS`.",
        choices=("none", "requested", "required"),
    ),
    _setting(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        "Rules that map the subject of a client's certificate, such as `CN=app,O=Example`, to the name of a "
        "principal; the first rule that matches decides. `RULE:pattern/replacement/`, optionally followed by `L` "
        "(lower case) or `U` (upper case), replaces a subject that the pattern matches as a whole; `$1` is the "
        "pattern's first group. `DEFAULT` uses the subject unchanged. Rules are separated by commas. A certificate "
        "that no rule matches is refused.",
    ),
    _setting(
        "ssl.enabled.protocols", _LIST, TLS_VERSIONS, "The versions of TLS that are accepted.", choices=TLS_VERSIONS
    ),
    _setting(
        "ssl.cipher.suites",
        _LIST,
        None,
        "The cipher suites that are accepted, by their IANA or OpenSSL names, most preferred first. Unset: the "
        "suites with forward secrecy and authenticated encryption.",
    ),
    _setting(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        "Whether the certificate of another broker must name the host that this broker connects to: https for yes, "
        "empty for no.",
        choices=("https", ""),
    ),
    Setting(
        "password.encoder.secret",
        _PASSWORD,
        None,
        "The secret with which the metadata store encrypts private keys and passwords that are set at run time. It "
        "must be the same for all brokers. Unset: private keys and passwords can't be set at run time.",
        _GROUP,
        nullable=True,
    ),
    Setting(
        "password.encoder.old.secret",
        _PASSWORD,
        None,
        "The former `password.encoder.secret`, during a change of the secret: values that it encrypted can still be "
        "read.",
        _GROUP,
        nullable=True,
    ),
]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The values of the settings with the same names, for one listener. `repr` does not show secrets."""

    keystore: str | None = None
    key: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore: str | None = None
    trusted: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    principal_rules: str = "DEFAULT"
    versions: tuple[str, ...] = TLS_VERSIONS
    ciphers: tuple[str, ...] = ()
    check_hostname: bool = True


def tls_options(value: Callable[[str], Any], listener: str) -> TlsOptions:
    """Return the TLS settings of a listener. Raises ConfigError if they are incomplete or contradict each other.

    value: returns the value of a setting for the listener.
    listener: the listener's name, for messages.
    """
    keystore, key, chain = (
        value("ssl.keystore.location"), value("ssl.keystore.key"), value("ssl.keystore.certificate.chain")
    )  # fmt: skip
    where = f"listener {listener}: "
    if keystore is None and (key is None or chain is None):
        raise ConfigError(
            f"{where}TLS needs a certificate: set ssl.keystore.location, or ssl.keystore.key and "
            "ssl.keystore.certificate.chain", "ssl.keystore.location",
        )  # fmt: skip
    if keystore is not None and (key is not None or chain is not None):
        raise ConfigError(f"{where}ssl.keystore.location can't be used with ssl.keystore.key", "ssl.keystore.location")
    truststore, trusted = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    if truststore is not None and trusted is not None:
        raise ConfigError(
            f"{where}ssl.truststore.location can't be used with ssl.truststore.certificates",
            "ssl.truststore.location",
        )
    auth = value("ssl.client.auth")
    if auth != "none" and truststore is None and trusted is None:
        raise ConfigError(
            f"{where}ssl.client.auth = {auth} needs ssl.truststore.location or ssl.truststore.certificates",
            "ssl.client.auth",
        )
    return TlsOptions(
        keystore, key, chain, value("ssl.key.password"), truststore, trusted, auth,
        value("ssl.principal.mapping.rules"), value("ssl.enabled.protocols"), value("ssl.cipher.suites") or (),
        value("ssl.endpoint.identification.algorithm") != "",
    )  # fmt: skip


def check_tls_values(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a TLS setting is malformed."""
    for name, value in values.items():
        if name.endswith("ssl.principal.mapping.rules") and value is not None:
            check_rules(value, name)
        if name.endswith("ssl.enabled.protocols") and value == ():
            raise ConfigError(f"{name} is empty: name at least one of {', '.join(TLS_VERSIONS)}", name)
