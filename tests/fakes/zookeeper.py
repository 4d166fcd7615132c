"""A ZooKeeper ensemble in simulated time, as unhelpful as a real one may be.

One leader orders the writes. Each server applies them after a random delay, so that reads of a session may be stale,
though never older than what the session has seen. Requests of a session are processed in order. The server that has a
watch fires it late and without any order. If a connection is cut, requests may be processed without a response. A
session ends when the leader has not heard of it for its timeout (or up to a quarter earlier, as servers report late),
and the client learns of it when it reconnects.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from pylogd.store.errors import ConnectionLost, InvalidNode, NodeExists, NoNode, SessionExpired, StoreClosed, StoreError
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
    check_path,
    parent_of,
)
from tests.fakes.simulation import ProcessTime, SimulatedTime
from tests.fakes.tree import Changes, Leader, MemoryTree


class Server:
    """A server: its own state of the tree, and the watches of the sessions that are attached to it."""

    def __init__(self, ensemble: FakeZooKeeper) -> None:
        self._ensemble = ensemble
        self._due = 0.0
        self._watches: dict[tuple[str, str], list[tuple[FakeStore, int, Watch]]] = {}
        self.tree = MemoryTree()

    def committed(self, changes: Changes, then: Callable[[], None] | None = None) -> None:
        """Apply what the leader decided, in its order, a while later; then call `then`."""
        time = self._ensemble.time
        self._due = max(self._due, time.seconds() + self._ensemble.delay())
        time.callLater(self._due - time.seconds(), self._apply, changes, then)

    def watch(self, kind: str, path: str, store: FakeStore, watch: Watch) -> None:
        """Have the store's session called at the next event."""
        self._watches.setdefault((kind, path), []).append((store, store.session_id, watch))

    def _apply(self, changes: Changes, then: Callable[[], None] | None) -> None:
        for path, node in changes:
            for kind, event, where in self.tree.apply(path, node):
                for store, session, watch in self._watches.pop((kind, where), ()):
                    store.notify(session, watch, WatchEvent(event, where))
        if then is not None:
            then()


class FakeZooKeeper:
    """The ensemble. `delay` gives the seconds that a hop takes, `lag` those that a watch's call takes besides."""

    def __init__(
        self,
        time: SimulatedTime,
        rng: random.Random,
        *,
        servers: int = 3,
        delay: Callable[[], float] = lambda: 0.001,
        lag: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.time = time
        self.rng = rng
        self.delay = delay
        self.lag = lag
        self.leader = Leader()
        self.servers = [Server(self) for _ in range(servers)]
        self.operations = 0
        self._sessions = itertools.count(1)

    def store(self, process: ProcessTime | None = None, session_timeout: float = 6.0) -> FakeStore:
        """A client, not started, in a process of its own unless one is given."""
        return FakeStore(self, process or ProcessTime(self.time), session_timeout)

    def begin_session(self, timeout: float) -> int:
        session = next(self._sessions)
        self.leader.sessions[session] = timeout
        return session

    def end_session(self, session: int) -> None:
        """The leader ends a session."""
        if session in self.leader.sessions:
            changes = self.leader.end(session).changes
            for server in self.servers:
                server.committed(changes)

    def write(
        self, session: int, server: Server, operations: Sequence[Operation], answer: Callable[[Any], None]
    ) -> None:
        """Have the leader decide a write that came by `server`; the answer is given when the server has it."""
        written = self.leader.write(session, operations)
        outcome = written.results if written.error is None else written.error
        for other in self.servers:
            other.committed(written.changes, partial(answer, outcome) if other is server else None)

    def put(self, path: str, data: bytes) -> None:
        """Write a node as somebody else would, with its parents."""
        session = self.begin_session(1.0)
        missing = []
        parent = parent_of(path)
        while parent not in self.leader.tree.nodes:
            missing.append(parent)
            parent = parent_of(parent)
        operations: list[Operation] = [Create(name) for name in reversed(missing)]
        there = path in self.leader.tree.nodes
        operations.append(SetData(path, data) if there else Create(path, data))
        self.write(session, self.servers[0], operations, lambda _: None)
        del self.leader.sessions[session]

    def remove(self, path: str) -> None:
        """Delete a node as somebody else would."""
        session = self.begin_session(1.0)
        self.write(session, self.servers[0], [Delete(path)], lambda _: None)
        del self.leader.sessions[session]


class _Request:
    """A request: its action at the server, and the waiting Deferred."""

    def __init__(self, run: Callable[[Server, Callable[[Any], None]], None]) -> None:
        self.run = run
        self.deferred: Deferred[Any] = Deferred()


@implementer(IMetadataStore)
class FakeStore:
    """A client of the ensemble, in a process."""

    def __init__(self, ensemble: FakeZooKeeper, process: ProcessTime, session_timeout: float) -> None:
        self._ensemble = ensemble
        self._time = ensemble.time
        self.process = process
        self.session_timeout = session_timeout
        self.session_id = 0
        self._server: Server | None = None
        self._link = 0  # counts connections; requests of earlier ones are lost at the server
        self._pending: list[_Request] = []  # requests whose answers the client waits for
        self._queue: deque[_Request] = deque()  # requests that the server has to process
        self._working = False
        self._arrival = self._departure = 0.0
        self._listeners: list[SessionListener] = []
        self._suspended = self._closed = False
        self.vital: Callable[[], bool] = lambda: True
        self.is_cut = self._started = False
        #: Whether requests without a connection wait for one or fail.
        self.patient = ensemble.rng.random() < 0.5
        self._waiting: list[_Request] = []

    # -- network and machine

    def cut(self, notice: float) -> None:
        """The connection is cut; the client notices it `notice` seconds later. The leader ends the session in time."""
        if self.is_cut or not self._started or self._closed:
            return
        self.is_cut = True
        self._link += 1
        link, session = self._link, self.session_id
        self._queue.clear()
        patience = self.session_timeout * self._ensemble.rng.uniform(0.75, 1.0)
        self._time.callLater(patience, self._unheard, link, session)
        self._time.callLater(notice, self.process.enter, lambda: self._suspend(link))

    def heal(self) -> None:
        """The network is back; the client connects again a little later."""
        if self.is_cut:
            link = self._link
            self._time.callLater(self._ensemble.delay(), self.process.enter, lambda: self._reconnect(link))

    def expire(self) -> None:
        """The connection is cut for as long as it takes the leader to end the session."""
        self.cut(self._ensemble.delay())
        self._time.callLater(self.session_timeout, self.heal)

    def crash(self) -> None:
        """The process dies."""
        self.cut(0.0)
        self.process.dead = True

    def _unheard(self, link: int, session: int) -> None:
        if self._link == link:
            self._ensemble.end_session(session)

    def _suspend(self, link: int) -> None:
        if self._link == link and not self._suspended:
            self._suspended = True
            self._fail_pending(ConnectionLost("cut"))
            self._tell(SessionState.SUSPENDED)

    def _reconnect(self, link: int) -> None:
        if self._link != link or self._closed or not self.is_cut:
            return
        self._suspend(link)
        if self._closed:
            return
        alive = self.session_id in self._ensemble.leader.sessions
        if not alive:
            self._fail_pending(SessionExpired("gone"))
            self._tell(SessionState.EXPIRED)
            self.session_id = self._ensemble.begin_session(self.session_timeout)
        self._attach()
        waiting, self._waiting = self._waiting, []
        self._tell(SessionState.CONNECTED)
        for request in waiting:
            self._send(request)

    def _attach(self) -> None:
        """Any server will do that has what the session has seen: the fake waits until it has all there is."""
        self._link += 1
        self.is_cut = self._suspended = False
        self._server = self._ensemble.rng.choice(self._ensemble.servers)
        self._working = True
        self._server.committed([], partial(self._work_on, self._link))

    def _tell(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            listener(state)

    def _fail_pending(self, error: StoreError) -> None:
        pending, self._pending = self._pending, []
        for request in pending:
            request.deferred.errback(error)

    def notify(self, session: int, watch: Watch, event: WatchEvent) -> None:
        """A watch was set off at the server."""

        def arrived() -> None:
            if link == self._link and session == self.session_id and not self._closed:
                with suppress(RuntimeError):  # an error of the watch itself
                    watch(event)

        link = self._link
        self._time.callLater(self._ensemble.delay() + self._ensemble.lag(), self.process.enter, arrived)

    # -- requests

    def _ask(self, run: Callable[[Server, Callable[[Any], None]], None]) -> Deferred[Any]:
        if self._closed or self._server is None:
            return fail(StoreClosed("closed"))
        request = _Request(run)
        if not self._suspended:
            self._send(request)
        elif self.patient:
            self._waiting.append(request)
        else:
            request.deferred.errback(ConnectionLost("suspended"))
        return request.deferred

    def _send(self, request: _Request) -> None:
        self._ensemble.operations += 1
        self._pending.append(request)
        self._arrival = max(self._arrival, self._time.seconds() + self._ensemble.delay())
        self._time.callLater(self._arrival - self._time.seconds(), self._arrived, self._link, request)

    def _arrived(self, link: int, request: _Request) -> None:
        if link == self._link and not self.is_cut:
            self._queue.append(request)
            self._next()

    def _work_on(self, link: int) -> None:
        if link == self._link:
            self._working = False
            self._next()

    def _next(self) -> None:
        """The server takes up the session's next request, when the one before is done."""
        if self._working or not self._queue or self._server is None:
            return
        self._working = True
        request, link = self._queue.popleft(), self._link
        request.run(self._server, lambda outcome: self._done(link, request, outcome))

    def _done(self, link: int, request: _Request, outcome: Any) -> None:
        if link == self._link:
            self._departure = max(self._departure, self._time.seconds() + self._ensemble.delay())
            wait = self._departure - self._time.seconds()
            self._time.callLater(wait, self.process.enter, lambda: self._answered(request, outcome))
            self._work_on(link)

    def _answered(self, request: _Request, outcome: Any) -> None:
        if request in self._pending:
            self._pending.remove(request)
            if isinstance(outcome, StoreError):
                request.deferred.errback(outcome)
            else:
                request.deferred.callback(outcome)

    def _read(self, path: str, kind: str, watch: Watch | None, read: Callable[[MemoryTree], Any]) -> Deferred[Any]:
        def run(server: Server, answer: Callable[[Any], None]) -> None:
            if not check_path(path):
                answer(InvalidNode(path))
                return
            missing = path not in server.tree.nodes
            if missing and kind != "exists":
                answer(NoNode(path))
                return
            if watch is not None:
                server.watch("children" if kind == "children" else "data", path, self, watch)
            answer(read(server.tree))

        return self._ask(run)

    def _write(self, operations: Sequence[Operation]) -> Deferred[Any]:
        def run(server: Server, answer: Callable[[Any], None]) -> None:
            session = self.session_id
            self._time.callLater(self._ensemble.delay(), self._ensemble.write, session, server, operations, answer)

        return self._ask(run)

    # -- IMetadataStore

    def start(self) -> Deferred[None]:
        """Begin a session."""
        assert self._server is None
        self.session_id = self._ensemble.begin_session(self.session_timeout)
        self._attach()
        return self.exists("/").addCallback(self._is_started)

    def _is_started(self, _: object) -> None:
        self._started = True
        self._tell(SessionState.CONNECTED)

    def close(self) -> Deferred[None]:
        """Do what was asked before, and end the session."""
        closing: Deferred[None] = Deferred()

        def closed(_: object) -> None:
            self._tell(SessionState.CLOSED)
            closing.callback(None)

        def run(_: Server, answer: Callable[[Any], None]) -> None:
            self._ensemble.end_session(self.session_id)
            answer(None)

        if self._closed or self._server is None:
            closing.callback(None)
            return closing
        request = _Request(run)
        request.deferred.addBoth(closed)
        self._closed = True
        self._send(request)
        if self._suspended:
            self._pending += self._waiting
            self._fail_pending(StoreClosed("closed"))
        return closing

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        return self._read(path, "get", watch, lambda tree: tree.nodes[path])

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        wrong = next((path for path in paths if not check_path(path)), "/")
        return self._read(wrong, "get", None, lambda tree: [tree.nodes.get(path) for path in paths])

    def exists(self, path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        return self._read(path, "exists", watch, lambda tree: tree.nodes[path].stat if path in tree.nodes else None)

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        return self._read(path, "children", watch, lambda tree: sorted(tree.names[path]))

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        prefix = path.rstrip("/")
        return self._read(
            path, "children", None, lambda t: {name: t.nodes[f"{prefix}/{name}"] for name in sorted(t.names[path])}
        )

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        return self._write([Create(path, data, ephemeral, sequence)]).addCallback(_first)

    def ensure(self, path: str) -> Deferred[None]:
        async def ensure() -> None:
            if path != "/" and await self.exists(path) is None:
                await self.ensure(parent_of(path))
                try:
                    await self.create(path)
                except NodeExists:
                    return

        return Deferred.fromCoroutine(ensure())

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        return self._write([SetData(path, data, version)]).addCallback(_first)

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        return self._write([Delete(path, version)]).addCallback(_first)

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        return self._write(list(operations))

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def _first(results: Sequence[Any]) -> Any:
    return results[0]
