"""The producer: records in, batches out to the partitions' leaders, results back.

Strategy: `send` adds a record to its partition's open batch and returns at once. A batch is sealed when it is full in
bytes or records, or has lingered `linger_ms`; a thread of the producer's own (`sender`) sends it, again after
retriable errors, until it has a result or `delivery_timeout` is over.

Rules: with `idempotence`, which is on with acks="all" unless it is switched off, a batch is written once whatever is
retried, and a partition's records keep their order. Without it a retry may write a batch twice, if the reply to the
first try was lost, and with more than one request in flight change the order; `retry=False` writes at most once. What
is buffered is bounded by `buffer_memory` bytes, all that Python takes for the records counted: `send` then waits for
room, up to `max_block` seconds, and raises BufferFull. Threads may share a producer. What is neither flushed nor
closed when the process ends may be lost; Ctrl-C interrupts every call at once.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.sender import Sender
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.consumer import columns
from pylogd.client.core.errors import BufferFull, Closed, RequestTimedOut, is_retriable
from pylogd.client.core.producer.accumulator import Accumulator, Batch, BatchResult
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.options import Acks, SenderOptions, check_options
from pylogd.client.core.producer.partitioner import Partitioner
from pylogd.client.core.producer.send_queue import Outbox
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import NO_TIMESTAMP, Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_ABANDON_SECONDS = 1.0  # the thread ends at once unless it waits for a broker


class Delivery(Outcome):
    """What becomes of one record, or of a set."""

    __slots__ = ("_sender",)

    def __init__(self, sender: Sender, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._sender = sender
        self._batch = batch
        self._index = index

    def result(self, timeout: float | None = None) -> int:
        """Wait for it and return its offset. Raises why it was not written, or RequestTimedOut after `timeout`."""
        batch, sender = self._batch, self._sender
        if batch.result is None:
            with sender.lock:
                if sender.accumulator.open.get(batch.partition) is batch:
                    sender.accumulator.seal(batch)
                if not sender.wait(lambda: batch.result is not None, timeout):
                    raise RequestTimedOut(f"{batch.partition}: not delivered yet")
        if self.error is not None:
            raise self.error
        return self.offset


class Producer:
    """A producer with connections and a thread of its own."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        *,
        acks: Acks = "all",
        idempotence: bool | None = None,
        compression: str = "none",
        compression_level: int | None = None,
        batch_bytes: int = 256 * 1024,
        batch_records: int = 10_000,
        linger_ms: float = 5,
        buffer_memory: int = 32 * 1024 * 1024,
        max_block: float = 60.0,
        max_request_bytes: int = 1024 * 1024,
        max_in_flight: int = 5,
        partitioner: str | Partitioner = "murmur2",
        request_timeout: float = 30.0,
        delivery_timeout: float = 120.0,
        retry: bool = True,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 1.0,
        metadata_max_age: float = 300.0,
        on_batch: Callable[[BatchResult], None] | None = None,
        client_id: str = "pylogd",
    ) -> None:
        """A `Cluster` lends its settings, not its connections. Times in seconds unless their name says `ms`.

        `partitioner`: "murmur2" (as the Java client), "crc32" (as librdkafka), "random", or a function of topic, key
        and number of partitions. `max_in_flight`: requests to a broker. `on_batch` is called with the result of every
        batch, in the producer's thread, which is cheaper than to keep all deliveries. ValueError: options that
        contradict each other.
        """
        wanted_acks, idempotent = check_options(acks, idempotence, retry, max_in_flight)
        if isinstance(bootstrap_servers, Cluster):
            cluster = bootstrap_servers.copy()
        else:
            cluster = Cluster(
                bootstrap_servers, client_id=client_id, request_timeout=request_timeout, auto_create_topics=True
            )
        accumulator = Accumulator(
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            linger=linger_ms / 1000,
            delivery_timeout=delivery_timeout,
            partitioner=partitioner,
            monotonic=cluster.clock.monotonic,
        )
        backoff = partial(Backoff, retry_backoff, retry_backoff_max)
        outbox = Outbox(
            accumulator,
            idempotent=idempotent,
            retry=retry,
            max_request_bytes=max(max_request_bytes, batch_bytes),
            backoff=backoff,
        )
        options = SenderOptions(
            acks=wanted_acks,
            compression=CompressionType.named(compression),
            compression_level=compression_level,
            max_in_flight=max_in_flight,
            request_timeout=request_timeout,
            metadata_max_age=metadata_max_age,
        )
        self._sender = Sender(cluster, accumulator, outbox, options, buffer_memory, backoff, partial(_tell, on_batch))
        self._add = accumulator.add
        self._accumulator = accumulator
        self._max_block = max_block
        self._now_ms = cluster.clock.now_ms
        # A producer that is dropped delivers what it has; its thread then ends.
        self._finalizer = weakref.finalize(self, _drop, self._sender)

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
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Take a record and return what will become of it. `timestamp` in milliseconds since 1970, by default now.

        `on_delivery` is called with the delivery once it is done, in the producer's thread. Waits up to `max_block` if
        the buffer is full or the topic not known yet. Raises BufferFull, KafkaError if the topic can't be found, what
        kept its metadata from being read, or Closed.
        """
        sender = self._sender
        with sender.lock:
            if self._accumulator.buffered >= sender.limit:
                self._make_room()
            count = sender.partitions.get(topic, 0)
            if not count and partition is None:
                count = self._learn(topic)
            batch = self._add(
                topic, count, partition, key, value, self._now_ms() if timestamp is None else timestamp, headers
            )
            index = len(batch.records) - 1
            delivery = Delivery(sender, batch, index)
            if on_delivery is not None:
                batch.listeners.append((delivery, on_delivery))
            if not index or batch.count:  # opened, or sealed
                sender.nudge(batch)
        return delivery

    def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[bytes | None, bytes | None]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:  # fmt: skip
        """Take records that shall be one batch, written whole or not at all: (key, value) pairs or `NewRecord`s.

        Without `partition`, the first one's key decides. The delivery's offset is the first one's. Waits and raises
        as `send`; ValueError: there is no record.
        """
        taken = list(records)
        sender = self._sender
        with sender.lock:
            if self._accumulator.buffered >= sender.limit:
                self._make_room()
            count = sender.partitions.get(topic, 0)
            if not count and partition is None:
                count = self._learn(topic)
            batch = self._accumulator.add_set(topic, count, partition, taken, self._now_ms())
            delivery = Delivery(sender, batch, 0)
            if on_delivery is not None:
                batch.listeners.append((delivery, on_delivery))
            sender.nudge(batch)
        return delivery

    def send_columns(self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None) -> list[Delivery]:
        """Take each row of a `pyarrow.RecordBatch` as a record: of the columns `value` (binary or string) and, where it
        has them, `key` (the same), `timestamp` and `headers` (list<struct<key: string, value: binary>>).

        Waits and raises as `send`; KeyError: there is no `value`.
        """
        return [
            self.send(
                topic, row.value, row.key, partition=partition, headers=row.headers,
                timestamp=None if row.timestamp == NO_TIMESTAMP else row.timestamp,
            )
            for row in columns.rows_of(rows)
        ]  # fmt: skip

    def _make_room(self) -> None:
        sender, accumulator = self._sender, self._accumulator
        if sender.failure is not None:
            raise sender.failure
        sender.needing_room += 1
        try:
            if not sender.wait(lambda: accumulator.buffered < sender.limit, self._max_block):
                raise BufferFull(
                    f"{accumulator.buffered:,} bytes wait for the brokers; buffer_memory is {sender.limit:,}"
                )
        finally:
            sender.needing_room -= 1
        if sender.failure is not None:
            raise sender.failure

    def _learn(self, topic: str) -> int:
        sender = self._sender
        sender.wanted[topic] = None

        def answered() -> bool:
            error = sender.wanted.setdefault(topic, None)  # another caller may have taken it off
            return topic in sender.partitions or (error is not None and not is_retriable(error))

        try:
            sender.wait(answered, self._max_block)
        finally:
            error = sender.wanted.pop(topic, None)
        count = sender.partitions.get(topic)
        if count is None:
            raise error if error is not None else RequestTimedOut(f"no metadata of {topic!r} came in time")
        if sender.failure is not None:
            raise sender.failure
        return count

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until all of it has a result, and callbacks have run.

        Raises `DeliveryFailed` if anything since the last flush was not written, RequestTimedOut if `timeout` seconds
        are over before.
        """
        sender = self._sender
        with sender.lock:
            mark = self._accumulator.next_number
            sender.flushing += 1
            try:
                if not sender.wait(lambda: sender.all_told(mark), timeout):
                    raise RequestTimedOut(f"{len(self._accumulator.unfinished)} batches are not delivered yet")
            finally:
                sender.flushing -= 1
            failed = sender.take_failed()
        if failed is not None:
            raise failed

    def close(self, timeout: float | None = None) -> None:
        """Take no more records, flush, and close; raises as `flush`."""
        if self._finalizer.detach() is None:
            return
        sender = self._sender
        with sender.lock:
            sender.refuse(Closed("the producer is closed"))
        try:
            self.flush(timeout)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without sending what is left: that was not delivered, for all that is known."""
        self._finalizer.detach()
        self._sender.abandon(Closed("the producer is closed"), _ABANDON_SECONDS)


def _tell(on_batch: Callable[[BatchResult], None] | None, batch: Batch, result: BatchResult) -> None:
    if on_batch is not None:
        on_batch(result)
    for delivery, listener in batch.listeners:
        listener(delivery)


def _drop(sender: Sender) -> None:
    """A producer goes that nobody closed: its thread delivers what it has, if the process lives that long."""
    if sender.accumulator.unfinished:
        warnings.warn("a producer was neither closed nor flushed: records may be lost", ResourceWarning, stacklevel=2)
    sender.let_end()
