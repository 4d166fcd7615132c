"""The SASL mechanisms of a listener, from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylogd.broker.security.mechanisms import authentication_limits, make_mechanisms
from pylogd.config import ConfigError, Settings
from pylogd.credentials.conversation import AuthenticationFailed, Success

USERS: Any = None
JAAS = 'PlainLoginModule required user_alice="secret";'


def make(**settings: object) -> Any:
    """Return the mechanisms of the listener CLIENTS. Settings have underscores for dots; `own_` marks the listener's
    own.
    """
    named = {
        name.replace("_", ".").replace("own.", "listener.name.clients."): value for name, value in settings.items()
    }
    return make_mechanisms(Settings(named).for_listener("CLIENTS"), USERS)


def test_each_mechanism(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:secret\n")
    made = make(
        own_sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        sasl_plain_users_file=str(tmp_path / "users"),
        sasl_oauthbearer_jwks_endpoint_url="file:///nowhere",
    )
    assert [(name, mechanism.name) for name, mechanism in made.items()] == [
        (name, name) for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    ]
    assert isinstance(made["PLAIN"].start().step(b"\0alice\0secret"), Success)


def test_the_settings_of_a_mechanism_on_a_listener_come_first() -> None:
    made = make(
        sasl_enabled_mechanisms="PLAIN",
        sasl_jaas_config='PlainLoginModule required user_alice="broker";',
        own_sasl_jaas_config='PlainLoginModule required user_alice="listener";',
        own_plain_sasl_jaas_config='PlainLoginModule required username="admin" user_alice="mechanism";',
    )
    assert isinstance(made["PLAIN"].start().step(b"\0alice\0mechanism"), Success)
    for other in (b"broker", b"listener"):
        with pytest.raises(AuthenticationFailed):
            made["PLAIN"].start().step(b"\0alice\0" + other)
    with pytest.raises(AuthenticationFailed):
        made["PLAIN"].start().step(b"\0admin\0mechanism")


def test_limits_of_sessions() -> None:
    settings = Settings(
        {
            "connections.max.reauth.ms": 1000,
            "listener.name.clients.plain.connections.max.reauth.ms": 2000,
            "connection.failed.authentication.delay.ms": 5,
        }
    )
    limits = authentication_limits(settings.for_listener("CLIENTS"), {"PLAIN": None, "GSSAPI": None})
    assert (limits.session_ms, limits.failure_delay_ms) == ({"PLAIN": 2000, "GSSAPI": 1000}, 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "needs sasl.enabled.mechanisms"),
        ({"sasl_enabled_mechanisms": "PLAIN"}, "sasl.plain.users.file"),
        ({"sasl_enabled_mechanisms": "PLAIN", "sasl_jaas_config": JAAS, "sasl_plain_users_file": "x"}, "either"),
        ({"sasl_enabled_mechanisms": "PLAIN", "sasl_plain_users_file": "/nowhere/users"}, "No such file"),
        ({"sasl_enabled_mechanisms": "PLAIN", "sasl_jaas_config": "secret"}, "malformed"),
        ({"sasl_enabled_mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
        (
            {
                "sasl_enabled_mechanisms": "OAUTHBEARER",
                "sasl_oauthbearer_jwks_endpoint_url": "file:///x",
                "sasl_oauthbearer_unsecured_tokens_enable": "true",
            },
            "either",
        ),
        (
            {
                "sasl_enabled_mechanisms": "GSSAPI",
                "sasl_jaas_config": 'M required principal="kafka/h@R";',
                "sasl_kerberos_service_name": "other",
            },
            "service.name",
        ),
    ],
)
def test_settings_that_can_not_work_stop_the_start(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        make(**settings)
    assert "secret" not in str(caught.value)


def test_unknown_mechanisms_are_refused_with_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.enabled\.mechanisms"):
        Settings({"sasl.enabled.mechanisms": "ANONYMOUS"})


def test_secrets_are_not_described() -> None:
    settings = Settings({"sasl.jaas.config": JAAS, "listener.name.clients.plain.sasl.jaas.config": JAAS,
                         "delegation.token.secret.key": "secret"})  # fmt: skip
    shown = {entry.name: entry.value for entry in settings.describe()}
    assert "listener.name.clients.plain.sasl.jaas.config" in shown
    assert not any("secret" in (value or "") for value in shown.values())
