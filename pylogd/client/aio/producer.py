"""The producer on asyncio: `await send(...)` takes a record, and its delivery can be awaited for the offset.

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("events", b"hello", key=b"greeting")
        print(await delivery)

Rules: the guarantees are the blocking face's (`blocking/producer.py`). `send` returns at once while there is room;
otherwise it waits for room up to `max_block` seconds, in the order of the calls. Compression and encoding run on the
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pylogd.client.aio.cluster import Cluster
from pylogd.client.core.errors import Closed
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.evented.producer import EventedProducer
from pylogd.wire.records import Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class Delivery(Outcome):
    """What becomes of one record, or of a set. Await it for the offset."""

    __slots__ = ("_producer",)

    def __init__(self, producer: EventedProducer[Delivery], batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
        self._batch = batch
        self.index = index

    def __await__(self) -> Generator[Any, Any, int]:
        """Wait for the offset, without lingering. Raises why the record was not written."""
        return self._producer.result(self).__await__()

    async def result(self, timeout: float | None = None) -> int:
        """As awaiting it; raises RequestTimedOut after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self
        except TimeoutError:
            raise self._producer.within(str(self.batch.partition)) from None


class Producer:
    """A producer on a cluster of its own, or on one that is given. Made inside a running loop."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        *,
        tls: Any = None,
        **settings: Any,
    ) -> None:
        """Options are given as `ProducerOptions`, by name, or both; `tls` is an `ssl.SSLContext`, None is plain TCP.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other.
        """
        self.options = ProducerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, auto_create_topics=True, tls=tls
        )  # fmt: skip
        self._now_ms = self.cluster.loop.now_ms
        self._producer: EventedProducer[Delivery] = EventedProducer(
            self.cluster.driver, self.options, self._deliver, _callback_failed
        )
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
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Take a record and return what will become of it. `timestamp` in milliseconds since 1970, by default now.

        `on_delivery` is called with the delivery once it is done. Waits up to `max_block` if the buffer is full or the
        topic not known yet. Raises BufferFull, KafkaError if the topic can't be found or has no such partition, what
        kept its metadata from being read, Closed, or TypeError for what is no bytes.
        """
        stamp = self._now_ms() if timestamp is None else timestamp
        taken = self._try_send(topic, value, key, partition, stamp, headers, on_delivery)
        if taken is not None:
            return taken
        return await self._producer.send_later(topic, value, key, partition, stamp, headers, on_delivery)

    async def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[bytes | None, bytes | None]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:  # fmt: skip
        """Take records that shall be one batch, written whole or not at all: (key, value) pairs or `NewRecord`s.

        Without `partition`, the first one's key decides. The delivery's offset is the first one's. Waits and raises
        as `send`; ValueError: there is no record.
        """
        return await self._producer.send_set(topic, records, partition, on_delivery)

    async def send_columns(self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None) -> list[Delivery]:
        """Take each row of a `pyarrow.RecordBatch` as a record: of the columns `value` (binary or string) and, where it
        has them, `key` (the same), `timestamp` and `headers` (list<struct<key: string, value: binary>>).

        Waits and raises as `send`; KeyError: there is no `value`.
        """
        return await self._producer.send_columns(topic, rows, partition)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until all of it has a result, and callbacks have run.

        Raises `DeliveryFailed` if anything since the last flush was not written, RequestTimedOut if `timeout` seconds
        are over before.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._producer.flush()
        except TimeoutError:
            raise self._producer.within("batches") from None

    async def close(self, timeout: float | None = None) -> None:
        """Take no more records, flush, and close; raises as `flush`."""
        if self._closed:
            return
        self._producer.refuse(Closed("the producer is closed"))
        try:
            await self.flush(timeout)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without sending what is left: that was not delivered, for all that is known."""
        if not self._closed:
            self._closed = True
            self._producer.abandon()
            if self._own_cluster:
                self.cluster.close()


def _callback_failed() -> None:
    _log.exception("a callback of the producer failed")
