"""The SQLite file of the embedded store, and writes in batches."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from pylogd.store import spare_room
from pylogd.store.errors import NodeExists, StoreFailure
from pylogd.store.interfaces import Create, SetData, WatchEvent
from pylogd.store.sqlite import SqliteStore
from pylogd.store.tree import Tree
from tests.fakes.metadata import HeldWorker, InlineWorker, result_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "metadata.sqlite"


def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path, worker=InlineWorker())
    result_of(store.start())
    return store


def test_a_second_process_is_refused(path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreFailure, match="in use by another process"):
        opened(path)
    result_of(store.create("/still-works"))
    result_of(store.close())
    result_of(opened(path).close())


def test_another_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()
    with pytest.raises(StoreFailure, match="not a metadata file of pylogd"):
        opened(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all, however long it may be" * 100)
    with pytest.raises(StoreFailure, match=str(path)):
        opened(path)


def test_a_later_schema_is_refused(path: Path) -> None:
    result_of(opened(path).close())
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(StoreFailure, match="schema 2, but this release knows schema 1"):
        opened(path)


def test_a_path_that_cannot_be_written_is_refused(path: Path) -> None:
    path.parent.write_bytes(b"")
    with pytest.raises(StoreFailure, match=r"exists|directory"):
        opened(path)
    path.parent.unlink()
    path.mkdir(parents=True)
    with pytest.raises(StoreFailure, match="Is a directory"):
        opened(path)


def test_commits_are_synchronous(path: Path) -> None:
    tree = Tree(path)
    tree.open()
    assert tree._sql("PRAGMA synchronous").fetchone() == (2,)
    assert tree._sql("PRAGMA journal_mode").fetchone() == ("wal",)
    tree.close()


def test_a_killed_process_leaves_its_commits_and_no_ephemeral_nodes(path: Path, tmp_path: Path) -> None:
    store = opened(path)
    result_of(store.create("/lasting", b"x"))
    result_of(store.create("/fleeting", ephemeral=True))
    copy = tmp_path / "after-the-crash.sqlite"
    for suffix in ("", "-wal"):  # the files as a crash leaves them, with changes only in SQLite's log
        copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    result_of(store.close())
    again = opened(copy)
    assert result_of(again.get("/lasting")).data == b"x"
    assert result_of(again.exists("/fleeting")) is None
    result_of(again.close())


def test_one_failure_in_a_batch_undoes_only_itself(path: Path) -> None:
    tree = Tree(path)
    tree.open()
    events: list[WatchEvent] = []
    outcomes, fired = tree.run(
        [
            lambda: tree.multi([Create("/a", b"1")]),
            lambda: tree.get("/a", events.append),
            lambda: tree.multi([SetData("/a", b"2"), Create("/a")]),
            lambda: tree.get("/a").data,
            lambda: tree.multi([Create("/b")]),
        ]
    )
    assert isinstance(outcomes[2][1], NodeExists)
    assert outcomes[3] == (b"1", None)
    assert outcomes[4] == (["/b"], None)
    assert fired == []
    _, fired = tree.run([lambda: tree.multi([SetData("/a", b"3")])])
    assert len(fired) == 1
    tree.close()


class FullDisk(sqlite3.Connection):
    """A database whose COMMIT fails while the test says so."""

    full = False

    def execute(self, statement: str, *args: object) -> sqlite3.Cursor:
        if self.full and statement == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(statement, *args)  # type: ignore[arg-type]


def test_a_failed_commit_fails_the_batch_and_keeps_the_watches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=FullDisk, **kwargs))
    store = opened(path)
    events: list[WatchEvent] = []
    result_of(store.create("/a", b"old"))
    result_of(store.get("/a", events.append))
    FullDisk.full = True
    try:
        with pytest.raises(StoreFailure, match="disk is full"):
            result_of(store.set("/a", b"new"))
    finally:
        FullDisk.full = False
    assert events == []
    assert result_of(store.get("/a")).data == b"old"
    result_of(store.set("/a", b"newer"))
    assert len(events) == 1
    result_of(store.close())


def test_an_unexpected_error_fails_only_its_batch(path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreFailure):
        result_of(store.set("/", None))  # type: ignore[arg-type]
    result_of(store.create("/a"))
    result_of(store.close())


def test_calls_wait_for_the_batch_before_and_then_go_together(path: Path) -> None:
    worker = HeldWorker()
    store = SqliteStore(path, worker=worker)
    starting = store.start()
    worker.release()
    result_of(starting)
    made: list[str] = []
    deferreds: list[Deferred[None]] = [store.create(f"/{number}").addCallback(made.append) for number in range(10)]
    assert len(worker.held) == 1
    worker.release()
    assert made == ["/0"]
    assert len(worker.held) == 1  # the other nine writes
    worker.release()
    assert made == [f"/{number}" for number in range(10)]
    assert not worker.held
    assert len(deferreds) == 10
    closing = store.close()
    worker.release()
    result_of(closing)


def test_a_call_that_fails_leaves_no_garbage(path: Path) -> None:
    tree = Tree(path)
    tree.open()
    gc.collect()
    gc.disable()
    try:
        outcomes, _ = tree.run([lambda: tree.get("/nowhere")])
        kept = weakref.ref(outcomes[0][1] or tree)
        assert kept() is not tree
        del outcomes
        assert kept() is None
    finally:
        gc.enable()
        tree.close()


class CrampedTree(Tree):
    """A tree on a disk that is full while the spare room is kept."""

    full = False

    def _check_room(self) -> None:
        if self.full and self._path.with_name(self._path.name + "-spare").exists():
            raise sqlite3.OperationalError("database or disk is full")

    def _open(self) -> None:
        super()._open()
        self._check_room()

    def _sql(self, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if statement == "COMMIT":
            self._check_room()
        return super()._sql(statement, parameters)


def test_a_full_disk_leaves_room_for_the_metadata(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_of(opened(path).close())
    spare = path.with_name("metadata.sqlite-spare")
    assert spare.stat().st_size == 2 << 20
    tree = CrampedTree(path)
    tree.full = True
    with monkeypatch.context() as patched:
        patched.setattr(spare_room, "_LEAST_FREE", 1 << 60)
        tree.open()
        assert not spare.exists()
    tree.full = False
    outcomes, _ = tree.run([lambda: tree.multi([Create("/a", b"x")])])
    assert outcomes[0][1] is None and spare.exists(), "it is made again when there is room"
    tree.full = True
    events: list[WatchEvent] = []
    outcomes, fired = tree.run([lambda: tree.get("/a", events.append), lambda: tree.multi([SetData("/a", b"y")])])
    assert [error for _, error in outcomes] == [None, None] and len(fired) == 1
    assert not spare.exists()
    tree.close()


def test_a_start_on_a_full_disk_gives_up_the_spare_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_of(opened(path).close())
    spare = path.with_name("metadata.sqlite-spare")
    spare_room.SpareRoom(path).give_up_if_full()
    assert spare.exists()
    monkeypatch.setattr(spare_room, "_BYTES", 1 << 60)
    spare_room.SpareRoom(path).give_up_if_full()
    assert not spare.exists()
