"""The cluster as a client sees it: who is there, who leads what, and requests that find their way.

Strategy: metadata is fetched when it is first needed and again when an answer shows that it was wrong; connections are
opened when they are first needed and again after they were lost. One connection per broker and purpose: a fetch that
waits at the broker would hold up everything behind it.

Rules: `call` is the one place that tries again, for errors that the error table calls retriable, with growing pauses,
until its deadline. One thread at a time. No Twisted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pylogd.client.blocking.clock import Clock, SystemClock
from pylogd.client.blocking.connection import Connection
from pylogd.client.core.errors import Closed, is_retriable
from pylogd.client.core.metadata import Key, Metadata, Retry, check, error_text, parse_bootstrap
from pylogd.client.core.model import Broker, Partition, Topic, TopicPartition
from pylogd.errors import PylogdError
from pylogd.wire.messages.metadata import MetadataRequest

__all__ = ["Cluster", "check", "error_text"]

T = TypeVar("T")


class Cluster:
    """Connections to all brokers of a cluster, and its metadata. Timeouts in seconds."""

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
        clock: Clock | None = None,
    ) -> None:
        """Nothing is connected yet. `retry_timeout` bounds a call with all its tries, `bootstrap_timeout` the same
        before any broker was found (by default it is as long). ValueError: a bad address.
        """
        self.metadata = Metadata(parse_bootstrap(bootstrap_servers), auto_create_topics=auto_create_topics)
        self.clock = clock or SystemClock()
        self.client_id = client_id
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.retry_timeout = retry_timeout
        self.bootstrap_timeout = retry_timeout if bootstrap_timeout is None else bootstrap_timeout
        self._connections: dict[tuple[Key, str], Connection] = {}
        self._closed = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy(self) -> Cluster:
        """The same cluster with the same settings and connections of its own: for another thread."""
        again = Cluster(
            [f"[{host}]:{port}" for host, port in self.metadata.bootstrap],
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            retry_timeout=self.retry_timeout,
            bootstrap_timeout=self.bootstrap_timeout,
            auto_create_topics=self.metadata.auto_create_topics,
            clock=self.clock,
        )
        again.metadata.brokers = dict(self.metadata.brokers)
        return again

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Connections

    def connection(self, node_id: int, purpose: str = "") -> Connection:
        """An open connection to a broker, by its id. Raises BrokerUnavailable."""
        broker = self.metadata.broker(node_id)
        return self._open(node_id, purpose, broker.host, broker.port)

    def any_connection(self) -> Connection:
        """A connection to whatever broker can be reached, one that is open if there is one."""
        for (_, purpose), connection in self._connections.items():
            if not purpose and not connection.closed:
                return connection
        failure: PylogdError | None = None
        for key, host, port in self.metadata.places():
            try:
                return self._open(key, "", host, port)
            except PylogdError as error:
                if not is_retriable(error):
                    raise
                failure = error
        assert failure is not None
        raise failure

    def connection_at(self, node_id: int, host: str, port: int, purpose: str = "") -> Connection:
        """An open connection to a broker that an answer named. Raises BrokerUnavailable."""
        return self._open(node_id, purpose, host, port)

    def _open(self, key: Key, purpose: str, host: str, port: int) -> Connection:
        if self._closed:
            raise Closed("the client is closed")
        found = self._connections.get((key, purpose))
        if found is not None and not found.closed:
            return found
        opened = self._connections[key, purpose] = Connection(
            host,
            port,
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            clock=self.clock,
        )
        return opened

    # Requests

    def call(self, attempt: Callable[[], T], timeout: float | None = None) -> T:
        """What `attempt` returns, tried again after retriable errors until `timeout` seconds are over."""
        retry = Retry(self.clock.monotonic(), self.retry_timeout if timeout is None else timeout)
        while True:
            try:
                return attempt()
            except PylogdError as error:
                self.note(error)
                most = float("inf") if self.metadata.brokers else self.bootstrap_timeout
                pause = retry.pause(error, self.clock.monotonic(), most)
                if pause is None:
                    raise
            self.clock.sleep(pause)

    def request(self, request: Any, *, node_id: int | None = None, timeout: float | None = None) -> Any:
        """Send a request to a broker, or to any, and wait for its response; tried again if the connection fails."""

        def attempt() -> Any:
            connection = self.any_connection() if node_id is None else self.connection(node_id)
            return connection.request(request)

        return self.call(attempt, timeout)

    def note(self, error: BaseException) -> None:
        """An error that may mean that metadata is out of date: it will be asked for again."""
        self.metadata.note(error)

    # Metadata

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, once any metadata has come."""
        return self.metadata.cluster_id

    @property
    def controller_id(self) -> int:
        """The broker that is the controller, as far as known; else -1."""
        return self.metadata.controller_id

    def refresh(self, topics: Iterable[str] | None = ()) -> list[Topic]:
        """Ask for brokers, and topics by name, or all of them if `topics` is None. Raises KafkaError for the first
        topic that has an error: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE.
        """
        connection = self.any_connection()
        version = connection.version_for(MetadataRequest())
        return self.metadata.learn(connection.request(self.metadata.request(topics, version), version=version))

    def brokers(self) -> list[Broker]:
        """The brokers that are up, by id."""
        if not self.metadata.brokers:
            self.call(self.refresh)
        return [self.metadata.brokers[node_id] for node_id in sorted(self.metadata.brokers)]

    def topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """A topic's metadata, fetched if it is not known. Raises KafkaError if there is no such topic."""
        found = self.known(name)
        return found if found is not None else self.call(lambda: self.ask_topic(name), timeout)

    def known(self, name: str) -> Topic | None:
        """A topic's metadata if it is at hand."""
        return self.metadata.topics.get(name)

    def try_topic(self, name: str) -> Topic:
        """As `topic`, in one try."""
        found = self.known(name)
        return found if found is not None else self.ask_topic(name)

    def ask_topic(self, name: str) -> Topic:
        """A topic's metadata as it is now, in one try."""
        self.refresh([name])
        return self.metadata.topics[name]

    def forget(self, name: str) -> None:
        """Ask for a topic again when it is next needed."""
        self.metadata.forget(name)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return sorted(self.call(lambda: self.refresh(None)), key=lambda topic: topic.name)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return [TopicPartition(topic, partition.index) for partition in self.topic(topic).partitions]

    def leader(self, partition: TopicPartition) -> Partition:
        """Who leads a partition, in one try. Raises KafkaError: unknown partition, or no leader at the moment."""
        self.try_topic(partition.topic)
        found = self.metadata.partition(partition)
        assert found is not None
        return found
