"""A ZooKeeper session by kazoo, as one ordered stream of answers and events on the reactor thread.

Strategy: kazoo runs a thread for its connection, and by default two more, for results and for watch events, which don't
keep the order between results and events. Here its handler has no such threads: the connection's thread puts results
and events into one queue, in the order in which they came from the server, and the reactor thread takes them out, many
at a time. Requests are given to kazoo only while it is connected, `MAX_IN_FLIGHT` at a time; the others wait here, in
order.

Rules:

- Every request is answered once: by the server, or with an error. kazoo loses a request that is queued in the moment in
  which a session expires; since answers come in order, a request without an answer is known to be lost when a later one
  is answered.
- After `session_timeout` without a connection all requests fail, until there is a connection again.
- kazoo drops watches with their connection. They have to be set again when the session continues.
- kazoo's thread pings, and connects again, only after the reactor has proved that it makes progress (`proof_of_life`).
  A reactor without progress for the session timeout loses the session, like a dead process.
- kazoo wakes its thread by one byte for each request, through a blocking socket pair; MAX_IN_FLIGHT keeps the pair from
  filling up.

Must not know: paths, what the requests are.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType as KazooEventType
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from pylogd.base.machine import MachineTable
from pylogd.config.zookeeper import ZooKeeperSecurity
from pylogd.store.interfaces import SessionState
from pylogd.store.proof_of_life import ProofOfLife

log = Logger()

#: The most requests that kazoo has at a time.
MAX_IN_FLIGHT: Final = 100
#: The most entries of the queue that are handled in one turn of the reactor.
DRAIN_ENTRIES: Final = 256
#: The most seconds between two attempts to connect, and the seconds before a session that kazoo gave up is begun again.
RECONNECT_SECONDS: Final = 1.0
#: The most seconds that closing the session may take; if it takes longer, ZooKeeper ends it at its timeout.
CLOSE_SECONDS: Final = 5.0
#: A proof of life that took longer than this share of the session timeout is logged.
_LATE_SHARE: Final = 0.25
#: The buffer of the socket pair that wakes kazoo's thread. The kernel uses several hundred bytes for each byte sent.
_WAKE_BUFFER_BYTES: Final = 1 << 20

#: Called with the result, or the error, of a request.
Done = Callable[[Any, BaseException | None], None]
#: Gives a request to kazoo.
Send = Callable[[KazooClient], Any]


class LinkState(Enum):
    """The states of a session's connection."""

    WAITING = "There is no connection; requests wait for one."
    CONNECTED = "Requests are sent."
    FAILING = "For the session timeout there was no connection: requests fail until there is one again."


class LinkEvent(Enum):
    """The events of a session's connection."""

    CONNECTED = "kazoo has connected, and the session is valid."
    LOST = "The connection or the session was lost, or the session is closed."
    TIMED_OUT = "The session timeout has passed without a connection."


LINK = MachineTable(
    "ZooKeeper connection",
    "Says whether requests of a ZooKeeper session are sent, wait, or fail.",
    LinkState.WAITING,
    {
        LinkState.WAITING: {
            LinkEvent.CONNECTED: LinkState.CONNECTED, LinkEvent.LOST: LinkState.WAITING,
            LinkEvent.TIMED_OUT: LinkState.FAILING,
        },
        LinkState.CONNECTED: {LinkEvent.CONNECTED: LinkState.CONNECTED, LinkEvent.LOST: LinkState.WAITING},
        LinkState.FAILING: {LinkEvent.CONNECTED: LinkState.CONNECTED, LinkEvent.LOST: LinkState.FAILING},
    },
)  # fmt: skip


class Reactor(Protocol):
    """The methods of a reactor that a session needs."""

    def callFromThread(self, function: Callable[..., Any], *args: Any) -> object:
        """Call on the reactor thread."""

    def callLater(self, delay: float, function: Callable[..., Any], *args: Any) -> IDelayedCall:
        """Call on the reactor thread after a delay."""


class _Request:
    __slots__ = ("done", "send")

    def __init__(self, send: Send, done: Done) -> None:
        self.send = send
        self.done: Done | None = done

    def finish(self, value: Any, error: BaseException | None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(value, error)


class _Answer:
    """kazoo's `IAsyncResult`. It calls its links in the thread that sets it, so that order is kept."""

    __slots__ = ("_links", "_lock", "exception", "is_set", "value")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._links: list[Callable[[_Answer], Any]] = []
        self.is_set = False
        self.value: Any = None
        self.exception: BaseException | None = None

    def ready(self) -> bool:
        return self.is_set

    def successful(self) -> bool:
        return self.is_set and self.exception is None

    def set(self, value: Any = None) -> None:
        self._settle(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._settle(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the value, which is already set: only kazoo's own links call this."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, link: Callable[[_Answer], Any]) -> None:
        with self._lock:
            if not self.is_set:
                self._links.append(link)
                return
        link(self)

    def _settle(self, value: Any, exception: BaseException | None) -> None:
        with self._lock:
            if self.is_set:
                return
            self.value, self.exception, self.is_set = value, exception, True
        for link in self._links:
            link(self)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no annotations
    """kazoo's threading handler without its worker threads; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = threading.Lock()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def async_result(self) -> _Answer:
        return _Answer(self._answers)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self, readers: Sequence[socket.socket], writers: Sequence[socket.socket], _: Any, timeout: float | None = None
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """Wait at most `timeout` seconds, like `select.select`. kazoo's method makes an epoll object for each call."""
        poll = select.poll()
        for readable in readers:
            poll.register(readable, select.POLLIN)
        for writable in writers:
            poll.register(writable, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WAKE_BUFFER_BYTES)
        return pair

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            # kazoo has logged unexpected errors; InterruptedError is how it ends a wait.
            with suppress(Exception):
                func(*args, **kwargs)

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread


class _KazooLog(logging.Handler):
    """Keeps kazoo's last warning, which tells why there is no connection."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        if not text.startswith("Transition"):
            self.last = " ".join(text.split())


class KazooSession:
    """One session after another with the servers `hosts`, from `open` to `close`."""

    def __init__(
        self,
        hosts: str,
        reactor: Reactor,
        session_timeout: float,
        security: ZooKeeperSecurity,
        on_state: Callable[[SessionState], None],
    ) -> None:
        """Arguments:

        session_timeout: the session timeout in seconds.
        on_state: called on the reactor thread with CONNECTED, SUSPENDED or EXPIRED.
        """
        self._hosts = hosts
        self._reactor = reactor
        self._session_timeout = session_timeout
        self._security = security
        self._on_state = on_state
        self._log = _KazooLog()
        self._logger = logging.Logger("kazoo", logging.WARNING)  # kazoo's own logger writes to standard error
        self._logger.addHandler(self._log)
        self._client: KazooClient | None = None
        #: Returns whether the owner of the session does its work. It is called on the reactor thread (see
        #: `IMetadataStore`).
        self.vital: Callable[[], bool] = lambda: True
        self._proof = ProofOfLife(reactor.callFromThread, time.monotonic, self._is_vital)
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False
        self._waiting: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._timeout_call: IDelayedCall | None = None
        self._reopen_call: IDelayedCall | None = None
        self._link = LINK.machine()
        self.session_id = 0
        #: The session timeout in seconds that the server granted, or before that the requested one.
        self.granted_timeout = session_timeout

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._link.state is LinkState.CONNECTED

    @property
    def problem(self) -> str:
        """kazoo's last warning, "" if there was none."""
        return self._log.last

    def open(self) -> None:
        """Connect, and try again until that succeeds."""
        self._reopen_call = None
        self._client = client = KazooClient(
            hosts=self._hosts,
            timeout=self._session_timeout,
            handler=_Handler(),
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": RECONNECT_SECONDS},
            logger=self._logger,
            **self._security.kazoo_arguments(),
        )
        self._guard(client)
        client.add_listener(partial(self._state_heard, client))
        client.start_async()

    def close(self, done: Callable[[], None]) -> None:
        """Fail all requests, end the session, and call `done`, after `CLOSE_SECONDS` at the latest."""
        self._link.handle(LinkEvent.LOST)
        self._give_up(ConnectionLoss())
        for timer in (self._timeout_call, self._reopen_call):
            if timer is not None and timer.active():
                timer.cancel()
        client, self._client = self._client, None
        if client is None:
            done()
            return
        late = self._reactor.callLater(CLOSE_SECONDS, done)

        def stopped() -> None:
            if late.active():
                late.cancel()
                done()

        def stop() -> None:
            _discard(client)
            self._reactor.callFromThread(stopped)

        # kazoo waits for its connection's thread, which may wait for a server that does not answer.
        threading.Thread(target=stop, name="zookeeper-close", daemon=True).start()

    def ask(self, send: Send, done: Done) -> None:
        """Call `send` to give a request to kazoo, after all earlier ones; `done` is called on the reactor thread."""
        request = _Request(send, done)
        if self._link.state is LinkState.FAILING:
            request.finish(None, ConnectionLoss())
            return
        self._waiting.append(request)
        self._pump()

    def watcher(self, call: Callable[[WatchedEvent], None]) -> Callable[[WatchedEvent], None]:
        """Return a watch for kazoo that calls `call` on the reactor thread, in order with the answers."""

        def heard(event: WatchedEvent) -> None:
            if event.type != KazooEventType.NONE:
                self._put(call, event)

        return heard

    def _guard(self, client: KazooClient) -> None:
        """Let kazoo connect and ping only while the reactor makes progress, and note the granted session timeout.

        kazoo has no hooks for this, so two methods of its connection are wrapped. The method that connects returns two
        thirds of the timeout, in milliseconds.
        """
        connection = client._connection
        handshake, send_ping = connection._connect, connection._send_ping

        def connect(*args: Any) -> Any:
            self._prove(client)
            result = handshake(*args)
            self.granted_timeout = result[0] * 1.5 / 1000
            return result

        def ping(*args: Any) -> Any:
            self._prove(client)
            return send_ping(*args)

        connection._connect, connection._send_ping = connect, ping

    def _is_vital(self) -> bool:
        return self.vital()

    def _prove(self, client: KazooClient) -> None:  # called in kazoo's thread
        seconds = self._proof.wait(lambda: not client._stopped.is_set())
        if seconds >= self.granted_timeout * _LATE_SHARE:
            self._put(self._was_late, seconds)

    def _was_late(self, seconds: float) -> None:
        log.warn(
            "This process stood still, or could do no work, for {seconds:.1f} s, in which it did not show ZooKeeper "
            "that it is alive; after {timeout:.1f} s (zookeeper.session.timeout.ms) its session ends. Look for a disk "
            "that hangs, or for a machine that is overloaded or was suspended",
            seconds=seconds, timeout=self.granted_timeout,
        )  # fmt: skip

    # -- from kazoo's thread to the reactor's

    def _put(self, function: Callable[..., None], *args: Any) -> None:
        self._queue.append((function, args))
        if not self._woken:
            self._woken = True
            self._reactor.callFromThread(self._drain)

    def _drain(self) -> None:
        # This comes first, so that an entry that is added after the last one was taken wakes the reactor again.
        self._woken = False
        queue = self._queue
        for _ in range(DRAIN_ENTRIES):
            if not queue:
                break
            function, args = queue.popleft()
            function(*args)
        else:
            if queue and not self._woken:
                self._woken = True
                self._reactor.callFromThread(self._drain)
        self._pump()

    def _state_heard(self, client: KazooClient, state: str) -> None:
        identity = client.client_id
        self._put(self._state, client, state, client.client_state, 0 if identity is None else identity[0])

    # -- requests

    def _pump(self) -> None:
        """Give waiting requests to kazoo, up to `MAX_IN_FLIGHT`."""
        while self.connected and self._waiting and len(self._sent) < MAX_IN_FLIGHT:
            self._send(self._waiting.popleft())

    def _send(self, request: _Request) -> None:
        self._sent.append(request)
        try:
            answer = request.send(self._client)
        except Exception as error:
            self._put(self._answered, request, None, error)
        else:
            answer.rawlink(lambda answer: self._put(self._answered, request, answer.value, answer.exception))

    def _answered(self, request: _Request, value: Any, error: BaseException | None) -> None:
        if request.done is None:
            return  # it has already failed
        unanswered = []
        while (first := self._sent.popleft()) is not request:
            unanswered.append(first)
        for lost in unanswered:
            lost.finish(None, ConnectionLoss())
        request.finish(value, error)

    def _give_up(self, error: KazooException) -> None:
        lost = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for request in lost:
            request.finish(None, error)

    # -- the session's state

    def _state(self, client: KazooClient, state: str, keeper: str, session_id: int) -> None:
        if client is not self._client:
            return  # the client was closed or discarded
        if state == KazooState.CONNECTED:
            self._is_connected(session_id)
        elif state == KazooState.SUSPENDED:
            self._is_disconnected()
            self._on_state(SessionState.SUSPENDED)
        else:
            self._is_disconnected()
            if keeper != KeeperState.EXPIRED_SESSION:
                # kazoo gave up: the credentials were refused, or it failed. Its session can no longer be used.
                self._client = None
                threading.Thread(target=partial(_discard, client), name="zookeeper-close", daemon=True).start()
                self._reopen_call = self._reactor.callLater(RECONNECT_SECONDS, self.open)
            self._on_state(SessionState.EXPIRED)

    def _is_connected(self, session_id: int) -> None:
        self._link.handle(LinkEvent.CONNECTED)
        self.session_id = session_id
        self._log.last = ""
        if self._timeout_call is not None and self._timeout_call.active():
            self._timeout_call.cancel()
        self._timeout_call = None
        self._on_state(SessionState.CONNECTED)
        if self._sent:
            # Its answer shows whether the requests before it were lost.
            self._waiting.appendleft(_Request(lambda client: client.exists_async("/"), _ignore))
        self._pump()

    def _is_disconnected(self) -> None:
        self._link.handle(LinkEvent.LOST)
        if self._timeout_call is None:
            self._timeout_call = self._reactor.callLater(self._session_timeout, self._time_out)

    def _time_out(self) -> None:
        self._link.handle(LinkEvent.TIMED_OUT)
        self._give_up(ConnectionLoss())


def _discard(client: KazooClient) -> None:
    with suppress(KazooException, OSError):
        client.stop()
        client.close()


def _ignore(_: Any, __: BaseException | None) -> None:
    pass
