"""The producer on Twisted: `send` buffers a record and fires with its delivery, which has the result.

Rules: the guarantees are those of the blocking face (`blocking/producer.py`). The Deferred of `send` fires at once if
the buffer has space. Otherwise it fires when there is space, in the order of the calls for a topic, or fails with
BufferFull after `max_block` seconds. Any number of calls may wait, and waiting records are not counted in
`buffer_memory`. So a caller that does not wait for each `send` must limit their number, or set `max_block=0`.
Compression and encoding run on the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall

from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.errors import Closed, ProducerFailed
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Batch, check_timestamp
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.interceptors import ProducerRecord
from pylogd.client.core.producer.metrics import ProducerMetrics
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.transaction_model import OffsetsSource
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import deferred
from pylogd.client.evented import transactions as evented
from pylogd.client.evented.producer import EventedProducer
from pylogd.client.evented.transactions import TransactionMethods
from pylogd.wire.records import Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa


class Delivery(Outcome):
    """The result of one record, or of a record set: pending, written or failed."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
        self._batch = batch
        self.index = index

    def result(self, timeout: float | None = None) -> Deferred[int]:
        """Return a Deferred of the offset; the batch does not linger. Fails with the record's error, or
        RequestTimedOut.
        """
        return self._producer.result(self, timeout)


class Transaction(evented.Transaction):
    """One transaction, for an `async with` statement."""

    def send_offsets(  # type: ignore[override]
        self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None
    ) -> Deferred[None]:
        """Call `Producer.send_offsets`."""
        return Deferred.fromCoroutine(super().send_offsets(source, group))


class Producer:
    """A producer. It has its own connections, unless it is given a `Cluster`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        *,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ProducerOptions`, by name, or both. `reactor` is passed to `Cluster`.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        self.options = ProducerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, auto_create_topics=True, reactor=reactor
        )  # fmt: skip
        self._reactor = self.cluster.reactor
        self._now_ms = self.cluster.loop.now_ms
        self._producer: EventedProducer[Delivery] = EventedProducer(self.cluster.driver, self.options, self._deliver)
        self._methods = TransactionMethods(self._producer)
        self._prepares = self._producer.prepares
        self._closed: Deferred[None] | None = None

    def _deliver(self, batch: Batch, index: int) -> Delivery:
        return Delivery(self, batch, index)

    # Sending

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Deferred[Delivery]:
        """Send a record. The Deferred fires with its delivery, which gets the result later.

        value, key: bytes or None, or what the serializers accept.
        timestamp: milliseconds since 1970; default: now.
        on_delivery: called with the delivery once it is done.

        Waits up to `max_block` seconds while the buffer is full or the topic's metadata is being fetched. Fails with
        BufferFull; KafkaError if the topic or the partition does not exist; the error that prevented reading the
        topic's metadata; SerializationFailed; Closed. Raises TypeError if the key or the value is not bytes. If the
        Deferred is cancelled before it fires, the record is not sent.
        """
        if self._prepares:
            record = ProducerRecord(topic, value, key, partition, timestamp, headers)
            return Deferred.fromCoroutine(self._producer.send_prepared(record, on_delivery))
        stamp = self._now_ms() if timestamp is None else check_timestamp(timestamp)
        taken = self._producer.try_send(topic, value, key, partition, stamp, headers, on_delivery)
        if taken is not None:
            return succeed(taken)
        return Deferred.fromCoroutine(
            self._producer.send_later(topic, value, key, partition, stamp, headers, on_delivery)
        )

    def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[Any, Any]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Deferred[Delivery]:  # fmt: skip
        """Send (key, value) pairs or `NewRecord`s as one batch. The batch is written whole or not at all.

        Without `partition`, the key of the first record selects the partition. The delivery has the offset of the first
        record. Waits and fails as `send` does; raises ValueError if there are no records.
        """
        taken = list(records)
        if not taken:
            raise ValueError("a record set needs at least one record")
        return Deferred.fromCoroutine(self._producer.send_set(topic, taken, partition, on_delivery))

    def send_columns(
        self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None
    ) -> Deferred[Sequence[Delivery]]:
        """Send each row of a `pyarrow.RecordBatch` as a record, and return their deliveries in the order of the rows.

        The columns are `value` (binary or string) and optionally `key` (binary or string), `partition` (int32),
        `timestamp` and `headers` (list<struct<key: string, value: binary>>). Serializers are not applied. The argument
        `partition` applies to all rows and overrides the column.

        Waits as `send` does for each batch that the rows become, and fails with the same errors; also KeyError if there
        is no column `value`, ValueError if a header has no key, TypeError if `rows` is not a RecordBatch.
        """
        return Deferred.fromCoroutine(self._producer.send_columns(topic, rows, partition))

    def copy(
        self, partition: TopicPartition, batch: memoryview, count: int, on_result: Callable[[BatchResult], None]
    ) -> bool:
        """Send a batch of `count` records from another broker with this producer's numbers. The records are neither
        decoded nor compressed again.

        on_result: called once with the result.

        Returns False if the buffer is full or the topic is not known yet. Raises KafkaError if the topic or the
        partition does not exist; the error of the transaction if none is open; Closed.
        """
        return self._producer.try_copy(partition, batch, count, on_result)

    # Transactions

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Return a context manager for `async with`, in a coroutine that `Deferred.fromCoroutine` runs. It begins a
        transaction, commits it at the end, and aborts it on an exception.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")
                await transaction.send_offsets(consumer)

        Leaving the block raises TransactionAborted if the transaction could not be committed and was aborted;
        ProducerFailed (such as ProducerFenced) if this producer can't be used any more; RequestTimedOut after `timeout`
        seconds (default: `max_block`). After RequestTimedOut, call `commit_transaction` again to wait for the outcome.
        """
        return Transaction(self._producer, timeout)

    init_transactions = deferred(TransactionMethods.init_transactions)
    begin_transaction = deferred(TransactionMethods.begin_transaction)
    send_offsets = deferred(TransactionMethods.send_offsets)
    commit_transaction = deferred(TransactionMethods.commit_transaction)
    abort_transaction = deferred(TransactionMethods.abort_transaction)

    # Waiting

    def result(self, delivery: Delivery, timeout: float | None) -> Deferred[int]:
        """Return the result of the delivery's own `result`."""
        return self._within(
            Deferred.fromCoroutine(self._producer.result(delivery)), timeout, str(delivery.batch.partition)
        )

    def flush(self, timeout: float | None = None) -> Deferred[None]:
        """Send all queued records. The Deferred fires when each has a result and its callback has run.

        Fails with `DeliveryFailed` if a record was not written since the last flush; with RequestTimedOut after
        `timeout` seconds. In a transaction: fails with TransactionAborted or ProducerFailed if it can't be committed.
        """
        return self._within(Deferred.fromCoroutine(self._producer.flush()), timeout, "batches")

    def metrics(self) -> ProducerMetrics:
        """Return statistics of this producer, its brokers and its partitions."""
        return self._producer.metrics()

    def close(self, timeout: float | None = None) -> Deferred[None]:
        """Accept no more records, flush, and close, all within `timeout` seconds. An open transaction is aborted.

        Fails with the same errors as `flush`.
        """
        if self._closed is not None:
            return succeed(None)
        left = self._producer.countdown(timeout)

        def aborted(result: Any) -> Deferred[None]:
            self._producer.refuse(Closed("the producer is closed"))
            return self.flush(left()).addErrback(lambda failure: failure.trap(ProducerFailed))

        def closed(result: Any) -> Any:
            self.abandon()
            return result

        self._closed = Deferred.fromCoroutine(self._producer.abort_open(timeout)).addCallback(aborted).addBoth(closed)
        return self._closed

    def abandon(self) -> None:
        """Close without sending queued records. Pending deliveries fail with Closed; their records may be written."""
        self._producer.abandon()
        if self._own_cluster:
            self.cluster.close()

    def _within(self, fired: Deferred[Any], timeout: float | None, what: str) -> Deferred[Any]:
        """Return `fired`, which fails with RequestTimedOut once `timeout` seconds are over."""
        if timeout is None or fired.called:
            return fired
        outcome: Deferred[Any] = Deferred(lambda _: fired.cancel())

        def late() -> None:
            waiting, passed[0] = passed[0], None
            fired.cancel()
            if waiting is not None:
                waiting.errback(self._producer.within(what))

        def done(result: Any) -> None:
            waiting, passed[0] = passed[0], None
            if timer.active():
                timer.cancel()
            if waiting is not None:
                waiting.callback(result)

        passed: list[Deferred[Any] | None] = [outcome]
        timer: IDelayedCall = self._reactor.callLater(timeout, late)
        fired.addBoth(done)
        return outcome
