"""A cluster for blocking callers: its connections, its metadata, and single requests to its brokers.

Strategy: an `EventedCluster` on a `PollLoop`, in the thread that calls. Metadata is fetched when it is first needed and
when an answer shows that it is outdated; connections are opened when they are needed.

Rules: threads may share a cluster; they take turns. No Twisted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pylogd.client.blocking.clock import Clock, SystemClock
from pylogd.client.blocking.loop import PollLoop
from pylogd.client.core.admin.calls import Question, question, refresh
from pylogd.client.core.admin.offsets import find_end_offsets, find_offsets
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, OffsetAndTime, Partition, Topic, TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.evented.cluster import EventedCluster

T = TypeVar("T")


class Cluster:
    """Connections to all brokers of a cluster, and its metadata. Times are in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        bootstrap_timeout: float | None = None,
        auto_create_topics: bool = False,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ClientOptions`, by name, or both. No connection is opened yet.

        retry_timeout: how long a call is retried.
        bootstrap_timeout: how long it is retried while no broker is known; default: `retry_timeout`.

        Raises ValueError for an invalid address.
        """
        self.options = ClientOptions.of(options, settings)
        self.clock = clock or SystemClock()
        self.loop = PollLoop(self.clock)
        self.evented = EventedCluster(
            self.loop, bootstrap_servers, self.options, retry_timeout=retry_timeout,
            bootstrap_timeout=bootstrap_timeout, auto_create_topics=auto_create_topics,
        )  # fmt: skip
        self.metadata: Metadata = self.evented.metadata
        self.loop.happened, self.loop.recover = self.evented.driver.turn, self.evented.driver.recover
        self._closed = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        with self.loop.lock:
            if not self._closed:
                self._closed = True
                self.evented.close()
                self.loop.close()

    def run(self, operation: Awaitable[T]) -> T:
        """Run an operation of `core/admin` on this cluster, and return its result."""
        coroutine: Coroutine[Any, Any, T] = operation  # type: ignore[assignment]
        return self.loop.run(coroutine)

    # Requests

    def request(self, request: Any, *, node_id: int | None = None, timeout: float | None = None) -> Any:
        """Send a request to a broker, or to any broker, and return the response. Retry if the connection fails."""
        return self.run(self.evented.call(lambda: self.evented.send(question(request, node_id)), timeout))

    def send(self, asked: Question) -> Any:
        """Send a request once, and return its response."""
        return self.run(self.evented.send(asked))

    def call(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Call `attempt` and return its result. Retry after retriable errors, for up to `timeout` seconds."""
        return self.run(self.evented.call(attempt, timeout))

    def note(self, error: BaseException) -> None:
        """Drop metadata that an error shows to be outdated."""
        self.metadata.note(error)

    # Metadata

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id. None until metadata was read."""
        return self.metadata.cluster_id

    @property
    def controller_id(self) -> int:
        """The controller's broker id, or -1 if it is unknown."""
        return self.metadata.controller_id

    def refresh(self, topics: Iterable[str] | None = ()) -> list[Topic]:
        """Fetch metadata of the brokers and of topics by name; None means all topics. Raises KafkaError for the first
        topic that has an error: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE.
        """
        return self.run(refresh(self.evented, topics))

    def brokers(self) -> list[Broker]:
        """Return the live brokers, by id."""
        if not self.metadata.brokers:
            self.call(lambda: refresh(self.evented))
        return [self.metadata.brokers[node_id] for node_id in sorted(self.metadata.brokers)]

    def topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """Return a topic's metadata; fetch it if it is unknown. Raises KafkaError if the topic does not exist."""
        found = self.metadata.topics.get(name)
        if found is None:
            [found] = self.call(lambda: refresh(self.evented, [name]), timeout)
        return found

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return sorted(self.call(lambda: refresh(self.evented, None)), key=lambda topic: topic.name)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic."""
        return [TopicPartition(topic, partition.index) for partition in self.topic(topic).partitions]

    def leader(self, partition: TopicPartition) -> Partition:
        """Return a partition's metadata with its leader.

        Raises KafkaError if the partition is unknown or has no leader.
        """
        self.topic(partition.topic)
        found = self.metadata.partition(partition)
        assert found is not None
        return found


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
    committed: bool = False,
) -> dict[TopicPartition, OffsetAndTime]:
    """Call `find_offsets`, and block until it is done."""
    return cluster.run(find_offsets(cluster.evented, wanted, timeout, committed=committed))


def end_offsets_for_epochs(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout: float | None = None
) -> dict[TopicPartition, int | None]:
    """Call `find_end_offsets`, and block until it is done."""
    return cluster.run(find_end_offsets(cluster.evented, wanted, timeout))
