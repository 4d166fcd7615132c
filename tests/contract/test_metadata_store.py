"""What every metadata store must do, run on each of them.

A `Bench` makes stores of one kind and waits for their Deferreds; to put another implementation under test, add a bench.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorThreads
from twisted.internet.task import Clock
from twisted.test.iosim import IOPump
from zope.interface.verify import verifyObject

from pylogd.store.errors import (
    BadVersion,
    InvalidNode,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    StoreClosed,
)
from pylogd.store.interfaces import (
    MAX_DATA_BYTES,
    Check,
    Create,
    Delete,
    EventType,
    IMetadataStore,
    SessionState,
    SetData,
    WatchEvent,
)
from pylogd.store.remote import RemoteStore
from pylogd.store.server import StoreServer
from pylogd.store.sqlite import SqliteStore, ThreadWorker
from tests.fakes.metadata import InlineWorker, ThreadsOnly, result_of
from tests.fakes.simulation import SimulatedTime
from tests.fakes.wired import Wired
from tests.fakes.zookeeper import FakeZooKeeper
from tests.zookeeper import ZooKeeperBench


class Bench(Protocol):
    """Creates stores that share a tree."""

    def store(self) -> IMetadataStore:
        """Return a store on the shared tree, not started; the earlier one is closed."""

    def wait(self, deferred: Deferred[Any]) -> Any:
        """Wait for a Deferred and return its result."""


class InlineSqlite:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.sqlite"

    def store(self) -> IMetadataStore:
        return SqliteStore(self._path, worker=InlineWorker())

    def wait(self, deferred: Deferred[Any]) -> Any:
        return result_of(deferred)


class ThreadedSqlite:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.sqlite"
        self._reactor = ThreadsOnly()

    def store(self) -> IMetadataStore:
        return SqliteStore(self._path, worker=ThreadWorker(cast(IReactorThreads, self._reactor)))

    def wait(self, deferred: Deferred[Any]) -> Any:
        return result_of(deferred, self._reactor.run_one)


class RemoteSqlite:
    """A store over a connection in memory; all sessions are of one server."""

    def __init__(self, directory: Path) -> None:
        self._clock = Clock()
        self._served = SqliteStore(directory / "metadata.sqlite", worker=InlineWorker())
        result_of(self._served.start())
        self._wires: list[IOPump] = []

    def store(self) -> IMetadataStore:
        return RemoteStore(
            Wired(StoreServer(self._served, self._clock), self._wires), self._clock,
            session_timeout_ms=6000, connection_timeout_ms=6000,
        )  # fmt: skip

    def wait(self, deferred: Deferred[Any]) -> Any:
        return result_of(deferred, self._pump)

    def _pump(self) -> None:
        assert sum(wire.pump() for wire in self._wires), "nobody has anything to say"


class FakeEnsemble:
    """The fake on which groups of consumers are simulated; it has to behave as the real stores."""

    def __init__(self) -> None:
        self._time = SimulatedTime()
        rng = random.Random(1)
        self._ensemble = FakeZooKeeper(self._time, rng, delay=lambda: rng.uniform(0.001, 0.02))

    def store(self) -> IMetadataStore:
        return self._ensemble.store()

    def wait(self, deferred: Deferred[Any]) -> Any:
        self._time.run(1.0)
        return result_of(deferred)


def zookeeper_bench(request: pytest.FixtureRequest) -> ZooKeeperBench:
    return ZooKeeperBench(request.getfixturevalue("zookeeper").connect)


BENCHES: dict[str, Callable[[pytest.FixtureRequest], Bench]] = {
    "sqlite": lambda request: InlineSqlite(request.getfixturevalue("tmp_path")),
    "sqlite in its thread": lambda request: ThreadedSqlite(request.getfixturevalue("tmp_path")),
    "served by another process": lambda request: RemoteSqlite(request.getfixturevalue("tmp_path")),
    "zookeeper": zookeeper_bench,
    "fake ensemble": lambda _: FakeEnsemble(),
}


@pytest.fixture(params=list(BENCHES.values()), ids=list(BENCHES))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made: Bench = request.param(request)
    yield made
    if isinstance(made, ZooKeeperBench):
        made.close()


class StoreClient:
    """A started store whose calls return results instead of Deferreds."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = bench.store()
        bench.wait(self.store.start())

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.bench.wait(getattr(self.store, name)(*args, **kwargs))


@pytest.fixture
def tree(bench: Bench) -> Iterator[StoreClient]:
    asked = StoreClient(bench)
    yield asked
    asked.close()


def again(tree: StoreClient) -> StoreClient:
    """Close the store and open it anew: another session on the same tree."""
    tree.close()
    tree.store = tree.bench.store()
    tree.bench.wait(tree.store.start())
    return tree


def test_the_store_provides_its_interface(tree: StoreClient) -> None:
    assert verifyObject(IMetadataStore, tree.store)


def test_a_node_is_read_as_it_was_made(tree: StoreClient) -> None:
    assert tree.create("/a", b"one") == "/a"
    node = tree.get("/a")
    assert (node.data, node.stat.version, node.stat.owner) == (b"one", 0, 0)
    assert node.stat.created == node.stat.modified > 0
    assert tree.exists("/a") == node.stat


def test_missing_nodes_are_an_error(tree: StoreClient) -> None:
    assert tree.exists("/a") is None
    for call in (
        lambda: tree.get("/a"),
        lambda: tree.children("/a"),
        lambda: tree.children_data("/a"),
        lambda: tree.set("/a", b""),
        lambda: tree.delete("/a"),
        lambda: tree.create("/a/b"),
    ):
        with pytest.raises(NoNode):
            call()


def test_a_node_is_made_once(tree: StoreClient) -> None:
    tree.create("/a", b"first")
    with pytest.raises(NodeExists):
        tree.create("/a", b"second")
    with pytest.raises(NodeExists):
        tree.create("/")
    assert tree.get("/a").data == b"first"


def test_ensure_makes_parents_and_is_content_with_what_is_there(tree: StoreClient) -> None:
    tree.ensure("/a/b/c")
    tree.set("/a/b", b"kept")
    tree.ensure("/a/b/c")
    tree.ensure("/a/b/d")
    assert tree.children("/a/b") == ["c", "d"]
    assert tree.get("/a/b").data == b"kept"


def test_versions_count_writes_and_guard_them(tree: StoreClient) -> None:
    tree.create("/a")
    assert tree.set("/a", b"1") == 1
    assert tree.set("/a", b"2", 1) == 2
    with pytest.raises(BadVersion):
        tree.set("/a", b"3", 1)
    with pytest.raises(BadVersion):
        tree.delete("/a", 1)
    assert tree.get("/a").data == b"2"
    tree.delete("/a", 2)
    assert tree.exists("/a") is None


def test_a_node_made_anew_is_another(tree: StoreClient) -> None:
    tree.create("/a")
    first = tree.exists("/a")
    tree.delete("/a")
    tree.create("/a")
    second = tree.exists("/a")
    assert second.version == first.version == 0
    assert second.created > first.created


def test_children_are_sorted_names(tree: StoreClient) -> None:
    for path in ("/b", "/a", "/a/y", "/a/x", "/a/x/deep"):
        tree.create(path, path.encode())
    assert tree.children("/a") == ["x", "y"]
    assert {name: node.data for name, node in tree.children_data("/a").items()} == {"x": b"/a/x", "y": b"/a/y"}
    assert {"a", "b"} <= set(tree.children("/"))


def test_many_nodes_are_read_in_the_order_in_which_they_are_asked_for(tree: StoreClient) -> None:
    tree.multi([Create("/many"), *(Create(f"/many/{number}", b"%d" % number) for number in range(150))])
    first, *others = tree.get_many([f"/many/{number}" for number in reversed(range(151))])
    assert first is None and [int(node.data) for node in others] == [*reversed(range(150))]
    assert others[0] == tree.get("/many/149") and list(tree.get_many([])) == []
    with pytest.raises(InvalidNode):
        tree.get_many(["/many", "many"])


def test_a_node_with_children_stays(tree: StoreClient) -> None:
    tree.ensure("/a/b")
    with pytest.raises(NotEmpty):
        tree.delete("/a")
    with pytest.raises(NodeError):
        tree.delete("/")
    tree.delete("/a/b")
    tree.delete("/a")


def test_sequence_nodes_get_growing_numbers(tree: StoreClient) -> None:
    tree.create("/q")
    first = tree.create("/q/n-", b"1", sequence=True)
    second = tree.create("/q/n-", b"2", sequence=True)
    tree.delete(second)
    third = tree.create("/q/n-", b"3", sequence=True)
    assert first < second < third
    assert all(len(path) == len("/q/n-") + 10 for path in (first, second, third))
    assert tree.get(third).data == b"3"


def test_ephemeral_nodes_end_with_the_session(tree: StoreClient) -> None:
    tree.create("/lasting")
    tree.create("/fleeting", b"x", ephemeral=True)
    session = tree.store.session_id
    assert tree.exists("/fleeting").owner == session != 0
    with pytest.raises(NoChildrenForEphemerals):
        tree.create("/fleeting/child")
    again(tree)
    assert tree.store.session_id != session
    assert tree.exists("/fleeting") is None
    assert tree.exists("/lasting") is not None


def test_written_nodes_are_there_in_the_next_session(tree: StoreClient) -> None:
    tree.create("/a", b"one")
    tree.set("/a", b"two")
    before = tree.get("/a")
    again(tree)
    assert tree.get("/a") == before
    tree.create("/b")
    assert tree.exists("/b").created > before.stat.modified


def test_multi_does_all(tree: StoreClient) -> None:
    tree.create("/a")
    results = tree.multi(
        [Create("/a/b", b"1"), Create("/a/s-", sequence=True), SetData("/a", b"2", 0), Check("/a/b", 0), Delete("/a/b")]
    )
    assert results[0] == "/a/b"
    assert results[1].startswith("/a/s-")
    assert list(results[2:]) == [1, None, None]
    assert tree.children("/a") == [results[1].removeprefix("/a/")]


def test_a_multi_is_one_transaction(tree: StoreClient) -> None:
    tree.create("/a")
    tree.create("/log")
    numbers = []
    for _ in range(3):
        entry = tree.multi([SetData("/a", b"x"), Create("/log/c", sequence=True)])[1]
        numbers.append(tree.get("/a").stat.modified)
        assert tree.get(entry).stat.created == numbers[-1]
    assert numbers == sorted(set(numbers))


def test_multi_does_nothing_if_one_fails(tree: StoreClient) -> None:
    tree.create("/a", b"old")
    before = tree.get("/a")
    with pytest.raises(BadVersion) as caught:
        tree.multi([SetData("/a", b"new"), Create("/b"), Check("/a", 7), Create("/c")])
    assert (caught.value.operation, caught.value.path) == (2, "/a")
    assert tree.get("/a") == before
    assert tree.exists("/b") is None


def test_multi_may_be_empty(tree: StoreClient) -> None:
    assert list(tree.multi([])) == []


def test_calls_take_effect_in_their_order(tree: StoreClient) -> None:
    order: list[int] = []
    deferreds: list[Deferred[Any]] = [tree.store.create("/a")]
    deferreds += [tree.store.set("/a", str(number).encode(), number) for number in range(20)]

    def note(_: object, number: int) -> None:
        order.append(number)

    for number, deferred in enumerate(deferreds):
        deferred.addCallback(note, number)
    for deferred in deferreds:
        tree.bench.wait(deferred)
    assert order == list(range(21))
    assert tree.get("/a").data == b"19"


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\0"])
def test_malformed_paths_are_refused(tree: StoreClient, path: str) -> None:
    for call in (lambda: tree.create(path), lambda: tree.get(path), lambda: tree.exists(path)):
        with pytest.raises(InvalidNode):
            call()


def test_too_much_data_is_refused(tree: StoreClient) -> None:
    tree.create("/a", bytes(MAX_DATA_BYTES))
    with pytest.raises(InvalidNode):
        tree.set("/a", bytes(MAX_DATA_BYTES + 1))
    with pytest.raises(InvalidNode):
        tree.create("/b", bytes(MAX_DATA_BYTES + 1))
    assert len(tree.get("/a").data) == MAX_DATA_BYTES


def watch_and_do(tree: StoreClient, read: str, path: str, *changes: tuple[Any, ...]) -> list[WatchEvent]:
    """The events that a watch, set by `read`, gets from the changes. A read behind them lets a slow one arrive."""
    events: list[WatchEvent] = []
    getattr(tree, read)(path, events.append)
    for name, *args in changes:
        getattr(tree, name)(*args)
    tree.exists("/")
    return events


def test_a_data_watch_fires_once(tree: StoreClient) -> None:
    tree.create("/a")
    events = watch_and_do(tree, "get", "/a", ("create", "/a/b"), ("set", "/a", b"1"), ("set", "/a", b"2"))
    assert events == [WatchEvent(EventType.CHANGED, "/a")]


def test_a_data_watch_sees_the_deletion(tree: StoreClient) -> None:
    tree.create("/a")
    assert watch_and_do(tree, "get", "/a", ("delete", "/a")) == [WatchEvent(EventType.DELETED, "/a")]


def test_an_existence_watch_sees_the_creation(tree: StoreClient) -> None:
    assert watch_and_do(tree, "exists", "/a", ("create", "/a")) == [WatchEvent(EventType.CREATED, "/a")]


def test_an_existence_watch_sees_change_and_deletion(tree: StoreClient) -> None:
    tree.create("/a")
    assert watch_and_do(tree, "exists", "/a", ("set", "/a", b"")) == [WatchEvent(EventType.CHANGED, "/a")]
    assert watch_and_do(tree, "exists", "/a", ("delete", "/a")) == [WatchEvent(EventType.DELETED, "/a")]


def test_a_children_watch_sees_children_come_and_go(tree: StoreClient) -> None:
    tree.ensure("/a/b")
    children = WatchEvent(EventType.CHILDREN, "/a")
    changes = ("set", "/a", b""), ("set", "/a/b", b""), ("create", "/a/b/deep"), ("create", "/a/c")
    assert watch_and_do(tree, "children", "/a", *changes) == [children]
    assert watch_and_do(tree, "children", "/a", ("delete", "/a/c")) == [children]


def test_a_children_watch_sees_the_deletion_of_its_node(tree: StoreClient) -> None:
    tree.create("/a")
    assert watch_and_do(tree, "children", "/a", ("delete", "/a")) == [WatchEvent(EventType.DELETED, "/a")]


def test_each_watch_on_a_node_is_called(tree: StoreClient) -> None:
    events: list[WatchEvent] = []
    tree.create("/a")
    for _ in range(3):
        tree.get("/a", events.append)
    tree.set("/a", b"")
    tree.exists("/")
    assert len(events) == 3


def test_a_failed_read_sets_no_watch_and_a_failed_write_sets_none_off(tree: StoreClient) -> None:
    events: list[WatchEvent] = []
    with pytest.raises(NoNode):
        tree.get("/a", events.append)
    tree.create("/a")
    tree.get("/a", events.append)
    with pytest.raises(NodeExists):
        tree.multi([SetData("/a", b"new"), Create("/a")])
    tree.exists("/")
    assert events == []
    tree.set("/a", b"newer")
    tree.exists("/")
    assert len(events) == 1


def test_no_change_after_the_read_is_missed(tree: StoreClient) -> None:
    tree.create("/a")
    events: list[WatchEvent] = []
    pending: list[Deferred[Any]] = [
        tree.store.set("/a", b"1"),
        tree.store.get("/a", events.append),
        tree.store.set("/a", b"2"),
    ]
    seen = [tree.bench.wait(deferred) for deferred in pending][1]
    tree.exists("/")
    assert seen.data == b"1"
    assert events == [WatchEvent(EventType.CHANGED, "/a")]


def test_a_watch_that_raises_harms_nobody(tree: StoreClient) -> None:
    events: list[WatchEvent] = []
    tree.create("/a")

    def broken(_: WatchEvent) -> None:
        raise RuntimeError("a watch's own fault")

    tree.get("/a", broken)
    tree.get("/a", events.append)
    assert tree.set("/a", b"") == 1
    tree.exists("/")
    assert len(events) == 1


def test_a_watch_may_ask_again(tree: StoreClient) -> None:
    versions: list[int] = []
    looks: list[Deferred[None]] = []

    def look(_: WatchEvent | None = None) -> None:
        looks.append(tree.store.get("/a", look).addCallback(lambda node: versions.append(node.stat.version)))

    tree.create("/a")
    look()
    tree.bench.wait(looks[0])
    for _ in range(3):
        tree.set("/a", b"")
        tree.exists("/")
    assert versions == [0, 1, 2, 3]


def test_session_listeners_hear_of_start_and_end(bench: Bench) -> None:
    store = bench.store()
    states: list[SessionState] = []
    deaf: list[SessionState] = []
    store.on_session(states.append)
    store.on_session(deaf.append)()
    bench.wait(store.start())
    bench.wait(store.close())
    assert states == [SessionState.CONNECTED, SessionState.CLOSED]
    assert deaf == []


def test_a_closed_store_says_so(bench: Bench) -> None:
    store = bench.store()
    with pytest.raises(StoreClosed):
        bench.wait(store.get("/"))
    bench.wait(store.start())
    pending = store.create("/a")
    bench.wait(store.close())
    assert bench.wait(pending) == "/a"  # earlier calls are done
    with pytest.raises(StoreClosed):
        bench.wait(store.get("/a"))
