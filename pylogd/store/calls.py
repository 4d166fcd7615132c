"""What implementations of `IMetadataStore` have in common: listeners, writes of one node, and the order of calls.

The Deferreds of calls fire in the order in which the calls were made. A call that takes many requests may be answered
after a later one. Therefore the result of a call is held back until all calls before it have settled, and a watch event
until the read that set the watch has fired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.store.interfaces import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    Result,
    SessionListener,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
)

log = Logger()


class SessionListeners:
    """The listeners of a store's session."""

    def __init__(self) -> None:
        self._listeners: list[SessionListener] = []

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """See `IMetadataStore`."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self, state: SessionState) -> None:
        """Tell the listeners of a new state of the session."""
        for listener in list(self._listeners):
            listener(state)


class MultiStore(SessionListeners, ABC):
    """A store whose writes of one node are a `multi` of one operation."""

    @abstractmethod
    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        """See `IMetadataStore`."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        """See `IMetadataStore`."""
        return self.multi([Create(path, data, ephemeral, sequence)]).addCallback(lambda results: str(results[0]))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        """See `IMetadataStore`."""
        return self.multi([SetData(path, data, version)]).addCallback(lambda results: int(results[0] or 0))

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """See `IMetadataStore`."""
        return self.multi([Delete(path, version)]).addCallback(lambda _: None)


class Call:
    """One call: its result, and the watch events that arrived for it before its turn."""

    __slots__ = ("deferred", "error", "events", "fired", "settled", "value")

    def __init__(self) -> None:
        self.deferred: Deferred[Any] = Deferred()
        self.settled = self.fired = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.events: list[tuple[Watch, WatchEvent]] = []


class CallQueue:
    """The calls that have not fired.

    drained: called when a call has settled and no other is left.
    """

    def __init__(self, drained: Callable[[], object]) -> None:
        self._calls: deque[Call] = deque()
        self._firing = False
        self._drained = drained

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self) -> Call:
        """Return a new call, at the end of the order."""
        call = Call()
        self._calls.append(call)
        return call

    def settle(self, call: Call, value: Any = None, error: BaseException | None = None) -> None:
        """Give a call its result or its error, and fire the calls whose turn it is."""
        call.value, call.error, call.settled = value, error, True
        if self._firing:
            return
        self._firing = True
        try:
            while self._calls and self._calls[0].settled:
                _fire(self._calls.popleft())
        finally:
            self._firing = False
        if not self._calls:
            self._drained()


def _fire(call: Call) -> None:
    call.fired = True
    if call.error is None:
        call.deferred.callback(call.value)
    else:
        call.deferred.errback(call.error)
    for watch, event in call.events:
        notify(watch, event)


def deliver(call: Call, watch: Watch, event: WatchEvent) -> None:
    """Pass an event to a watch, once the call that set the watch has fired."""
    if call.fired:
        notify(watch, event)
    else:
        call.events.append((watch, event))


def notify(watch: Watch, event: WatchEvent) -> None:
    """Call a watch. If it raises an error, log that."""
    try:
        watch(event)
    except Exception:
        log.failure("Unexpected error in a watch of {path}", path=event.path)
