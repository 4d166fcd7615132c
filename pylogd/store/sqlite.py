"""The embedded metadata store, for a single broker, or for the workers of one machine (`server`).

Strategy: calls are collected while the worker is busy and then given to it as one batch. So at most one batch is in
progress, no lock is needed, and many callers share one commit. The worker is a thread, so the reactor thread never
waits for the disk. The session lasts as long as the store is open; it is never suspended.

Must not know: what the nodes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorThreads
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.threads import ThreadPool
from pylogd.store.calls import MultiStore, notify
from pylogd.store.errors import StoreClosed, StoreFailure
from pylogd.store.interfaces import (
    IMetadataStore,
    Node,
    NodeStat,
    Operation,
    Result,
    SessionState,
    Watch,
)
from pylogd.store.tree import Call, Fired, Outcome, Tree

log = Logger()
T = TypeVar("T")

#: The most calls in one transaction, so that the first of very many need not wait for the last.
BATCH_CALLS: Final = 512


class IWorker(Protocol):
    """Runs one function at a time off the reactor thread."""

    def defer(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        """Run a function; the Deferred fires on the reactor thread."""

    def stop(self) -> None:
        """End the worker, which is idle."""


class ThreadWorker:
    """A thread pool of one thread, started at the first use."""

    def __init__(self, reactor: IReactorThreads) -> None:
        self._pool = ThreadPool(reactor, 1, "metadata")

    def defer(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        """Run a function in the thread."""
        return self._pool.defer(function, *args)

    def stop(self) -> None:
        """End the thread, which is idle."""
        self._pool.stop()


@implementer(IMetadataStore)
class SqliteStore(MultiStore):
    """`IMetadataStore` on one SQLite file."""

    def __init__(self, path: str | Path, reactor: IReactorThreads | None = None, worker: IWorker | None = None) -> None:
        """`start` opens the file at `path`. Either a reactor or a worker must be given."""
        super().__init__()
        if worker is None:
            assert reactor is not None, "a reactor or a worker"
            worker = ThreadWorker(reactor)
        self._worker = worker
        self._tree = Tree(Path(path))
        self._open = False
        self._busy = False
        self._waiting: list[tuple[Call, Deferred[Any]]] = []
        self._closing: Deferred[None] | None = None
        self.vital: Callable[[], bool] = lambda: True

    @property
    def session_id(self) -> int:
        """The session's number: how often the file was opened."""
        return self._tree.session_id

    def start(self) -> Deferred[None]:
        """Open the file."""
        return self._worker.defer(self._tree.open).addCallbacks(self._started, self._not_started)

    def close(self) -> Deferred[None]:
        """Close the file after the calls made so far."""
        if not self._open:
            self._worker.stop()
            return succeed(None)
        self._open = False
        closing: Deferred[None] = Deferred()
        self._closing = closing
        self._next_batch()
        return closing

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        """See `IMetadataStore`."""
        return self._call(lambda: self._tree.get(path, watch))

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        """See `IMetadataStore`."""
        asked = list(paths)
        return self._call(lambda: self._tree.get_many(asked))

    def exists(self, path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        """See `IMetadataStore`."""
        return self._call(lambda: self._tree.exists(path, watch))

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        """See `IMetadataStore`."""
        return self._call(lambda: self._tree.children(path, watch))

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        """See `IMetadataStore`."""
        return self._call(lambda: self._tree.children_data(path))

    def ensure(self, path: str) -> Deferred[None]:
        """See `IMetadataStore`."""
        return self._call(lambda: self._tree.ensure(path))

    def multi(self, operations: Sequence[Operation], session: int | None = None) -> Deferred[Sequence[Result]]:
        """See `IMetadataStore`.

        session: the owner of ephemeral nodes, from `begin_session`; by default the store's session.
        """
        operations = list(operations)
        return self._call(lambda: self._tree.multi(operations, session))

    def begin_session(self) -> Deferred[int]:
        """Begin a session for another process; the result is its number."""
        return self._call(self._tree.begin_session)

    def end_session(self, session: int) -> Deferred[None]:
        """End a session of `begin_session`: delete its ephemeral nodes, and forget the watches that belong to it.

        A watch belongs to a session if its attribute `session` has the session's number.
        """

        def end() -> None:
            self._tree.forget_watches(lambda watch: getattr(watch, "session", None) == session)
            self._tree.end_session(session)

        return self._call(end)

    def _call(self, call: Callable[[], T]) -> Deferred[T]:
        if not self._open:
            return fail(StoreClosed("the metadata store is closed"))
        deferred: Deferred[T] = Deferred()
        self._waiting.append((call, deferred))
        self._next_batch()
        return deferred

    def _next_batch(self) -> None:
        if self._busy:
            return
        batch, self._waiting = self._waiting[:BATCH_CALLS], self._waiting[BATCH_CALLS:]
        if batch:
            self._busy = True
            running = self._worker.defer(self._tree.run, [call for call, _ in batch])
            running.addBoth(self._batch_done, [deferred for _, deferred in batch])
        elif self._closing is not None:
            self._worker.defer(self._tree.close).addBoth(self._closed)

    def _batch_done(self, result: tuple[list[Outcome], Fired] | Failure, deferreds: list[Deferred[Any]]) -> None:
        if isinstance(result, Failure):
            log.failure("Unexpected error in the metadata store", failure=result)
            result = [(None, StoreFailure(result.getErrorMessage()))] * len(deferreds), []
        outcomes, fired = result
        for watch, event in fired:
            notify(watch, event)
        for deferred, (value, error) in zip(deferreds, outcomes, strict=True):
            if error is None:
                deferred.callback(value)
            else:
                deferred.errback(error)
        # Not earlier, since a batch that is done at once would fire before the rest of this one.
        self._busy = False
        self._next_batch()

    def _started(self, _: None) -> None:
        self._open = True
        self._tell(SessionState.CONNECTED)

    def _not_started(self, failure: Failure) -> Failure:
        self._worker.stop()
        return failure

    def _closed(self, result: Failure | None) -> None:
        closing, self._closing = self._closing, None
        self._worker.stop()
        self._tell(SessionState.CLOSED)
        assert closing is not None
        if isinstance(result, Failure):
            closing.errback(result)
        else:
            closing.callback(None)
