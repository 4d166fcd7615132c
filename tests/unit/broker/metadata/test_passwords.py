"""Passwords that are set at run time lie encrypted in the metadata store."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import InvalidConfig
from pylogd.broker.metadata.passwords import PasswordEncoder
from pylogd.config import ConfigError
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer

NAME = "listener.name.ssl.ssl.key.password"
PLAIN = {NAME: "hush-hush", "max.connections": "100"}


def encoder(secret: str | None = "of the cluster", old: str | None = None) -> PasswordEncoder:
    return PasswordEncoder(lambda: (secret, old))


def test_only_sensitive_values_are_encrypted() -> None:
    stored = encoder().encode(PLAIN, {})
    assert stored["max.connections"] == "100"
    assert "hush" not in stored[NAME]
    assert encoder().decode(stored) == (PLAIN, [])
    assert encoder().encode(PLAIN, {})[NAME] != stored[NAME], "each has a salt of its own"


def test_another_secret_or_setting_decrypts_nothing() -> None:
    stored = encoder().encode(PLAIN, {})
    assert encoder("another").decode(stored) == ({"max.connections": "100"}, [NAME])
    assert encoder(None).decode(stored) == ({"max.connections": "100"}, [NAME])
    moved = {"ssl.key.password": stored[NAME]}
    assert encoder().decode(moved) == ({}, ["ssl.key.password"]), "it was moved to another setting"
    for damaged in (stored[NAME][:-8], stored[NAME][:20], stored[NAME] + "!", stored[NAME][:-6] + "AAAA=="):
        assert encoder().decode({NAME: damaged}) == ({}, [NAME])


def test_a_former_secret_decrypts_until_the_value_is_set_again() -> None:
    stored = encoder("former").encode(PLAIN, {})
    both = encoder("new", "former")
    assert both.decode(stored) == (PLAIN, [])
    again = both.encode(PLAIN, stored)
    assert encoder("new").decode(again) == (PLAIN, [])


def test_without_a_secret_nothing_new_is_stored() -> None:
    with pytest.raises(ConfigError, match=r"set password\.encoder\.secret"):
        encoder(None).encode(PLAIN, {})
    assert encoder(None).encode({"max.connections": "100"}, {}) == {"max.connections": "100"}


def test_what_an_earlier_release_stored_readable_is_read_and_then_encrypted() -> None:
    assert encoder(None).decode(PLAIN) == (PLAIN, [])
    assert encoder(None).encode(PLAIN, PLAIN) == PLAIN, "changes of other settings still work"
    assert "hush" not in encoder().encode(PLAIN, PLAIN)[NAME]


def test_a_value_that_looks_encrypted_is_a_value() -> None:
    odd = {NAME: "pylogd:aes-gcm:AAAA"}
    assert encoder().decode(encoder().encode(odd, {})) == (odd, [])


def test_the_store_has_nothing_readable(store: SqliteStore) -> None:
    """Two brokers with the same secret use what one of them is told; one with another secret ignores it."""
    secret = "of the cluster"
    one, two = (Peer(store, node, password_encoder_secret=secret) for node in (1, 2))
    key = ConfigChange("ssl.key.password", ConfigOperation.SET, "hush-hush")
    result_of(one.configs.alter(None, [key, ConfigChange("max.connections", ConfigOperation.SET, "100")]))
    result_of(Deferred.fromCoroutine(two.feed.catch_up()))
    assert one.settings["ssl.key.password"] == two.settings["ssl.key.password"] == "hush-hush"
    assert b"hush" not in result_of(store.get("/config/brokers/<default>")).data
    other = Peer(store, 3, password_encoder_secret="another")
    assert (other.settings["ssl.key.password"], other.settings["max.connections"]) == (None, 100)
    result_of(other.configs.alter(None, [ConfigChange("max.connections", ConfigOperation.SET, "200")]))
    again = Peer(store, 4, password_encoder_secret=secret)
    assert (again.settings["ssl.key.password"], again.settings["max.connections"]) == ("hush-hush", 200), "it is kept"


def test_a_broker_without_a_secret_refuses(peer: Peer) -> None:
    key = ConfigChange("ssl.key.password", ConfigOperation.SET, "hush-hush")
    for dry in (True, False):
        with pytest.raises(InvalidConfig, match=r"set password\.encoder\.secret"):
            result_of(peer.configs.alter(None, [key], validate_only=dry))
    result_of(peer.configs.alter(None, [ConfigChange("max.connections", ConfigOperation.SET, "100")]))
