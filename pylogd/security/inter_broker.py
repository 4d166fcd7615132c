"""How a broker authenticates at the others: `sasl.mechanism.inter.broker.protocol`, and the credentials for it.

Source: Kafka documentation, "Authentication using SASL/SCRAM": the listener's `sasl.jaas.config` has `username` and
`password` of the broker's own user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pylogd.config import ConfigError
from pylogd.security.mechanisms import ENABLED, JAAS, ListenerSettings, MechanismSettings
from pylogd.security.principal import USER, Principal
from pylogd.security.sasl.conversation import ClientConversation
from pylogd.security.sasl.jaas import parse_jaas
from pylogd.security.sasl.plain import PlainClient
from pylogd.security.sasl.scram import SCRAM_MECHANISMS
from pylogd.security.sasl.scram_client import ScramClient

MECHANISM = "sasl.mechanism.inter.broker.protocol"


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """The mechanism and the credentials by which a broker authenticates at the others."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    @property
    def principal(self) -> Principal:
        """Who the broker is for the others."""
        return Principal(USER, self.user)

    def conversation(self) -> ClientConversation:
        """Begin to authenticate."""
        algorithm = SCRAM_MECHANISMS.get(self.mechanism)
        if algorithm is None:
            return PlainClient(self.user, self.password)
        return ScramClient(algorithm, self.user, self.password)


def login_between_brokers(values: ListenerSettings, listener: str) -> BrokerLogin:
    """Return how to authenticate by the listener between brokers. `values` are its settings.

    Raises ConfigError, which names the setting to change, but no credentials.
    """
    mechanism = values[MECHANISM]
    setting = f"listener.name.{listener.lower()}.{(mechanism or '<mechanism>').lower()}.{JAAS}"
    if mechanism is None:
        raise ConfigError(
            f"brokers authenticate at each other by listener {listener} (inter.broker.listener.name): set {MECHANISM}, "
            f"for example to SCRAM-SHA-512, and {setting} with username and password",
            MECHANISM,
        )
    if mechanism not in values[ENABLED]:
        raise ConfigError(
            f"{MECHANISM} is {mechanism}, which listener {listener} does not offer: add it to {ENABLED}", MECHANISM
        )
    jaas = MechanismSettings(values, mechanism)[JAAS]
    try:
        options = {} if jaas is None else parse_jaas(jaas).options
    except ValueError as error:
        raise ConfigError(f"{setting} is malformed: {error}", setting) from None
    user, password = options.get("username", ""), options.get("password", "")
    if not user or not password:
        raise ConfigError(
            f"brokers authenticate at each other by {mechanism}: set {setting} with username and password", setting
        )
    return BrokerLogin(mechanism, user, password)
