"""The embedded tree: nodes in a SQLite file, watches in memory. It is synchronous; `sqlite` adds the Deferreds.

Strategy: `run` does a batch of calls in one SQLite transaction, each in its own savepoint, so that a call that fails is
undone alone, and the whole batch costs one fsync. Results are returned after the commit, so a result that a caller sees
is on the disk. Watches are set and triggered within the batch, in order with the calls.

Rules: WAL with `synchronous=FULL` (each commit is fsynced); the file is locked while it is open, so a second process is
refused; ephemeral nodes of an earlier session are deleted when the file is opened. If a commit fails, every call of its
batch fails and the watches are unchanged. If the disk is full, the file that keeps some space (`spare_room`) is removed
first.

Must not know: threads, the reactor, what the nodes mean. Any thread may use it, one at a time.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from pylogd.store.errors import (
    BadVersion,
    InvalidNode,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    StoreError,
    StoreFailure,
)
from pylogd.store.interfaces import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    Check,
    Create,
    Delete,
    EventType,
    Node,
    NodeStat,
    Operation,
    Result,
    SetData,
    Watch,
    WatchEvent,
    check_path,
    parent_of,
)
from pylogd.store.spare_room import SpareRoom

SCHEMA_VERSION: Final = 1
#: Identifies the file as one of pylogd, for file(1) and for `open`: "plgd".
APPLICATION_ID: Final = 0x706C6764

_SCHEMA: Final = """
CREATE TABLE node (
    path TEXT PRIMARY KEY,
    parent TEXT,
    data BLOB NOT NULL,
    version INTEGER NOT NULL,
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX node_parent ON node (parent, path);
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('transaction', 0), ('session', 0);
INSERT INTO node VALUES ('/', NULL, x'', 0, 0, 0, 0, 0);
"""

#: A call of one of the tree's methods, with its result or its error.
Call = Callable[[], object]
Outcome = tuple[object, StoreError | None]
#: The watches that were triggered, with their events.
Fired = list[tuple[Watch, WatchEvent]]


_MODE: Final = 0o600  # SQLite gives its -wal and -shm files the same mode


class Tree:
    """An open tree. Between `open` and `close`, every method but `run` is called from within `run`."""

    #: The settings with which a committed transaction of SQLite survives a power failure.
    JOURNAL: ClassVar = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._transaction = 0
        self._fired: list[tuple[dict[str, list[Watch]], Watch, WatchEvent]] = []
        self._set: list[tuple[dict[str, list[Watch]], str, Watch]] = []
        self._data_watches: dict[str, list[Watch]] = {}
        self._child_watches: dict[str, list[Watch]] = {}
        self._spare = SpareRoom(path)
        self.session_id = self._owner = 0

    def open(self) -> None:
        """Open or create the file and begin a session. Raises `StoreFailure`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _create_private(self._path)
            self._open_despite_full_disk()
        except OSError as error:
            link = "it is a symbolic link, and links are not followed"
            reason = link if error.errno == errno.ELOOP else error.strerror or error
            raise StoreFailure(f"{self._path}: {reason}") from error
        except sqlite3.Error as error:
            self._discard()
            locked = "locked" in str(error)
            reason = "in use by another process" if locked else str(error)
            raise StoreFailure(f"{self._path}: {reason}") from error
        except StoreFailure:
            self._discard()
            raise
        self._spare.keep()

    def close(self) -> None:
        """Delete the session's ephemeral nodes and close the file, if it is open."""
        if self._database is not None:
            try:
                self._database.execute("DELETE FROM node WHERE owner != 0")
            except sqlite3.Error as error:
                raise StoreFailure(f"{self._path}: {error}") from error
            finally:
                self._discard()

    def run(self, calls: Sequence[Call]) -> tuple[list[Outcome], Fired]:
        """Do the calls in one transaction. Return their outcomes, and the watches that were triggered, in order.

        If the disk is full, the spare space is given up for the calls.
        """
        self._spare.keep()
        try:
            return self._run(calls)
        except sqlite3.Error as error:
            failure: sqlite3.Error = error
        if _is_full(failure) and self._spare.give_up():
            try:
                return self._run(calls)
            except sqlite3.Error as error:
                failure = error
        return [(None, StoreFailure(f"{self._path}: {failure}"))] * len(calls), []

    def _run(self, calls: Sequence[Call]) -> tuple[list[Outcome], Fired]:
        """Do the work of `run` once. Raises sqlite3.Error, with everything undone."""
        self._fired, self._set = [], []
        outcomes: list[Outcome] = []
        try:
            self._sql("BEGIN IMMEDIATE")
            self._transaction = self._counter("transaction")
            before = self._transaction
            for call in calls:
                outcomes.append(self._run_one(call))
            if self._transaction != before:
                self._sql("UPDATE counter SET value = ? WHERE name = 'transaction'", (self._transaction,))
            self._sql("COMMIT")
        except BaseException:
            self._undo()
            raise
        return outcomes, [(watch, event) for _, watch, event in self._fired]

    # -- sessions of other processes

    def begin_session(self) -> int:
        """Return the number of a new session, in addition to that of `open`."""
        self._sql("UPDATE counter SET value = value + 1 WHERE name = 'session'")
        return self._counter("session")

    def end_session(self, session: int) -> None:
        """Delete a session's ephemeral nodes, like its client would; watches of other clients may be triggered."""
        rows = self._sql("SELECT path FROM node WHERE owner = ? ORDER BY path", (session,)).fetchall()
        if rows:
            self.multi([Delete(path) for (path,) in rows])

    def forget_watches(self, unwanted: Callable[[Watch], bool]) -> None:
        """Drop watches without a call."""
        for watches in (self._data_watches, self._child_watches):
            for path, holders in list(watches.items()):
                holders[:] = [watch for watch in holders if not unwanted(watch)]
                if not holders:
                    del watches[path]

    # -- reads

    def get(self, path: str, watch: Watch | None = None) -> Node:
        """See `IMetadataStore.get`."""
        row = self._row(path)
        if row is None:
            raise NoNode(path)
        if watch is not None:
            self._watch(self._data_watches, path, watch)
        return Node(row[0], NodeStat(*row[1:5]))

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See `IMetadataStore.get_many`."""
        rows = map(self._row, paths)
        return [None if row is None else Node(row[0], NodeStat(*row[1:5])) for row in rows]

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """See `IMetadataStore.exists`."""
        row = self._row(path)
        if watch is not None:
            self._watch(self._data_watches, path, watch)
        return None if row is None else NodeStat(*row[1:5])

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """See `IMetadataStore.children`."""
        if self._row(path) is None:
            raise NoNode(path)
        if watch is not None:
            self._watch(self._child_watches, path, watch)
        rows = self._sql("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [row[0].rpartition("/")[2] for row in rows]

    def children_data(self, path: str) -> dict[str, Node]:
        """See `IMetadataStore.children_data`."""
        if self._row(path) is None:
            raise NoNode(path)
        rows = self._sql(
            "SELECT path, data, version, created, modified, owner FROM node WHERE parent = ? ORDER BY path", (path,)
        )
        return {row[0].rpartition("/")[2]: Node(row[1], NodeStat(*row[2:6])) for row in rows}

    # -- writes

    def ensure(self, path: str) -> None:
        """See `IMetadataStore.ensure`."""
        _check(path)
        missing = []
        while path != "/" and self._row(path) is None:
            missing.append(path)
            path = parent_of(path)
        for name in reversed(missing):
            self.multi([Create(name)])

    def multi(self, operations: Sequence[Operation], session: int | None = None) -> list[Result]:
        """See `IMetadataStore.multi`. A failure is undone by the savepoint around the call.

        session: the owner of ephemeral nodes, if it is not the session of `open`.
        """
        self._transaction += 1
        self._owner = self.session_id if session is None else session
        results: list[Result] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation))
            except NodeError as error:
                error.operation = index
                raise
        return results

    def _apply(self, operation: Operation) -> Result:
        _check(operation.path)
        if isinstance(operation, Create):
            return self._create(operation)
        row = self._row(operation.path)
        if row is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, row[1]):
            raise BadVersion(operation.path)
        if isinstance(operation, SetData):
            return self._set_data(operation, row[1] + 1)
        if isinstance(operation, Delete):
            self._delete(operation.path)
        else:
            assert isinstance(operation, Check)
        return None

    def _create(self, operation: Create) -> str:
        _check_data(operation.path, operation.data)
        if operation.path == "/":
            raise NodeExists("/")
        parent = parent_of(operation.path)
        parent_row = self._row(parent)
        if parent_row is None:
            raise NoNode(parent)
        if parent_row[4]:
            raise NoChildrenForEphemerals(parent)
        path = operation.path
        if operation.sequence:
            path = f"{path}{parent_row[5]:010d}"
            self._sql("UPDATE node SET next_sequence = next_sequence + 1 WHERE path = ?", (parent,))
        if self._row(path) is not None:
            raise NodeExists(path)
        owner = self._owner if operation.ephemeral else 0
        now = self._transaction
        self._sql("INSERT INTO node VALUES (?, ?, ?, 0, ?, ?, ?, 0)", (path, parent, operation.data, now, now, owner))
        self._fire(self._data_watches, path, EventType.CREATED)
        self._fire(self._child_watches, parent, EventType.CHILDREN)
        return path

    def _set_data(self, operation: SetData, version: int) -> int:
        _check_data(operation.path, operation.data)
        self._sql(
            "UPDATE node SET data = ?, version = ?, modified = ? WHERE path = ?",
            (operation.data, version, self._transaction, operation.path),
        )
        self._fire(self._data_watches, operation.path, EventType.CHANGED)
        return version

    def _delete(self, path: str) -> None:
        if path == "/" or self._sql("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmpty(path)
        self._sql("DELETE FROM node WHERE path = ?", (path,))
        self._fire(self._data_watches, path, EventType.DELETED)
        self._fire(self._child_watches, path, EventType.DELETED)
        self._fire(self._child_watches, parent_of(path), EventType.CHILDREN)

    # -- the file

    def _open_despite_full_disk(self) -> None:
        try:
            self._open()
        except sqlite3.Error as error:
            if not _is_full(error) or not self._spare.give_up():
                raise
            self._discard()
            self._open()

    def _open(self) -> None:
        # Only `run` begins and ends transactions, explicitly.
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        self._database = database
        # This comes before any read: otherwise SQLite creates a shared-memory file, which exclusive use does not need.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        for pragma in self.JOURNAL:
            database.execute(pragma)
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            database.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif application != APPLICATION_ID:
            raise StoreFailure(f"{self._path}: not a metadata file of pylogd")
        elif schema != SCHEMA_VERSION:
            raise StoreFailure(f"{self._path}: schema {schema}, but this release knows schema {SCHEMA_VERSION}")
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM node WHERE owner != 0")
        database.execute("UPDATE counter SET value = value + 1 WHERE name = 'session'")
        self.session_id = self._counter("session")
        database.execute("COMMIT")

    def _discard(self) -> None:
        database, self._database = self._database, None
        self._data_watches.clear()
        self._child_watches.clear()
        if database is not None:
            database.close()

    def _run_one(self, call: Call) -> Outcome:
        fired, watched, transaction = len(self._fired), len(self._set), self._transaction
        self._sql("SAVEPOINT call")
        try:
            result = call()
        except NodeError as error:
            self._sql("ROLLBACK TO call")
            self._unfire(fired)
            self._unwatch(watched)
            self._transaction = transaction
            # The traceback refers to the list that holds the error: a cycle, which only the garbage collector frees.
            return None, error.with_traceback(None)
        finally:
            # A failed statement (disk full) may have ended the whole transaction, and the savepoint with it.
            if self._database is not None and self._database.in_transaction:
                self._sql("RELEASE call")
        return result, None

    def _undo(self) -> None:
        if self._database is not None and self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
        self._unfire(0)
        self._unwatch(0)

    def _sql(self, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self._database is None:
            raise sqlite3.ProgrammingError("not open")
        return self._database.execute(statement, parameters)

    def _counter(self, name: str) -> int:
        (value,) = self._sql("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return int(value)

    def _row(self, path: str) -> tuple[bytes, int, int, int, int, int] | None:
        """Return (data, version, created, modified, owner, next sequence) of a node; None if it does not exist."""
        _check(path)
        row: tuple[bytes, int, int, int, int, int] | None = self._sql(
            "SELECT data, version, created, modified, owner, next_sequence FROM node WHERE path = ?", (path,)
        ).fetchone()
        return row

    def _watch(self, watches: dict[str, list[Watch]], path: str, watch: Watch) -> None:
        watches.setdefault(path, []).append(watch)
        self._set.append((watches, path, watch))

    def _unwatch(self, keep: int) -> None:
        for watches, path, watch in self._set[keep:]:
            holders = watches.get(path, [])
            if watch in holders:
                holders.remove(watch)
        del self._set[keep:]

    def _fire(self, watches: dict[str, list[Watch]], path: str, kind: EventType) -> None:
        event = WatchEvent(kind, path)
        self._fired += [(watches, watch, event) for watch in watches.pop(path, ())]

    def _unfire(self, keep: int) -> None:
        """Set watches again that a change triggered which was undone."""
        for watches, watch, event in self._fired[keep:]:
            watches.setdefault(event.path, []).append(watch)
        del self._fired[keep:]


def _is_full(error: sqlite3.Error) -> bool:
    """Return whether there was no space on the disk."""
    return "is full" in str(error)


def _create_private(path: Path) -> None:
    """Create the file if it is missing. Only its owner may read it, because it controls the cluster."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        if os.fstat(fd).st_mode & 0o077:
            with suppress(PermissionError):  # the file belongs to another user, but this process may write to it
                os.fchmod(fd, _MODE)
    finally:
        os.close(fd)


def _check(path: str) -> None:
    if not check_path(path):
        raise InvalidNode(path)


def _check_data(path: str, data: bytes) -> None:
    if len(data) > MAX_DATA_BYTES:
        raise InvalidNode(path)
