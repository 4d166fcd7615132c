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
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pylogd.client.cluster import Cluster
from pylogd.client.errors import Closed, RequestTimedOut
from pylogd.client.model import TopicPartition
from pylogd.client.partitioner import PARTITIONERS, Partitioner
from pylogd.client.sender import Batch, BatchResult, Sender
from pylogd.errors import PylogdError
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import Header, NewRecord, record_size_bound

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_RECORD_OVERHEAD = 31  # see record_size_bound


class Delivery:
    """What becomes of one record, or of a set."""

    __slots__ = ("_batch", "_index", "_producer")

    def __init__(self, producer: Producer, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
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
            self._producer._wait_for(self._batch, timeout)
        if self.error is not None:
            raise self.error
        return self.offset


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
        self._sender = Sender(
            self.cluster,
            acks=_ACKS[acks],
            compression=CompressionType.named(compression),
            compression_level=compression_level,
            max_request_bytes=max(max_request_bytes, batch_bytes),
            max_in_flight=max_in_flight,
            request_timeout=request_timeout,
            delivery_timeout=delivery_timeout,
            retry=retry,
            on_batch=on_batch,
        )
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._linger_ms = linger_ms
        self._buffer_bytes = buffer_bytes
        self._partition_for = PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner
        self._request_timeout = request_timeout
        self._delivery_timeout = delivery_timeout
        self._clock = self.cluster.clock
        self._open: dict[TopicPartition, Batch] = {}
        self._sticky: dict[str, int] = {}  # the partition for records without keys
        self._counts: dict[str, int] = {}  # partitions of a topic
        self._batch_number = 0
        self._next_due_ms = 0
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
        size = _RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size = record_size_bound(key, value, headers)
        batch = self._open.get((topic, partition))  # type: ignore[call-overload]  # a plain tuple is equal, and cheaper
        if batch is not None and batch.size + size > self._batch_bytes:
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._open_batch(TopicPartition(topic, partition), now)
        batch.records.append((key, value, now if timestamp is None else timestamp, headers))
        delivery = Delivery(self, batch, len(batch.records) - 1)
        batch.size += size
        self._sender.buffered += size
        if batch.size >= self._batch_bytes or len(batch.records) >= self._batch_records:
            self._seal(batch)
        if now >= self._next_due_ms or self._sender.buffered > self._buffer_bytes:
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
        self._sender.buffered += batch.size
        self._seal(batch)
        self._catch_up(now)
        return Delivery(self, batch, 0)

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

    def _open_batch(self, place: TopicPartition, now: int) -> Batch:
        if self._closed:
            raise Closed("the producer is closed")
        batch = self._open[place] = Batch(place, self._batch_number, now + self._linger_ms)
        self._batch_number += 1
        self._sender.unfinished += 1
        self._next_due_ms = min(self._next_due_ms, batch.due_ms) if len(self._open) > 1 else batch.due_ms
        return batch

    def _seal(self, batch: Batch) -> None:
        place = batch.partition
        del self._open[place]
        if self._sticky.get(place.topic) == place.partition:
            del self._sticky[place.topic]  # the next batch without keys goes elsewhere
        self._sender.add(batch)

    def _catch_up(self, now: int) -> None:
        """Seal what has lingered long enough, send, and wait while the buffer is too full."""
        for batch in [batch for batch in self._open.values() if batch.due_ms <= now]:
            self._seal(batch)
        if self._open:
            self._next_due_ms = min(batch.due_ms for batch in self._open.values())
        self._sender.turn()
        while self._sender.buffered > self._buffer_bytes:
            if self._sender.idle:
                self._seal(next(iter(self._open.values())))
            self._sender.turn(wait=self._request_timeout)

    # Waiting

    def poll(self, timeout: float = 0.0) -> None:
        """Send what is due and take in replies, waiting up to `timeout` seconds for something to happen."""
        self._catch_up(self._clock.now_ms())
        if timeout:
            self._sender.turn(wait=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until all of it has a result. Raises `DeliveryFailed` if anything since the last
        flush was not written, RequestTimedOut if `timeout` seconds are over before.
        """
        for batch in list(self._open.values()):
            self._seal(batch)
        self._wait_until(lambda: not self._sender.unfinished, timeout)
        failed, self._sender.failed = self._sender.failed, None
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

    def _wait_for(self, batch: Batch, timeout: float | None) -> None:
        if self._open.get(batch.partition) is batch:
            self._seal(batch)
        self._wait_until(lambda: batch.result is not None, timeout)

    def _wait_until(self, finished: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            self._sender.turn()
            if finished():
                return
            left = self._request_timeout if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                raise RequestTimedOut(f"{self._sender.unfinished} batches are not delivered yet")
            if self._closed:
                raise Closed("the producer is closed")
            self._sender.turn(wait=left)
