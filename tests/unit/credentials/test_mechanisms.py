"""The registered SASL mechanisms."""

from __future__ import annotations

import pytest

from pylogd.config import SETTINGS
from pylogd.credentials.mechanisms import MECHANISMS, Login


def test_the_settings_offer_every_mechanism() -> None:
    offered = SETTINGS["sasl.enabled.mechanisms"].choices
    assert set(offered) == set(MECHANISMS)


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_password_needs_both_parts(name: str) -> None:
    mechanism = MECHANISMS[name]
    login = mechanism.login({"username": "alice", "password": "secret", "tokenauth": "TRUE"}, {})
    assert login == Login("alice", "secret", by_delegation_token=True)
    assert mechanism.missing(login) == ""
    assert mechanism.missing(Login("alice")) == "sasl_username and sasl_password"
    assert mechanism.begin(login, "host").mechanism == name


def test_a_broker_needs_a_keytab_and_a_realm() -> None:
    mechanism = MECHANISMS["GSSAPI"]
    assert mechanism.is_complete_for_broker(Login(keytab="/etc/keytab", principal="kafka/one@REALM"))
    assert not mechanism.is_complete_for_broker(Login(keytab="/etc/keytab", principal="kafka/one"))
    assert not mechanism.is_complete_for_broker(Login(principal="kafka/one@REALM"))


def test_no_login_shows_its_password() -> None:
    assert "secret" not in repr(Login("alice", "secret"))
