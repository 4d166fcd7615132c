"""The cluster id, live brokers, producer ids, and the dynamic settings of single brokers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import InvalidConfig, ProducerIdsExhausted
from pylogd.broker.metadata.feature_levels import RANGES
from pylogd.broker.metadata.image import Broker, Endpoint, id_from_text
from pylogd.broker.metadata.layout import (
    broker_config_path,
    broker_epoch_path,
    encode_broker,
    encode_configs,
    encode_incarnations,
    encode_producer_block,
)
from pylogd.broker.metadata.producer_ids import PRODUCER_ID_BLOCK, ProducerIds
from pylogd.broker.metadata.service import Metadata, open_store
from pylogd.config import Settings
from pylogd.config.metadata_store import METADATA_FILE
from pylogd.store.errors import CorruptMetadata, NodeIdInUse, StoreFailure
from pylogd.store.interfaces import Create, Delete, SessionState, SetData
from pylogd.store.paths import BROKERS, INCARNATIONS, PRODUCER_IDS
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import InlineStore, ThreadsOnly, result_of
from tests.unit.broker.metadata.conftest import Peer

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


def test_the_clusters_id_is_made_once(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    assert one.cluster.cluster_id == two.cluster.cluster_id
    assert len(id_from_text(one.cluster.cluster_id)) == 16


def test_a_damaged_cluster_id_is_refused(store: SqliteStore) -> None:
    result_of(store.ensure("/cluster/id"))
    with pytest.raises(CorruptMetadata, match="/cluster/id"):
        result_of(Cluster(store, 1, ChangeFeed(store)).start())


def test_live_brokers_are_known_to_all(store: SqliteStore) -> None:
    one = Peer(store, 1)
    heard: list[int] = []
    one.cluster.subscribe(lambda: heard.append(len(one.cluster.brokers)))
    two = Peer(store, 2)
    assert one.cluster.brokers == two.cluster.brokers
    assert one.cluster.brokers[2].host == "host2"
    result_of(store.delete(f"{BROKERS}/2"))
    assert sorted(one.cluster.brokers) == [1]
    assert heard == [2, 1]


@pytest.mark.parametrize(("controller", "at_once"), [(1, False), (100, True)])
def test_brokers_of_a_large_cluster_read_one_after_the_other_who_has_gone(
    store: SqliteStore, controller: int, at_once: bool
) -> None:
    clock = Clock()
    cluster = Cluster(store, 100, ChangeFeed(store), cast(IReactorTime, clock))
    result_of(cluster.start())
    registering = cluster.register(Broker(100, (Endpoint("PLAINTEXT", "b", 2),)))
    clock.advance(1)
    result_of(registering)
    for node in range(1, 21):
        Peer(store, node)
        clock.advance(1)
    assert len(cluster.brokers) == 21
    cluster.controller_changed(controller)
    result_of(store.delete(f"{BROKERS}/5"))
    assert (5 not in cluster.brokers) == at_once
    result_of(store.delete(f"{BROKERS}/6"))
    clock.advance(21 * 0.000_25)
    assert len(cluster.brokers) == 19
    result_of(store.delete(f"{BROKERS}/7"))
    cluster.stop()
    assert not clock.getDelayedCalls()


def test_a_broker_may_register_again(peer: Peer) -> None:
    moved = Broker(1, (Endpoint("IN", "::1", 5), Endpoint("OUT", "kafka.example", 6)), rack="r1", features=RANGES)
    result_of(peer.cluster.register(moved))
    assert replace(peer.cluster.brokers[1], incarnation=0, epoch=-1) == moved
    assert moved.endpoint("OUT") == Endpoint("OUT", "kafka.example", 6)
    assert moved.endpoint("ELSE") is None
    assert (moved.host, moved.port) == ("::1", 5)


def test_a_node_id_is_taken_once(store: SqliteStore) -> None:
    path = f"{BROKERS}/1"
    result_of(store.ensure(path))  # persistent, so it belongs to no session
    result_of(store.set(path, encode_broker(Broker(1, (Endpoint("PLAINTEXT", "b", 2),), directory_id="theirs"))))
    cluster = Cluster(store, 1, ChangeFeed(store))
    result_of(cluster.start())
    with pytest.raises(NodeIdInUse, match=r"node\.id 1"):
        result_of(cluster.register(Broker(1, (Endpoint("PLAINTEXT", "a", 1),), directory_id="ours")))
    with pytest.raises(NodeIdInUse):
        result_of(cluster.register(Broker(1, (Endpoint("PLAINTEXT", "a", 1),))))


def test_the_registration_of_a_broker_that_died_is_taken_over(store: SqliteStore, peer: Peer) -> None:
    path = f"{BROKERS}/2"
    left = Broker(2, (Endpoint("PLAINTEXT", "a", 1),), directory_id="same")
    result_of(store.ensure(path))
    result_of(store.set(path, encode_broker(left)))
    cluster = Cluster(store, 2, ChangeFeed(store))
    result_of(cluster.start())
    before = cluster.brokers[2].incarnation
    result_of(cluster.register(Broker(2, (Endpoint("PLAINTEXT", "c", 3),), directory_id="same")))
    assert cluster.brokers[2].host == "c"
    assert cluster.brokers[2].incarnation > before
    assert peer.cluster.brokers[2] == cluster.brokers[2]


def test_a_broker_that_stops_says_so(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    heard: list[bool] = []
    one.cluster.subscribe(lambda: heard.append(one.cluster.brokers[2].stopping))
    result_of(Deferred.fromCoroutine(two.cluster.own.mark_stopping()))
    assert two.cluster.brokers[2].stopping
    assert heard == [True]


def test_a_broker_is_accepted_once_a_controller_has_it(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    assert not one.cluster.accepted
    numbers = {node: broker.incarnation for node, broker in one.cluster.brokers.items()}
    result_of(store.ensure(INCARNATIONS))
    heard: list[bool] = []
    two.cluster.subscribe(lambda: heard.append(two.cluster.accepted))
    write = one.feed.write([SetData(INCARNATIONS, encode_incarnations(numbers))], [INCARNATIONS])
    result_of(Deferred.fromCoroutine(write))
    assert heard == [True]
    assert one.cluster.accepted
    assert Peer(store, 3).cluster.acknowledged == numbers


def test_a_registration_of_which_only_the_controller_knows_is_read(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    path = f"{BROKERS}/2"
    one.cluster._registrations._changed = lambda: None  # its watches tell nothing
    moved = replace(two.cluster.brokers[2], endpoints=(Endpoint("PLAINTEXT", "moved", 1),), announced=False)
    result_of(store.multi([Delete(path), Create(path, encode_broker(moved))]))
    assert one.cluster.brokers[2].host == "host2"
    numbers = {2: two.cluster.brokers[2].incarnation}
    result_of(store.ensure(INCARNATIONS))
    write = one.feed.write([SetData(INCARNATIONS, encode_incarnations(numbers))], [INCARNATIONS])
    result_of(Deferred.fromCoroutine(write))
    assert one.cluster.brokers[2].host == "moved"
    assert one.cluster.brokers[2].incarnation == numbers[2]


def test_a_lost_registration_is_made_again(store: SqliteStore, peer: Peer) -> None:
    result_of(store.delete(f"{BROKERS}/1"))
    assert not peer.cluster.brokers
    peer.cluster.own._session = 0  # as after an expired session
    store._tell(SessionState.CONNECTED)
    assert sorted(peer.cluster.brokers) == [1]
    peer.cluster.stop()


def test_a_broker_whose_node_id_was_taken_stops(store: SqliteStore, peer: Peer) -> None:
    """Another broker took its node id while its session was lost: it does not register again."""
    ousted: list[str] = []
    peer.cluster.on_ousted = lambda error: ousted.append(str(error))
    taken = encode_broker(Broker(1, (Endpoint("PLAINTEXT", "their-host", 2),), directory_id="theirs"))
    result_of(store.delete(f"{BROKERS}/1"))
    result_of(store.ensure(f"{BROKERS}/1"))  # persistent, so it belongs to no session
    result_of(store.set(f"{BROKERS}/1", taken))
    peer.cluster.own._session = 0  # as after an expired session
    store._tell(SessionState.CONNECTED)
    assert len(ousted) == 1
    assert "node.id 1" in ousted[0]
    assert "their-host:2" in ousted[0]
    store._tell(SessionState.CONNECTED)
    assert result_of(store.get(f"{BROKERS}/1")).data == taken
    assert len(ousted) == 1


def test_a_broker_whose_registration_was_replaced_stops(store: SqliteStore, peer: Peer) -> None:
    ousted: list[str] = []
    peer.cluster.on_ousted = lambda error: ousted.append(str(error))
    result_of(store.delete(f"{BROKERS}/1"))
    assert not ousted
    result_of(store.multi([Create(f"{BROKERS}/1", encode_broker(Broker(1, (Endpoint("PLAINTEXT", "b", 2),))))]))
    assert len(ousted) == 1


def test_producer_ids_are_never_given_twice(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    ids = [result_of(peer.producer_ids.next()) for _ in range(PRODUCER_ID_BLOCK + 5) for peer in (one, two)]
    assert len(set(ids)) == len(ids)
    assert min(ids) == 0
    assert result_of(ProducerIds(store, 1).next()) > max(ids)


def test_concurrent_callers_get_different_producer_ids(peer: Peer) -> None:
    deferreds = [peer.producer_ids.next() for _ in range(10)]
    assert [result_of(deferred) for deferred in deferreds] == list(range(10))


def test_no_producer_id_is_beyond_the_last_one(peer: Peer, store: SqliteStore) -> None:
    last = (1 << 63) - 1
    result_of(store.set("/latest_producer_id_block", encode_producer_block(1, 0, last - PRODUCER_ID_BLOCK)))
    assert [result_of(peer.producer_ids.next()) for _ in range(PRODUCER_ID_BLOCK)][-1] == last
    with pytest.raises(ProducerIdsExhausted, match="/latest_producer_id_block"):
        result_of(peer.producer_ids.next())


def test_a_damaged_block_of_producer_ids_is_refused(peer: Peer, store: SqliteStore) -> None:
    result_of(store.set(PRODUCER_IDS, b"{}"))
    with pytest.raises(CorruptMetadata):
        result_of(peer.producer_ids.next())


def test_broker_settings_take_effect_everywhere(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    result_of(one.configs.alter(None, [ConfigChange("log.segment.bytes", SET, "2000000")]))
    result_of(one.configs.alter(2, [ConfigChange("log.segment.bytes", SET, "3000000")]))
    assert (one.settings["log.segment.bytes"], two.settings["log.segment.bytes"]) == (2000000, 3000000)
    result_of(two.configs.replace(None, {"log.retention.ms": "5"}))
    assert (one.settings["log.segment.bytes"], one.settings["log.retention.ms"]) == (1 << 30, 5)
    result_of(two.configs.alter(2, [ConfigChange("log.segment.bytes", DELETE)]))
    assert two.settings["log.segment.bytes"] == 1 << 30
    late = Peer(store, 3)
    assert late.settings["log.retention.ms"] == 5


@pytest.mark.parametrize("broker", [None, 1])
def test_bad_broker_settings_are_refused(peer: Peer, broker: int | None) -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}
    for configs in ({"node.id": "2"}, {"no.such": "1"}, {"log.segment.bytes": "x"}, lags):
        with pytest.raises(InvalidConfig):
            result_of(peer.configs.replace(broker, configs))
    result_of(peer.configs.replace(broker, {"log.segment.bytes": "5000000"}, validate_only=True))
    assert peer.settings["log.segment.bytes"] == 1 << 30


def test_stored_settings_that_this_release_does_not_know_are_passed_over(store: SqliteStore) -> None:
    result_of(store.ensure(broker_config_path(None)))
    stored = {"log.segment.bytes": "2000000", "of.a.later.release": "1", "log.retention.ms": "x"}
    result_of(store.set(broker_config_path(None), encode_configs(stored)))
    assert Peer(store, 1).settings["log.segment.bytes"] == 2000000


def test_the_service_starts_and_stops_its_parts(tmp_path: Path) -> None:
    settings = Settings({"log.dirs": [str(tmp_path)]})
    metadata = Metadata(settings, InlineStore(tmp_path / METADATA_FILE))
    result_of(metadata.start())
    result_of(metadata.cluster.register(Broker(1, (Endpoint("PLAINTEXT", "a", 1),))))
    made = result_of(metadata.topic_admin.create_topic("a"))
    result_of(metadata.broker_configs.alter(1, [ConfigChange("log.segment.bytes", SET, "2000000")]))
    result_of(metadata.stop())

    settings = Settings({"log.dirs": [str(tmp_path)]})
    reactor = ThreadsOnly()
    metadata = Metadata(settings, open_store(settings, reactor))
    result_of(metadata.start(), reactor.run_one)
    assert metadata.topics.all() == [made]
    assert settings["log.segment.bytes"] == 2000000
    assert not metadata.cluster.brokers
    result_of(metadata.stop(), reactor.run_one)


def test_a_start_that_fails_closes_the_store(tmp_path: Path) -> None:
    settings = Settings({"log.dirs": [str(tmp_path)]})
    store = InlineStore(tmp_path / METADATA_FILE)
    result_of(store.start())
    with pytest.raises(StoreFailure, match="another process"):
        result_of(Metadata(settings, InlineStore(tmp_path / METADATA_FILE)).start())
    result_of(store.ensure("/cluster/id"))
    result_of(store.close())
    with pytest.raises(CorruptMetadata):
        result_of(Metadata(settings, InlineStore(tmp_path / METADATA_FILE)).start())
    result_of(store.start())
    result_of(store.close())


def test_each_registration_has_a_greater_epoch_and_leaves_its_directories(store: SqliteStore, peer: Peer) -> None:
    first = peer.cluster.epoch
    assert peer.cluster.brokers[1].epoch == first >= 0
    assert result_of(Deferred.fromCoroutine(peer.cluster.own.former_directories())) == frozenset()
    result_of(store.delete(f"{BROKERS}/1"))
    result_of(peer.cluster.register(Broker(1, (Endpoint("PLAINTEXT", "a", 1),), directories=("x", "y"))))
    assert peer.cluster.brokers[1].epoch == peer.cluster.epoch == first + 1
    assert result_of(store.get(broker_epoch_path(1))).stat.version == peer.cluster.epoch
    assert result_of(Deferred.fromCoroutine(peer.cluster.own.former_directories())) == {"x", "y"}


def test_a_refused_registration_keeps_the_owners_epoch(store: SqliteStore, peer: Peer) -> None:
    other = Cluster(store, 1, ChangeFeed(store))
    result_of(store.delete(f"{BROKERS}/1"))
    result_of(store.ensure(f"{BROKERS}/1"))  # persistent, so it belongs to no session
    result_of(store.set(f"{BROKERS}/1", encode_broker(Broker(1, (Endpoint("PLAINTEXT", "b", 2),)))))
    with pytest.raises(NodeIdInUse):
        result_of(other.register(Broker(1, (Endpoint("PLAINTEXT", "a", 1),))))
    assert result_of(store.get(broker_epoch_path(1))).stat.version == peer.cluster.epoch


def test_a_fenced_broker_is_no_live_one_and_its_former_directories_are_remembered(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    result_of(store.delete(f"{BROKERS}/2"))
    endpoints = (Endpoint("PLAINTEXT", "a", 1),)
    result_of(two.cluster.register(Broker(2, endpoints, directories=("old",))))
    result_of(store.delete(f"{BROKERS}/2"))
    result_of(two.cluster.register(Broker(2, endpoints, directories=("new",), fenced=True)))
    assert 2 not in one.cluster.brokers
    assert not two.cluster.accepted
    assert result_of(Deferred.fromCoroutine(two.cluster.own.former_directories())) == {"old", "new"}
    fenced = two.cluster.epoch
    result_of(Deferred.fromCoroutine(two.cluster.own.unfence()))
    assert one.cluster.brokers[2].epoch == two.cluster.epoch == fenced + 1
    assert result_of(store.get(broker_epoch_path(2))).stat.version == two.cluster.epoch
    assert result_of(Deferred.fromCoroutine(two.cluster.own.former_directories())) == {"new"}
