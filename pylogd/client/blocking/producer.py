"""The blocking producer: it batches records and sends them in its own thread.

Strategy: `send` adds a record to its partition's open batch and returns at once. A batch is sealed when it is full in
bytes or records, or has lingered `linger_ms`. The producer's thread (`sender`) sends it, again after retriable errors,
until it has a result or `delivery_timeout` is over.

Rules: with `idempotence` (the default with acks="all"), a batch is written once however often it is sent, and a
partition's records keep their order. Without it, a retry may write a batch twice if the reply to the first attempt was
lost, and may change the order if several requests are in flight; `retry=False` writes at most once. The buffer is
limited to `buffer_memory` bytes, including Python's objects: when it is full, `send` waits for space up to `max_block`
seconds, and raises BufferFull. Threads may share a producer. Records that are neither flushed nor closed when the
process ends may be lost. Ctrl-C interrupts every call at once.
"""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pylogd.client.blocking.clock import SystemClock
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.sender import Sender
from pylogd.client.blocking.transactions import TransactionMethods
from pylogd.client.core.errors import BufferFull, Closed, ProducerFailed, RequestTimedOut, is_retriable
from pylogd.client.core.metadata import Metadata, parse_bootstrap
from pylogd.client.core.network import Network
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.accumulator import Batch, as_new_records, check_timestamp
from pylogd.client.core.producer.columns import ColumnEncoder, EncodedBatch, are_few, records_of
from pylogd.client.core.producer.delivery import Deliveries, Outcome
from pylogd.client.core.producer.interceptors import ProducerRecord
from pylogd.client.core.producer.metrics import ProducerMetrics
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import check_partition, not_in_time
from pylogd.wire.records import Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_new = object.__new__
_ABANDON_SECONDS = 1.0  # the thread ends at once unless a callback is running


class Delivery(Outcome):
    """The result of one record, or of a record set: pending, written or failed."""

    __slots__ = ("_sender",)

    def __init__(self, sender: Sender, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._sender = sender
        self._batch = batch
        self.index = index

    def result(self, timeout: float | None = None) -> int:
        """Wait for the record's offset.

        Raises the record's error if it was not written; RequestTimedOut after `timeout`.
        """
        if not self.done:
            sender = self._sender
            with sender.lock:
                batch, accumulator = self.batch, sender.core.accumulator
                if accumulator.open.get(batch.partition) is batch:
                    accumulator.seal(batch)
                if not sender.wait(lambda: self.done, timeout):
                    raise RequestTimedOut(f"{batch.partition}: not delivered yet")
        if self.error is not None:
            raise self.error
        return self.offset


class Producer(TransactionMethods):
    """A producer. It has its own connections and its own sending thread."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ProducerOptions`, by name, or both. A `Cluster` provides its addresses and settings.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        clock: Any = SystemClock()
        auto_create = True
        if isinstance(bootstrap_servers, Cluster):
            lender = bootstrap_servers
            lent = {field.name: getattr(lender.options, field.name) for field in fields(ClientOptions)}
            settings = {**lent, **settings}
            clock, addresses, auto_create = lender.clock, lender.metadata.bootstrap, lender.metadata.auto_create_topics
        else:
            addresses = parse_bootstrap(bootstrap_servers)
        self.options = ProducerOptions.of(options, settings)
        network = Network(Metadata(addresses, auto_create_topics=auto_create), self.options.connection)
        self._sender = sender = Sender(network, self.options, clock)
        self._core = sender.core
        self._hooks = sender.core.hooks
        self._prepares = self._hooks.prepares
        self._accumulator = sender.core.accumulator
        self._add: Callable[..., Batch] = self._accumulator.add
        self._partitions = sender.core.partitions
        self._now_ms = clock.now_ms
        self._monotonic = clock.monotonic
        self._told = threading.local()  # for each thread: the failed records that `flush` has reported to it
        # A producer that is garbage-collected delivers its records; then its thread ends.
        self._finalizer = weakref.finalize(self, _drop, sender)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

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
    ) -> Delivery:
        """Queue a record to be sent. Return its delivery, which gets the result later.

        value, key: bytes or None, or what the serializers accept.
        timestamp: milliseconds since 1970; default: now.
        on_delivery: called in the producer's thread, with the delivery, when the record has a result.

        Waits up to `max_block` seconds while the buffer is full or the topic's metadata is being fetched. Raises
        BufferFull; KafkaError if the topic or the partition does not exist; the error that prevented reading the
        topic's metadata; SerializationFailed; Closed; TypeError if the key or the value is not bytes.
        """
        if self._prepares:
            record = ProducerRecord(topic, value, key, partition, timestamp, headers)
            return self._send_prepared(record, on_delivery, serialize=True)
        sender = self._sender
        accumulator = self._accumulator
        with sender.lock:  # `_accept`, inlined: its call would cost as much as these lines
            deadline = self._make_room() if accumulator.buffered >= accumulator.limit else None
            count = self._partitions.get(topic)
            if not count or (partition is not None and not 0 <= partition < count):
                count = self._learn(topic, partition, deadline)
            stamp = self._now_ms() if timestamp is None else check_timestamp(timestamp)
            batch = self._add(topic, count, partition, key, value, stamp, headers)
            delivery = _new(Delivery)  # faster than `Delivery(sender, batch, index)` by a third
            delivery._sender, delivery._batch = sender, batch
            delivery.index = index = len(batch.records) - 1
            if on_delivery is not None:
                batch.listeners += (delivery, on_delivery)
            if not index or batch.count:  # a batch was opened, or sealed
                sender.nudge(batch)
        return delivery

    def _adding_by(self, add: Callable[..., Batch]) -> Producer:
        """Return a producer that shares everything with this one, but calls `add` instead of `Accumulator.add`.

        `add` is called with the sender's lock held.
        """
        shared = copy.copy(self)
        shared._add = add
        return shared

    def _send_prepared(
        self, record: ProducerRecord, on_delivery: Callable[[Delivery], None] | None, *, serialize: bool
    ) -> Delivery:
        """Send the record that interceptors and serializers return for this one."""
        record = self._hooks.prepare(record, serialize=serialize)

        def add(partitions: int) -> tuple[Batch, int]:
            stamp = self._now_ms() if record.timestamp is None else check_timestamp(record.timestamp)
            batch = self._add(
                record.topic, partitions, record.partition, record.key, record.value, stamp, record.headers
            )
            return batch, len(batch.records) - 1

        try:
            return self._accept(record.topic, record.partition, add, on_delivery)
        except Exception as error:
            self._hooks.refused(record, error)
            raise

    def _accept(
        self,
        topic: str,
        partition: int | None,
        add: Callable[[int], tuple[Batch, int]],
        on_delivery: Callable[[Delivery], None] | None,
    ) -> Delivery:
        """Wait for space and metadata, then call `add(partitions)`, which returns a batch and an index in it."""
        sender = self._sender
        with sender.lock:
            deadline = self._make_room() if self._accumulator.buffered >= self._accumulator.limit else None
            count = self._partitions.get(topic)
            if not count or (partition is not None and not 0 <= partition < count):
                count = self._learn(topic, partition, deadline)
            batch, index = add(count)
            delivery = Delivery(sender, batch, index)
            if on_delivery is not None:
                batch.listeners += (delivery, on_delivery)
            if not index or batch.count:  # a batch was opened, or sealed
                sender.nudge(batch)
        return delivery

    def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[Any, Any]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:  # fmt: skip
        """Send (key, value) pairs or `NewRecord`s as one batch. The batch is written whole or not at all.

        Without `partition`, the key of the first record selects the partition. The delivery has the offset of the first
        record. Waits and raises as `send`; raises ValueError if there are no records.
        """
        now_ms = self._now_ms()
        taken = as_new_records(records, now_ms)
        if self._prepares:
            taken = self._hooks.prepare_set(topic, taken, partition)
        return self._accept(
            topic, partition, lambda count: (self._accumulator.add_set(topic, count, partition, taken), 0), on_delivery
        )

    def send_columns(self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None) -> Sequence[Delivery]:
        """Send each row of a `pyarrow.RecordBatch` as a record. Return the deliveries in the order of the rows.

        The columns are `value` (binary or string) and optionally `key` (binary or string), `partition` (int32),
        `timestamp` and `headers` (list<struct<key: string, value: binary>>). Serializers are not applied. The argument
        `partition` applies to all rows and overrides the column. Waits as `send` for each batch that the rows become,
        and raises as `send`; raises KeyError if there is no column `value`, ValueError if a header has no key,
        TypeError if `rows` is not a RecordBatch.

        No Python object is made for a row, unless there are few rows or the producer has interceptors.
        """
        if self._hooks.intercepts or are_few(rows, self._partitions_of(topic, None)):
            found = records_of(topic, rows, partition)
            return [self._send_prepared(record, None, serialize=False) for record in found]
        encoded = self._column_encoder.encode(topic, rows, self._now_ms(), partition)
        batches = [self._send_encoded(each).batch for each in encoded]
        return Deliveries(partial(Delivery, self._sender), batches, encoded.order)

    @cached_property
    def _column_encoder(self) -> ColumnEncoder:
        return ColumnEncoder(self.options, self._partitions_of)

    def _partitions_of(self, topic: str, partition: int | None) -> int:
        """Return the number of a topic's partitions. Raises KafkaError if the topic, or `partition`, does not exist."""
        with self._sender.lock:
            count = self._partitions.get(topic)
            if not count or (partition is not None and not 0 <= partition < count):
                count = self._learn(topic, partition)
            return count

    def _send_encoded(self, batch: EncodedBatch) -> Delivery:
        """See `encoded.send_encoded`."""
        topic, partition, encoded = batch
        transactional = self.options.transactional_id is not None

        def add(count: int) -> tuple[Batch, int]:
            return self._accumulator.add_encoded(topic, count, partition, encoded, transactional=transactional), 0

        return self._accept(topic, partition, add, None)

    def _make_room(self) -> float:
        """With the lock: wait until the buffer has space. Return the time until which the caller may wait for the
        topic.
        """
        sender, core = self._sender, self._core
        deadline: float = self._monotonic() + self.options.max_block
        sender.needing_room += 1
        try:
            if core.refusal is None and not sender.wait(self._may_add, self.options.max_block):
                raise BufferFull(
                    f"{core.accumulator.buffered:,} bytes wait for the brokers; "
                    f"buffer_memory is {self.options.buffer_memory:,}"
                )
        finally:
            sender.needing_room -= 1
        if (refusal := core.refusal) is not None:
            raise refusal
        return deadline

    def _may_add(self) -> bool:
        """Whether a waiting `send` can go on: the buffer has space, or records are refused."""
        return self._core.has_room() or self._core.refusal is not None

    def _learn(self, topic: str, partition: int | None = None, deadline: float | None = None) -> int:
        """With the lock: return a topic's number of partitions from new metadata. Raises KafkaError if there is none.

        Waits until `deadline`; default: for `max_block` seconds.
        """
        sender, core = self._sender, self._core
        patience = self.options.max_block if deadline is None else max(0.0, deadline - self._monotonic())
        before = core.learned(topic)
        core.want(topic)

        def answered() -> bool:
            problem = core.problem_with(topic)
            return core.learned(topic) > before or (problem is not None and not is_retriable(problem))

        sender.start()
        in_time = sender.wait(answered, patience)
        if (refusal := core.refusal) is not None:
            raise refusal
        problem = core.problem_with(topic)
        if problem is not None and (not in_time or not is_retriable(problem)):
            raise problem
        if not in_time:
            raise not_in_time(topic)
        count = self._partitions.get(topic, 0)
        if partition is not None:
            check_partition(topic, partition, count)
        return count

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Send all queued records. Wait until each has a result and its callback has run.

        Raises `DeliveryFailed` if a record was not written since this thread last called `flush`; RequestTimedOut after
        `timeout` seconds. In a transaction: raises TransactionAborted or ProducerFailed if it can't be committed.
        """
        sender, core = self._sender, self._core
        with sender.lock:
            mark = core.accumulator.next_number
            sender.flushing += 1
            try:
                if not sender.wait(lambda: sender.all_told(mark), timeout):
                    raise RequestTimedOut(f"{core.unfinished} batches are not delivered yet")
            finally:
                sender.flushing -= 1
            failures, broken_by = core.queue.failures, core.broken_by
        if broken_by is not None:
            raise broken_by
        failed = failures.since(getattr(self._told, "records", 0))
        self._told.records = failures.records
        if failed is not None:
            raise failed

    def metrics(self) -> ProducerMetrics:
        """Return statistics of this producer, its brokers and its partitions. Any thread may call it."""
        return self._core.metrics(self._monotonic())

    def close(self, timeout: float | None = None) -> None:
        """Accept no more records, flush, and close, all within `timeout` seconds. An open transaction is aborted.

        Raises the same errors as `flush`.
        """
        if self._finalizer.detach() is None:
            return
        deadline = None if timeout is None else self._monotonic() + timeout
        try:
            self._abort_open(timeout)
            with self._sender.lock:
                self._core.refuse(Closed("the producer is closed"))
            with suppress(ProducerFailed):  # the failure was already raised to the application
                self.flush(None if deadline is None else max(0.0, deadline - self._monotonic()))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without sending queued records. Pending deliveries fail with Closed; their records may be written."""
        self._finalizer.detach()
        self._sender.abandon(Closed("the producer is closed"), _ABANDON_SECONDS)
        self._hooks.close()


def _drop(sender: Sender) -> None:
    """Let the thread of a producer that was not closed deliver its records, if the process lives long enough."""
    if sender.core.unfinished:
        warnings.warn("a producer was neither closed nor flushed: records may be lost", ResourceWarning, stacklevel=2)
    sender.let_end()
