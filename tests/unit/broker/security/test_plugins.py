"""The classes that settings name, and the principals of `super.users`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from twisted.logger import globalLogPublisher

from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.security.plugins import make_authorizer, make_principal_builder, warn_unless_brokers_may_follow
from pylogd.broker.security.principal_builder import Authentication
from pylogd.broker.security.rules import AclAuthorizer
from pylogd.config import ConfigError, Settings
from pylogd.config.tls import parse_rules
from pylogd.credentials.principal import ANONYMOUS, Principal
from tests.docs.kinds import blocks_of_kind

ADMIN = Principal("User", "CN=admin,O=Example")
BROKER = Principal("User", "broker")


class Policy:
    """An operator's own authorizer."""

    version = 1

    def __init__(self, settings: Settings) -> None:
        self.node = settings.integer("node.id")

    def authorize(self, *question: Any) -> bool:
        return False

    def authorize_any(self, *question: Any) -> bool:
        return False


class Teams:
    """An operator's own principal builder."""

    def __init__(self, settings: Settings) -> None:
        pass

    def build(self, authentication: Authentication) -> Principal:
        return Principal("Team", (authentication.name or "nobody").partition("-")[0])


class NeedsMore:
    def __init__(self) -> None:
        pass


def settings(**values: object) -> Settings:
    return Settings({name.replace("_", "."): value for name, value in values.items()})


def test_without_the_setting_there_is_no_authorizer() -> None:
    assert make_authorizer(Settings()) is None


@pytest.mark.parametrize(
    "name", ["org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer"]
)
def test_kafka_s_names_mean_the_authorizer_by_acls(name: str) -> None:
    made = make_authorizer(settings(authorizer_class_name=name, super_users=f"User:root; {ADMIN};"), broker=BROKER)
    assert isinstance(made, AclAuthorizer)
    assert made.super_users == {Principal("User", "root"), ADMIN, BROKER}
    asked = ("10.0.0.1", AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert made.authorize(ADMIN, *asked) and not made.authorize(ANONYMOUS, *asked)


def test_classes_of_an_operator_s_own() -> None:
    made: Any = make_authorizer(settings(node_id=7, authorizer_class_name=f"{__name__}.Policy"))
    assert isinstance(made, Policy) and made.node == 7
    builder = make_principal_builder(Settings(), f"{__name__}.Teams")
    assert builder is not None
    assert builder.build(Authentication("SSL", "SSL", "h", "web-17")) == Principal("Team", "web")


def test_without_the_setting_there_is_no_builder() -> None:
    assert make_principal_builder(Settings(), None) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing.there.Class", "No module"),
        ("json.Missing", "Missing"),
        ("Class", "module is missing"),
        (f"{__name__}.NeedsMore", "TypeError"),
        (f"{__name__}.Teams", "it has no authorize, authorize_any, version"),
    ],
)
def test_a_class_that_cannot_be_used_is_an_error_of_the_settings(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        make_authorizer(settings(authorizer_class_name=name))
    assert "authorizer.class.name" in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [{"super.users": "alice"}, {"super.users": "User:a;:b"}, {"authorizer.class.name": "not a name"},
     {"principal.builder.class": "a..b"}, {"audit.log.max.queued": 0}],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_right(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Settings(values)


def test_brokers_that_may_not_follow_are_warned_of() -> None:
    name = "kafka.security.authorizer.AclAuthorizer"
    heard: list[Any] = []
    observer: Any = heard.append
    globalLogPublisher.addObserver(observer)
    try:
        warn_unless_brokers_may_follow(None, BROKER, "h")
        warn_unless_brokers_may_follow(make_authorizer(settings(authorizer_class_name=name), BROKER), BROKER, "h")
        assert not heard
        warn_unless_brokers_may_follow(make_authorizer(settings(authorizer_class_name=name)), BROKER, "h")
    finally:
        globalLogPublisher.removeObserver(observer)
    assert [event["broker"] for event in heard] == [BROKER]


def example(word: str) -> str:
    """Return the plug-in of docs/authorization.md that has a word."""
    (found,) = [block.text for block in blocks_of_kind("plug-in") if word in block.text]
    return found


def test_each_plug_in_of_the_documentation_is_tried_below() -> None:
    assert len(blocks_of_kind("plug-in")) == 2


def test_the_authorizer_in_the_documentation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("company_policies")
    exec(example("class TeamAuthorizer"), module.__dict__)
    monkeypatch.setitem(sys.modules, "company_policies", module)
    made = make_authorizer(settings(authorizer_class_name="company_policies.TeamAuthorizer"))
    assert made is not None
    asked = ("h", AclOperation.WRITE, ResourceType.TOPIC)
    assert made.authorize(Principal("Team", "web"), *asked, "web-clicks")
    assert not made.authorize(Principal("Team", "web"), *asked, "shop-orders")


def test_the_principal_builder_in_the_documentation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("company_principals")
    exec(example("class TeamPrincipals"), module.__dict__)
    monkeypatch.setitem(sys.modules, "company_principals", module)
    builder = make_principal_builder(Settings(), "company_principals.TeamPrincipals")
    assert builder is not None
    assert builder.build(Authentication("SSL", "SSL", "h", "web-17")) == Principal("Team", "web")
    assert builder.build(Authentication("PLAINTEXT", "PLAINTEXT", "h")) == ANONYMOUS
    with pytest.raises(ValueError, match="begin with their team"):
        builder.build(Authentication("SSL", "SSL", "h", "web"))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=broker1,OU=brokers,O=Example", "broker1"),
        ("CN=mallory,O=x CN=admin", "mallory"),
        ("CN=mallory,OU=a\\,CN=admin,O=x", "mallory"),
        ("CN=a\\,b,O=Example", "CN=a\\,b,O=Example"),
        ("O=x,CN=admin", "O=x,CN=admin"),
    ],
)
def test_the_rule_in_the_manual_takes_the_common_name_only(subject: str, name: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / "security.md").read_text("utf-8")
    (rules,) = re.findall(r'^"ssl.principal.mapping.rules" = "(.*?)"', text, re.MULTILINE)
    found = (rule.apply(subject) for rule in parse_rules(rules))
    assert next(one for one in found if one is not None) == name
