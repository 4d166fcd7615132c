"""Settings of users, client ids and addresses: where they are stored, and how brokers learn of changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.entity_configs import (
    DEFAULT_NAME,
    Entity,
    EntityConfigs,
    entity_of_path,
    entity_path,
    sanitize,
)
from pylogd.broker.metadata.service import Metadata
from pylogd.config import Settings
from pylogd.store.interfaces import check_path
from tests.fakes.metadata import InlineStore, result_of

PATHS = {
    "/config/users/ann": Entity(user="ann"),
    "/config/users/<default>": Entity(user=DEFAULT_NAME),
    "/config/users/ann/clients/app": Entity("ann", "app"),
    "/config/users/<default>/clients/<default>": Entity(DEFAULT_NAME, DEFAULT_NAME),
    "/config/clients/app%201": Entity(client_id="app 1"),
    "/config/ips/10.0.0.1": Entity(ip="10.0.0.1"),
    "/config/ips/%3A%3A1": Entity(ip="::1"),
}
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable())


@pytest.mark.parametrize("path", PATHS)
def test_entities_are_kept_where_kafka_keeps_them(path: str) -> None:
    assert entity_path(PATHS[path]) == path
    assert entity_of_path(path) == PATHS[path]


@pytest.mark.parametrize(
    ("name", "in_path"),
    [
        ("CN=ann, O=x y", "CN%3Dann%2C%20O%3Dx%20y"), ("a*b~c+d", "a%2Ab%7Ec%2Bd"), ("é", "%C3%A9"),
        ("<default>", "%3Cdefault%3E"), ("a.b-c_d", "a.b-c_d"), ("..", "%2E%2E"),
    ],
)  # fmt: skip
def test_names_are_encoded_as_kafka_does(name: str, in_path: str) -> None:
    assert sanitize(name) == in_path


@given(user=NAMES, client_id=NAMES)
def test_any_name_is_found_again(user: str, client_id: str) -> None:
    path = entity_path(Entity(user, client_id))
    assert check_path(path)
    assert entity_of_path(path) == Entity(user, client_id)


@pytest.mark.parametrize("entity", [Entity(), Entity("ann", None, "10.0.0.1"), Entity(None, "app", "10.0.0.1")])
def test_other_combinations_have_no_settings(entity: Entity) -> None:
    with pytest.raises(ValueError, match="an entity is"):
        entity_path(entity)


@pytest.mark.parametrize(
    "path", ["/config/users", "/config/users/a/clients", "/config/clients/a/b", "/config/topics/a"]
)
def test_other_paths_are_of_no_entity(path: str) -> None:
    assert entity_of_path(path) is None


class Brokers:
    """Several brokers on one store."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metadata.sqlite"
        self.store = InlineStore(self.path)
        self.metadata = Metadata(Settings({"node.id": 1, "log.dirs": "/data"}), self.store)
        result_of(self.metadata.start())
        self.configs = self.metadata.entity_configs
        self.told: list[set[Entity]] = []
        self.configs.subscribe(lambda entities: self.told.append(set(entities)))

    def other(self) -> EntityConfigs:
        """Return the settings as another broker that has just started reads them."""
        found = Metadata(Settings({"node.id": 2, "log.dirs": "/data"}), self.store)
        result_of(found.cluster.start())
        result_of(found.feed.start())
        return found.entity_configs


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    result_of(made.metadata.stop())


def test_a_change_is_written_as_kafka_writes_it_and_read_by_every_broker(brokers: Brokers) -> None:
    other = brokers.other()
    both = Entity("ann", "app")
    result_of(brokers.configs.alter(both, {"producer_byte_rate": "1024.0", "consumer_byte_rate": "5"}))
    result_of(brokers.configs.alter(Entity(user="ann"), {"request_percentage": "50"}))
    result_of(other.alter(both, {"consumer_byte_rate": None}))
    expected = {both: {"producer_byte_rate": "1024.0"}, Entity(user="ann"): {"request_percentage": "50"}}
    assert dict(brokers.configs.configs) == dict(other.configs) == expected
    assert dict(brokers.other().configs) == expected
    stored = result_of(brokers.store.get("/config/users/ann/clients/app")).data
    assert json.loads(stored) == {"version": 1, "config": {"producer_byte_rate": "1024.0"}}
    assert brokers.told == [{both}, {Entity(user="ann")}, {both}]


def test_an_entity_without_settings_is_not_listed(brokers: Brokers) -> None:
    entity = Entity(client_id=DEFAULT_NAME)
    result_of(brokers.configs.alter(entity, {"producer_byte_rate": "1"}))
    result_of(brokers.configs.alter(entity, {"producer_byte_rate": None}))
    assert not brokers.configs.configs
    assert not brokers.other().configs
    result_of(brokers.configs.alter(entity, {"never_set": None}))
    assert len(brokers.told) == 2  # the last change had no effect


def test_what_cannot_be_read_keeps_its_settings(brokers: Brokers) -> None:
    good, bad = Entity(user="good"), Entity(user="bad")
    for entity in (good, bad):
        result_of(brokers.configs.alter(entity, {"request_percentage": "1"}))
    result_of(brokers.store.set(entity_path(bad), b"not JSON"))
    result_of(Deferred.fromCoroutine(brokers.configs.reload(brokers.store)))
    assert brokers.configs.configs[bad] == {"request_percentage": "1"}
    assert set(brokers.other().configs) == {good}


def test_a_listener_that_raises_harms_nobody(brokers: Brokers) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a listener's own fault")

    undo = brokers.configs.subscribe(broken)
    result_of(brokers.configs.alter(Entity(user="ann"), {"request_percentage": "1"}))
    undo()
    assert brokers.configs.configs
