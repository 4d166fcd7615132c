"""The one place where a request waits: for bytes to fetch, for replicas to catch up, for members to join.

Strategy: an `Operation` says what it waits for. A `Purgatory` files it under the keys whose news may end the wait (a
partition, a group) and starts its timer. Whoever changes something calls `check(key)`, which asks the operations filed
under that key, and only those, whether they are done. A `Watcher` that is no operation stays under its keys until it is
removed: a fetch session has one for each partition, so that a fetch that waits need not be filed under all of them.

Rules:
- An operation ends once: completed, expired, withdrawn (its Deferred was cancelled) or failed. Whichever comes first
  takes it off every key and stops its timer before its Deferred fires, so nothing is left behind.
- The caller looks before it files: `watch` doesn't try the operation. All of this runs on the reactor's thread, so
  nothing can slip in between.
- `check` on a key that nobody watches costs one dict look-up: it stands on the path of every append.
- An operation that raises fails alone; the others under the same key are still asked.

It must not know what a partition, a log or a request is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

T = TypeVar("T")


class OperationState(Enum):
    """The life of an operation; it leaves Waiting once and never comes back."""

    NEW = "New"
    WAITING = "Waiting"
    COMPLETED = "Completed"
    EXPIRED = "Expired"
    WITHDRAWN = "Withdrawn"
    FAILED = "Failed"


class Watcher(ABC):
    """Hears of all news of the keys that it is added to (`Purgatory.add`), for as long as its state is Waiting."""

    __slots__ = ()

    state: OperationState

    @abstractmethod
    def try_complete(self, key: Hashable) -> bool:
        """There is news of `key`. Returns whether a wait is over thereby."""

    @abstractmethod
    def fail(self, error: Exception) -> bool:
        """`try_complete` has raised `error`. Returns whether a wait is over thereby."""


class Operation(Watcher, Generic[T]):
    """Something that waits. `done` fires once with the result, or with what went wrong; cancelling it withdraws."""

    __slots__ = ("_keys", "_purgatory", "_timer", "done", "state")

    def __init__(self) -> None:
        self.state = OperationState.NEW
        self.done: Deferred[T] = Deferred(self._withdraw)
        self._purgatory: Purgatory | None = None
        self._keys: tuple[Hashable, ...] = ()
        self._timer: IDelayedCall | None = None

    @abstractmethod
    def try_complete(self, key: Hashable) -> bool:
        """There is news of `key`. If the wait is over call `complete` and return True."""

    @abstractmethod
    def on_expire(self) -> T:
        """The result when the time is up."""

    def complete(self, result: T) -> bool:
        """End the wait with `result`. False if it had ended already."""
        if not self._leave(OperationState.COMPLETED):
            return False
        self.done.callback(result)
        return True

    def expire(self) -> bool:
        """End the wait because its time is up. False if it had ended already."""
        if not self._leave(OperationState.EXPIRED):
            return False
        try:
            result = self.on_expire()
        except Exception as error:
            self.done.errback(error)
        else:
            self.done.callback(result)
        return True

    def fail(self, error: Exception) -> bool:
        """End the wait with an error. False if it had ended already."""
        if not self._leave(OperationState.FAILED):
            return False
        self.done.errback(error)
        return True

    def _withdraw(self, _done: Deferred[T]) -> None:
        self._leave(OperationState.WITHDRAWN)

    def _leave(self, state: OperationState) -> bool:
        if self.state is not OperationState.WAITING and self.state is not OperationState.NEW:
            return False
        self.state = state
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        purgatory, self._purgatory = self._purgatory, None
        if purgatory is not None:
            purgatory._waiting.pop(self, None)
            purgatory._take_off(self, self._keys)
        self._keys = ()
        return True


class Purgatory:
    """The waiting operations of one kind, by key.

    clock: where the timers come from.
    """

    __slots__ = ("_clock", "_waiting", "_watched")

    log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        # Dicts with no values are sets that keep the order of arrival: first come, first asked.
        self._watched: dict[Hashable, dict[Watcher, None]] = {}
        self._waiting: dict[Operation[Any], None] = {}

    def __len__(self) -> int:
        """How many operations wait."""
        return len(self._waiting)

    def watched_keys(self) -> set[Hashable]:
        """The keys that at least one operation or watcher is under."""
        return set(self._watched)

    def watch(self, operation: Operation[T], keys: Iterable[Hashable], timeout: float | None) -> Deferred[T]:
        """File a new operation under `keys` until it ends or `timeout` seconds are over (None: for ever)."""
        if operation.state is not OperationState.NEW:
            return operation.done
        operation.state = OperationState.WAITING
        operation._purgatory = self
        operation._keys = tuple(keys)
        self._waiting[operation] = None
        watched = self._watched
        for key in operation._keys:
            under_key = watched.get(key)
            if under_key is None:
                watched[key] = {operation: None}
            else:
                under_key[operation] = None
        if timeout is not None:
            operation._timer = self._clock.callLater(timeout, operation.expire)
        return operation.done

    def add(self, watcher: Watcher, key: Hashable) -> None:
        """Have `watcher` hear of all news of `key` from now on, until it is removed."""
        self._watched.setdefault(key, {})[watcher] = None

    def remove(self, watcher: Watcher, key: Hashable) -> None:
        """Undo `add`. One that is not there is no error."""
        self._take_off(watcher, (key,))

    def check(self, key: Hashable) -> int:
        """There is news of `key`: ask whoever waits on it. Returns how many operations that completed."""
        under_key = self._watched.get(key)
        if under_key is None:
            return 0
        completed = 0
        for operation in tuple(under_key):  # a copy: completing one may file or end others
            if operation.state is not OperationState.WAITING:
                continue
            try:
                completed += operation.try_complete(key)
            except Exception as error:
                self.log.failure("Unexpected error in a waiting request after a change of {key}", key=key)
                operation.fail(error)
        return completed

    def expire_all(self) -> int:
        """End every wait as if its time were up, as a broker does that stops. Returns how many there were."""
        waiting = tuple(self._waiting)
        return sum(operation.expire() for operation in waiting)

    def _take_off(self, watcher: Watcher, keys: Iterable[Hashable]) -> None:
        watched = self._watched
        for key in keys:
            under_key = watched.get(key)
            if under_key is not None:
                under_key.pop(watcher, None)
                if not under_key:
                    del watched[key]
