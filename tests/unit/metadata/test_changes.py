"""The change feed: failing reads and writes, and concurrent writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorThreads
from twisted.python.failure import Failure

from pylogd.metadata.changes import MAX_PATHS, ChangeFeed
from pylogd.metadata.configs import ConfigChange, ConfigOperation
from pylogd.metadata.errors import StoreFailure, TopicExists, UnknownTopic
from pylogd.metadata.interfaces import Create, IMetadataStore, SessionState
from pylogd.metadata.layout import Change
from pylogd.metadata.sqlite import SqliteStore, ThreadWorker
from tests.fakes.metadata import ThreadsOnly, result_of
from tests.unit.metadata.conftest import Peer


class Reader:
    """A feed's user that records what it is asked to read, and fails when the test says so."""

    def __init__(self) -> None:
        self.read: list[Sequence[str] | None] = []
        self.broken = False

    async def reload(self, store: IMetadataStore) -> None:
        if self.broken:
            raise StoreFailure("can't be read")
        self.read.append(None)

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        if self.broken:
            raise StoreFailure("can't be read")
        self.read.append(change.paths)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def feed(store: SqliteStore, reader: Reader) -> ChangeFeed:
    made = ChangeFeed(store)
    made.add(reader)
    result_of(made.start())
    return made


def write(feed: ChangeFeed, name: str, paths: Sequence[str] | None = None) -> None:
    result_of(Deferred.fromCoroutine(feed.write([Create(f"/{name}")], paths or [f"/{name}"])))


def test_one_write_is_read_alone(feed: ChangeFeed, reader: Reader) -> None:
    write(feed, "a")
    write(feed, "b")
    assert reader.read == [None, ["/a"], ["/b"]]


def test_a_write_of_very_many_paths_means_everything(feed: ChangeFeed, reader: Reader) -> None:
    write(feed, "a", ["/x"] * (MAX_PATHS + 1))
    assert reader.read == [None, None]


def test_an_unreadable_note_means_everything(feed: ChangeFeed, reader: Reader, store: SqliteStore) -> None:
    result_of(store.set("/changes", b"?"))
    assert reader.read == [None, None]


def test_a_new_session_reads_everything(feed: ChangeFeed, reader: Reader, store: SqliteStore) -> None:
    store._tell(SessionState.SUSPENDED)
    assert reader.read == [None]
    store._tell(SessionState.CONNECTED)
    assert reader.read == [None, None]


def test_a_failed_read_back_is_reported_and_the_next_write_reads_all(
    feed: ChangeFeed, reader: Reader, store: SqliteStore
) -> None:
    reader.broken = True
    with pytest.raises(StoreFailure):
        write(feed, "a")
    assert result_of(store.exists("/a")) is not None  # it was written nevertheless
    reader.broken = False
    write(feed, "b")
    assert reader.read == [None, None]
    write(feed, "c")
    assert reader.read == [None, None, ["/c"]]


class TestCrossing:
    """Two brokers whose calls overlap."""

    @pytest.fixture
    def two(self, tmp_path: Path) -> tuple[Peer, Peer, ThreadsOnly]:
        path = tmp_path / "metadata.sqlite"
        reactor = ThreadsOnly()
        store = SqliteStore(path, worker=ThreadWorker(cast(IReactorThreads, reactor)))
        result_of(store.start(), reactor.run_one)
        peers = []
        for node_id in (1, 2):
            peers.append(Peer(store, node_id, run=reactor.run_one))
        result_of(peers[0].topic_admin.create_topic("a"), reactor.run_one)
        self.store = store
        return peers[0], peers[1], reactor

    @pytest.fixture(autouse=True)
    def closed(self, two: tuple[Peer, Peer, ThreadsOnly]) -> object:
        yield
        result_of(self.store.close(), two[2].run_one)

    def test_both_changes_to_a_topics_settings_are_done(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        changes = [
            one.topic_admin.alter_topic_configs("a", [ConfigChange("retention.ms", ConfigOperation.SET, "1")]),
            other.topic_admin.alter_topic_configs("a", [ConfigChange("segment.bytes", ConfigOperation.SET, "100")]),
        ]
        for change in changes:
            result_of(change, reactor.run_one)
        topic = one.topics.get("a")
        assert topic is not None
        assert topic.configs == {"retention.ms": "1", "segment.bytes": "100"}

    def test_both_changes_to_the_brokers_settings_are_done(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        changes = [
            one.configs.alter(None, [ConfigChange("log.retention.ms", ConfigOperation.SET, "1")]),
            other.configs.alter(None, [ConfigChange("log.segment.bytes", ConfigOperation.SET, "100")]),
        ]
        for change in changes:
            result_of(change, reactor.run_one)
        assert (one.settings["log.retention.ms"], one.settings["log.segment.bytes"]) == (1, 100)

    def test_a_topic_that_is_reported_to_exist_is_found(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        first, same, elsewhere = (peer.topic_admin.create_topic("b") for peer in (one, one, other))
        for late, peer in ((same, one), (elsewhere, other)):
            found: list[object] = []

            def look(failure: Failure, peer: Peer = peer, found: list[object] = found) -> Failure:
                found.append(peer.topics.get("b"))
                return failure

            late.addErrback(look)
            with pytest.raises(TopicExists):
                result_of(late, reactor.run_one)
            assert found[0] is not None
        assert result_of(first, reactor.run_one).name == "b"

    def test_partitions_are_not_added_twice(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        changes = [one.topic_admin.add_partitions("a", 3), other.topic_admin.add_partitions("a", 5)]
        assert [len(result_of(change, reactor.run_one).partitions) for change in changes] == [3, 5]

    def test_a_change_that_meets_a_deletion_finds_no_topic(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        deletion = one.topic_admin.delete_topic("a")
        change = other.topic_admin.add_partitions("a", 3)
        second = other.topic_admin.delete_topic("a")
        result_of(deletion, reactor.run_one)
        with pytest.raises(UnknownTopic):
            result_of(change, reactor.run_one)
        with pytest.raises(UnknownTopic):
            result_of(second, reactor.run_one)

    def test_producer_ids_of_both_differ(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        ids = [one.cluster.next_producer_id(), other.cluster.next_producer_id()]
        assert sorted(result_of(deferred, reactor.run_one) for deferred in ids) == [0, 1000]
