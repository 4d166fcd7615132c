"""The producer on Twisted: `send` takes a record, its delivery says what became of it.

Strategy: the accumulator and the outbox are the blocking face's. A turn of this producer seals what is due, sends what
may go, and sets one timer for what is due next; replies, records and flushes cause the next turn. Metadata and the
producer id are asked for one request at a time, beside it all.

Rules: as the blocking face's guarantees (`client/producer.py`). `send` fires at once while there is room; over
`buffer_memory` it fires when there is some, in the order of the calls, or fails with BufferFull after `max_block`
seconds, or at once if what waits for room would itself be more than `buffer_memory`: whoever waits for each `send` to
fire before the next never sees that. Compression and encoding run on the reactor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import BufferFull, Closed, RequestTimedOut
from pylogd.client.core.producer.accumulator import Accumulator, Batch, BatchResult
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.options import Acks, SenderOptions, check_options
from pylogd.client.core.producer.partitioner import Partitioner
from pylogd.client.core.producer.send_queue import Outbox
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.sender import Shipper
from pylogd.clock import wall_ms
from pylogd.errors import PylogdError
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import Header, NewRecord, record_size_bound

log = Logger()


class Delivery(Outcome):
    """What becomes of one record, or of a set."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
        self._batch = batch
        self._index = index

    def result(self, timeout: float | None = None) -> Deferred[int]:
        """Fires with its offset, without lingering. Fails with why it was not written, or with RequestTimedOut."""
        fired: Deferred[int] = Deferred()
        if self.done:
            self._fire(fired)
            return fired
        producer = self._producer
        producer.seal(self._batch)
        self._batch.listeners.append((self, lambda _: self._fire(fired)))
        return producer.within(fired, timeout, f"{self._batch.partition}: not delivered yet")

    def _fire(self, fired: Deferred[int]) -> None:
        if fired.called:
            return
        if self.error is not None:
            fired.errback(self.error)
        else:
            fired.callback(self.offset)


class _Waiting:
    """A record, or a set, that waits for room or for its topic's metadata."""

    __slots__ = ("add", "fired", "size", "timer", "topic")

    def __init__(self, topic: str | None, size: int, add: Callable[[], Delivery]) -> None:
        self.topic = topic  # whose partitions have to be known, None if they need not
        self.size = size
        self.add = add
        self.timer: IDelayedCall | None = None
        self.fired: Deferred[Delivery] = Deferred()


class Producer:
    """A producer on a cluster of its own, or on one that is given."""

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
        tls: Callable[[str], Any] | None = None,
        reactor: Any = None,
    ) -> None:
        """The options are those of the blocking face; `tls` and `reactor` are `Cluster`'s. ValueError: options that
        contradict each other.
        """
        wanted_acks, idempotent = check_options(acks, idempotence, retry, max_in_flight)
        if isinstance(bootstrap_servers, Cluster):
            self.cluster, self._own_cluster = bootstrap_servers, False
        else:
            self.cluster = Cluster(
                bootstrap_servers, client_id=client_id, request_timeout=request_timeout, auto_create_topics=True,
                tls=tls, reactor=reactor,
            )  # fmt: skip
            self._own_cluster = True
        self._accumulator = Accumulator(
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            linger=linger_ms / 1000,
            delivery_timeout=delivery_timeout,
            partitioner=partitioner,
            monotonic=self.cluster.seconds,
        )
        backoff = partial(Backoff, retry_backoff, retry_backoff_max)
        self._outbox = Outbox(
            self._accumulator,
            idempotent=idempotent,
            retry=retry,
            max_request_bytes=max(max_request_bytes, batch_bytes),
            backoff=backoff,
            on_result=self._note_result,
        )
        options = SenderOptions(
            acks=wanted_acks,
            compression=CompressionType.named(compression),
            compression_level=compression_level,
            max_in_flight=max_in_flight,
            request_timeout=request_timeout,
            metadata_max_age=metadata_max_age,
        )
        self._shipper = Shipper(self.cluster, self._accumulator, self._outbox, options, backoff, self._turn_soon)
        self._buffer_memory = buffer_memory
        self._max_block = max_block
        self._on_batch = on_batch
        self._reactor = self.cluster.reactor
        self._now_ms = wall_ms
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._flushes: list[tuple[int, Deferred[None]]] = []
        self._results: list[tuple[Batch, BatchResult]] = []
        self._timer: IDelayedCall | None = None
        self._wakes_at = 0.0
        self._turning = self._again = False
        self._failure: PylogdError | None = None

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
    ) -> Deferred[Delivery]:
        """Take a record; fires with what will become of it. `timestamp` in milliseconds since 1970, by default now.

        `on_delivery` is called with the delivery once it is done. Waits up to `max_block` if the buffer is full or the
        topic not known yet. Fails with BufferFull, KafkaError if the topic can't be found, what kept its metadata from
        being read, or Closed. Cancelled before it fired, the record is not sent.
        """
        stamp = self._now_ms() if timestamp is None else timestamp

        def add() -> Delivery:
            count = self._shipper.partitions.get(topic, 0)
            batch = self._accumulator.add(topic, count, partition, key, value, stamp, headers)
            return self._taken(batch, len(batch.records) - 1, on_delivery)

        return self._take(topic if partition is None else None, add, lambda: record_size_bound(key, value, headers))

    def send_set(
        self, topic: str, records: Iterable[NewRecord | tuple[bytes | None, bytes | None]], *,
        partition: int | None = None, on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Deferred[Delivery]:  # fmt: skip
        """Take records that shall be one batch, written whole or not at all: (key, value) pairs or `NewRecord`s.

        Without `partition`, the first one's key decides. The delivery's offset is the first one's. Waits and fails as
        `send`; raises ValueError if there is no record.
        """
        taken = list(records)
        if not taken:
            raise ValueError("a set needs a record")
        now_ms = self._now_ms()

        def add() -> Delivery:
            count = self._shipper.partitions.get(topic, 0)
            batch = self._accumulator.add_set(topic, count, partition, taken, now_ms)
            return self._taken(batch, 0, on_delivery)

        return self._take(topic if partition is None else None, add, lambda: sum(map(_size, taken)))

    def _take(self, topic: str | None, add: Callable[[], Delivery], size: Callable[[], int]) -> Deferred[Delivery]:
        """Add now what may be added now; else let it wait behind what waits already."""
        fired: Deferred[Delivery] = Deferred()
        if self._failure is not None:
            fired.errback(self._failure)
        elif not self._waiting and self._may_add(topic):
            fired.callback(add())
        else:
            return self._wait(topic, add, size())
        return fired

    def _may_add(self, topic: str | None) -> bool:
        return self._accumulator.buffered < self._buffer_memory and (topic is None or topic in self._shipper.partitions)

    def _wait(self, topic: str | None, add: Callable[[], Delivery], size: int) -> Deferred[Delivery]:
        waiting = _Waiting(topic, size, add)
        if self._waiting and self._waiting_bytes + size > self._buffer_memory:
            self._blocked(waiting)
            return waiting.fired
        waiting.fired = Deferred(lambda _: self._unwait(waiting))
        waiting.timer = self._reactor.callLater(self._max_block, self._blocked, waiting)
        self._waiting.append(waiting)
        self._waiting_bytes += size
        if topic is not None and topic not in self._shipper.partitions:
            self._shipper.wanted.setdefault(topic, None)
        self._turn_soon()
        return waiting.fired

    def _unwait(self, waiting: _Waiting) -> None:
        if waiting.timer is not None and waiting.timer.active():
            waiting.timer.cancel()
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._waiting_bytes -= waiting.size

    def _blocked(self, waiting: _Waiting) -> None:
        """It waited too long, or there is no room to wait in."""
        self._unwait(waiting)
        error: PylogdError = BufferFull(
            f"{self._accumulator.buffered:,} bytes wait for the brokers; buffer_memory is {self._buffer_memory:,}"
        )
        if waiting.topic is not None and waiting.topic not in self._shipper.partitions:
            error = self._shipper.wanted.get(waiting.topic) or RequestTimedOut(
                f"no metadata of {waiting.topic!r} came in time"
            )
        waiting.fired.errback(error)

    def _admit(self) -> None:
        """Add what waits, in order, as far as there is room and its topic is known."""
        while self._waiting:
            waiting = self._waiting[0]
            error = None if waiting.topic is None else self._shipper.unknown(waiting.topic)
            if error is None and not self._may_add(waiting.topic):
                return
            self._unwait(waiting)
            if error is not None:
                waiting.fired.errback(error)
            else:
                waiting.fired.callback(waiting.add())

    def _taken(self, batch: Batch, index: int, on_delivery: Callable[[Delivery], None] | None) -> Delivery:
        delivery = Delivery(self, batch, index)
        if on_delivery is not None:
            batch.listeners.append((delivery, on_delivery))
        if self._accumulator.sealed:
            self._turn_soon()
        elif not index:
            self._turn_at(batch.due)
        return delivery

    # Waiting

    def flush(self, timeout: float | None = None) -> Deferred[None]:
        """Send everything; fires when all of it has a result and callbacks have run.

        Fails with `DeliveryFailed` if anything since the last flush was not written, with RequestTimedOut if `timeout`
        seconds are over before.
        """
        fired: Deferred[None] = Deferred()
        self._flushes.append((self._accumulator.next_number, fired))
        if self._shipper.stopped:
            self._tell()
        else:
            self._turn_soon()
        return self.within(fired, timeout, "batches are not delivered yet")

    def close(self, timeout: float | None = None) -> Deferred[None]:
        """Take no more records, flush, and close; fails as `flush`."""
        if self._failure is None:
            self._failure = Closed("the producer is closed")
            self._refuse_waiting()

        def closed(result: Any) -> Any:
            self.abandon()
            return result

        return self.flush(timeout).addBoth(closed)

    def abandon(self) -> None:
        """Close without sending what is left: that was not delivered, for all that is known."""
        self._failure = self._failure or Closed("the producer is closed")
        self._shipper.stop()
        self._outbox.give_up_all(self._failure)
        self._refuse_waiting()
        self._tell()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._own_cluster:
            self.cluster.close()

    def _refuse_waiting(self) -> None:
        while self._waiting:
            waiting = self._waiting[0]
            self._unwait(waiting)
            assert self._failure is not None
            waiting.fired.errback(self._failure)

    def seal(self, batch: Batch) -> None:
        """Send a batch without lingering."""
        if self._accumulator.open.get(batch.partition) is batch:
            self._accumulator.seal(batch)
            self._turn_soon()

    def within(self, fired: Deferred[Any], timeout: float | None, what: str) -> Deferred[Any]:
        """`fired`, or RequestTimedOut once `timeout` seconds are over."""
        if timeout is None or fired.called:
            return fired

        def late() -> None:
            self._flushes = [flush for flush in self._flushes if flush[1] is not fired]
            fired.errback(RequestTimedOut(what))

        timer = self._reactor.callLater(timeout, late)

        def stop(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return fired.addBoth(stop)

    # Turns

    def _turn_soon(self) -> None:
        if self._turning:
            self._again = True
        else:
            self._turn_at(self.cluster.seconds())

    def _turn_at(self, when: float) -> None:
        if self._timer is not None:
            if self._wakes_at <= when:
                return
            self._timer.cancel()
        self._wakes_at = when
        self._timer = self._reactor.callLater(max(0.0, when - self.cluster.seconds()), self._turn)

    def _turn(self) -> None:
        """Do all that can be done now, and set the timer for what is next."""
        self._timer = None
        if self._shipper.stopped:
            return
        self._turning, self._again = True, False
        now = self.cluster.seconds()
        try:
            if self._flushes or self._starved():
                self._accumulator.seal_all()
            else:
                self._accumulator.seal_due(now)
            self._shipper.turn(now)
            self._tell()
            self._admit()
        finally:
            self._turning = False
        due = now if self._again else self._shipper.next_time(now)
        if due is not None and not self._shipper.stopped:
            self._turn_at(due)

    def _starved(self) -> bool:
        """Whether records wait for room that only open batches can make."""
        full = self._accumulator.buffered >= self._buffer_memory
        return bool(self._waiting) and full and not self._outbox.waiting and not self._shipper.under_way

    def _note_result(self, batch: Batch, result: BatchResult) -> None:
        self._results.append((batch, result))

    def _tell(self) -> None:
        """Call back for the results that there are, and for the flushes that are done."""
        while self._results:
            results, self._results = self._results, []
            for batch, result in results:
                self._call_back(batch, result)
        first = next(iter(self._accumulator.unfinished), self._accumulator.next_number)
        done = [flush for flush in self._flushes if flush[0] <= first]
        if done:
            self._flushes = [flush for flush in self._flushes if flush[0] > first]
            failed, self._outbox.failed_since = self._outbox.failed_since, None
            for _, fired in done:
                if failed is not None:
                    fired.errback(failed)
                else:
                    fired.callback(None)

    def _call_back(self, batch: Batch, result: BatchResult) -> None:
        calls: list[Callable[[], Any]] = [] if self._on_batch is None else [partial(self._on_batch, result)]
        calls += [partial(listener, delivery) for delivery, listener in batch.listeners]
        for call in calls:
            try:
                call()
            except Exception:
                log.failure("a callback of the producer failed")


def _size(record: NewRecord | tuple[bytes | None, bytes | None]) -> int:
    headers = record.headers if isinstance(record, NewRecord) else ()
    return record_size_bound(record[0], record[1], headers)
