"""The producer on an event loop: the code that `aio.Producer` and `deferred.Producer` share.

Strategy: a record is added at once if the buffer has space and its topic is known. Otherwise its `send` waits, at most
`max_block` seconds: first for its topic's metadata, together with the other calls for this topic, then for space, in
one queue for all topics.

Rules: the guarantees are those of the core (`core/producer`). The calls for one topic are served in their order; a
topic without metadata delays no other topic. Any number of calls may wait; waiting records are not counted in
`buffer_memory`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.errors import BufferFull, Closed, RequestTimedOut, is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Batch, as_new_records, check_timestamp
from pylogd.client.core.producer.columns import (
    ColumnEncoder,
    EncodedBatch,
    are_few,
    greatest_partition,
    records_of,
)  # fmt: skip
from pylogd.client.core.producer.delivery import Deliveries, Outcome
from pylogd.client.core.producer.interceptors import ProducerRecord
from pylogd.client.core.producer.metrics import ProducerMetrics
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.producer import PURPOSE, ProducerCore, check_partition, not_in_time
from pylogd.client.core.producer.transaction_model import Operation
from pylogd.client.core.producer.transactions import Transactions
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.loop import Promise, Timer
from pylogd.wire.records import Header, NewRecord

D = TypeVar("D", bound=Outcome)
T = TypeVar("T")


class _Waiting:
    """A record, or a set, that waits for space or for its topic's metadata."""

    __slots__ = ("add", "ended", "learned", "partition", "promise", "queue", "timer", "topic")

    def __init__(self, topic: str, partition: int | None, add: Callable[[], Any], learned: int) -> None:
        self.topic, self.partition, self.add = topic, partition, add
        self.learned = learned  # the number of times that its topic's metadata was received before
        self.timer: Timer | None = None
        self.promise: Promise[Any]
        self.queue: deque[_Waiting]  # the queue that it is in
        self.ended = False


class EventedProducer(Generic[D]):
    """See the module. `D` is the face's class of deliveries.

    prepares: whether records must be sent by `send_prepared`.
    """

    def __init__(self, driver: Driver, options: ProducerOptions, deliver: Callable[[Batch, int], D]) -> None:
        """`deliver` makes a delivery of a batch and an index in it."""
        self._driver = driver
        self._loop = driver.loop
        self._options = options
        self._deliver = deliver
        self._core = ProducerCore(
            options, driver.network.metadata, monotonic=driver.loop.now, meters=driver.network.meters,
            is_ready=lambda node: driver.network.is_ready(node, PURPOSE), features=lambda: driver.network.features,
        )  # fmt: skip
        self._hooks = self._core.hooks
        self.prepares = self._hooks.prepares
        self._accumulator = self._core.accumulator
        self._partitions = self._core.partitions
        self._column_encoder = ColumnEncoder(options, self._known_partitions)
        self._unknown: dict[str, deque[_Waiting]] = {}  # by topic: calls that wait for metadata, and calls after them
        self._waiting: deque[_Waiting] = deque()  # calls that wait for space
        self._flushes: list[tuple[float, Promise[None]]] = []
        self._operations: list[tuple[Operation, Promise[None]]] = []
        self._told = 0  # the number of failed records that a flush has reported
        driver.add(self)

    # Sending

    def try_send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int,
        headers: Sequence[Header],
        on_delivery: Callable[[D], None] | None,
    ) -> D | None:
        """Add a record if this is possible at once. Return None if the record would have to wait."""
        count = self._partitions.get(topic)
        if self._waiting or topic in self._unknown or self._accumulator.buffered >= self._accumulator.limit:
            return None
        if count is None:
            return None
        if self._core.failure is not None or (partition is not None and not 0 <= partition < count):
            return None
        batch = self._accumulator.add(topic, count, partition, key, value, timestamp, headers)
        return self._taken(batch, len(batch.records) - 1, on_delivery)

    def try_copy(
        self, partition: TopicPartition, batch: memoryview, count: int, on_result: Callable[[BatchResult], None]
    ) -> bool:
        """Add an encoded batch of `count` records from another broker, if this is possible at once. Return whether it
        was added.

        Metadata of an unknown topic is requested, so a later call may succeed. Raises KafkaError if the topic or the
        partition does not exist, and `refusal` if there is one.
        """
        core, accumulator = self._core, self._accumulator
        if (refusal := core.refusal) is not None:
            raise refusal
        known = core.partitions_of(partition.topic)
        if known is None:
            problem = core.problem_with(partition.topic)
            core.want(partition.topic)
            self._driver.soon()
            if problem is not None and not is_retriable(problem):
                raise problem
            return False
        if partition.partition >= known:  # the partition may have been added since
            core.want(partition.topic)
            self._driver.soon()
        check_partition(partition.topic, partition.partition, known)
        if self._waiting or accumulator.buffered >= accumulator.limit:
            return False
        accumulator.add_copy(partition, batch, count).listeners += (None, on_result)
        self._driver.soon()
        return True

    async def send_later(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int,
        headers: Sequence[Header],
        on_delivery: Callable[[D], None] | None,
    ) -> D:
        """Add a record as soon as possible."""

        def add() -> D:
            batch = self._core.add(topic, partition, key, value, timestamp, headers)
            return self._taken(batch, len(batch.records) - 1, on_delivery)

        return await self._wait(topic, partition, add)

    async def send_prepared(
        self, record: ProducerRecord, on_delivery: Callable[[D], None] | None, *, serialize: bool = True
    ) -> D:
        """Call interceptors and serializers for a record, then add it as soon as possible."""
        record = self._hooks.prepare(record, serialize=serialize)
        topic, value, key, partition, timestamp, headers = record
        try:
            stamp = self._loop.now_ms() if timestamp is None else check_timestamp(timestamp)
            taken = self.try_send(topic, value, key, partition, stamp, headers, on_delivery)
            if taken is None:
                taken = await self.send_later(topic, value, key, partition, stamp, headers, on_delivery)
        except Exception as error:
            self._hooks.refused(record, error)
            raise
        return taken

    async def send_set(
        self,
        topic: str,
        records: Iterable[NewRecord | tuple[Any, Any]],
        partition: int | None,
        on_delivery: Callable[[D], None] | None,
    ) -> D:
        """Add records as one batch, as soon as possible."""
        taken = as_new_records(records, self._loop.now_ms())
        if self.prepares:
            taken = self._hooks.prepare_set(topic, taken, partition)

        def add() -> D:
            return self._taken(self._core.add_set(topic, partition, taken), 0, on_delivery)

        return await self._wait(topic, partition, add)

    async def send_columns(self, topic: str, rows: Any, partition: int | None) -> Sequence[D]:
        """Send each row of a `pyarrow.RecordBatch` as a record. See `blocking.Producer.send_columns`."""
        if self._hooks.intercepts or are_few(rows, await self._partition_count(topic, None)):
            found = records_of(topic, rows, partition)
            return [await self.send_prepared(record, None, serialize=False) for record in found]
        await self._partition_count(topic, greatest_partition(rows) if partition is None else partition)
        encoded = self._column_encoder.encode(topic, rows, self._loop.now_ms(), partition)
        return Deliveries(self._deliver, [await self._send_encoded(each) for each in encoded], encoded.order)

    def _known_partitions(self, topic: str, partition: int | None) -> int:
        """Return the number of partitions of a known topic. Raises KafkaError if it does not have this partition."""
        count = self._partitions[topic]
        if partition is not None:
            check_partition(topic, partition, count)
        return count

    async def _partition_count(self, topic: str, partition: int | None) -> int:
        """Return the number of a topic's partitions once it is known. Raises KafkaError if it does not have this
        partition.
        """
        return await self._wait(topic, partition, lambda: self._partitions[topic])

    async def _send_encoded(self, batch: EncodedBatch) -> Batch:
        """Add an encoded batch as soon as possible."""
        topic, partition, encoded = batch
        transactional = self._options.transactional_id is not None

        def add() -> Batch:
            added = self._accumulator.add_encoded(
                topic, self._partitions[topic], partition, encoded, transactional=transactional
            )
            self._driver.soon()
            return added

        return await self._wait(topic, partition, add)

    async def _wait(self, topic: str, partition: int | None, add: Callable[[], T]) -> T:
        """Return the result of `add`, when there is space and the topic is known to have the partition."""
        core = self._core
        if (refusal := core.refusal) is not None:
            raise refusal
        known = self._partitions.get(topic)
        misses = known is None or (partition is not None and not 0 <= partition < known)
        waiting = _Waiting(topic, partition, add, core.learned(topic) if misses else -1)
        if topic in self._unknown:
            waiting.queue = self._unknown[topic]
        elif misses:
            waiting.queue = self._unknown[topic] = deque()
        elif self._waiting or not core.has_room():
            waiting.queue = self._waiting
        else:
            return add()
        waiting.promise = self._loop.promise()
        waiting.timer = self._loop.later(self._options.max_block, partial(self._blocked, waiting))
        waiting.queue.append(waiting)
        if misses:
            core.want(topic)
        self._driver.soon()
        try:
            added: T = await waiting.promise
        finally:
            self._end_wait(waiting)
        return added

    def _is_known(self, waiting: _Waiting) -> bool:
        return self._core.learned(waiting.topic) > waiting.learned

    def _end_wait(self, waiting: _Waiting) -> None:
        """Forget a call that has its result."""
        if waiting.ended:
            return
        waiting.ended = True
        if waiting.timer is not None:
            waiting.timer.cancel()
        queue = waiting.queue
        queue.remove(waiting)  # found at once, since it is mostly the first one
        if not queue and self._unknown.get(waiting.topic) is queue:
            del self._unknown[waiting.topic]
        self._driver.soon()  # the next call may be served now

    def _blocked(self, waiting: _Waiting) -> None:
        """Fail a record that has waited too long."""
        problem: PylogdError = self._full()
        if waiting.queue is not self._waiting:
            problem = self._core.problem_with(waiting.topic) or not_in_time(waiting.topic)
        waiting.promise.fail(problem)
        self._end_wait(waiting)

    def _full(self) -> BufferFull:
        return BufferFull(
            f"{self._accumulator.buffered:,} bytes wait for the brokers; "
            f"buffer_memory is {self._options.buffer_memory:,}"
        )

    def _admit(self) -> None:
        """Add the waiting records, in order, as far as there is space and their topics are known."""
        for topic in list(self._unknown):
            self._queue_known(topic)
        while self._waiting:
            waiting = self._waiting[0]
            if not waiting.promise.done:
                problem = self._core.refusal or self._hopeless(waiting)
                if problem is None and not self._core.has_room():
                    return
                try:
                    if problem is not None:
                        raise problem
                    if waiting.partition is not None:
                        check_partition(waiting.topic, waiting.partition, self._partitions[waiting.topic])
                    waiting.promise.succeed(waiting.add())
                except Exception as error:
                    waiting.promise.fail(error)
            self._end_wait(waiting)

    def _queue_known(self, topic: str) -> None:
        """Let the calls for a topic wait for space if its metadata has arrived; fail them if it never will."""
        queue = self._unknown[topic]
        while queue:
            waiting = queue[0]
            problem = self._core.refusal or self._hopeless(waiting)
            if problem is not None:
                waiting.promise.fail(problem)
            if waiting.promise.done:
                self._end_wait(waiting)
            elif self._is_known(waiting):
                waiting.queue = self._waiting
                waiting.queue.append(queue.popleft())
            else:
                return
        self._unknown.pop(topic, None)

    def _hopeless(self, waiting: _Waiting) -> PylogdError | None:
        """Return why a topic will never become known; None if it may."""
        problem = self._core.problem_with(waiting.topic)
        return problem if problem is not None and not is_retriable(problem) else None

    def _taken(self, batch: Batch, index: int, on_delivery: Callable[[D], None] | None) -> D:
        delivery = self._deliver(batch, index)
        if on_delivery is not None:
            batch.listeners += (delivery, on_delivery)
        if not index or batch.count:  # a batch was opened, or sealed
            self._driver.soon()
        return delivery

    # Waiting

    async def result(self, delivery: Outcome) -> int:
        """Wait until a record has its result, without lingering. Raises the error if it was not written."""
        if not delivery.done:
            batch = delivery.batch
            if self._accumulator.open.get(batch.partition) is batch:
                self._accumulator.seal(batch)
            promise: Promise[None] = self._loop.promise()
            batch.listeners += (delivery, lambda _: promise.succeed(None))
            self._driver.soon()
            await promise
        if delivery.error is not None:
            raise delivery.error
        return delivery.offset

    async def flush(self) -> None:
        """Send all records, and wait until each has a result. Raises DeliveryFailed, or an error of the transaction."""
        promise: Promise[None] = self._loop.promise()
        self._flushes.append((self._accumulator.next_number, promise))
        self._driver.soon()
        if self._driver.closed:
            self.settle()
        await promise

    # Transactions

    async def finish(self, start: Callable[[], Operation], timeout: float | None, late: str) -> None:
        """Start an operation of the transactions and wait for it.

        Raises its error; RequestTimedOut with the text `late` after `timeout` seconds (default: `max_block`).
        """
        core = self._core
        if core.failure is not None:
            raise core.failure
        operation = start()
        self._driver.soon()
        if not operation.done:
            promise: Promise[None] = self._loop.promise()
            self._operations.append((operation, promise))
            error = RequestTimedOut(f"transactional id {core.transactions.transactional_id!r}: {late}")
            seconds = self._options.max_block if timeout is None else timeout
            timer = self._loop.later(seconds, lambda: promise.fail(error))
            try:
                await promise
            finally:
                timer.cancel()
        elif operation.error is not None:
            raise operation.error

    @property
    def transactions(self) -> Transactions:
        """The transactions. Raises TransactionError for a producer without a transactional id."""
        return self._core.transactions

    async def begin_transaction(self, timeout: float | None) -> None:
        """Get a producer id if there is none yet, and begin a transaction."""
        await self.finish(self.transactions.prepare, timeout, "no producer id")
        self._core.begin_transaction()

    async def abort_open(self, timeout: float | None) -> None:
        """Abort the open transaction, if there is one."""
        if self._options.transactional_id is not None and self.transactions.can_abort:
            await self.finish(partial(self.transactions.end, committed=False), timeout, "not aborted yet")

    def metrics(self) -> ProducerMetrics:
        """Return statistics of this producer, its brokers and its partitions."""
        return self._core.metrics(self._loop.now())

    def refuse(self, reason: PylogdError) -> None:
        """Accept no more records."""
        self._core.refuse(reason)
        self._admit()

    def countdown(self, timeout: float | None) -> Callable[[], float | None]:
        """Return a function that returns the seconds left of a timeout that begins now; None: no limit."""
        begun = self._loop.now()
        return lambda: None if timeout is None else max(0.0, begun + timeout - self._loop.now())

    def abandon(self) -> None:
        """Fail every batch that has no result with Closed, and do nothing more."""
        self._core.stop(Closed("the producer is closed"))
        self._admit()
        self.settle()
        self._driver.remove(self)
        self._hooks.close()

    def within(self, what: str) -> RequestTimedOut:
        """Return the error for a wait that took too long."""
        return RequestTimedOut(f"{what}: not delivered yet")

    # What the driver calls

    def turn(self, now: float) -> list[Call]:
        """Do the due work, and return the requests to send."""
        return self._core.turn(now, seal_all=bool(self._flushes) or self._starved())

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        return self._core.next_time(now)

    def settle(self) -> None:
        """Report the available results, and end the flushes and sends that are done."""
        while results := self._core.take_results():
            for batch, result in results:
                self._hooks.completed(batch, result)
        self._core.statistics.report(self._loop.now())
        first = self._core.first_unfinished()
        done = [promise for mark, promise in self._flushes if mark <= first or promise.done]
        if done:
            self._flushes = [flush for flush in self._flushes if flush[1] not in done]
            failures = self._core.queue.failures
            failed, self._told = failures.since(self._told), failures.records
            error = self._core.broken_by or failed
            for promise in done:
                if error is not None:
                    promise.fail(error)
                else:
                    promise.succeed(None)
        self._settle_operations()
        self._admit()

    def _settle_operations(self) -> None:
        if not self._operations:
            return
        done = [each for each in self._operations if each[0].done or each[1].done]
        self._operations = [each for each in self._operations if each not in done]
        for operation, promise in done:
            if operation.error is not None:
                promise.fail(operation.error)
            else:
                promise.succeed(None)

    def reset(self) -> None:
        """Do nothing: each request in flight has failed with its connection."""

    def _starved(self) -> bool:
        """Whether records wait for space, and only open batches can free it."""
        core = self._core
        return bool(self._waiting) and not core.has_room() and not core.queue.waiting and not core.in_flight
