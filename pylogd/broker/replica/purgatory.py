"""Where requests wait: for records to fetch, for replicas to catch up, for members to join.

Strategy: a `Wait` knows what it waits for, and takes the result. An `Operation` is a wait with a Deferred of the
result. A `Purgatory` registers a wait under the keys whose changes may end it (a partition, a group) and starts its
timer. Code that changes something calls `check(key)`, which tries the operations under that key, and only those. A
`Watcher` that is no operation stays under its keys until it is removed. A fetch session has a watcher for each
partition, so that a waiting fetch need not be registered under all of them.

Rules:
- An operation ends once: completed, expired, withdrawn (its Deferred was cancelled) or failed. It is then removed from
  every key, and its timer is stopped, before its result is taken.
- `watch` and `enter` register a wait and then check whether it is over already (`Wait.look`). So a change between the
  caller's own check and its call is not missed. There are such changes: the caller may have ended another wait, whose
  result was used at once for an append, or may have let other requests run. A wait may therefore end before `watch` or
  `enter` returns.
- `check` on a key that nobody watches costs one dict look-up, since every append calls it.
- An operation that raises an error fails alone; the others under the same key are still tried.

Must not know: what a partition, a log or a request is.
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
    """The state of an operation, which leaves WAITING once."""

    NEW = "New"
    WAITING = "Waiting"
    COMPLETED = "Completed"
    EXPIRED = "Expired"
    WITHDRAWN = "Withdrawn"
    FAILED = "Failed"


class Watcher(ABC):
    """Called after changes of the keys to which it was added (`Purgatory.add`), while its state is WAITING."""

    __slots__ = ()

    state: OperationState

    @abstractmethod
    def try_complete(self, key: Hashable) -> bool:
        """Check a change of `key`. Return whether the change ended a wait."""

    @abstractmethod
    def fail(self, error: Exception) -> bool:
        """Handle an error that `try_complete` raised. Return whether this ended a wait."""


class Wait(Watcher, Generic[T]):
    """A request that waits. It ends once, with a call of `ended` or `failed`."""

    __slots__ = ("_keys", "_purgatory", "_timer", "state")

    def __init__(self) -> None:
        self.state = OperationState.NEW
        self._purgatory: Purgatory | None = None
        self._keys: tuple[Hashable, ...] = ()
        self._timer: IDelayedCall | None = None

    @abstractmethod
    def try_complete(self, key: Hashable) -> bool:
        """Check a change of `key`: call `complete` and return True if the wait is over."""

    def look(self) -> bool:
        """Check everything that the request waits for, like `try_complete` for all keys. `Purgatory.enter` calls it."""
        return any(self.try_complete(key) for key in self._keys)

    @abstractmethod
    def on_expire(self) -> T:
        """Return the result of a wait whose time is up."""

    @abstractmethod
    def ended(self, result: T) -> None:
        """Use the result. Called once, when the wait has ended with a result."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Use the error. Called once, when the wait has ended with an error."""

    def complete(self, result: T) -> bool:
        """End the wait with `result`; return False if it had ended already."""
        if not self._leave(OperationState.COMPLETED):
            return False
        self.ended(result)
        return True

    def expire(self) -> bool:
        """End the wait because its time is up; return False if it had ended already."""
        if not self._leave(OperationState.EXPIRED):
            return False
        try:
            result = self.on_expire()
        except Exception as error:
            self.failed(error)
        else:
            self.ended(result)
        return True

    def fail(self, error: Exception) -> bool:
        """End the wait with an error; return False if it had ended already."""
        if not self._leave(OperationState.FAILED):
            return False
        self.failed(error)
        return True

    def withdraw(self) -> None:
        """End the wait without a result."""
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


class Operation(Wait[T]):
    """A wait with a Deferred.

    done: fires once, with the result or the error. Cancelling it withdraws the operation.
    """

    __slots__ = ("done",)

    def __init__(self) -> None:
        super().__init__()
        self.done: Deferred[T] = Deferred(lambda _: self.withdraw())

    def ended(self, result: T) -> None:
        """Fire `done`."""
        self.done.callback(result)

    def failed(self, error: Exception) -> None:
        """Fire `done` with the error."""
        self.done.errback(error)


class Purgatory:
    """The waiting operations of one kind, by key."""

    __slots__ = ("_clock", "_waiting", "_watched")

    log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        # Dicts without values are sets that keep their order: operations are tried in the order of arrival.
        self._watched: dict[Hashable, dict[Watcher, None]] = {}
        self._waiting: dict[Wait[Any], None] = {}

    def __len__(self) -> int:
        """How many operations wait."""
        return len(self._waiting)

    def watched_keys(self) -> set[Hashable]:
        """Return the keys that have at least one operation or watcher."""
        return set(self._watched)

    def watch(self, operation: Operation[T], keys: Iterable[Hashable], timeout: float | None) -> Deferred[T]:
        """Do the work of `enter`. Return the operation's `done`."""
        self.enter(operation, keys, timeout)
        return operation.done

    def enter(self, operation: Wait[Any], keys: Iterable[Hashable], timeout: float | None) -> None:
        """Register a new operation under `keys`, for at most `timeout` seconds. If it is over already, end it now.

        A caller that has just checked need not check again.
        """
        if operation.state is not OperationState.NEW:
            return
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
        try:
            operation.look()
        except Exception as error:
            self.log.failure("Unexpected error in a request that begins to wait for a change of {keys}", keys=keys)
            operation.fail(error)

    def add(self, watcher: Watcher, key: Hashable) -> None:
        """Call `watcher` after each change of `key`, until it is removed."""
        self._watched.setdefault(key, {})[watcher] = None

    def remove(self, watcher: Watcher, key: Hashable) -> None:
        """Undo `add`. Ignored if the watcher is not registered."""
        self._take_off(watcher, (key,))

    def check(self, key: Hashable) -> int:
        """Try the operations under `key`, which has changed. Return how many of them ended."""
        under_key = self._watched.get(key)
        if under_key is None:
            return 0
        completed = 0
        for operation in tuple(under_key):  # iterate over a copy, since completing an operation may add or end others
            if operation.state is not OperationState.WAITING:
                continue
            try:
                completed += operation.try_complete(key)
            except Exception as error:
                self.log.failure("Unexpected error in a waiting request after a change of {key}", key=key)
                operation.fail(error)
        return completed

    def expire_all(self) -> int:
        """End every wait as if its time were up; return how many there were."""
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
