"""How a broker authenticates at the others: `sasl.mechanism.inter.broker.protocol`, and the credentials for it.

Source: Kafka documentation, "Authentication using SASL/SCRAM": the listener's `sasl.jaas.config` has `username` and
`password` of the broker's own user.
"""

from __future__ import annotations

from pylogd.security.mechanisms import JAAS, ListenerSettings, MechanismSettings
from pylogd.security.sasl.conversation import ClientConversation, MechanismUnavailable
from pylogd.security.sasl.jaas import parse_jaas
from pylogd.security.sasl.plain import PlainClient
from pylogd.security.sasl.scram import SCRAM_MECHANISMS
from pylogd.security.sasl.scram_client import ScramClient

MECHANISM = "sasl.mechanism.inter.broker.protocol"


def conversation_between_brokers(values: ListenerSettings) -> ClientConversation:
    """Begin to authenticate at another broker; `values` are the settings of the listener between brokers.

    Raises MechanismUnavailable, which names the setting that is missing.
    """
    mechanism = values[MECHANISM]
    if mechanism is None:
        raise MechanismUnavailable(f"the listener between brokers uses SASL: set {MECHANISM}, and {JAAS} for it")
    jaas = MechanismSettings(values, mechanism)[JAAS]
    try:
        options = {} if jaas is None else parse_jaas(jaas).options
    except ValueError as error:
        raise MechanismUnavailable(f"{JAAS} is malformed: {error}") from None
    user, password = options.get("username", ""), options.get("password", "")
    if not user or not password:
        raise MechanismUnavailable(f"{JAAS} for {mechanism} between brokers needs username and password")
    algorithm = SCRAM_MECHANISMS.get(mechanism)
    return PlainClient(user, password) if algorithm is None else ScramClient(algorithm, user, password)
