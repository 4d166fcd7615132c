"""How a broker authenticates to the others, by its settings."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.config import ConfigError
from pylogd.security.inter_broker import login_between_brokers
from pylogd.security.principal import USER, Principal

JAAS = 'some.Module required username="broker" password="hush" user_broker="hush";'


class Values(dict[str, Any]):
    """The settings of a listener; `own ` marks those of this listener only."""

    def own(self, name: str) -> Any:
        return self.get(f"own {name}")


def values(mechanism: str | None, **more: Any) -> Values:
    return Values(
        {
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.enabled.mechanisms": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            "sasl.jaas.config": None,
        }
        | more
    )


def test_plain() -> None:
    login = login_between_brokers(values("PLAIN", **{"own plain.sasl.jaas.config": JAAS}), "BETWEEN")
    conversation = login.conversation()
    assert (conversation.mechanism, conversation.first()) == ("PLAIN", b"\0broker\0hush")
    assert login.principal == Principal(USER, "broker")
    assert "hush" not in repr(login)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    login = login_between_brokers(values(mechanism, **{"sasl.jaas.config": JAAS}), "BETWEEN")
    conversation = login.conversation()
    assert conversation.mechanism == mechanism and conversation.first().startswith(b"n,,n=broker,r=")
    assert login.conversation() is not conversation  # each is used once


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (values(None), "set sasl.mechanism.inter.broker.protocol, .* listener.name.between.<mechanism>.sasl.jaas.conf"),
        (values("PLAIN"), "set listener.name.between.plain.sasl.jaas.config with username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS.replace("username", "user")}), "with username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS[:-1]}), "between.plain.sasl.jaas.config is malformed"),
        (values("PLAIN", **{"sasl.enabled.mechanisms": ("GSSAPI",)}), "BETWEEN does not offer: add it to sasl.enabled"),
    ],
)
def test_what_is_missing(given: Values, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        login_between_brokers(given, "BETWEEN")
    assert "hush" not in str(caught.value)
