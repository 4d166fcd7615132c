"""How a client connects safely: TLS and SASL, as options that all faces share.

Rules: secrets are in no `repr`. Files are read by the faces, when they first connect (`client/evented/tls.py`); those
on event loops do it in a thread. What asks other servers, such as a function for tokens, is called in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pylogd.security.sasl.conversation import ClientConversation
from pylogd.security.sasl.gssapi import LazyGssapiClient
from pylogd.security.sasl.oauthbearer import OAuthBearerClient
from pylogd.security.sasl.plain import PlainClient
from pylogd.security.sasl.scram import SCRAM_MECHANISMS
from pylogd.security.sasl.scram_client import ScramClient

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER", "GSSAPI")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """How connections are encrypted, and who the client says it is. Certificates and keys are PEM: a file, or the text.

    protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL", as the broker's listener has it.
    ssl_ca: certificates of the authorities that sign brokers' certificates; a directory stands for all its files whose
        names end with `.pem` or `.crt`; empty for those that the system trusts.
    ssl_certificate, ssl_key: this client's certificate, with those between it and the authority, and its key; the key
        may be in the same file. Needed where the listener asks for one.
    ssl_key_password: of an encrypted key.
    ssl_check_hostname: whether a broker's certificate has to name the host that the client connects to.
    ssl_min_version: "TLSv1.2" or "TLSv1.3".
    ssl_ciphers: allowed ciphers of TLS 1.2 in OpenSSL's notation; empty for the library's choice.
    sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER" or "GSSAPI".
    sasl_username, sasl_password: for PLAIN and SCRAM. The password may be a function, called at each authentication.
    sasl_delegation_token: whether they are the id and the HMAC of a delegation token (SCRAM only).
    sasl_token: for OAUTHBEARER, a function that returns an access token. It may wait: it is called in a thread.
    sasl_kerberos_service, sasl_kerberos_keytab, sasl_kerberos_principal: for GSSAPI, the broker's service name, and who
        this client is; by default the system's credential cache says so.
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
        """Raises ValueError: an unknown value, or credentials that the mechanism needs are missing."""
        _check(self.protocol, PROTOCOLS, "protocol")
        _check(self.ssl_min_version, TLS_VERSIONS, "ssl_min_version")
        if not self.uses_sasl:
            if self.sasl_mechanism:
                raise ValueError(f"sasl_mechanism needs protocol SASL_SSL or SASL_PLAINTEXT, not {self.protocol}")
            return
        _check(self.sasl_mechanism, MECHANISMS, "sasl_mechanism")
        if self.sasl_mechanism == "OAUTHBEARER":
            if self.sasl_token is None:
                raise ValueError("OAUTHBEARER needs sasl_token, a function that returns an access token")
        elif self.sasl_mechanism != "GSSAPI" and not (self.sasl_username and self.sasl_password):
            raise ValueError(f"{self.sasl_mechanism} needs sasl_username and sasl_password")
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
        """Whether a step of the authentication may take milliseconds, or wait for another server."""
        return self.sasl_mechanism != "PLAIN" or callable(self.sasl_password)

    def conversation(self, host: str) -> ClientConversation:
        """Begin an authentication at the broker on `host`. Raises PylogdError if a package is missing."""
        mechanism = self.sasl_mechanism
        if mechanism == "PLAIN":
            return PlainClient(self.sasl_username, self.sasl_password)
        if mechanism == "OAUTHBEARER":
            assert self.sasl_token is not None
            return OAuthBearerClient(self.sasl_token)
        if mechanism == "GSSAPI":
            keytab, principal = self.sasl_kerberos_keytab or None, self.sasl_kerberos_principal or None
            return LazyGssapiClient(self.sasl_kerberos_service, host, keytab, principal)
        return ScramClient(
            SCRAM_MECHANISMS[mechanism], self.sasl_username, self.sasl_password, token=self.sasl_delegation_token
        )


def _check(value: str, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")


NOT_SECURED = SecurityOptions()
