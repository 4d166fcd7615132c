"""Settings of TLS and of connections, and those of single listeners."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.config import ConfigError, ConfigSource, Settings
from pylogd.config.listeners import parse_overrides
from pylogd.config.tls import parse_rules

SSL: dict[str, Any] = {"listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", "ssl.keystore.location": "/key.pem"}


def test_a_listener_has_values_of_its_own() -> None:
    settings = Settings({**SSL, "max.connections": 7, "listener.name.ssl.max.connections": "3"})
    ours, other = settings.for_listener("SSL"), settings.for_listener("PLAINTEXT")
    assert (ours.integer("max.connections"), ours.own("max.connections")) == (3, 3)
    assert (other.integer("max.connections"), other.own("max.connections")) == (7, None)


@pytest.mark.parametrize(
    "name", ["listener.name.ssl.node.id", "listener.name.max.connections", "listener.name.SSL.max.connections"]
)
def test_what_no_listener_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        Settings({name: "1"})


def test_values_of_listeners_change_at_run_time() -> None:
    settings = Settings(SSL)
    told: list[frozenset[str]] = []
    settings.subscribe(told.append)
    name = "listener.name.ssl.ssl.keystore.location"
    settings.set_dynamic({name: "/other.pem"}, {})
    assert settings.tls_options("SSL").keystore == "/other.pem"
    (entry,) = [entry for entry in settings.describe() if entry.name == name]
    assert (entry.value, entry.source) == ("/other.pem", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    settings.set_dynamic({name: "/other.pem"}, {})
    settings.set_dynamic({}, {})
    assert settings.tls_options("SSL").keystore == "/key.pem"
    assert told == [{name}, frozenset(), {name}], "the same values again are told too"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ssl.keystore.key": "key"}, "can't be used with"),
        ({"ssl.client.auth": "required"}, "ssl.truststore"),
        ({"listener.name.ssl.ssl.client.auth": "requested"}, "ssl.truststore"),
        ({"ssl.client.auth": "sometimes"}, "one of none, requested, required"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2"),
        ({"ssl.enabled.protocols": ""}, "is empty"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "regular expression"),
        ({"listener.name.ssl.ssl.principal.mapping.rules": "RULE"}, "is not a rule"),
        ({"max.connections": "0"}, "max.connections"),
        ({"max.connections.per.ip": "0"}, "refuses everybody"),
        ({"max.connections.per.ip.overrides": "here:1"}, "address:connections"),
    ],
)
def test_changes_that_make_no_sense_are_refused_and_nothing_changes(change: dict[str, str], text: str) -> None:
    settings = Settings(SSL)
    before = {name: settings[name] for name in settings}
    with pytest.raises(ConfigError, match=text):
        settings.set_dynamic(change, {})
    assert {name: settings[name] for name in settings} == before
    with pytest.raises(ConfigError, match=text):
        Settings({**SSL, **change})


def test_a_tls_listener_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match=r"listener SSL: TLS needs a certificate"):
        Settings({"listeners": "SSL://:1"})


def test_secrets_are_not_shown() -> None:
    secrets = {"ssl.keystore.key": "hidden-1", "ssl.keystore.certificate.chain": "hidden-2",
               "listener.name.ssl.ssl.key.password": "hidden-3"}  # fmt: skip
    settings = Settings({"listeners": "SSL://127.0.0.1:0", **secrets})
    assert "hidden" not in repr(settings.describe()) + repr(settings.tls_options("SSL"))
    assert settings.tls_options("SSL").key_password == "hidden-3"


def test_settings_that_shut_operators_out_can_be_ignored() -> None:
    settings = Settings({"ignored.dynamic.settings": "max.connections"})
    settings.set_dynamic({"max.connections": "1", "max.connections.per.ip": "5"}, {})
    assert (settings["max.connections"], settings["max.connections.per.ip"]) == (2**31 - 1, 5)


def test_overrides_by_address() -> None:
    assert parse_overrides(["127.0.0.1:5", "[::1]:0", "2001:DB8::0:1:7"]) == {
        "127.0.0.1": 5, "::1": 0, "2001:db8::1": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=ServiceUsers,C=DE", "kafka"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=Other", "CN=kafka,OU=Other"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*)$/$1@$2/L", "CN=App,OU=Team,O=x", "app@team"),
        ("RULE:^CN=(.*)$/$1/U, RULE:.*/all/", "CN=app", "APP"),
        ("RULE:^CN=(.*)$/$1/\nDEFAULT", "O=app", "O=app"),
        ("RULE:CN=(a)/$1/", "CN=ab", None),
        (r"RULE:CN=(\w+)\/(\w+)/$2\/\$1/", "CN=a/b", "b/$1"),
        ("RULE:CN=a{1,2},.*/short/", "CN=aa,O=b", "short"),
    ],
)
def test_names_of_principals(rules: str, subject: str, name: str | None) -> None:
    found = (rule.apply(subject) for rule in parse_rules(rules))
    assert next((one for one in found if one is not None), None) == name


@pytest.mark.parametrize("rules", ["RULE:CN=(a)/$2/", "RULE:CN=(a)/$1/X", "default", "DEFAULT RULE:a/b/"])
def test_what_is_no_rule(rules: str) -> None:
    with pytest.raises(ConfigError):
        parse_rules(rules)
