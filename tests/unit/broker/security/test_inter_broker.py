"""How a broker authenticates to the others, by its settings."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from pylogd.broker.security.inter_broker import BrokerLogin, BrokerLogins
from pylogd.config import SETTINGS, ConfigError
from pylogd.credentials.principal import USER, Principal

JAAS = 'some.Module required username="broker" password="hush" user_broker="hush";'


class Values(dict[str, Any]):
    """The settings of a listener; `own ` marks those of this listener only."""

    def own(self, name: str) -> Any:
        return self.get(f"own {name}")


def values(mechanism: str | None, **more: Any) -> Values:
    return Values(
        {
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.enabled.mechanisms": SETTINGS["sasl.enabled.mechanisms"].choices,
            "sasl.jaas.config": None,
            "sasl.oauthbearer.token.endpoint.url": None,
            "sasl.kerberos.service.name": None,
            "sasl.kerberos.principal.to.local.rules": ("DEFAULT",),
        }
        | more
    )


def login_of(given: Values) -> BrokerLogin:
    return BrokerLogins(lambda: given, "BETWEEN").current()


def test_plain() -> None:
    login = login_of(values("PLAIN", **{"own plain.sasl.jaas.config": JAAS}))
    conversation = login.begin("broker1")
    assert (conversation.mechanism, conversation.first()) == ("PLAIN", b"\0broker\0hush")
    assert login.principal == Principal(USER, "broker")
    assert "hush" not in repr(login)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    login = login_of(values(mechanism, **{"sasl.jaas.config": JAAS}))
    conversation = login.begin("broker1")
    assert conversation.mechanism == mechanism and conversation.first().startswith(b"n,,n=broker,r=")
    assert login.begin("broker1") is not conversation  # each is used once


def test_oauthbearer(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    given = values("OAUTHBEARER", **{"sasl.oauthbearer.token.endpoint.url": path.as_uri()})
    logins = BrokerLogins(lambda: given, "BETWEEN")
    login = logins.current()
    assert login.principal is None and b"Bearer first" in login.begin("broker1").first()
    path.write_text("second")
    assert b"Bearer second" in logins.current().begin("broker1").first()


def test_a_fetched_token_is_used_until_the_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_url(request: Any, timeout: float) -> io.BytesIO:
        asked.append(request.headers["Authorization"])
        return io.BytesIO(b'{"access_token": "t%d", "expires_in": 3600}' % len(asked))

    monkeypatch.setattr("pylogd.credentials.token_sources.open_url", open_url)
    jaas = 'some.Module required clientId="broker" clientSecret="hush";'
    given = values("OAUTHBEARER", **{"sasl.oauthbearer.token.endpoint.url": "https://id", "sasl.jaas.config": jaas})
    logins = BrokerLogins(lambda: given, "BETWEEN")
    assert not asked, "no server is asked before a thread begins"
    assert b"Bearer t1" in logins.current().begin("a").first() and b"Bearer t1" in logins.current().begin("b").first()
    given["sasl.jaas.config"] = jaas.replace("hush", "other")
    assert b"Bearer t2" in logins.current().begin("a").first() and asked[0] != asked[1]
    assert "hush" not in repr(logins.current())


def test_gssapi() -> None:
    jaas = 'some.Module required keyTab="/k" principal="kafka/broker1@EXAMPLE";'
    given = values(
        "GSSAPI", **{"own gssapi.sasl.jaas.config": jaas, "sasl.kerberos.principal.to.local.rules": ("DEFAULT",)}
    )
    login = login_of(given)
    assert (login.mechanism, login.principal) == ("GSSAPI", Principal(USER, "kafka"))
    assert login.begin("broker2").mechanism == "GSSAPI"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (values("OAUTHBEARER"), "set sasl.oauthbearer.token.endpoint.url"),
        (values("OAUTHBEARER", **{"sasl.oauthbearer.token.endpoint.url": "https://id"}), "with clientId and clientSec"),
        (values("GSSAPI"), "set listener.name.between.gssapi.sasl.jaas.config with keyTab"),
        (values(None), "set sasl.mechanism.inter.broker.protocol, .* listener.name.between.<mechanism>.sasl.jaas.conf"),
        (values("PLAIN"), "set listener.name.between.plain.sasl.jaas.config with username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS.replace("username", "user")}), "with username and password"),
        (values("PLAIN", **{"sasl.jaas.config": JAAS[:-1]}), "between.plain.sasl.jaas.config is malformed"),
        (
            values("PLAIN", **{"sasl.enabled.mechanisms": ("SCRAM-SHA-512",)}),
            "between does not offer: add it to sasl.enabled",
        ),
    ],
)
def test_what_is_missing(given: Values, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        login_of(given)
    assert "hush" not in str(caught.value)
