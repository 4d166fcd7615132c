"""The metadata store on ZooKeeper: `IMetadataStore` by kazoo.

Strategy: every call is one or several requests of a `KazooSession`, which answers in order. With `calls` Deferreds
fire in the order of the calls, even if one call (`get_many`, `children_data`) takes many requests. The chroot is a
prefix that is added to paths in requests and removed from paths in answers.

Rules: after `close` no watch or listener is called. When a connection is lost, its watches are dropped without a call,
as at the end of a session; they have to be set again at `CONNECTED`.

Must not know: what the nodes are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from zope.interface import implementer

from pylogd.config.zookeeper import ZooKeeperSecurity, parse_connect
from pylogd.store.calls import Call, CallQueue, SessionListeners, deliver
from pylogd.store.errors import ConnectionLost, InvalidNode, SessionExpired, StoreClosed, StoreError, StoreFailure
from pylogd.store.interfaces import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    IMetadataStore,
    Node,
    NodeStat,
    Operation,
    Result,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
    check_path,
)
from pylogd.store.kazoo_requests import (
    EVENTS,
    error_of,
    fault_of,
    node_of,
    prefixes,
    read_many,
    stat_of,
    transact,
    version_of,
)
from pylogd.store.kazoo_session import KazooSession, Reactor, Send
from pylogd.store.node_acls import AclOf, no_acl, protected_acl

log = Logger()
T = TypeVar("T")

DEFAULT_SESSION_TIMEOUT_MS: Final = 18_000
#: The most bytes of paths and data in a `multi`: ZooKeeper closes the connection on a larger request.
MAX_MULTI_BYTES: Final = 1_030_000
#: The most seconds that a close waits for earlier calls.
DRAIN_SECONDS: Final = 5.0
#: The most nodes that `get_many` and `children_data` read by one request.
READ_NODES: Final = 64


@implementer(IMetadataStore)
class ZooKeeperStore(SessionListeners):
    """`IMetadataStore` on the servers and below the chroot of a connect string, `host:port,host:port/chroot`."""

    def __init__(
        self,
        connect: str,
        reactor: Reactor,
        *,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        connection_timeout_ms: int | None = None,
        security: ZooKeeperSecurity | None = None,
    ) -> None:
        """connection_timeout_ms: the timeout of `start`; the session timeout if None. Raises `ConfigError`."""
        super().__init__()
        self._hosts, self._chroot = parse_connect(connect)
        self._reactor = reactor
        self._timeout_ms = session_timeout_ms if connection_timeout_ms is None else connection_timeout_ms
        security = security or ZooKeeperSecurity()
        self._acl_of: AclOf = protected_acl if security.set_acl else no_acl
        self._session = KazooSession(self._hosts, reactor, session_timeout_ms / 1000, security, self._state)
        self._open = False
        self._calls = CallQueue(self._drained)
        self._starting: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._closing: Deferred[None] | None = None

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the session."""
        return self._session.session_id

    @property
    def vital(self) -> Callable[[], bool]:
        """See `IMetadataStore`."""
        return self._session.vital

    @vital.setter
    def vital(self, vital: Callable[[], bool]) -> None:
        self._session.vital = vital

    @property
    def session_timeout(self) -> float:
        """The session timeout in seconds that the server granted, or before that the requested one."""
        return self._session.granted_timeout

    def start(self) -> Deferred[None]:
        """Connect, and create the chroot if it does not exist."""
        self._starting = Deferred(self._start_cancelled)
        self._timer = self._reactor.callLater(self._timeout_ms / 1000, self._start_took_too_long)
        self._session.open()
        return self._starting

    def close(self) -> Deferred[None]:
        """End the session after all earlier calls, after `DRAIN_SECONDS` at the latest."""
        if self._starting is not None:
            return self._start_failed(StoreClosed("the store was closed"))
        if not self._open:
            return succeed(None)
        self._open = False
        self._closing = closing = Deferred[None]()
        if self._calls and self._session.connected:
            self._timer = self._reactor.callLater(DRAIN_SECONDS, self._end)
        else:
            self._end()
        return closing

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        """See `IMetadataStore`."""
        return self._read(path, watch, lambda client, full, kazoo_watch: client.get_async(full, kazoo_watch), node_of)

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        """See `IMetadataStore`."""
        asked = list(paths)
        wrong = next((path for path in asked if not check_path(path)), None)
        if wrong is not None:
            return self._refuse(InvalidNode(wrong))
        call = self._call()
        if not call.settled:
            self._read_nodes(call, asked, lambda nodes: [nodes.get(path) for path in asked])
        return call.deferred

    def exists(self, path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        """See `IMetadataStore`."""
        return self._read(
            path, watch, lambda client, full, kazoo_watch: client.exists_async(full, kazoo_watch), stat_of
        )

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        """See `IMetadataStore`."""
        return self._read(
            path, watch, lambda client, full, kazoo_watch: client.get_children_async(full, kazoo_watch), sorted
        )

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        """See `IMetadataStore`."""
        if not check_path(path):
            return self._refuse(InvalidNode(path))
        call = self._call()
        return call.deferred if call.settled else self._children_data(call, path)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        """See `IMetadataStore`."""
        operation = Create(path, data, ephemeral, sequence)

        def send(client: KazooClient) -> Any:
            return client.create_async(self._full(path), data, self._acl_of(path), ephemeral, sequence)

        return self._write(operation, send, self._short)

    def ensure(self, path: str) -> Deferred[None]:
        """See `IMetadataStore`."""
        if not check_path(path):
            return self._refuse(InvalidNode(path))
        call = self._call()
        if not call.settled:
            self._ensure(call, self._chroot + path if path != "/" else self._chroot or "/", path)
        return call.deferred

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        """See `IMetadataStore`."""
        return self._write(
            SetData(path, data, version), lambda client: client.set_async(self._full(path), data, version), version_of
        )

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """See `IMetadataStore`."""
        return self._write(
            Delete(path, version), lambda client: client.delete_async(self._full(path), version), _nothing
        )

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        """See `IMetadataStore`."""
        operations = list(operations)
        size = 0
        for index, operation in enumerate(operations):
            error = fault_of(operation)
            size += len(operation.path) + 64 + (len(operation.data) if isinstance(operation, Create | SetData) else 0)
            if error is None and size > MAX_MULTI_BYTES:
                error = InvalidNode(operation.path)
            if error is not None:
                error.operation = index
                return self._refuse(error)
        call = self._call()
        if call.settled:
            return call.deferred
        if not operations:
            self._calls.settle(call, [])
            return call.deferred

        def done(results: Any, error: BaseException | None) -> None:
            if error is None:
                self._multi_done(call, operations, results)
            else:
                self._calls.settle(call, error=error_of(error, operations[0]))

        self._session.ask(partial(transact, operations, self._full, self._acl_of), done)
        return call.deferred

    # -- calls, in their order

    def _call(self) -> Call:
        """Return a new call, at the end of the order. If the store is not open, the call has already failed."""
        if self._open:
            return self._calls.add()
        call = Call()
        call.settled = True
        call.deferred = fail(StoreClosed("the metadata store is closed"))
        return call

    def _drained(self) -> None:
        if self._closing is not None:
            self._end()

    def _refuse(self, error: StoreError) -> Deferred[Any]:
        call = self._call()
        if not call.settled:
            self._calls.settle(call, error=error)
        return call.deferred

    def _read(
        self, path: str, watch: Watch | None, read: Callable[[KazooClient, str, Any], Any], convert: Callable[[Any], T]
    ) -> Deferred[T]:
        if not check_path(path):
            return self._refuse(InvalidNode(path))
        call = self._call()
        if call.settled:
            return call.deferred
        kazoo_watch = None if watch is None else self._session.watcher(partial(self._watch_fired, call, watch))
        full = self._full(path)
        self._session.ask(
            lambda client: read(client, full, kazoo_watch), partial(self._answered, call, Check(path), convert)
        )
        return call.deferred

    def _write(self, operation: Operation, send: Send, convert: Callable[[Any], T]) -> Deferred[T]:
        error = fault_of(operation)
        if error is not None:
            return self._refuse(error)
        call = self._call()
        if not call.settled:
            self._session.ask(send, partial(self._answered, call, operation, convert))
        return call.deferred

    def _answered(
        self, call: Call, operation: Operation, convert: Callable[[Any], Any], value: Any, error: BaseException | None
    ) -> None:
        if error is None:
            self._calls.settle(call, convert(value))
        else:
            self._calls.settle(call, error=error_of(error, operation))

    def _children_data(self, call: Call, path: str) -> Deferred[Mapping[str, Node]]:
        full, prefix = self._full(path), path.rstrip("/")

        def listed(names: Any, error: BaseException | None) -> None:
            if error is not None:
                self._calls.settle(call, error=error_of(error, Check(path)))
                return
            paths = [f"{prefix}/{name}" for name in sorted(names)]
            self._read_nodes(call, paths, lambda nodes: {at.rpartition("/")[2]: node for at, node in nodes.items()})

        self._session.ask(lambda client: client.get_children_async(full), listed)
        return call.deferred

    def _read_nodes(self, call: Call, paths: Sequence[str], convert: Callable[[dict[str, Node]], object]) -> None:
        """Read the nodes at `paths`. The result of the call is the result of `convert` for those that exist."""
        nodes: dict[str, Node] = {}
        missing = len(paths)

        def read(some: Sequence[str], answers: Any, error: BaseException | None) -> None:
            nonlocal missing
            missing -= len(some)
            for path, answer in zip(some, [error] * len(some) if error is not None else answers, strict=True):
                if isinstance(answer, Node):
                    nodes[path] = answer
                elif not isinstance(answer, kazoo.NoNodeError) and not call.settled:
                    self._calls.settle(call, error=error_of(answer, Check(path)))
            if not missing and not call.settled:
                self._calls.settle(call, convert(nodes))

        if not paths:
            self._calls.settle(call, convert(nodes))
        for start in range(0, len(paths), READ_NODES):
            some = paths[start : start + READ_NODES]
            self._session.ask(partial(read_many, [self._full(path) for path in some]), partial(read, some))

    def _ensure(self, call: Call, full: str, path: str) -> None:
        """Create the node at `full` and its ancestors, as far as they do not exist, and settle the call."""
        errors: list[BaseException] = []

        def made(last: bool, _: Any, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, kazoo.NodeExistsError):
                errors.append(error)
            if last and not errors:
                self._calls.settle(call)
            elif last and error is not None and isinstance(errors[0], kazoo.NoAuthError):
                # Ancestors may exist although the ACL does not allow creating them.
                self._session.ask(lambda client: client.exists_async(full), found)
            elif last:
                self._calls.settle(
                    call, None, None if error is None or _is_there(error) else error_of(errors[0], Check(path))
                )

        def found(stat: Any, error: BaseException | None) -> None:
            denied = None if stat is not None else error_of(error or errors[0], Check(path))
            self._calls.settle(call, None, denied)

        above = list(prefixes(full))
        if not above:
            self._session.ask(lambda client: client.exists_async("/"), partial(made, True))
        for prefix in above:
            acl = self._acl_of(prefix[len(self._chroot) :])  # an ancestor of the chroot gets the ACL of the chroot
            self._session.ask(partial(_make, prefix, acl), partial(made, prefix == full))

    def _multi_done(self, call: Call, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        converted: list[Result] = []
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
                continue  # it was not done because another operation failed
            if isinstance(result, Exception):
                self._calls.settle(call, error=error_of(result, operation, index))
                return
            if isinstance(operation, Create):
                converted.append(self._short(result))
            else:
                converted.append(version_of(result) if isinstance(operation, SetData) else None)
        self._calls.settle(call, converted)

    # -- paths

    def _full(self, path: str) -> str:
        return path if not self._chroot else self._chroot if path == "/" else self._chroot + path

    def _short(self, full: str) -> str:
        return full.removeprefix(self._chroot) or "/"

    # -- watches and the session

    def _watch_fired(self, call: Call, watch: Watch, event: WatchedEvent) -> None:
        if not self._open:
            return
        deliver(call, watch, WatchEvent(EVENTS[event.type], self._short(event.path)))

    def _state(self, state: SessionState) -> None:
        if self._starting is not None:
            if state is SessionState.CONNECTED:
                self._make_chroot()
            return
        if not self._open:
            return
        if state is SessionState.CONNECTED:
            log.info("connected to ZooKeeper, session {id:#x}", id=self.session_id & (1 << 64) - 1)
        elif state is SessionState.SUSPENDED:
            log.warn("the connection to ZooKeeper is lost; connecting again")
        else:
            log.warn("the ZooKeeper session has ended; starting a new one")
        self._tell(state)

    # -- start and end

    def _make_chroot(self) -> None:
        call = self._calls.add()
        call.deferred.addCallbacks(self._started, lambda failure: self._chroot_failed(failure.value))
        self._ensure(call, self._chroot or "/", self._chroot or "/")

    def _started(self, _: Any) -> None:
        starting = self._starting
        if starting is None:
            return
        self._starting = None
        self._cancel_timer()
        self._open = True
        self._state(SessionState.CONNECTED)
        starting.callback(None)

    def _chroot_failed(self, error: BaseException) -> None:
        if self._starting is not None and not isinstance(error, ConnectionLost | SessionExpired):
            self._start_failed(StoreFailure(f"can't use {self._chroot or '/'} of ZooKeeper at {self._hosts}: {error}"))

    def _start_took_too_long(self) -> None:
        why = self._session.problem or "no answer"
        self._start_failed(
            StoreFailure(f"can't connect to ZooKeeper at {self._hosts} within {self._timeout_ms} ms: {why}")
        )

    def _start_cancelled(self, _: Deferred[None]) -> None:
        self._start_failed(StoreClosed("the start was cancelled"))

    def _start_failed(self, error: StoreError) -> Deferred[None]:
        """Close the session, then fail the start. Fires when this is done."""
        starting, self._starting = self._starting, None
        self._cancel_timer()
        closing: Deferred[None] = Deferred()

        def ended() -> None:
            closing.callback(None)
            if starting is not None and not starting.called:
                starting.errback(error)

        self._session.close(ended)
        return closing

    def _end(self) -> None:
        """End the session. Calls that have not settled fail."""
        closing, self._closing = self._closing, None
        if closing is None:
            return
        self._cancel_timer()

        def ended() -> None:
            self._tell(SessionState.CLOSED)
            closing.callback(None)

        self._session.close(ended)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()


def _make(full: str, acl: Any, client: KazooClient) -> Any:
    return client.create_async(full, b"", acl)


def _is_there(error: BaseException) -> bool:
    return isinstance(error, kazoo.NodeExistsError)


def _nothing(_: Any) -> None:
    return None
