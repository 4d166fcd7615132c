"""The metadata store of another process of this machine: `IMetadataStore` over a Unix socket. See `server`.

Strategy: one connection is one session. The connection is lost when the server ends, or when nothing has arrived for
the session's timeout. Then the session is `SUSPENDED`, all calls fail with `ConnectionLost`, and connecting is tried
again until it succeeds. The new connection is another session: listeners are called with `EXPIRED`, then with
`CONNECTED`. The reactor sends the pings that keep a session, so it has to make progress. If the owner does not do its
work (`vital`) for the timeout, the connection is closed, and made again when the owner works again.

Must not know: what the nodes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.store.calls import MultiStore, notify
from pylogd.store.errors import ConnectionLost, StoreClosed, StoreError, StoreFailure
from pylogd.store.frames import FramedConnection, decode_error, encode_operations, make_node
from pylogd.store.interfaces import (
    EventType,
    IMetadataStore,
    Node,
    NodeStat,
    Operation,
    Result,
    SessionState,
    Watch,
    WatchEvent,
)

log = Logger()
T = TypeVar("T")

#: Seconds between two attempts to connect.
_RETRY_SECONDS: Final = 0.1
#: How many pings a client sends within its session's timeout.
_PINGS: Final = 3
#: The header and the data of an answer.
_Answer = tuple[dict[str, Any], list[bytes]]


class _Connection(FramedConnection):
    """One connection: its calls by number, and the watches that they set."""

    peer = "the metadata store"

    def __init__(
        self, clock: Any, timeout_seconds: float, lost: Callable[[_Connection], object], vital: Callable[[], bool]
    ) -> None:
        super().__init__(clock)
        self._vital, self._last_vital = vital, clock.seconds()
        self._seconds = clock.seconds
        self._timeout_seconds = timeout_seconds
        self._lost = lost
        self._number = 0
        self._waiting: dict[int, Deferred[_Answer]] = {}
        self._watches: dict[int, Watch] = {}
        self._pings = LoopingCall(self._ping)
        self._pings.clock = clock

    def connectionMade(self) -> None:
        """Begin to show that this process is alive."""
        self.expect_frames(self._timeout_seconds)
        self._pings.start(self._timeout_seconds / _PINGS, now=False)

    def call(self, name: str, fields: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> Deferred[_Answer]:
        """Send a call. The Deferred fires with its answer, or fails with the error in the answer."""
        return self._send(name, fields, blobs)

    def read(self, name: str, path: str, watch: Watch | None) -> Deferred[_Answer]:
        """Send a call that reads a node and sets a watch, if one is given."""
        answer = self._send(name, {"path": path, "watch": watch is not None})
        if watch is not None:
            number = self._number
            self._watches[number] = watch

            def not_set(failure: Failure) -> Failure:
                self._watches.pop(number, None)
                return failure

            answer.addErrback(not_set)
        return answer

    def handle(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Handle an answer or an event."""
        if "watch" in header:
            watch = self._watches.pop(header["watch"], None)
            if watch is not None:
                notify(watch, WatchEvent(EventType(header["type"]), header["path"]))
            return
        answer = self._waiting.pop(header["id"])
        error = decode_error(header)
        if error is None:
            answer.callback((header, blobs))
        else:
            answer.errback(error)

    def timeoutConnection(self) -> None:
        """Close the connection to a server that does not answer."""
        log.warn("The metadata store did not answer for {seconds} s", seconds=self._timeout_seconds)
        self.abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail all calls. Watches are dropped without a call."""
        self.expect_frames(None)
        if self._pings.running:
            self._pings.stop()
        waiting, self._waiting = self._waiting, {}
        self._watches.clear()
        for answer in waiting.values():
            answer.errback(ConnectionLost("the connection to the metadata store was lost"))
        self._lost(self)

    def _send(self, name: str, fields: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> Deferred[_Answer]:
        self._number += 1
        answer: Deferred[_Answer] = Deferred()
        self._waiting[self._number] = answer
        self.send({"id": self._number, "call": name, **fields}, blobs)
        return answer

    def _ping(self) -> None:
        if self._vital():
            self._last_vital = self._seconds()
        elif self._seconds() - self._last_vital >= self._timeout_seconds * (_PINGS - 1) / _PINGS:
            log.warn("This broker could do no work for {seconds} s: its session with the metadata store ends",
                     seconds=self._timeout_seconds)  # fmt: skip
            self.abort()
            return
        self._send("ping", {}).addErrback(lambda _: None)  # `connectionLost` reports it


def unix_endpoint(reactor: Any, path: str) -> IStreamClientEndpoint:
    """Return an endpoint that connects to the socket of a `StoreServer`."""
    return UNIXClientEndpoint(reactor, path)


@implementer(IMetadataStore)
class RemoteStore(MultiStore):
    """`IMetadataStore` on the store of another process."""

    def __init__(
        self, endpoint: IStreamClientEndpoint, clock: Any, *, session_timeout_ms: int, connection_timeout_ms: int
    ) -> None:
        """`start` connects by `endpoint`, and fails if this takes longer than `connection_timeout_ms`."""
        super().__init__()
        self._endpoint = endpoint
        self._clock = clock
        self._timeout_ms = session_timeout_ms
        self._patience = connection_timeout_ms / 1000
        self._connection: _Connection | None = None
        self._closed = True
        self.session_id = 0
        self.vital: Callable[[], bool] = lambda: True

    def start(self) -> Deferred[None]:
        """Connect and begin a session."""
        self._closed = False
        return Deferred.fromCoroutine(self._start())

    def close(self) -> Deferred[None]:
        """End the session after the calls made so far."""
        connection, self._connection = self._connection, None
        if self._closed:
            return succeed(None)
        self._closed = True
        return Deferred.fromCoroutine(self._close(connection))

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        """See `IMetadataStore`."""
        return self._read("get", path, watch).addCallback(lambda got: make_node(got[1][0], got[0]["stat"]))

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        """See `IMetadataStore`."""

        def nodes(got: _Answer) -> list[Node | None]:
            data = iter(got[1])
            return [None if words is None else make_node(next(data), words) for words in got[0]["stats"]]

        return self._call("get_many", {"paths": list(paths)}).addCallback(nodes)

    def exists(self, path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        """See `IMetadataStore`."""
        return self._read("exists", path, watch).addCallback(
            lambda got: None if got[0]["stat"] is None else NodeStat(*got[0]["stat"])
        )

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        """See `IMetadataStore`."""
        return self._read("children", path, watch).addCallback(lambda got: list(got[0]["names"]))

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        """See `IMetadataStore`."""

        def nodes(got: _Answer) -> dict[str, Node]:
            stats: Mapping[str, list[int]] = got[0]["stats"]
            return {name: make_node(data, stats[name]) for name, data in zip(stats, got[1], strict=True)}

        return self._call("children_data", {"path": path}).addCallback(nodes)

    def ensure(self, path: str) -> Deferred[None]:
        """See `IMetadataStore`."""
        return self._call("ensure", {"path": path}).addCallback(lambda _: None)

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        """See `IMetadataStore`."""
        words, blobs = encode_operations(operations)
        return self._call("multi", {"operations": words}, blobs).addCallback(lambda got: list(got[0]["results"]))

    # -- the connection

    async def _start(self) -> None:
        deadline = self._clock.seconds() + self._patience
        while True:
            try:
                await self._connect()
            except (ConnectError, StoreError) as error:
                if self._clock.seconds() >= deadline:
                    self._closed = True
                    raise StoreFailure(f"the metadata store does not answer at its socket: {error}") from error
                await deferLater(self._clock, _RETRY_SECONDS)
            else:
                self._tell(SessionState.CONNECTED)
                return

    async def _connect(self) -> None:
        """Connect and begin a session. Raises ConnectError, or StoreError if the connection is lost meanwhile."""
        factory = Factory.forProtocol(
            lambda: _Connection(self._clock, self._timeout_ms / 1000, self._lost, self._is_vital)
        )
        factory.noisy = False
        made: Any = await self._endpoint.connect(factory)
        header, _ = await made.call("hello", {"timeout_ms": self._timeout_ms})
        if self._closed:
            made.abort()
            raise StoreClosed("the metadata store was closed")
        self._connection = made
        self.session_id = header["session"]

    def _lost(self, connection: _Connection) -> None:
        if connection is not self._connection:
            return  # this side has closed it, or there was no session yet
        self._connection = None
        self._tell(SessionState.SUSPENDED)
        Deferred.fromCoroutine(self._reconnect()).addErrback(
            lambda failure: log.failure("Unexpected error while connecting to the metadata store", failure)
        )

    def _is_vital(self) -> bool:
        return self.vital()

    async def _reconnect(self) -> None:
        while not self._closed:
            try:
                if not self.vital():
                    raise StoreClosed("this broker does not do its work")
                await self._connect()
            except (ConnectError, StoreError):
                await deferLater(self._clock, _RETRY_SECONDS)
            else:
                self._tell(SessionState.EXPIRED)
                self._tell(SessionState.CONNECTED)
                return

    async def _close(self, connection: _Connection | None) -> None:
        if connection is not None:
            try:
                await connection.call("end", {})
            except StoreError as error:  # the connection was lost, or the disk is full
                log.debug("The metadata store could not end the session: {error}", error=error)
            connection.abort()
        self._tell(SessionState.CLOSED)

    def _call(self, name: str, fields: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> Deferred[_Answer]:
        return self._asked(lambda connection: connection.call(name, fields, blobs))

    def _read(self, name: str, path: str, watch: Watch | None) -> Deferred[_Answer]:
        return self._asked(lambda connection: connection.read(name, path, watch))

    def _asked(self, ask: Callable[[_Connection], Deferred[T]]) -> Deferred[T]:
        if self._closed:
            return fail(StoreClosed("the metadata store is closed"))
        if self._connection is None:
            return fail(ConnectionLost("there is no connection to the metadata store"))
        return ask(self._connection)
