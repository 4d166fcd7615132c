"""Fetch requests under way to the leaders of some partitions, and the replies on their way back.

Strategy: one request at a time to each broker, on a connection of its own, for all partitions that it leads. The reply
is kept as the bytes that came; only batch headers are read, to know where to go on, so that the next request is under
way before the first record of this reply is decoded. Partitions take turns in being first in a request, because a full
reply starves the last ones.

Rules: at most one reply per broker is kept (and one under way), each of `max_bytes` or one batch. A partition whose
position was changed meanwhile is told by its generation, and what was fetched for it is dropped. One thread at a time.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pylogd.client.clock import Backoff
from pylogd.client.cluster import Cluster, error_text
from pylogd.client.connection import Connection, Reply
from pylogd.client.errors import CorruptRecords
from pylogd.client.model import TopicPartition
from pylogd.errors import KafkaError, PylogdError, error_for
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from pylogd.wire.records import BatchHeader, iter_batches
from pylogd.wire.values import ZERO_UUID

_TOPIC_IDS_FROM = 13
_CONSUMER = -1
_NO_WAIT_MS = 0


@dataclass(slots=True)
class Place:
    """Where the fetcher is in a partition. `error` is what its last answer said, until somebody deals with it."""

    partition: TopicPartition
    offset: int
    generation: int
    high_watermark: int = -1
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: PylogdError | None = None


@dataclass(slots=True)
class Fetched:
    """Batches of one partition, whole, as views of the reply's bytes. Records before `offset` were not asked for."""

    place: Place
    generation: int
    offset: int
    batches: Iterator[tuple[BatchHeader, memoryview]]


@dataclass(slots=True)
class _Asked:
    """A fetch request under way."""

    connection: Connection
    reply: Reply
    places: dict[tuple[str | bytes, int], tuple[Place, int]]  # by topic name or id, and partition; with the generation


class Fetcher:
    """Keeps fetching the partitions in `places`. Waits and sizes as Kafka's fetch.* settings."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        min_bytes: int,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        request_timeout: float,
    ) -> None:
        """Nothing is fetched until there are places."""
        self._cluster = cluster
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._request_timeout = request_timeout
        self._generation = 0
        self._asked: dict[int, _Asked] = {}
        self._ready: deque[Fetched] = deque()
        self.places: dict[TopicPartition, Place] = {}

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from `offset` on. What was fetched of it before is dropped."""
        self._generation += 1
        self.places[partition] = Place(partition, offset, self._generation)

    def drop(self, partition: TopicPartition) -> None:
        """Fetch a partition no more."""
        self.places.pop(partition, None)

    def take(self) -> Fetched | None:
        """The next batches that have come, if any have. The request for what follows them is sent first."""
        while self._ready:
            fetched = self._ready.popleft()
            if self._current(fetched.place, fetched.generation):
                if not self._ready:
                    self.send()
                return fetched
        return None

    def failed(self) -> Place | None:
        """A place whose last answer was an error that nobody dealt with yet."""
        for place in self.places.values():
            if place.error is not None:
                return place
        return None

    def _current(self, place: Place, generation: int) -> bool:
        return self.places.get(place.partition) is place and place.generation == generation

    # Sending

    def send(self) -> None:
        """Put a request on its way to each broker that leads a place and has none under way."""
        if self._ready:
            return
        now = self._cluster.clock.monotonic()
        by_leader: dict[int, list[Place]] = {}
        for place in self.places.values():
            if place.error is not None or place.not_before > now:
                continue
            try:
                leader = self._cluster.leader(place.partition).leader
            except PylogdError as error:
                self._fail(place, error)
                continue
            if leader not in self._asked:
                by_leader.setdefault(leader, []).append(place)
        for leader, places in by_leader.items():
            try:
                self._asked[leader] = self._ask(leader, places)
            except PylogdError as error:
                for place in places:
                    self._fail(place, error)

    def _ask(self, leader: int, places: list[Place]) -> _Asked:
        connection = self._cluster.connection(leader, "fetch")
        ids = {p.partition.topic: self._cluster.try_topic(p.partition.topic).topic_id for p in places}
        request = FetchRequest(
            replica_id=_CONSUMER, max_wait_ms=self._max_wait_ms, min_bytes=self._min_bytes, max_bytes=self._max_bytes
        )
        version = connection.version_for(request, _TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None)
        topics: dict[str, FetchTopic] = {}
        by_place: dict[tuple[str | bytes, int], tuple[Place, int]] = {}
        for place in places:
            name, index = place.partition
            key: Any = ids[name] if version >= _TOPIC_IDS_FROM else name
            if name not in topics:
                topics[name] = FetchTopic(**{"topic_id" if version >= _TOPIC_IDS_FROM else "topic": key})
            topics[name].partitions.append(
                FetchPartition(
                    partition=index, fetch_offset=place.offset, partition_max_bytes=self._partition_max_bytes
                )
            )
            by_place[key, index] = place, place.generation
        request.topics = list(topics.values())
        timeout = self._request_timeout + self._max_wait_ms / 1000
        return _Asked(connection, connection.send(request, version=version, timeout=timeout), by_place)

    # Receiving

    def receive(self, timeout: float) -> None:
        """Take in the replies that have come; if there is nothing to take, wait up to `timeout` seconds for some."""
        if self._ready:
            timeout = 0.0
        if not self._asked:
            if timeout:
                now = self._cluster.clock.monotonic()
                pauses = [place.not_before - now for place in self.places.values() if place.not_before > now]
                self._cluster.clock.sleep(min([timeout, *pauses]))
            return
        connections = [asked.connection for asked in self._asked.values()]
        if len(connections) == 1:
            connections[0].poll(timeout)
        else:
            self._wait_for_any(connections, timeout)
        for leader, asked in list(self._asked.items()):
            if asked.reply.done:
                del self._asked[leader]
                self._land(asked)

    def _wait_for_any(self, connections: list[Connection], timeout: float) -> None:
        poll = select.poll()
        for connection in connections:
            if connection.closed:
                return
            poll.register(connection, select.POLLIN)
        poll.poll(timeout * 1000)
        for connection in connections:
            connection.poll()

    def _land(self, asked: _Asked) -> None:
        """Sort the answers of a reply by partition, or tell all of its partitions that there is none."""
        places = [place for place, generation in asked.places.values() if self._current(place, generation)]
        response: FetchResponse | None = asked.reply.response
        error: PylogdError | None = asked.reply.error
        if response is not None and response.error_code:
            error = KafkaError(error_for(response.error_code))
        if response is None or error is not None:
            for place in places:
                self._fail(place, error or KafkaError(error_for(-1)))
            return
        for topic in response.responses:
            for answer in topic.partitions:
                found = asked.places.get((topic.topic or topic.topic_id, answer.partition_index))
                if found is not None and self._current(*found):
                    self._answer(found[0], answer)
        for place in places:  # whoever was asked for goes behind those that were not
            self.places[place.partition] = self.places.pop(place.partition)

    def _answer(self, place: Place, answer: PartitionData) -> None:
        if answer.error_code:
            text = error_text(answer.error_code)
            self._fail(place, KafkaError(error_for(answer.error_code), f"{place.partition}: {text}"))
            return
        place.high_watermark = answer.high_watermark
        place.backoff.reset()
        records = answer.records
        if not isinstance(records, bytes | memoryview) or not len(records):
            return
        batches: list[tuple[BatchHeader, memoryview]] = []
        try:
            batches.extend(iter_batches(records, allow_partial=True))  # keeps what came before an error
        except InvalidRecordBatch as error:
            if not batches:
                topic, partition = place.partition
                self._fail(place, CorruptRecords(topic, partition, place.offset, None, str(error)))
        if batches:
            self._ready.append(Fetched(place, place.generation, place.offset, iter(batches)))
            place.offset = max(place.offset, batches[-1][0].next_offset)

    def _fail(self, place: Place, error: PylogdError) -> None:
        self._cluster.note(error)
        place.error = error
        place.not_before = self._cluster.clock.monotonic() + place.backoff.next()
