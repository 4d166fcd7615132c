"""The cluster on Twisted: connections that are opened when they are needed, and requests that find their way.

Strategy: as the blocking face's `Cluster`, whose knowledge of the cluster (`client/metadata.py`) it shares. One
connection for each broker and purpose; whoever needs one that is just being opened waits for that one. `call` is the
one place that tries again.

Rules: one reactor. After `close` everything fails with `Closed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogd.client.core.admin.calls import Question
from pylogd.client.core.call import Endpoint
from pylogd.client.core.errors import Closed, is_retriable
from pylogd.client.core.metadata import Key, Metadata, Retry, parse_bootstrap
from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.loop import TwistedLoop
from pylogd.client.evented.cluster import EventedCluster
from pylogd.errors import PylogdError
from pylogd.net.client import BrokerConnection, connect
from pylogd.net.steady import steady

T = TypeVar("T")


def default_reactor() -> Any:
    """The process's reactor, installed only when somebody needs one."""
    from twisted.internet import reactor  # noqa: PLC0415 - whoever imports it installs it

    return reactor


class Cluster:
    """Connections to all brokers of a cluster, and its metadata: `Calls` on Twisted. Times in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        client_id: str = "pylogd",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        retry_timeout: float = 60.0,
        bootstrap_timeout: float | None = None,
        auto_create_topics: bool = False,
        tls: Callable[[str], Any] | None = None,
        reactor: Any = None,
    ) -> None:
        """Nothing is connected yet. The options are the blocking face's; `tls` makes the TLS side of a connection to a
        host, as `twisted.internet.ssl.optionsForClientTLS` does; None is plain TCP. ValueError: a bad address.
        """
        self.metadata = Metadata(parse_bootstrap(bootstrap_servers), auto_create_topics=auto_create_topics)
        self.reactor = steady(default_reactor() if reactor is None else reactor)
        self.client_id = client_id
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.retry_timeout = retry_timeout
        self.bootstrap_timeout = retry_timeout if bootstrap_timeout is None else bootstrap_timeout
        self._tls = tls
        self._connections: dict[tuple[Key, str], BrokerConnection] = {}
        self._opening: dict[tuple[Key, str], list[Deferred[BrokerConnection]]] = {}
        self._attempts: set[Deferred[None]] = set()
        self._closed = False
        self._evented: EventedCluster | None = None

    @property
    def evented(self) -> EventedCluster:
        """The connections of the machines that the core drives."""
        if self._evented is None:
            options = ClientOptions(
                client_id=self.client_id, connect_timeout=self.connect_timeout, request_timeout=self.request_timeout
            )
            self._evented = EventedCluster(
                TwistedLoop(self.reactor, self._tls), [f"[{host}]:{port}" for host, port in self.metadata.bootstrap],
                options, retry_timeout=self.retry_timeout, bootstrap_timeout=self.bootstrap_timeout,
                auto_create_topics=self.metadata.auto_create_topics,
            )  # fmt: skip
        return self._evented

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._evented is not None:
            self._evented.close()
        for attempt in list(self._attempts):
            attempt.cancel()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def seconds(self) -> float:
        """The reactor's time, which is monotonic."""
        now: float = self.reactor.seconds()
        return now

    # Connections

    async def connection(self, node_id: int | None, purpose: str = "") -> BrokerConnection:
        """An open connection to a broker, by its id, or to whatever broker can be reached. Raises BrokerUnavailable."""
        if node_id is None:
            return await self._any_connection()
        broker = self.metadata.broker(node_id)
        return await self.connection_at(node_id, broker.host, broker.port, purpose)

    def open_connection(self, node_id: int, purpose: str) -> BrokerConnection | None:
        """The connection to a broker if there is one that is open."""
        found = self._connections.get((node_id, purpose))
        return found if found is not None and not found.closed else None

    async def _any_connection(self) -> BrokerConnection:
        for (_, purpose), connection in self._connections.items():
            if not purpose and not connection.closed:
                return connection
        failure: PylogdError | None = None
        for key, host, port in self.metadata.places():
            try:
                return await self.connection_at(key, host, port)
            except PylogdError as error:
                if not is_retriable(error):
                    raise
                failure = error
        assert failure is not None
        raise failure

    async def connection_at(self, key: Key, host: str, port: int, purpose: str = "") -> BrokerConnection:
        """An open connection to a place. Raises BrokerUnavailable, RequestTimedOut, InvalidReply, KafkaError."""
        if self._closed:
            raise Closed("the client is closed")
        found = self._connections.get((key, purpose))
        if found is not None and not found.closed and _is_at(found, host, port):
            return found
        waiter: Deferred[BrokerConnection] = Deferred()
        waiting = self._opening.get((key, purpose))
        if waiting is not None:
            waiting.append(waiter)
        else:
            self._opening[key, purpose] = [waiter]
            self._attempt((key, purpose), host, port)
        return await waiter

    def _attempt(self, place: tuple[Key, str], host: str, port: int) -> None:
        """Open a connection for all who wait for it. One of them may give up; the others still want it."""
        attempt = connect(
            self.reactor,
            host,
            port,
            client_id=self.client_id,
            timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            tls=None if self._tls is None else self._tls(host),
        )

        def done(result: BrokerConnection | Failure) -> None:
            waiting = self._opening.pop(place)
            if isinstance(result, BrokerConnection):
                self._connections[place] = result
            elif self._closed:
                result = Failure(Closed("the client is closed"))
            for waiter in waiting:
                waiter.callback(result)

        finished: Deferred[None] = attempt.addBoth(done)
        self._attempts.add(finished)
        finished.addBoth(lambda _: self._attempts.discard(finished))

    # Requests

    async def send(self, question: Question) -> Any:
        """Return the response to a request, in one try."""
        target = question.target
        if isinstance(target, Endpoint):
            connection = await self.connection_at(target.node_id, target.host, target.port)
        else:
            connection = await self.connection(target)
        version = connection.version_for(question.api, question.highest)
        message = question.build(version)
        question.sent = True
        return await self.request(connection, message, version)

    async def request(self, connection: BrokerConnection, request: Any, version: int) -> Any:
        """The response to a request."""
        return await connection.request(request, version=version, timeout=self.request_timeout)

    async def call(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """What `attempt` returns, tried again after retriable errors until `timeout` seconds are over."""
        retry = Retry(self.seconds(), self.retry_timeout if timeout is None else timeout)
        while True:
            try:
                return await attempt()
            except PylogdError as error:
                self.metadata.note(error)
                most = float("inf") if self.metadata.brokers else self.bootstrap_timeout
                pause = retry.pause(error, self.seconds(), most)
                if pause is None:
                    raise
            await self.sleep(pause)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if self._closed:
            raise Closed("the client is closed")
        await deferLater(self.reactor, seconds, lambda: None)


def _is_at(connection: BrokerConnection, host: str, port: int) -> bool:
    """Whether it goes there: a broker may have moved."""
    return connection.address == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
