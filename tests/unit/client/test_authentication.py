"""SASL on the connections of a client, without sockets: the messages in order, and the effects of failures."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.client.core.errors import AuthenticationFailed, is_retriable
from pylogd.client.core.link import LinkState
from pylogd.client.core.security import SecurityOptions
from pylogd.credentials.passwords import KnownPasswords
from pylogd.credentials.plain import PlainMechanism
from pylogd.wire.messages import ApiKey
from tests.fakes.links import VERSIONS, World

USERS = {"PLAIN": PlainMechanism(KnownPasswords({"alice": "secret"}))}


def plain(password: Any = "secret") -> SecurityOptions:
    return SecurityOptions(
        protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=password
    )


def world(security: SecurityOptions, **options: Any) -> World:
    made = World(security=security, **options)
    made.mechanisms = USERS
    return made


def failure(world: World) -> AuthenticationFailed:
    [error] = world.outcomes
    assert isinstance(error, AuthenticationFailed) and not is_retriable(error)
    assert "secret" not in str(error) and "wrong" not in str(error)
    return error


def test_requests_wait_until_it_has_authenticated() -> None:
    clients = world(plain())
    clients.send()
    assert clients.peer().principals == ["alice"] and len(clients.peer().requests) == 1
    clients.peer().answer(0.0, "x")
    assert clients.outcomes == ["x"]


def test_a_wrong_password_fails_what_waits_and_is_not_tried_again_at_once() -> None:
    clients = world(plain("wrong"), reconnect_backoff=0.05, reconnect_backoff_max=1.0)
    clients.send()
    assert "check the credentials" in str(failure(clients))
    assert clients.peer().closed
    clients.outcomes.clear()
    clients.now = 0.9
    clients.send()
    assert isinstance(clients.outcomes[0], AuthenticationFailed) and clients.opened == ["a"]
    clients.now = 2.1
    clients.send()
    assert clients.opened == ["a", "a"]
    clients.run(600.0)
    assert clients.opened == ["a", "a"], "nothing is tried for nobody"


def test_a_mechanism_that_the_broker_does_not_offer() -> None:
    clients = world(
        SecurityOptions(
            protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="alice", sasl_password="secret"
        )
    )
    clients.send()
    assert "does not offer the mechanism SCRAM-SHA-512; it offers PLAIN" in str(failure(clients))


@pytest.mark.parametrize(
    "versions", [None, {key: span for key, span in VERSIONS.items() if key != ApiKey.SASL_HANDSHAKE}]
)
def test_a_listener_without_sasl(versions: dict[int, tuple[int, int]] | None) -> None:
    clients = world(plain())
    clients.mechanisms = {}
    clients.listening["a"] = versions
    clients.send()
    assert "check security.protocol and the port" in str(failure(clients))


def test_steps_that_may_wait_are_done_elsewhere() -> None:
    clients = world(plain(lambda: "secret"))
    clients.working = False
    clients.send()
    assert [effect.link.state for effect in clients.work] == [LinkState.AUTHENTICATING]
    assert not clients.peer().principals
    clients.do_work()
    clients.perform()
    assert clients.peer().principals == ["alice"]
    clients.do_work()
    clients.perform()
    assert len(clients.peer().requests) == 1


def test_a_function_that_fails_is_a_failed_authentication() -> None:
    def forgotten() -> str:
        raise AuthenticationFailed("the vault is closed")

    clients = world(plain(forgotten))
    clients.send()
    assert "the vault is closed" in str(failure(clients))


def test_work_for_a_connection_that_has_ended_changes_nothing() -> None:
    clients = world(plain(lambda: "secret"))
    clients.working = False
    clients.send()
    [link] = clients.network.links
    clients.network.abandon_link(link, 0.0)
    clients.do_work()
    clients.perform()
    assert link.state is LinkState.CLOSED and not clients.peer().principals


def test_it_authenticates_again_before_the_session_ends() -> None:
    clients = world(plain())
    clients.lifetime_ms = 100_000
    clients.send()
    clients.peer().answer(0.0)
    clients.now = 84.0
    clients.send()
    assert clients.peer().principals == ["alice"]
    clients.now = 95.1
    clients.send()
    [link] = clients.network.links
    assert link.state is LinkState.REAUTHENTICATING
    assert [event.api_key for event in clients.peer().requests] == [ApiKey.METADATA, ApiKey.SASL_HANDSHAKE]
    assert clients.network.next_time() == 124.0, "the broker may take its time for the request in front"
    clients.run(124.0)
    assert link not in clients.network.links and clients.opened == ["a", "a"], "what was not sent goes another way"


def test_requests_follow_a_second_authentication() -> None:
    clients = world(plain())
    clients.lifetime_ms = 100_000
    clients.send()
    clients.send()
    clients.now = 96.0
    clients.send()
    peer = clients.peer()
    for name in "xy":
        peer.answer(clients.now, name)
        clients.perform()
    assert peer.principals == ["alice", "alice"] and len(peer.requests) == 1
    peer.answer(clients.now, "z")
    assert clients.outcomes == ["x", "y", "z"]
    assert clients.opened == ["a"]


def test_a_second_authentication_that_fails_ends_the_connection() -> None:
    passwords = iter(["secret", "wrong", "wrong"])
    clients = world(plain(lambda: next(passwords)))
    clients.lifetime_ms = 100_000
    clients.send()
    clients.peer().answer(0.0, "x")
    clients.now = 96.0
    clients.send()
    assert clients.outcomes[0] == "x" and isinstance(clients.outcomes[1], AuthenticationFailed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"protocol": "TLS"}, "protocol must be"),
        ({"protocol": "SASL_SSL"}, "sasl_mechanism must be"),
        ({"protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a"}, "sasl_password"),
        ({"protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "sasl_token"),
        ({"protocol": "SSL", "sasl_mechanism": "PLAIN"}, "SASL_SSL"),
        ({"ssl_min_version": "TLSv1.1"}, "ssl_min_version"),
        (
            {"protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b",
             "sasl_delegation_token": True},
            "delegation tokens",
        ),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SecurityOptions(**options)


def test_no_secret_is_in_a_repr() -> None:
    security = SecurityOptions(
        protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="hunter2",
        ssl_key="-----BEGIN PRIVATE KEY-----hunter2", ssl_key_password="hunter2",
    )  # fmt: skip
    assert "hunter2" not in repr(security) and "alice" in repr(security)
