"""Metadata stores for tests: one that completes at once, and a reactor's threads without a reactor."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorFromThreads
from zope.interface import implementer

from pylogd.store.sqlite import SqliteStore
from pylogd.store.tree import Tree

T = TypeVar("T")

#: Seconds after which a store that does not answer has failed its test.
PATIENCE = 20


class InlineWorker:
    """Run the store's work synchronously, so that returned Deferreds have fired."""

    def defer(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        return maybeDeferred(function, *args)

    def stop(self) -> None:
        pass


class UnflushedTree(Tree):
    """A tree whose file survives a restart, but no power failure."""

    JOURNAL = ("PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF")


class InlineStore(SqliteStore):
    """A store that completes at once, for what works on a store.

    It does not wait for the disk, which would take longer than most tests. The store's own tests use a plain one.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, worker=InlineWorker())
        self._tree = UnflushedTree(path)


class HeldWorker:
    """Run the store's work on request, one batch at a time."""

    def __init__(self) -> None:
        self.held: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def defer(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        deferred: Deferred[T] = Deferred()
        self.held.append((deferred, lambda: function(*args)))
        return deferred

    def release(self) -> None:
        """Run the oldest held work."""
        deferred, function = self.held.pop(0)
        deferred.callback(function())

    def stop(self) -> None:
        assert not self.held


@implementer(IReactorFromThreads)
class ThreadsOnly:
    """The part of a reactor that receives results from threads. The waiting test runs it."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], Any]] = queue.Queue()

    def callFromThread(self, callable: Callable[..., Any], *args: object, **kwargs: object) -> None:
        self._queue.put(lambda: callable(*args, **kwargs))

    def run_one(self) -> None:
        self._queue.get(timeout=PATIENCE)()


def result_of(deferred: Deferred[T], run: Callable[[], None] | None = None) -> T:
    """The result of a Deferred that has fired, or that fires while `run` is called over and over."""
    outcome: list[Any] = []
    failures: list[Any] = []
    deferred.addCallbacks(outcome.append, failures.append)
    while not outcome and not failures:
        assert run is not None, "the Deferred has not fired"
        run()
    if failures:
        failures[0].raiseException()
    result: T = outcome[0]
    return result
