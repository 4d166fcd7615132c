"""How a broker authenticates at the others, by its settings."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.security.inter_broker import conversation_between_brokers
from pylogd.security.sasl.conversation import MechanismUnavailable

JAAS = 'some.Module required username="broker" password="hush" user_broker="hush";'


class Values(dict[str, Any]):
    """The settings of a listener; those with `own ` in front of their names are its own."""

    def own(self, name: str) -> Any:
        return self.get(f"own {name}")


def values(mechanism: str | None, **more: str) -> Values:
    return Values({"sasl.mechanism.inter.broker.protocol": mechanism, "sasl.jaas.config": None, **more})


def test_plain() -> None:
    conversation = conversation_between_brokers(values("PLAIN", **{"own plain.sasl.jaas.config": JAAS}))
    assert (conversation.mechanism, conversation.first()) == ("PLAIN", b"\0broker\0hush")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    conversation = conversation_between_brokers(values(mechanism, **{"sasl.jaas.config": JAAS}))
    assert conversation.mechanism == mechanism and conversation.first().startswith(b"n,,n=broker,r=")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (values(None), "set sasl.mechanism.inter.broker.protocol"),
        (values("PLAIN"), "needs username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS.replace("username", "user")}), "needs username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS[:-1]}), "malformed"),
    ],
)
def test_what_is_missing(given: Values, text: str) -> None:
    with pytest.raises(MechanismUnavailable, match=text) as caught:
        conversation_between_brokers(given)
    assert "hush" not in str(caught.value)
