"""The producer on asyncio: `await send(...)` buffers a record, and its delivery can be awaited for the offset.

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("events", b"hello", key=b"greeting")
        print(await delivery)

Rules: the guarantees are the blocking face's (`blocking/producer.py`). `send` returns at once if the buffer has space;
otherwise it waits for space up to `max_block` seconds, in the order of the calls for a topic. Any number of calls may
wait: their records are not counted in `buffer_memory`. Compression and encoding run on the loop.
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
        """Wait for the offset as `await` does. Raises RequestTimedOut after `timeout` seconds."""
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

        value, key: bytes or None, or whatever the serializers accept. timestamp: in milliseconds since 1970, by default
        now. on_delivery: called with the delivery once it is done.

        Waits up to `max_block` seconds if the buffer is full or the topic not known yet. Raises BufferFull; KafkaError
        if there is no such topic or partition; what kept its metadata from being read; SerializationFailed; Closed;
        TypeError for a key or value that is no bytes.
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

        Its columns are `value` (binary or string) and optionally `key` (the same), `partition` (int32), `timestamp` and
        `headers` (list<struct<key: string, value: binary>>). They are not serialized. `partition`: of all rows, in
        place of the column. Waits as `send` for each batch that they become, and raises as `send`; raises KeyError
        without a column `value`, ValueError for a header without a key, TypeError if the rows are no RecordBatch.
        """
        return await self._producer.send_columns(topic, rows, partition)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until all of it has a result, and callbacks have run.

        Raises `DeliveryFailed` if anything since the last flush was not written, RequestTimedOut if `timeout` seconds
        are over before. In a transaction, TransactionAborted or ProducerFailed if it can't be committed.
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

        Raises as `flush`.
        """
        if self._closed:
            return
        left = self._producer.countdown(timeout)
        try:
            await self._producer.abort_open(timeout)
            self._producer.refuse(Closed("the producer is closed"))
            with suppress(ProducerFailed):  # the application was told when that happened
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
