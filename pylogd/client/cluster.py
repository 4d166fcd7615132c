"""The cluster as a client sees it: who is there, who leads what, and requests that find their way.

Strategy: metadata is fetched when it is first needed and again when an answer shows that it was wrong; connections are
opened when they are first needed and again after they were lost. One connection per broker and purpose: a fetch that
waits at the broker would hold up everything behind it.

Rules: `call` is the one place that tries again, for errors that the error table calls retriable, with growing pauses,
until its deadline. One thread at a time. No Twisted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pylogd.client.clock import Backoff, Clock, SystemClock
from pylogd.client.connection import Connection
from pylogd.client.errors import BrokerUnavailable, Closed, UnknownTopic, is_retriable
from pylogd.client.model import Broker, Partition, Topic, TopicPartition, parse_address
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
_Key = int | tuple[str, int]  # a broker by its id, or by its address while that is all that is known
_Place = tuple[_Key, str, int]

#: the metadata said otherwise: ask again before the next try
_STALE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


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
        servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        self.bootstrap = [parse_address(server) for server in servers if server.strip()]
        if not self.bootstrap:
            raise ValueError("no bootstrap servers are given")
        self.clock = clock or SystemClock()
        self.client_id = client_id
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.retry_timeout = retry_timeout
        self.bootstrap_timeout = retry_timeout if bootstrap_timeout is None else bootstrap_timeout
        self.auto_create_topics = auto_create_topics
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._connections: dict[tuple[_Key, str], Connection] = {}
        self._closed = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Connections

    def connection(self, node_id: int, purpose: str = "") -> Connection:
        """An open connection to a broker, by its id. Raises BrokerUnavailable."""
        broker = self._brokers.get(node_id)
        if broker is None:
            raise BrokerUnavailable(f"broker {node_id} is not among the brokers that are up")
        return self._open(node_id, purpose, broker.host, broker.port)

    def any_connection(self) -> Connection:
        """A connection to whatever broker can be reached, one that is open if there is one."""
        for (_, purpose), connection in self._connections.items():
            if not purpose and not connection.closed:
                return connection
        places: list[_Place] = [(broker.node_id, broker.host, broker.port) for broker in self._brokers.values()]
        random.shuffle(places)
        places += [((host, port), host, port) for host, port in self.bootstrap]
        failure: PylogdError | None = None
        for key, host, port in places:
            try:
                return self._open(key, "", host, port)
            except PylogdError as error:
                if not is_retriable(error):
                    raise
                failure = error
        assert failure is not None
        raise failure

    def _open(self, key: _Key, purpose: str, host: str, port: int) -> Connection:
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
        began = self.clock.monotonic()
        patience = self.retry_timeout if timeout is None else timeout
        backoff = Backoff()
        while True:
            try:
                return attempt()
            except PylogdError as error:
                self.note(error)
                pause = backoff.next()
                limit = patience if self._brokers else min(patience, self.bootstrap_timeout)
                if not is_retriable(error) or self.clock.monotonic() + pause > began + limit:
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
        if isinstance(error, BrokerUnavailable) or (isinstance(error, KafkaError) and error.code in _STALE):
            self._topics.clear()

    # Metadata

    def refresh(self, topics: Iterable[str] | None = ()) -> list[Topic]:
        """Ask for brokers, and topics by name, or all of them if `topics` is None. Raises KafkaError for the first
        topic that has an error: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE.
        """
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        connection = self.any_connection()
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=self.auto_create_topics)
        version = connection.version_for(request)
        if version < 4:  # before it could be asked not to create topics
            request.allow_auto_topic_creation = True
        response: MetadataResponse = connection.request(request, version=version)
        if response.error_code:
            raise KafkaError(error_for(response.error_code))
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self._brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        found = []
        for topic in response.topics:
            if topic.error_code:
                raise KafkaError(error_for(topic.error_code), f"topic {topic.name}: {error_text(topic.error_code)}")
            found.append(_read_topic(topic))
        self._topics.update((topic.name, topic) for topic in found)
        return found

    def brokers(self) -> list[Broker]:
        """The brokers that are up, by id."""
        if not self._brokers:
            self.call(self.refresh)
        return [self._brokers[node_id] for node_id in sorted(self._brokers)]

    def topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """A topic's metadata, fetched if it is not known. Raises KafkaError if there is no such topic."""
        found = self._topics.get(name)
        return found if found is not None else self.call(lambda: self._ask_topic(name), timeout)

    def try_topic(self, name: str) -> Topic:
        """As `topic`, in one try."""
        found = self._topics.get(name)
        return found if found is not None else self._ask_topic(name)

    def _ask_topic(self, name: str) -> Topic:
        try:
            self.refresh([name])
        except KafkaError as error:
            # Retriable by the table, for the sake of topics that are just being made; to wait a minute for a
            # topic that is misspelt serves nobody.
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not self.auto_create_topics:
                raise UnknownTopic(error.code, f"there is no topic {name!r}") from None
            raise
        return self._topics[name]

    def forget(self, name: str) -> None:
        """Ask for a topic again when it is next needed."""
        self._topics.pop(name, None)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return sorted(self.call(lambda: self.refresh(None)), key=lambda topic: topic.name)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return [TopicPartition(topic, partition.index) for partition in self.topic(topic).partitions]

    def leader(self, partition: TopicPartition) -> Partition:
        """Who leads a partition, in one try. Raises KafkaError: unknown partition, or no leader at the moment."""
        for found in self.try_topic(partition.topic).partitions:
            if found.index == partition.partition:
                if found.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: it has no leader at the moment")
                return found
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")


def error_text(code: int) -> str:
    """What the error table says of a code."""
    return error_for(code).text


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless `code` is 0."""
    if code:
        raise KafkaError(error_for(code), message or None)


def _read_topic(topic: Any) -> Topic:
    partitions = [
        Partition(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )
        for p in topic.partitions
    ]
    partitions.sort(key=lambda partition: partition.index)
    return Topic(topic.name, topic.topic_id, topic.is_internal, tuple(partitions))
