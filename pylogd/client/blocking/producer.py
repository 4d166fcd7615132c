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

import copy
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from pylogd.client.blocking.clock import SystemClock
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.sender import Sender
from pylogd.client.core.consumer import columns
from pylogd.client.core.errors import BufferFull, Closed, RequestTimedOut, is_retriable
from pylogd.client.core.metadata import Metadata, parse_bootstrap
from pylogd.client.core.network import Network
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.accumulator import Batch, BatchResult
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import check_partition, not_in_time
from pylogd.wire.records import NO_TIMESTAMP, Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

_ABANDON_SECONDS = 1.0  # the thread ends at once unless a callback is running

_log = logging.getLogger(__name__)


class Delivery(Outcome):
    """What becomes of one record, or of a set."""

    __slots__ = ("_sender",)

    def __init__(self, sender: Sender, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._sender = sender
        self._batch = batch
        self.index = index

    def result(self, timeout: float | None = None) -> int:
        """Wait for it and return its offset. Raises why it was not written, or RequestTimedOut after `timeout`."""
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


class Producer:
    """A producer with connections and a thread of its own."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Options are given as `ProducerOptions`, by name, or both. A `Cluster` lends its addresses and settings.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other.
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
        tell = partial(_tell, self.options.on_batch)
        self._sender = sender = Sender(network, self.options, clock, tell)
        self._core = sender.core
        self._accumulator = sender.core.accumulator
        self._add: Callable[..., Batch] = self._accumulator.add
        self._after_send: Callable[[], None] | None = None  # called by the next `send` before it returns
        self._partitions = sender.core.partitions
        self._limit = self.options.buffer_memory
        self._now_ms = clock.now_ms
        self._monotonic = clock.monotonic
        self._told = threading.local()  # of how many failed records a thread has been told
        # A producer that is dropped delivers what it has; its thread then ends.
        self._finalizer = weakref.finalize(self, _drop, sender)

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
        the buffer is full or the topic not known yet. Raises BufferFull, KafkaError if the topic can't be found or has
        no such partition, what kept its metadata from being read, Closed, or TypeError for what is no bytes.
        """
        sender = self._sender
        with sender.lock:
            if self._accumulator.buffered >= self._limit or self._core.failure is not None:
                self._make_room()
            count = self._partitions.get(topic) or self._learn(topic)
            if partition is not None and not 0 <= partition < count:
                count = self._learn(topic, partition)
            batch = self._add(
                topic, count, partition, key, value, self._now_ms() if timestamp is None else timestamp, headers
            )
            index = len(batch.records) - 1
            delivery = Delivery(sender, batch, index)
            if on_delivery is not None:
                batch.listeners.append((delivery, on_delivery))
            if not index or batch.count:  # opened, or sealed
                sender.nudge(batch)
        if self._after_send is not None:
            self._after_send()
        return delivery

    def _adding_by(self, add: Callable[..., Batch]) -> Producer:
        """Return a producer that shares all with this one, but has `add` in place of `Accumulator.add`.

        `add` is called with the sender's lock held.
        """
        shared = copy.copy(self)
        shared._add = add
        return shared

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
            if self._accumulator.buffered >= self._limit or self._core.failure is not None:
                self._make_room()
            count = self._partitions.get(topic) or self._learn(topic)
            if partition is not None and not 0 <= partition < count:
                count = self._learn(topic, partition)
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
        """With the lock: wait until the buffer has room."""
        sender, core = self._sender, self._core
        sender.needing_room += 1
        try:
            if core.failure is None and not sender.wait(core.has_room, self.options.max_block):
                raise BufferFull(
                    f"{core.accumulator.buffered:,} bytes wait for the brokers; buffer_memory is {self._limit:,}"
                )
        finally:
            sender.needing_room -= 1
        if core.failure is not None:
            raise core.failure

    def _learn(self, topic: str, partition: int | None = None) -> int:
        """With the lock: wait until the topic's number of partitions is known, or known anew to be too low."""
        sender, core = self._sender, self._core
        before = core.learned(topic)
        core.want(topic)

        def answered() -> bool:
            problem = core.problem_with(topic)
            return core.learned(topic) > before or (problem is not None and not is_retriable(problem))

        sender.start()
        in_time = sender.wait(answered, self.options.max_block)
        if core.failure is not None:
            raise core.failure
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
        """Send everything and wait until all of it has a result, and callbacks have run.

        Raises `DeliveryFailed` if anything was not written since this thread last called, RequestTimedOut if `timeout`
        seconds are over before.
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
            failures = core.queue.failures
        failed = failures.since(getattr(self._told, "records", 0))
        self._told.records = failures.records
        if failed is not None:
            raise failed

    def close(self, timeout: float | None = None) -> None:
        """Take no more records, flush, and close; raises as `flush`."""
        if self._finalizer.detach() is None:
            return
        sender = self._sender
        with sender.lock:
            self._core.refuse(Closed("the producer is closed"))
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
        try:
            on_batch(result)
        except Exception:
            _log.exception("a callback of the producer failed")
    for delivery, listener in batch.listeners:
        try:
            listener(delivery)
        except Exception:
            _log.exception("a callback of the producer failed")


def _drop(sender: Sender) -> None:
    """A producer goes that nobody closed: its thread delivers what it has, if the process lives that long."""
    if sender.core.unfinished:
        warnings.warn("a producer was neither closed nor flushed: records may be lost", ResourceWarning, stacklevel=2)
    sender.let_end()
