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
from functools import partial

from pylogd.broker.security.mechanisms import ENABLED, ListenerSettings, MechanismSettings
from pylogd.config import ConfigError
from pylogd.credentials.conversation import AuthenticationFailed, ClientConversation
from pylogd.credentials.jaas import parse_jaas
from pylogd.credentials.mechanisms import JAAS, MECHANISMS, SERVICE, TOKEN_ENDPOINT, Login, Mechanism
from pylogd.credentials.principal import Principal

MECHANISM = "sasl.mechanism.inter.broker.protocol"


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
        # The last login, which may have an access token, with the settings from which it was made.
        self._made: tuple[tuple[str, dict[str, str], dict[str, str]], Login] | None = None

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
        registered, own = MECHANISMS[mechanism], MechanismSettings(values, mechanism)
        login = self._login(registered, own)
        if not registered.is_complete_for_broker(login):
            setting = self._jaas(mechanism)
            raise ConfigError(
                f"brokers authenticate at each other by {mechanism}: set {setting} with {registered.broker_needs}",
                setting,
            )
        try:
            principal = registered.principal(login, list(own["sasl.kerberos.principal.to.local.rules"]))
        except (ValueError, AuthenticationFailed) as error:
            raise ConfigError(f"{login.principal} has no short name: {error}", SERVICE) from None
        return BrokerLogin(mechanism, principal, partial(registered.begin, login))

    def _jaas(self, mechanism: str) -> str:
        return f"listener.name.{self._listener}.{mechanism.lower()}.{JAAS}"

    def _login(self, mechanism: Mechanism, values: MechanismSettings) -> Login:
        """Return the credentials in the settings. Raises ConfigError."""
        setting, jaas = self._jaas(mechanism.name), values[JAAS]
        try:
            options = {} if jaas is None else dict(parse_jaas(jaas).options)
        except ValueError as error:
            raise ConfigError(f"{setting} is malformed: {error}", setting) from None
        options.pop("tokenauth", None)  # brokers have no delegation tokens
        properties = {name: values[name] or "" for name in (TOKEN_ENDPOINT, SERVICE)}
        key = mechanism.name, options, properties
        if self._made is None or self._made[0] != key:
            try:
                self._made = key, mechanism.login(options, properties)
            except ValueError:
                raise ConfigError(
                    f"brokers authenticate at each other by {mechanism.name}: set {TOKEN_ENDPOINT} to a token "
                    f"endpoint, with clientId and clientSecret in {setting}, or to a file: URL",
                    TOKEN_ENDPOINT,
                ) from None
        return self._made[1]
