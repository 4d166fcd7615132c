"""The producer on asyncio: `await send(...)` buffers a record, and its delivery can be awaited for the offset.

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("events", b"hello", key=b"greeting")
        print(await delivery)

Rules: the guarantees are those of the blocking face (`blocking/producer.py`). `send` returns at once if the buffer has
space; otherwise it waits for space up to `max_block` seconds, in the order of the calls for a topic. Any number of
calls may wait, because waiting records are not counted in `buffer_memory`. Compression and encoding run on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pylogd.client.aio.cluster import Cluster
from pylogd.client.core.errors import Closed, ProducerFailed
from pylogd.client.core.producer.accumulator import Batch, check_timestamp
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.interceptors import ProducerRecord
from pylogd.client.core.producer.metrics import ProducerMetrics
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.evented.producer import EventedProducer
from pylogd.client.evented.transactions import TransactionMethods
from pylogd.wire.records import Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa


class Delivery(Outcome):
    """The result of one record, or of a record set: pending, written or failed. Await it for the offset."""

    __slots__ = ("_producer",)

    def __init__(self, producer: EventedProducer[Delivery], batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
        self._batch = batch
        self.index = index

    def __await__(self) -> Generator[Any, Any, int]:
        """Wait for the offset, without lingering. Raises the error if the record was not written."""
        return self._producer.result(self).__await__()

    async def result(self, timeout: float | None = None) -> int:
        """Wait for the offset. Raises RequestTimedOut after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self
        except TimeoutError:
            raise self._producer.within(str(self.batch.partition)) from None


class Producer(TransactionMethods):
    """A producer. It has its own connections, unless it is given a `Cluster`. Create it inside a running loop."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Options are given as `ProducerOptions`, by name, or both.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        self.options = ProducerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, auto_create_topics=True
        )  # fmt: skip
        self._now_ms = self.cluster.loop.now_ms
        self._producer: EventedProducer[Delivery] = EventedProducer(self.cluster.driver, self.options, self._deliver)
        super().__init__(self._producer)
        self._prepares = self._producer.prepares
        self._try_send = self._producer.try_send
        self._closed = False

    def _deliver(self, batch: Batch, index: int) -> Delivery:
        return Delivery(self._producer, batch, index)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Send a record and return its delivery, which will have the result.

        value, key: bytes or None, or what the serializers accept.
        timestamp: milliseconds since 1970; default: now.
        on_delivery: called with the delivery once it is done.

        Waits up to `max_block` seconds while the buffer is full or the topic's metadata is being fetched. Raises
        BufferFull; KafkaError if the topic or the partition does not exist; the error that prevented reading the
        topic's metadata; SerializationFailed; Closed; TypeError if the key or the value is not bytes.
        """
        if self._prepares:
            record = ProducerRecord(topic, value, key, partition, timestamp, headers)
            return await self._producer.send_prepared(record, on_delivery)
        stamp = self._now_ms() if timestamp is None else check_timestamp(timestamp)
        taken = self._try_send(topic, value, key, partition, stamp, headers, on_delivery)
        if taken is not None:
            return taken
        return await self._producer.send_later(topic, value, key, partition, stamp, headers, on_delivery)

    async def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[Any, Any]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:  # fmt: skip
        """Send (key, value) pairs or `NewRecord`s as one batch. The batch is written whole or not at all.

        Without `partition`, the key of the first record selects the partition. The delivery has the offset of the first
        record. Waits and raises as `send`; raises ValueError if there are no records.
        """
        return await self._producer.send_set(topic, records, partition, on_delivery)

    async def send_columns(
        self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None
    ) -> Sequence[Delivery]:
        """Send each row of a `pyarrow.RecordBatch` as a record, and return their deliveries in the order of the rows.

        The columns are `value` (binary or string) and optionally `key` (binary or string), `partition` (int32),
        `timestamp` and `headers` (list<struct<key: string, value: binary>>). Serializers are not applied. The argument
        `partition` applies to all rows and overrides the column.

        Waits as `send` does for each batch that the rows become, and raises the same errors; also KeyError if there is
        no column `value`, ValueError if a header has no key, TypeError if `rows` is not a RecordBatch.
        """
        return await self._producer.send_columns(topic, rows, partition)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all queued records. Wait until each has a result and its callback has run.

        Raises `DeliveryFailed` if a record was not written since the last flush; RequestTimedOut after `timeout`
        seconds. In a transaction: raises TransactionAborted or ProducerFailed if it can't be committed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._producer.flush()
        except TimeoutError:
            raise self._producer.within("batches") from None

    def metrics(self) -> ProducerMetrics:
        """Return statistics of this producer, its brokers and its partitions."""
        return self._producer.metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Accept no more records, flush, and close, all within `timeout` seconds. An open transaction is aborted.

        Raises the same errors as `flush`.
        """
        if self._closed:
            return
        left = self._producer.countdown(timeout)
        try:
            await self._producer.abort_open(timeout)
            self._producer.refuse(Closed("the producer is closed"))
            with suppress(ProducerFailed):  # the failure was already raised to the application
                await self.flush(left())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without sending queued records. Pending deliveries fail with Closed; their records may be written."""
        if not self._closed:
            self._closed = True
            self._producer.abandon()
            if self._own_cluster:
                self.cluster.close()
