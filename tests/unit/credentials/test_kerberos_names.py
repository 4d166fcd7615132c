"""Short names of Kerberos principals, by Kafka's rules."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.credentials.conversation import AuthenticationFailed
from pylogd.credentials.kerberos import LocalNames

REALM = "EXAMPLE.COM"


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        ([], "alice@EXAMPLE.COM", "alice"),
        (["DEFAULT"], "kafka/host.example.com@EXAMPLE.COM", "kafka"),
        ([], "alice", "alice"),
        (["RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//", "DEFAULT"], "bob@OTHER.ORG", "bob"),
        (["RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//", "DEFAULT"], "bob@EXAMPLE.COM", "bob"),
        (["RULE:[2:$1.$2]"], "kafka/host@ANY", "kafka.host"),
        (["RULE:[1:$1]/L"], "Alice@ANY", "alice"),
        (["RULE:[1:$1]/U"], "Alice@ANY", "ALICE"),
        (["RULE:[1:$1](App.*)s/App(.*)/$1/g/L"], "AppOne@ANY", "one"),
        (["RULE:[1:$1](.*)s/a/b/"], "aaa@ANY", "baa"),
        (["RULE:[1:$1](.*)s/a/b/g"], "aaa@ANY", "bbb"),
    ],
)
def test_rules(rules: list[str], principal: str, name: str) -> None:
    assert LocalNames(rules, REALM).short_name(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ([], "alice@OTHER.ORG"),
        (["RULE:[2:$1]"], "alice@EXAMPLE.COM"),
        (["RULE:[1:$1@$0]"], "alice@EXAMPLE.COM"),  # its result is no short name
        (["RULE:[1:$1](.*)s/.*//"], "alice@EXAMPLE.COM"),
        ([], "a/b/c@EXAMPLE.COM"),
        ([], ""),
    ],
)
def test_principals_without_a_short_name(rules: list[str], principal: str) -> None:
    with pytest.raises(AuthenticationFailed):
        LocalNames(rules, REALM).short_name(principal)


@pytest.mark.parametrize(
    "rule", ["default", "RULE:[3:$1]", "RULE:[1:$1](()", "RULE:[1:$1]s/a", "RULE:[1:$1](.*)s/(/x/"]
)
def test_malformed_rules(rule: str) -> None:
    with pytest.raises(ValueError, match=r"rule|regular expression"):
        LocalNames([rule], REALM)


@given(st.text())
def test_any_principal_raises_typed_errors_only(principal: str) -> None:
    with contextlib.suppress(AuthenticationFailed):
        assert LocalNames(["RULE:[1:$1@$0](.*@X)s/@.*//", "DEFAULT"], REALM).short_name(principal)
