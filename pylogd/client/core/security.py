"""The options of TLS and SASL, which all faces share.

Rules: no `repr` contains secrets. A face reads files when it first connects (`client/evented/tls.py`); a face on an
event loop reads them in a thread. A function that may ask another server, such as one for tokens, runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pylogd.credentials.conversation import ClientConversation
from pylogd.credentials.mechanisms import MECHANISMS, Login
from pylogd.credentials.scram import SCRAM_MECHANISMS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """How to encrypt connections and authenticate. Certificates and keys are PEM: a file's path, or the text itself.

    protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL": the same as the broker's listener.
    ssl_ca: certificates of the authorities that sign brokers' certificates. A directory means all its files whose names
        end with `.pem` or `.crt`. Empty means the authorities that the system trusts.
    ssl_certificate, ssl_key: this client's certificate chain without the authority's certificate, and its key. One file
        may contain both. Required if the listener asks for a certificate.
    ssl_key_password: the password of an encrypted key.
    ssl_check_hostname: whether the broker's certificate must name the host that the client connects to.
    ssl_min_version: "TLSv1.2" or "TLSv1.3".
    ssl_ciphers: the allowed ciphers of TLS 1.2, in OpenSSL's notation. Empty means the default of the TLS library.
    sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER" or "GSSAPI".
    sasl_username, sasl_password: for PLAIN and SCRAM. The password may be a function, called at each authentication.
    sasl_delegation_token: whether username and password are the id and the HMAC of a delegation token (SCRAM only).
    sasl_token: for OAUTHBEARER, a function that returns an access token. It runs in a thread, so it may block.
    sasl_kerberos_service: for GSSAPI, the broker's service name.
    sasl_kerberos_keytab, sasl_kerberos_principal: for GSSAPI, the keytab and the name with which this client
        authenticates. Empty means the system's credential cache.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_ca: str = ""
    ssl_certificate: str = ""
    ssl_key: str = field(default="", repr=False)
    ssl_key_password: str = field(default="", repr=False)
    ssl_check_hostname: bool = True
    ssl_min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    ssl_ciphers: str = ""
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str | Callable[[], str] = field(default="", repr=False)
    sasl_delegation_token: bool = False
    sasl_token: Callable[[], str] | None = field(default=None, repr=False)
    sasl_kerberos_service: str = "kafka"
    sasl_kerberos_keytab: str = ""
    sasl_kerberos_principal: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError if a value is unknown, or if credentials that the mechanism needs are missing."""
        _check(self.protocol, PROTOCOLS, "protocol")
        _check(self.ssl_min_version, TLS_VERSIONS, "ssl_min_version")
        if not self.uses_sasl:
            if self.sasl_mechanism:
                raise ValueError(f"sasl_mechanism needs protocol SASL_SSL or SASL_PLAINTEXT, not {self.protocol}")
            return
        _check(self.sasl_mechanism, tuple(MECHANISMS), "sasl_mechanism")
        if missing := MECHANISMS[self.sasl_mechanism].missing(self._login):
            raise ValueError(f"{self.sasl_mechanism} needs {missing}")
        if self.sasl_delegation_token and self.sasl_mechanism not in SCRAM_MECHANISMS:
            raise ValueError("delegation tokens need SCRAM-SHA-256 or SCRAM-SHA-512")

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def waits(self) -> bool:
        """Whether an authentication step may block: it computes for milliseconds, or waits for another server."""
        mechanism = MECHANISMS.get(self.sasl_mechanism)
        return mechanism is None or mechanism.waits or callable(self.sasl_password)

    @property
    def _login(self) -> Login:
        return Login(
            self.sasl_username, self.sasl_password, self.sasl_delegation_token, self.sasl_token,
            self.sasl_kerberos_service, self.sasl_kerberos_keytab, self.sasl_kerberos_principal,
        )  # fmt: skip

    def conversation(self, host: str) -> ClientConversation:
        """Begin an authentication at the broker on `host`. Raises PylogdError if a package is missing."""
        return MECHANISMS[self.sasl_mechanism].begin(self._login, host)


def _check(value: str, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")


NOT_SECURED = SecurityOptions()
