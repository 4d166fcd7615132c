"""The change feed: failing reads and writes, and concurrent writers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorThreads
from twisted.python.failure import Failure

from pylogd.broker.metadata.change_log import KEPT, TRIM_EVERY
from pylogd.broker.metadata.change_notes import Change, News, decode_change, encode_change
from pylogd.broker.metadata.changes import MAX_PATHS, ChangeFeed
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import TopicExists, UnknownTopic
from pylogd.store.errors import ConnectionLost, StoreFailure
from pylogd.store.interfaces import Create, IMetadataStore, Node, Operation, Result, SessionState, Watch
from pylogd.store.paths import CHANGE_LOG
from pylogd.store.sqlite import SqliteStore, ThreadWorker
from tests.fakes.metadata import ThreadsOnly, result_of
from tests.metadata_costs import CountedStore, Uncounted
from tests.unit.broker.metadata.conftest import Peer, Reader, write


@pytest.fixture
def feed(store: SqliteStore, reader: Reader) -> ChangeFeed:
    made = ChangeFeed(store)
    made.add(reader)
    result_of(made.start())
    return made


def test_one_write_is_read_alone(feed: ChangeFeed, reader: Reader) -> None:
    write(feed, "a")
    write(feed, "b")
    assert reader.read == [None, ["/a"], ["/b"]]


class ShortNumbers:
    """A store whose versions are signed numbers of 32 bits, as ZooKeeper's, and begin near the highest."""

    def __init__(self, store: SqliteStore, shift: int) -> None:
        self._store, self._shift = store, shift

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _short(self, version: int) -> int:
        return (version + self._shift + (1 << 31)) % (1 << 32) - (1 << 31)

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        return self._store.get(path, watch).addCallback(
            lambda node: node._replace(stat=node.stat._replace(version=self._short(node.stat.version)))
        )

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        return self._store.multi(operations).addCallback(
            lambda results: [self._short(one) if isinstance(one, int) else one for one in results]
        )


@pytest.mark.parametrize("ahead", [-1, 0, 1, 2, 100])
@pytest.mark.parametrize("edge", [(1 << 31) - 1, -1])
def test_versions_start_over(store: SqliteStore, reader: Reader, ahead: int, edge: int) -> None:
    """Each write is read alone, and a write is done when it was read, on both sides of the edge."""
    short = cast(IMetadataStore, ShortNumbers(store, edge - ahead))
    feed, late = ChangeFeed(short), ChangeFeed(short)
    feed.add(reader)
    late.add(other := Reader())
    result_of(feed.start())
    result_of(late.start())
    for number, name in enumerate("abcdef", 1):
        write(feed, name)
        assert len(reader.read) == len(other.read) == number + 1
    assert reader.read == other.read == [None, *([f"/{name}"] for name in "abcdef")]
    result_of(Deferred.fromCoroutine(late.catch_up()))


def test_a_write_of_very_many_paths_means_everything(feed: ChangeFeed, reader: Reader) -> None:
    write(feed, "a", ["/x"] * (MAX_PATHS + 1))
    assert reader.read == [None, None]


def test_an_unreadable_note_means_everything(feed: ChangeFeed, reader: Reader, store: SqliteStore) -> None:
    result_of(store.set("/changes", b"?"))
    assert reader.read == [None, None]


def test_a_new_session_reads_everything(feed: ChangeFeed, reader: Reader, store: SqliteStore) -> None:
    store._tell(SessionState.SUSPENDED)
    assert reader.read == [None]
    store._tree.session_id += 1
    store._tell(SessionState.CONNECTED)
    assert reader.read == [None, None]


def test_a_restored_connection_reads_what_was_missed(feed: ChangeFeed, reader: Reader, store: SqliteStore) -> None:
    """All brokers are connected again at once after an election of ZooKeeper's servers."""
    store._tell(SessionState.SUSPENDED)
    store._tell(SessionState.CONNECTED)
    assert reader.read == [None]
    note = encode_change(Change(["/a"]))
    for missed, read in ((1, [None, ["/a"]]), (2, [None, ["/a"], None])):
        store._tell(SessionState.SUSPENDED)
        store._tree.forget_watches(lambda _: True)
        for _ in range(missed):
            result_of(store.set("/changes", note))
        store._tell(SessionState.CONNECTED)
        assert reader.read == read


class TestMissedWrites:
    """A feed that has not read for a while, beside one that writes."""

    @pytest.fixture
    def counted(self, tmp_path: Path) -> Iterator[CountedStore]:
        made = CountedStore(tmp_path / "counted.sqlite")
        result_of(made.start())
        yield made
        result_of(made.close())

    @pytest.fixture
    def late(self, counted: CountedStore, reader: Reader) -> ChangeFeed:
        feed = ChangeFeed(counted)
        feed.add(reader)
        result_of(feed.start())
        counted.held = []
        return feed

    @pytest.fixture
    def writer(self, counted: CountedStore, late: ChangeFeed) -> ChangeFeed:
        feed = ChangeFeed(cast(IMetadataStore, Uncounted(counted)))
        result_of(feed.start())
        return feed

    def test_states_of_thousands_of_partitions_are_told_again(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader
    ) -> None:
        """While very many brokers fail, a broker that misses such a write should not read hundreds of topics."""
        random = Random(1)

        def news() -> News:
            partitions = {
                str(index): [random.randrange(2000), 2, random.sample(range(2000), 2), 3] for index in range(16)
            }
            return News(0, 1, json.dumps({"controller_epoch": 1, "partitions": partitions}).encode())

        for name in "ab":
            states = {f"/topics/{name}{number}/state-{random.randbytes(11).hex()}": news() for number in range(500)}
            result_of(Deferred.fromCoroutine(writer.write([Create(f"/{name}")], list(states), states)))
        counted.release()
        assert reader.told == 1000

    @pytest.mark.parametrize("own", [True, False])
    def test_only_what_others_wrote_is_decoded(
        self, counted: CountedStore, late: ChangeFeed, writer: ChangeFeed, reader: Reader, own: bool
    ) -> None:
        with patch("pylogd.broker.metadata.changes.decode_change", wraps=decode_change) as decoding:
            written = Deferred.fromCoroutine((late if own else writer).write([Create("/a")], ["/a"]))
            decoding.reset_mock()  # the other feed has read it at once
            counted.release()
            result_of(written)
        assert reader.read == [None, ["/a"]]
        assert decoding.call_count == (0 if own else 1)
        assert not late._own

    def test_they_are_read_by_one_request(self, counted: CountedStore, writer: ChangeFeed, reader: Reader) -> None:
        """At 1,000 brokers each reads 170 writes after a restart: by as many requests, ZooKeeper is busy for 20 s."""
        names = [f"n{number}" for number in range(60)]
        for name in names:
            write(writer, name)
        assert counted.held is not None
        counted.requests = 0
        counted.release()
        assert reader.read == [None, [f"/{name}" for name in names]]
        assert counted.requests <= 3  # `/changes`, the names in the log, and its nodes
        for more in range(2):
            write(writer, f"alone{more}")
            counted.requests, counted.held = 0, []
            for name in names:
                write(writer, f"{name}-{more}")
            counted.reads = 0
            counted.release()
            assert reader.read[-1] == [f"/{name}-{more}" for name in names]
            assert counted.requests <= 2  # the names are known
            assert counted.reads == len(names) - 1  # `/changes`, which was asked for before, tells the last one

    def test_entries_with_other_numbers_than_expected_are_found(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader
    ) -> None:
        expected: list[list[str] | None] = [None]
        for more in range(3):
            counted.held = counted.held or []
            write(writer, f"a{more}")
            result_of(counted.delete(result_of(counted.create(f"{CHANGE_LOG}/c", sequence=True))))
            write(writer, f"b{more}")
            counted.release()
            expected.append([f"/a{more}", f"/b{more}"])
        assert reader.read == expected

    def test_only_they_are_read(self, counted: CountedStore, writer: ChangeFeed, reader: Reader) -> None:
        for name in "abc":
            write(writer, name)
        counted.release()
        assert reader.read == [None, ["/a", "/b", "/c"]]
        write(writer, "d")
        assert reader.read[2:] == [["/d"]]

    def test_news_stay_in_order(self, counted: CountedStore, writer: ChangeFeed, reader: Reader) -> None:
        write(writer, "a")
        news = {"/b": News(0, 1, b"{}")}
        for _ in range(2):
            result_of(Deferred.fromCoroutine(writer.write([], ["/b"], news)))
        write(writer, "c")
        counted.release()
        assert reader.read == [None, ["/a"], ["/b"], ["/b"], ["/c"]]

    def test_their_number_is_limited(self, counted: CountedStore, writer: ChangeFeed, reader: Reader) -> None:
        for number in range(KEPT):
            write(writer, f"n{number}")
        counted.release()
        assert reader.read == [None, [f"/n{number}" for number in range(KEPT)]]
        counted.held = []
        for number in range(KEPT + 1):
            write(writer, f"m{number}")
        counted.release()
        assert reader.read[2:] == [None]
        for number in range(3 * KEPT):
            write(writer, f"o{number}")
        assert KEPT <= len(result_of(counted.children(CHANGE_LOG))) <= KEPT + TRIM_EVERY
        counted.held = []
        for number in range(KEPT):
            write(writer, f"p{number}")
        counted.release()
        assert reader.read[-1] == [f"/p{number}" for number in range(KEPT)]

    def test_a_write_that_is_not_in_the_log_means_everything(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader
    ) -> None:
        """As by a release without the log."""
        write(writer, "a")
        result_of(counted.set("/changes", encode_change(Change(["/b"]))))
        write(writer, "c")
        counted.release()
        assert reader.read == [None, None]

    def test_an_entry_that_is_trimmed_meanwhile_means_everything(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(writer, "a")
        write(writer, "b")
        listed = result_of(counted.children(CHANGE_LOG))
        result_of(counted.delete(f"{CHANGE_LOG}/{listed[0]}"))
        monkeypatch.setattr(counted, "children", lambda path, watch=None: succeed(listed))
        counted.release()
        assert reader.read == [None, None]

    def test_writes_during_the_read_are_read_afterwards(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(writer, "a")
        write(writer, "b")

        def children(path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
            monkeypatch.undo()
            write(writer, "c")
            write(writer, "d")
            return counted.children(path, watch)

        monkeypatch.setattr(counted, "children", children)
        counted.release()
        assert reader.read == [None, ["/a", "/b"], ["/c", "/d"]]

    def test_a_connection_that_is_restored_brings_only_them(
        self, counted: CountedStore, writer: ChangeFeed, reader: Reader
    ) -> None:
        counted.release()
        for read in counted._tree._data_watches.values():
            read.clear()  # the watches are lost with the connection
        counted._tell(SessionState.SUSPENDED)
        write(writer, "a")
        write(writer, "b")
        assert reader.read == [None]
        counted._tell(SessionState.CONNECTED)
        assert reader.read == [None, ["/a", "/b"]]

    def test_a_read_that_the_connection_broke_off_is_repeated(
        self, counted: CountedStore, late: ChangeFeed, writer: ChangeFeed, reader: Reader
    ) -> None:
        write(writer, "a")
        reader.broken = ConnectionLost("the connection is lost")
        counted.release()
        reader.broken = None
        assert reader.read == [None]
        counted._tell(SessionState.CONNECTED)
        assert reader.read == [None, ["/a"]]


def test_a_failed_read_back_is_reported_and_the_next_write_reads_all(
    feed: ChangeFeed, reader: Reader, store: SqliteStore
) -> None:
    reader.broken = StoreFailure("can't be read")
    with pytest.raises(StoreFailure):
        write(feed, "a")
    assert result_of(store.exists("/a")) is not None  # it was written nevertheless
    reader.broken = None
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
            other.topic_admin.alter_topic_configs("a", [ConfigChange("segment.bytes", ConfigOperation.SET, "2000000")]),
        ]
        for change in changes:
            result_of(change, reactor.run_one)
        topic = one.topics.get("a")
        assert topic is not None
        assert topic.configs == {"retention.ms": "1", "segment.bytes": "2000000"}

    def test_both_changes_to_the_brokers_settings_are_done(self, two: tuple[Peer, Peer, ThreadsOnly]) -> None:
        one, other, reactor = two
        changes = [
            one.configs.alter(None, [ConfigChange("log.retention.ms", ConfigOperation.SET, "1")]),
            other.configs.alter(None, [ConfigChange("log.segment.bytes", ConfigOperation.SET, "2000000")]),
        ]
        for change in changes:
            result_of(change, reactor.run_one)
        assert (one.settings["log.retention.ms"], one.settings["log.segment.bytes"]) == (1, 2000000)

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
        ids = [one.producer_ids.next(), other.producer_ids.next()]
        assert sorted(result_of(deferred, reactor.run_one) for deferred in ids) == [0, 1000]
