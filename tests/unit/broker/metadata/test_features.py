"""Features of a cluster whose brokers are upgraded one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.feature_levels import GROUP_VERSION, RANGES, TRANSACTION_VERSION
from pylogd.broker.metadata.features import FEATURES, Features, encode_features
from pylogd.broker.metadata.image import Broker, Endpoint, FeatureRange
from pylogd.broker.metadata.layout import decode_broker, encode_broker
from pylogd.store.interfaces import Create
from pylogd.store.paths import BROKERS
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer


@pytest.fixture
def features(store: SqliteStore, peer: Peer) -> Features:
    made = Features(peer.feed, peer.cluster)
    result_of(Deferred.fromCoroutine(made.reload(store)))
    return made


def join(store: SqliteStore, peer: Peer, node_id: int, *ranges: FeatureRange) -> None:
    """Have another broker register what it can use."""
    broker = Broker(node_id, (Endpoint("PLAINTEXT", "h", 9092),), features=ranges)
    result_of(store.create(f"{BROKERS}/{node_id}", encode_broker(broker)))
    look(peer)


def look(peer: Peer) -> None:
    result_of(Deferred.fromCoroutine(peer.cluster.look_again()))


def leave(store: SqliteStore, peer: Peer, node_id: int) -> None:
    result_of(store.delete(f"{BROKERS}/{node_id}"))
    look(peer)


def test_a_cluster_uses_what_all_its_brokers_know(store: SqliteStore, peer: Peer, features: Features) -> None:
    assert features.levels == {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
    join(store, peer, 2)  # of a release that registers no features
    assert features.levels == {}
    assert features.without(TRANSACTION_VERSION, 1) == [2]
    leave(store, peer, 2)
    assert features.levels == {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
    join(store, peer, 2, FeatureRange(TRANSACTION_VERSION, 0, 1))
    assert features.levels == {TRANSACTION_VERSION: 1}
    join(store, peer, 3, *RANGES)
    assert features.levels == {TRANSACTION_VERSION: 1}
    leave(store, peer, 2)
    assert features.levels == {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}


def test_a_level_that_was_chosen_is_used_once_all_brokers_know_it(
    store: SqliteStore, peer: Peer, features: Features
) -> None:
    join(store, peer, 2, FeatureRange(TRANSACTION_VERSION, 0, 1))
    chosen = encode_features({TRANSACTION_VERSION: 2, GROUP_VERSION: 0, "kraft.version": 1})
    result_of(Deferred.fromCoroutine(peer.feed.write([Create(FEATURES, chosen)], [FEATURES])))
    assert (features.levels, features.epoch) == ({TRANSACTION_VERSION: 1, "kraft.version": 1}, 1)
    leave(store, peer, 2)
    assert (features.levels, features.epoch) == ({TRANSACTION_VERSION: 2, "kraft.version": 1}, 1)


def test_a_broker_that_has_newer_features_changes_nothing(store: SqliteStore, peer: Peer, features: Features) -> None:
    join(store, peer, 2, *RANGES, FeatureRange("share.version", 0, 1))
    assert features.levels == {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
    assert (features.most(GROUP_VERSION), features.most(TRANSACTION_VERSION)) == (1, 2)


def test_the_registration_is_kafkas(peer: Peer) -> None:
    registered = peer.cluster.brokers[1]
    assert registered.features == RANGES
    document: dict[str, Any] = json.loads(encode_broker(registered))
    assert document["features"] == {
        "group.version": {"min_version": 0, "max_version": 1},
        "transaction.version": {"min_version": 0, "max_version": 2},
    }
    del document["features"]
    assert decode_broker(f"{BROKERS}/1", json.dumps(document).encode()).features == ()
