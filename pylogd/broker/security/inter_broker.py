"""How a broker authenticates to other brokers: `sasl.mechanism.inter.broker.protocol`, and its credentials.

| mechanism | what `sasl.jaas.config` of the listener and the mechanism has |
| --- | --- |
| PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 | `username` and `password` of the brokers' user |
| OAUTHBEARER | `clientId`, `clientSecret`, `scope` for `sasl.oauthbearer.token.endpoint.url`; nothing for a file |
| GSSAPI | `keyTab` and `principal` of this broker, `kafka/host@REALM` |

The settings are read at each authentication, so changes at run time count for the next one. Conversations may wait for
a file or another server, so run their steps in a thread.

Source: Kafka documentation, "Authentication using SASL".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pylogd.broker.security.mechanisms import ENABLED, JAAS, ListenerSettings, MechanismSettings
from pylogd.config import ConfigError
from pylogd.credentials.conversation import AuthenticationFailed, ClientConversation
from pylogd.credentials.gssapi import LazyGssapiClient
from pylogd.credentials.jaas import parse_jaas
from pylogd.credentials.kerberos import LocalNames
from pylogd.credentials.oauthbearer import OAuthBearerClient
from pylogd.credentials.plain import PlainClient
from pylogd.credentials.principal import USER, Principal
from pylogd.credentials.scram import SCRAM_MECHANISMS
from pylogd.credentials.scram_client import ScramClient
from pylogd.credentials.token_sources import token_source

MECHANISM = "sasl.mechanism.inter.broker.protocol"
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_SERVICE = "sasl.kerberos.service.name"


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """The mechanism and the credentials with which a broker authenticates to other brokers.

    principal: the broker's principal there; None if only its token tells.
    begin: begins to authenticate at a host.
    """

    mechanism: str
    principal: Principal | None
    begin: Callable[[str], ClientConversation] = field(repr=False)


class BrokerLogins:
    """How one broker authenticates to other brokers over a listener."""

    def __init__(self, values: Callable[[], ListenerSettings], listener: str) -> None:
        """values: returns the present settings of the listener between brokers."""
        self._values = values
        self._listener = listener.lower()
        # With the settings from which it was made.
        self._tokens: tuple[tuple[str, ...], Callable[[], str]] | None = None

    def current(self) -> BrokerLogin:
        """Return the login by the present settings.

        Raises ConfigError, which names the setting to change, but no credentials.
        """
        values = self._values()
        mechanism = values[MECHANISM]
        if mechanism is None:
            raise ConfigError(
                f"brokers authenticate at each other by listener {self._listener} (inter.broker.listener.name): set "
                f"{MECHANISM}, for example to SCRAM-SHA-512, and {self._jaas('<mechanism>')} with username and "
                "password",
                MECHANISM,
            )
        if mechanism not in values[ENABLED]:
            raise ConfigError(
                f"{MECHANISM} is {mechanism}, which listener {self._listener} does not offer: add it to {ENABLED}",
                MECHANISM,
            )
        own = MechanismSettings(values, mechanism)
        options = self._options(own, mechanism)
        if mechanism == "OAUTHBEARER":
            return self._by_token(own, options)
        if mechanism == "GSSAPI":
            return self._by_ticket(own, options)
        return self._by_password(mechanism, options)

    def _jaas(self, mechanism: str) -> str:
        return f"listener.name.{self._listener}.{mechanism.lower()}.{JAAS}"

    def _options(self, values: MechanismSettings, mechanism: str) -> dict[str, str]:
        setting, jaas = self._jaas(mechanism), values[JAAS]
        try:
            return {} if jaas is None else parse_jaas(jaas).options
        except ValueError as error:
            raise ConfigError(f"{setting} is malformed: {error}", setting) from None

    def _by_password(self, mechanism: str, options: dict[str, str]) -> BrokerLogin:
        user, password = options.get("username", ""), options.get("password", "")
        if not user or not password:
            setting = self._jaas(mechanism)
            raise ConfigError(
                f"brokers authenticate at each other by {mechanism}: set {setting} with username and password", setting
            )
        algorithm = SCRAM_MECHANISMS.get(mechanism)

        def begin(_host: str) -> ClientConversation:
            return PlainClient(user, password) if algorithm is None else ScramClient(algorithm, user, password)

        return BrokerLogin(mechanism, Principal(USER, user), begin)

    def _by_token(self, values: MechanismSettings, options: dict[str, str]) -> BrokerLogin:
        key = (values[_ENDPOINT] or "", *(options.get(name, "") for name in ("clientId", "clientSecret", "scope")))
        if self._tokens is None or self._tokens[0] != key:
            try:
                self._tokens = key, token_source(*key)
            except ValueError:
                setting = self._jaas("OAUTHBEARER")
                raise ConfigError(
                    f"brokers authenticate at each other by OAUTHBEARER: set {_ENDPOINT} to a token endpoint, with "
                    f"clientId and clientSecret in {setting}, or to a file: URL",
                    _ENDPOINT,
                ) from None
        tokens = self._tokens[1]
        return BrokerLogin("OAUTHBEARER", None, lambda _host: OAuthBearerClient(tokens))

    def _by_ticket(self, values: MechanismSettings, options: dict[str, str]) -> BrokerLogin:
        keytab, principal = options.get("keyTab", ""), options.get("principal", "")
        name, _, realm = principal.partition("@")
        if not keytab or not realm:
            setting = self._jaas("GSSAPI")
            raise ConfigError(
                f'brokers authenticate at each other by GSSAPI: set {setting} with keyTab="..." and '
                'principal="kafka/host@REALM"',
                setting,
            )
        service = values[_SERVICE] or options.get("serviceName") or name.partition("/")[0]
        try:
            short = LocalNames(list(values["sasl.kerberos.principal.to.local.rules"]), realm).short_name(principal)
        except (ValueError, AuthenticationFailed) as error:
            raise ConfigError(f"{principal} has no short name: {error}", _SERVICE) from None
        return BrokerLogin(
            "GSSAPI", Principal(USER, short), lambda host: LazyGssapiClient(service, host, keytab, principal)
        )
