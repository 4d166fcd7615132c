"""The producer: records in, batches out to the partitions' leaders, results back.

Strategy: `send` adds a record to its partition's open batch and returns at once. A batch is sealed when it is full in
bytes or records, or has waited `linger_ms`; sealed batches go out, one of each partition to a request, with up to
`max_in_flight` requests under way to a broker. All of it happens in the caller's thread, inside `send`, `poll`, `flush`
and `Delivery.result`: while nobody calls, nothing lingers out.

Rules: buffers are bounded: over `buffer_bytes`, `send` waits for the broker. A batch that fails with a retriable error
is sent again, before any later batch of its partition that is not under way yet, until `delivery_timeout` is over.
With `max_in_flight` of 1 a retry can't change the order; with more it can, if a later batch was under way. A retry may
write a batch twice if the reply to the first try was lost (at least once); `retry=False` never does (at most once).
"""

from __future__ import annotations

import random
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pylogd.client.clock import Backoff
from pylogd.client.cluster import Cluster, error_text
from pylogd.client.connection import Connection, Reply
from pylogd.client.errors import Closed, DeliveryFailed, RequestTimedOut, is_retriable
from pylogd.client.model import TopicPartition
from pylogd.client.partitioner import PARTITIONERS, Partitioner
from pylogd.errors import KafkaError, PylogdError, error_for
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pylogd.wire.records import Header, NewRecord, encode_batch, record_size_bound
from pylogd.wire.values import ZERO_UUID

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_TOPIC_IDS_FROM = 13
_RECORD_OVERHEAD = 31  # see record_size_bound


class BatchResult(NamedTuple):
    """What became of a batch. `base_offset` is -1 if it is not known: after an error, or with acks=0."""

    partition: TopicPartition
    records: int
    base_offset: int
    log_append_time_ms: int
    error: PylogdError | None


class _Batch:
    """Records for one partition, on their way from the first `send` to a result."""

    __slots__ = ("attempts", "deadline", "due_ms", "encoded", "number", "partition", "producer", "records", "result",
                 "size")  # fmt: skip

    def __init__(self, producer: Producer, partition: TopicPartition, number: int, due_ms: int) -> None:
        self.producer = producer
        self.partition = partition
        self.number = number  # in the order that they were opened
        self.due_ms = due_ms
        self.records: list[tuple[bytes | None, bytes | None, int, Sequence[Header]]] = []
        self.size = 0
        self.deadline = 0.0
        self.attempts = 0
        self.encoded = b""
        self.result: BatchResult | None = None


class Delivery:
    """What becomes of one record, or of a set."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._batch = batch
        self._index = index

    @property
    def done(self) -> bool:
        """Whether it is written, or never will be."""
        return self._batch.result is not None

    @property
    def topic(self) -> str:
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        return self._batch.partition.partition

    @property
    def error(self) -> PylogdError | None:
        """Why it was not written, once that is so."""
        result = self._batch.result
        return None if result is None else result.error

    @property
    def offset(self) -> int:
        """Where it was written; -1 as long as that is not known, and always with acks=0."""
        result = self._batch.result
        return -1 if result is None or result.base_offset < 0 else result.base_offset + self._index

    def result(self, timeout: float | None = None) -> int:
        """Wait for it and return its offset. Raises why it was not written, or RequestTimedOut after `timeout`."""
        if self._batch.result is None:
            self._batch.producer._wait_for(self._batch, timeout)
        if self.error is not None:
            raise self.error
        return self.offset


class _Request(NamedTuple):
    """A produce request under way."""

    connection: Connection
    reply: Reply
    batches: dict[tuple[str | bytes, int], _Batch]  # by topic name or id, and partition


class Producer:
    """A producer on a cluster of its own, or on one that is given. Not for several threads at a time."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        *,
        acks: Literal["all", 0, 1, -1] = "all",
        compression: str = "none",
        compression_level: int | None = None,
        batch_bytes: int = 256 * 1024,
        batch_records: int = 10_000,
        linger_ms: int = 5,
        buffer_bytes: int = 32 * 1024 * 1024,
        max_request_bytes: int = 1024 * 1024,
        max_in_flight: int = 5,
        partitioner: str | Partitioner = "murmur2",
        request_timeout: float = 30.0,
        delivery_timeout: float = 120.0,
        retry: bool = True,
        on_batch: Callable[[BatchResult], None] | None = None,
        client_id: str = "pylogd",
    ) -> None:
        """`on_batch` is called with the result of every batch, which is cheaper than to keep all deliveries."""
        if isinstance(bootstrap_servers, Cluster):
            self.cluster, self._own_cluster = bootstrap_servers, False
        else:
            self.cluster = Cluster(
                bootstrap_servers, client_id=client_id, request_timeout=request_timeout, auto_create_topics=True
            )
            self._own_cluster = True
        self._acks = _ACKS[acks]
        self._compression = CompressionType.named(compression)
        self._level = compression_level
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._linger_ms = linger_ms
        self._buffer_bytes = buffer_bytes
        self._max_request_bytes = max(max_request_bytes, batch_bytes)
        self._max_in_flight = max_in_flight
        self._partition_for = PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner
        self._request_timeout = request_timeout
        self._delivery_timeout = delivery_timeout
        self._retry = retry
        self._on_batch = on_batch
        self._clock = self.cluster.clock
        self._open: dict[TopicPartition, _Batch] = {}
        self._sealed: dict[TopicPartition, deque[_Batch]] = {}
        self._held: dict[TopicPartition, float] = {}  # no new request before this time
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._under_way: deque[_Request] = deque()
        self._flying: dict[TopicPartition, int] = {}  # batches under way
        self._sticky: dict[str, int] = {}
        self._counts: dict[str, int] = {}  # partitions of a topic
        self._buffered = 0
        self._unfinished = 0
        self._batch_number = 0
        self._next_due_ms = 0
        self._failed: DeliveryFailed | None = None
        self._closed = False

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # Taking records

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Delivery:
        """Take a record and return what will become of it. `timestamp` in milliseconds since 1970, by default now.

        Waits if the buffer is full. Raises KafkaError if the topic can't be found.
        """
        now = self._clock.now_ms()
        if partition is None:
            partition = self._choose(topic, key)
        place = TopicPartition(topic, partition)
        size = _RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size = record_size_bound(key, value, headers)
        batch = self._open.get(place)
        if batch is not None and batch.size + size > self._batch_bytes:
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._open_batch(place, now)
        batch.records.append((key, value, now if timestamp is None else timestamp, headers))
        delivery = Delivery(batch, len(batch.records) - 1)
        batch.size += size
        self._buffered += size
        if batch.size >= self._batch_bytes or len(batch.records) >= self._batch_records:
            self._seal(batch)
        if now >= self._next_due_ms or self._buffered > self._buffer_bytes:
            self._catch_up(now)
        return delivery

    def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[bytes | None, bytes | None]], *,
        partition: int | None = None,
    ) -> Delivery:  # fmt: skip
        """Take records that shall be one batch, written whole or not at all: (key, value) pairs or `NewRecord`s.

        Without `partition`, the first one's key decides. The delivery's offset is the first one's.
        """
        now = self._clock.now_ms()
        taken = [r if isinstance(r, NewRecord) else NewRecord(r[0], r[1], now) for r in records]
        if not taken:
            raise ValueError("a set needs a record")
        place = TopicPartition(topic, self._choose(topic, taken[0].key) if partition is None else partition)
        if place in self._open:
            self._seal(self._open[place])
        batch = self._open_batch(place, now)
        batch.records.extend(taken)
        batch.size = sum(record_size_bound(r.key, r.value, r.headers) for r in taken)
        self._buffered += batch.size
        self._seal(batch)
        self._catch_up(now)
        return Delivery(batch, 0)

    def _choose(self, topic: str, key: bytes | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            if self._closed:
                raise Closed("the producer is closed")
            count = self._counts[topic] = len(self.cluster.topic(topic, timeout=self._delivery_timeout).partitions)
        chosen = self._partition_for(topic, key, count)
        if chosen is None:
            chosen = self._sticky.get(topic)
            if chosen is None:
                chosen = self._sticky[topic] = random.randrange(count)
        return chosen

    def _open_batch(self, place: TopicPartition, now: int) -> _Batch:
        if self._closed:
            raise Closed("the producer is closed")
        batch = self._open[place] = _Batch(self, place, self._batch_number, now + self._linger_ms)
        self._batch_number += 1
        self._unfinished += 1
        self._next_due_ms = min(self._next_due_ms, batch.due_ms) if len(self._open) > 1 else batch.due_ms
        return batch

    def _seal(self, batch: _Batch) -> None:
        place = batch.partition
        del self._open[place]
        if self._sticky.get(place.topic) == place.partition:
            del self._sticky[place.topic]  # the next batch without keys goes elsewhere
        batch.deadline = self._clock.monotonic() + self._delivery_timeout
        self._sealed.setdefault(place, deque()).append(batch)
        self._turn()

    def _catch_up(self, now: int) -> None:
        """Seal what has lingered long enough, send, and wait while the buffer is too full."""
        for batch in [batch for batch in self._open.values() if batch.due_ms <= now]:
            self._seal(batch)
        if self._open:
            self._next_due_ms = min(batch.due_ms for batch in self._open.values())
        self._turn()
        while self._buffered > self._buffer_bytes:
            if not self._sealed and not self._under_way:
                self._seal(next(iter(self._open.values())))
            self._turn(wait=self._request_timeout)

    # Waiting

    def poll(self, timeout: float = 0.0) -> None:
        """Send what is due and take in replies, waiting up to `timeout` seconds for something to happen."""
        self._catch_up(self._clock.now_ms())
        if timeout:
            self._turn(wait=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until all of it has a result. Raises `DeliveryFailed` if anything since the last
        flush was not written, RequestTimedOut if `timeout` seconds are over before.
        """
        for batch in list(self._open.values()):
            self._seal(batch)
        self._wait_until(lambda: not self._unfinished, timeout)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self, timeout: float | None = None) -> None:
        """Flush and close; raises as `flush`."""
        if self._closed:
            return
        try:
            self.flush(timeout)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without sending what is left."""
        self._closed = True
        if self._own_cluster:
            self.cluster.close()

    def _wait_for(self, batch: _Batch, timeout: float | None) -> None:
        if self._open.get(batch.partition) is batch:
            self._seal(batch)
        self._wait_until(lambda: batch.result is not None, timeout)

    def _wait_until(self, finished: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            self._turn()
            if finished():
                return
            left = self._request_timeout if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                raise RequestTimedOut(f"{self._unfinished} batches are not delivered yet")
            if self._closed:
                raise Closed("the producer is closed")
            self._turn(wait=left)

    # The machinery: dispatch, wait, collect

    def _turn(self, wait: float = 0.0) -> None:
        """Take in replies and send what may go; with `wait`, sleep that long at most for something to happen."""
        if wait:
            self._sleep(wait)
        if self._under_way:
            self._collect()
        while self._sealed and self._dispatch():
            pass

    def _sleep(self, wait: float) -> None:
        now = self._clock.monotonic()
        held = [until - now for place, until in self._held.items() if place in self._sealed]
        wait = max(0.0, min([wait, *held]))
        connections = {request.connection for request in self._under_way}
        if not connections:
            if held and wait:
                self._clock.sleep(wait)
            return
        late = min(request.reply.deadline for request in self._under_way) - now
        ready = [c for c in connections if not c.closed]
        if len(ready) == len(connections):
            select.select(ready, [], [], max(0.0, min(wait, late)))

    def _collect(self) -> None:
        for connection in {request.connection for request in self._under_way}:
            connection.poll()
        still: deque[_Request] = deque()
        for request in self._under_way:
            if request.reply.done:
                self._land(request)
            else:
                still.append(request)
        self._under_way = still

    def _land(self, request: _Request) -> None:
        """A request has its reply, or never will."""
        batches = request.batches
        for batch in batches.values():
            self._flying[batch.partition] -= 1
        if request.reply.error is not None:
            for batch in batches.values():
                self._fail(batch, request.reply.error)
            return
        response: ProduceResponse | None = request.reply.response
        if response is None:  # acks=0
            for batch in batches.values():
                self._finish(batch, -1, -1, None)
            return
        for topic in response.responses:
            for answer in topic.partition_responses:
                found = batches.pop((topic.name or topic.topic_id, answer.index), None)
                if found is not None:
                    self._answer(found, answer)
        for batch in batches.values():
            self._fail(batch, RequestTimedOut("the broker's reply leaves the partition out"))

    def _answer(self, batch: _Batch, answer: PartitionProduceResponse) -> None:
        if answer.error_code:
            text = answer.error_message or error_text(answer.error_code)
            self._fail(batch, KafkaError(error_for(answer.error_code), f"{batch.partition}: {text}"))
        else:
            self._backoffs.pop(batch.partition, None)
            self._finish(batch, answer.base_offset, answer.log_append_time_ms, None)

    def _fail(self, batch: _Batch, error: PylogdError) -> None:
        """Try again later, in order, or give up."""
        self.cluster.note(error)
        place = batch.partition
        pause = self._backoffs.setdefault(place, Backoff()).next()
        again = self._clock.monotonic() + pause
        if not self._retry or not is_retriable(error) or again > batch.deadline:
            self._finish(batch, -1, -1, error)
            return
        batch.attempts += 1
        self._held[place] = again
        self._sealed[place] = deque(sorted([*self._sealed.get(place, ()), batch], key=lambda b: b.number))

    def _finish(self, batch: _Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> None:
        count = len(batch.records)
        batch.result = BatchResult(batch.partition, count, base_offset, log_append_time_ms, error)
        batch.records, batch.encoded = [], b""
        self._buffered -= batch.size
        self._unfinished -= 1
        if error is not None:
            earlier = self._failed
            self._failed = DeliveryFailed(
                count + (earlier.records if earlier else 0), (earlier.__cause__ if earlier else None) or error
            )
        if self._on_batch is not None:
            self._on_batch(batch.result)

    def _dispatch(self) -> bool:
        """Send one request to each broker that may have one; whether any was sent."""
        now = self._clock.monotonic()
        for_node: dict[int, list[_Batch]] = {}
        sizes: dict[int, int] = {}
        for place in list(self._sealed):
            if place in self._held and not self._released(place, now):
                continue
            batch = self._sealed[place][0]
            try:
                node = self.cluster.leader(place).leader
            except PylogdError as error:
                self._fail(self._take(place), error)
                continue
            size = sizes.get(node, 0) + batch.size
            if (node in sizes and size > self._max_request_bytes) or self._requests_to(node) >= self._max_in_flight:
                continue
            sizes[node] = size
            for_node.setdefault(node, []).append(self._take(place))
        for node, batches in for_node.items():
            self._send(node, batches)
        return bool(for_node)

    def _released(self, place: TopicPartition, now: float) -> bool:
        """Whether a partition that had an error may go on: the pause is over and nothing of it is under way."""
        if now < self._held[place] or self._flying.get(place):
            return False
        del self._held[place]
        return True

    def _take(self, place: TopicPartition) -> _Batch:
        queue = self._sealed[place]
        batch = queue.popleft()
        if not queue:
            del self._sealed[place]
        return batch

    def _requests_to(self, node: int) -> int:
        try:
            return self.cluster.connection(node, "produce").in_flight
        except PylogdError:
            return 0  # sending will say so, batch by batch

    def _send(self, node: int, batches: list[_Batch]) -> None:
        for batch in batches:
            if not batch.encoded:
                batch.encoded = encode_batch(batch.records, compression=self._compression, level=self._level)
        try:
            connection = self.cluster.connection(node, "produce")
            request, version, by_place = self._build(connection, batches)
            for batch in batches:
                self._flying[batch.partition] = self._flying.get(batch.partition, 0) + 1
            reply = connection.send(
                request, version=version, timeout=self._request_timeout, expect_reply=self._acks != 0
            )
        except PylogdError as error:
            for batch in batches:
                self._flying[batch.partition] = max(0, self._flying.get(batch.partition, 0) - 1)
                self._fail(batch, error)
            return
        self._under_way.append(_Request(connection, reply, by_place))

    def _build(
        self, connection: Connection, batches: list[_Batch]
    ) -> tuple[ProduceRequest, int, dict[tuple[str | bytes, int], _Batch]]:
        request = ProduceRequest(acks=self._acks, timeout_ms=int(self._request_timeout * 1000))
        ids = {batch.partition.topic: self.cluster.try_topic(batch.partition.topic).topic_id for batch in batches}
        highest = _TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None
        version = connection.version_for(request, highest)
        topics: dict[str, TopicProduceData] = {}
        by_place: dict[tuple[str | bytes, int], _Batch] = {}
        for batch in batches:
            name, index = batch.partition
            key: Any = ids[name] if version >= _TOPIC_IDS_FROM else name
            if name not in topics:
                field = "topic_id" if version >= _TOPIC_IDS_FROM else "name"
                topics[name] = TopicProduceData(**{field: key})
            topics[name].partition_data.append(PartitionProduceData(index=index, records=batch.encoded))
            by_place[key, index] = batch
        request.topic_data = list(topics.values())
        return request, version, by_place
