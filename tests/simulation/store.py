"""ZooKeeper for simulations: a tree in memory, sessions over a link that is slow, fails, and loses answers.

`SimTree` is the server, `SimStore` a client. Calls take time to the server and back, and stay in order. A cut link
fails pending calls, executed or not. A session that is cut off for longer than its timeout expires with its ephemeral
nodes, and the client learns of it when it reconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from pylogd.store.errors import ConnectionLost, NoNode, StoreClosed, StoreError
from pylogd.store.interfaces import (
    ANY_VERSION,
    Create,
    Delete,
    IMetadataStore,
    Node,
    NodeStat,
    Operation,
    Result,
    SessionListener,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
    parent_of,
)
from tests.fakes.tree import Events, Leader


class SimTree:
    """The server: nodes and live sessions."""

    def __init__(self) -> None:
        self.sessions: dict[int, SimStore] = {}
        self._leader = Leader()
        self._next_session = 0
        self._watches: dict[tuple[str, str], list[tuple[SimStore, int, Watch]]] = {}

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._leader.tree.nodes

    @property
    def transaction(self) -> int:
        """Return the number of writes."""
        return self._leader.zxid

    def open(self, store: SimStore, timeout: float) -> int:
        self._next_session += 1
        self.sessions[self._next_session] = store
        self._leader.sessions[self._next_session] = timeout
        return self._next_session

    def expire(self, session: int) -> None:
        """End a session and delete its ephemeral nodes."""
        if self.sessions.pop(session, None) is not None:
            self._fire(self._leader.end(session).events)

    def watch(self, kind: str, path: str, store: SimStore, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault((kind, path), []).append((store, store.session_id, watch))

    def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]

    def names(self, path: str) -> list[str]:
        self.get(path)
        return sorted(self._leader.tree.names[path])

    def multi(self, operations: Sequence[Operation], session: int) -> list[Result]:
        """All or none."""
        written = self._leader.write(session, operations)
        if written.error is not None:
            raise written.error
        self._fire(written.events)
        return written.results

    def _fire(self, events: Events) -> None:
        for kind, event, path in events:
            for store, session, watch in self._watches.pop((kind, path), ()):
                store.event(session, watch, WatchEvent(event, path))


@implementer(IMetadataStore)
class SimStore:
    """A client. `delay()` returns the time of one way in seconds."""

    def __init__(
        self, tree: SimTree, clock: IReactorTime, server: IReactorTime, delay: Callable[[], float], timeout: float
    ) -> None:
        """`clock` is the client's, which stops while it is paused; `server` is the server's."""
        self.session_id = 0
        self.vital: Callable[[], bool] = lambda: True
        self._tree = tree
        self._clock = clock
        self._server = server
        self._delay = delay
        self._timeout = timeout
        self.up = True
        self._closed = False
        self._arrives = self._returns = 0.0  # the time of the last call
        self._waiting: dict[int, Deferred[Any]] = {}
        self._number = 0
        self._listeners: list[SessionListener] = []
        self._missed: list[tuple[int, Watch, WatchEvent]] = []

    # -- lifetime

    def start(self) -> Deferred[None]:
        self.session_id = self._tree.open(self, self._timeout)
        return self._call(lambda: None)

    def close(self) -> Deferred[None]:
        if self._closed:
            return self._call(lambda: None)
        done = self._call(lambda: self._tree.expire(self.session_id)) if self.up else Deferred()
        if not self.up:
            done.callback(None)
        self._closed = True
        return done

    def vanish(self) -> None:
        """The client's process is killed; the server notices when the session times out."""
        self._closed = True
        self.up = False
        self._waiting.clear()
        self._missed.clear()
        self._listeners.clear()
        self._server.callLater(self._timeout, self._tree.expire, self.session_id)

    def cut(self) -> None:
        """Cut the link."""
        if self._closed or not self.up:
            return
        self.up = False
        waiting, self._waiting = self._waiting, {}
        for deferred in waiting.values():
            deferred.errback(ConnectionLost("the link to the store is down"))
        self._tell(SessionState.SUSPENDED)
        session = self.session_id
        self._server.callLater(self._timeout, self._time_out, session)

    def _time_out(self, session: int) -> None:
        if not self.up and not self._closed:
            self._tree.expire(session)

    def heal(self) -> None:
        """Restore the link."""
        if self._closed or self.up:
            return
        self.up = True
        if self.session_id not in self._tree.sessions:
            self._missed.clear()
            self._tell(SessionState.EXPIRED)
            self.session_id = self._tree.open(self, self._timeout)
            self._tell(SessionState.CONNECTED)
            return
        self._tell(SessionState.CONNECTED)
        missed, self._missed = self._missed, []
        for event in missed:
            self.event(*event)

    def expire(self) -> None:
        """Expire the session while the link works."""
        self.cut()
        self._tree.expire(self.session_id)
        self.heal()

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _tell(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            listener(state)

    def event(self, session: int, watch: Watch, event: WatchEvent) -> None:
        """Send the event of a watch to the client."""
        if self._closed or session != self.session_id:
            return
        if not self.up:
            self._missed.append((session, watch, event))
            return
        self._returns = max(self._clock.seconds() + self._delay(), self._returns)
        self._clock.callLater(self._returns - self._clock.seconds(), self._deliver, session, watch, event)

    def _deliver(self, session: int, watch: Watch, event: WatchEvent) -> None:
        if self.up and not self._closed and session == self.session_id:
            watch(event)
        elif not self._closed and session == self.session_id:
            self._missed.append((session, watch, event))

    # -- calls

    def _call(self, work: Callable[[], Any]) -> Deferred[Any]:
        if self._closed:
            return fail(StoreClosed("the store is closed"))
        if not self.up:
            return fail(ConnectionLost("the link to the store is down"))
        self._number += 1
        number, session = self._number, self.session_id
        done: Deferred[Any] = Deferred()
        self._waiting[number] = done
        now = self._clock.seconds()
        self._arrives = max(now + self._delay(), self._arrives)
        self._server.callLater(self._arrives - now, self._arrive, number, session, work)
        return done

    def _arrive(self, number: int, session: int, work: Callable[[], Any]) -> None:
        if number not in self._waiting or session not in self._tree.sessions:
            return
        try:
            result, error = work(), None
        except StoreError as raised:
            result, error = None, raised
        now = self._clock.seconds()
        self._returns = max(now + self._delay(), self._returns)
        self._clock.callLater(self._returns - now, self._return, number, result, error)

    def _return(self, number: int, result: Any, error: StoreError | None) -> None:
        done = self._waiting.pop(number, None)
        if done is not None:
            if error is None:
                done.callback(result)
            else:
                done.errback(error)

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        def work() -> Node:
            node = self._tree.get(path)
            self._tree.watch("data", path, self, watch)
            return node

        return self._call(work)

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        return self._call(lambda: [self._tree.nodes.get(path) for path in paths])

    def exists(self, path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        def work() -> NodeStat | None:
            self._tree.watch("data", path, self, watch)
            node = self._tree.nodes.get(path)
            return None if node is None else node.stat

        return self._call(work)

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        def work() -> list[str]:
            names = self._tree.names(path)
            self._tree.watch("children", path, self, watch)
            return names

        return self._call(work)

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        def work() -> dict[str, Node]:
            base = path.rstrip("/")
            return {name: self._tree.nodes[f"{base}/{name}"] for name in self._tree.names(path)}

        return self._call(work)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        return self._call(lambda: self._tree.multi([Create(path, data, ephemeral, sequence)], self.session_id)[0])

    def ensure(self, path: str) -> Deferred[None]:
        def work() -> None:
            missing = []
            at = path
            while at not in self._tree.nodes:
                missing.append(Create(at))
                at = parent_of(at)
            self._tree.multi(missing[::-1], self.session_id)

        return self._call(work)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        return self._call(lambda: self._tree.multi([SetData(path, data, version)], self.session_id)[0])

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        return self._call(lambda: self._tree.multi([Delete(path, version)], self.session_id)[0])

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        return self._call(lambda: self._tree.multi(list(operations), self.session_id))


def slowly(rng: Random, usual: float = 0.001, worst: float = 0.02) -> Callable[[], float]:
    """Return a function that returns random delays: mostly `usual`, sometimes up to `worst` seconds."""
    return lambda: rng.uniform(usual / 2, usual * 2) if rng.random() < 0.95 else rng.uniform(usual, worst)
