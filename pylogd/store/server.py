"""Serve the embedded metadata store to other processes of this machine: the server's side of `remote`.

Strategy: a connection is a session. The session ends when the client ends it, when the connection is lost (at once when
the client's process dies), or when nothing has arrived for the session's timeout, since the process may be stopped.
Calls go to the store in the order of their arrival, and it answers them in that order.

Must not know: what the nodes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.store.errors import StoreClosed, StoreError
from pylogd.store.frames import FramedConnection, decode_operations, encode_error, stat_words
from pylogd.store.interfaces import Node, NodeStat, Watch, WatchEvent
from pylogd.store.sqlite import SqliteStore

log = Logger()

#: The shortest and the longest session timeout that a client may ask for, in milliseconds.
_TIMEOUTS_MS: Final = (1_000, 600_000)
#: The contents of an answer: fields of its header, and data of nodes.
Answer = tuple[dict[str, Any], list[bytes]]


class StoreServer(Factory):
    """Makes the sessions of clients on one store, which its owner starts and closes."""

    noisy = False

    def __init__(self, store: SqliteStore, clock: Any) -> None:
        self.sessions: set[StoreSession] = set()
        self._store = store
        self._clock = clock

    def buildProtocol(self, _address: IAddress | None) -> StoreSession:
        """Return the protocol of a new connection."""
        return StoreSession(self._store, self._clock, self.sessions)

    def disconnect(self) -> None:
        """Close all connections at once."""
        for session in list(self.sessions):
            session.abort()


class StoreSession(FramedConnection):
    """One client's session."""

    peer = "a client of the metadata store"

    def __init__(self, store: SqliteStore, clock: Any, sessions: set[StoreSession]) -> None:
        """sessions: contains this session while it is connected."""
        super().__init__(clock)
        self._store = store
        self._sessions = sessions
        self._session: int | None = None

    def connectionMade(self) -> None:
        """Give a client that has sent nothing the shortest timeout."""
        self._sessions.add(self)
        self.expect_frames(_TIMEOUTS_MS[0] / 1000)

    def timeoutConnection(self) -> None:
        """End the session of a client that was silent for its timeout."""
        log.warn("Session {session} of the metadata store timed out", session=self._session)
        self.abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the session: its ephemeral nodes and watches are deleted."""
        self.expect_frames(None)
        self._sessions.discard(self)
        session, self._session = self._session, None
        if session is not None:
            self._store.end_session(session).addErrback(self._not_ended)

    def handle(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Make a call. Raises ValueError for a call before `hello`."""
        number, name = int(header["id"]), header["call"]
        if name == "hello":
            lowest, highest = _TIMEOUTS_MS
            self.expect_frames(min(max(int(header["timeout_ms"]), lowest), highest) / 1000)
            self._answer(number, self._store.begin_session().addCallback(self._begun))
        elif name == "ping":
            self._send({"id": number})
        elif self._session is None:
            raise ValueError(f"{name} before hello")
        else:
            self._answer(number, self._call(number, name, header, blobs))

    def _call(self, number: int, name: str, header: Mapping[str, Any], blobs: list[bytes]) -> Deferred[Answer]:
        store, session = self._store, self._session
        assert session is not None
        if name == "end":
            self._session = None
            return store.end_session(session).addCallback(lambda _: ({}, []))
        if name == "multi":
            operations = decode_operations(header["operations"], blobs)
            return store.multi(operations, session).addCallback(lambda results: ({"results": list(results)}, []))
        if name == "get_many":
            return store.get_many(header["paths"]).addCallback(_many)
        path = str(header["path"])
        if name == "ensure":
            return store.ensure(path).addCallback(lambda _: ({}, []))
        if name == "children_data":
            return store.children_data(path).addCallback(_nodes)
        watch = RemoteWatch(session, partial(self._event, number)) if header["watch"] else None
        reads: Mapping[str, Callable[[str, Watch | None], Deferred[Any]]] = {
            "get": store.get, "exists": store.exists, "children": store.children,
        }  # fmt: skip
        return reads[name](path, watch).addCallback(_ANSWERS[name])

    def _begun(self, session: int) -> Answer:
        if not self.connected:
            self._store.end_session(session).addErrback(self._not_ended)
        else:
            self._session = session
        return {"session": session}, []

    def _answer(self, number: int, answer: Deferred[Answer]) -> None:
        def done(result: Answer) -> None:
            header, blobs = result
            self._send({"id": number, **header}, blobs)

        def failed(failure: Failure) -> None:
            if not failure.check(StoreError):
                log.failure("Unexpected error in a call of the metadata store", failure)
            self._send({"id": number, **encode_error(failure)})

        answer.addCallbacks(done, failed)

    def _event(self, number: int, event: WatchEvent) -> None:
        self._send({"watch": number, "type": event.type.value, "path": event.path})

    def _send(self, header: Mapping[str, Any], blobs: list[bytes] | None = None) -> None:
        if self.connected:
            self.send(header, blobs or [])

    @staticmethod
    def _not_ended(failure: Failure) -> None:
        if not failure.check(StoreClosed):  # this ends all sessions
            log.failure("A session of the metadata store could not be ended", failure)


@dataclass(eq=False, slots=True)
class RemoteWatch:
    """A watch of another process. The tree forgets it when its session ends."""

    session: int
    _tell: Callable[[WatchEvent], None]

    def __call__(self, event: WatchEvent) -> None:
        """Send the event to the client."""
        self._tell(event)


def _node(node: Node) -> Answer:
    return {"stat": stat_words(node.stat)}, [node.data]


def _stat(stat: NodeStat | None) -> Answer:
    return {"stat": None if stat is None else stat_words(stat)}, []


def _names(names: list[str]) -> Answer:
    return {"names": names}, []


def _nodes(nodes: Mapping[str, Node]) -> Answer:
    stats = {name: stat_words(node.stat) for name, node in nodes.items()}
    return {"stats": stats}, [node.data for node in nodes.values()]


def _many(nodes: Sequence[Node | None]) -> Answer:
    stats = [None if node is None else stat_words(node.stat) for node in nodes]
    return {"stats": stats}, [node.data for node in nodes if node is not None]


_ANSWERS: Final[Mapping[str, Callable[[Any], Answer]]] = {"get": _node, "exists": _stat, "children": _names}
