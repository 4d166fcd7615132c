"""The producer on Twisted: `send` takes a record, its delivery says what became of it.

Rules: the guarantees are the blocking face's (`blocking/producer.py`). `send` fires at once while there is room; over
`buffer_memory` it fires when there is some, in the order of the calls, or fails with BufferFull after `max_block`
seconds, or at once if what waits for room would itself be more than `buffer_memory`: whoever waits for each `send` to
fire before the next never sees that. Compression and encoding run on the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from pylogd.client.core.errors import Closed
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.delivery import Outcome
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.evented.producer import EventedProducer
from pylogd.wire.records import Header, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

log = Logger()


class Delivery(Outcome):
    """What becomes of one record, or of a set."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._producer = producer
        self._batch = batch
        self.index = index

    def result(self, timeout: float | None = None) -> Deferred[int]:
        """Fires with its offset, without lingering. Fails with why it was not written, or with RequestTimedOut."""
        return self._producer.result(self, timeout)


class Producer:
    """A producer on a cluster of its own, or on one that is given."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ProducerOptions | None = None,
        *,
        tls: Callable[[str], Any] | None = None,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Options are given as `ProducerOptions`, by name, or both; `tls` and `reactor` are `Cluster`'s.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other.
        """
        self.options = ProducerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, auto_create_topics=True, tls=tls, reactor=reactor
        )  # fmt: skip
        self._reactor = self.cluster.reactor
        self._now_ms = self.cluster.loop.now_ms
        self._producer: EventedProducer[Delivery] = EventedProducer(
            self.cluster.driver, self.options, self._deliver, _callback_failed
        )
        self._closed: Deferred[None] | None = None

    def _deliver(self, batch: Batch, index: int) -> Delivery:
        return Delivery(self, batch, index)

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
        topic not known yet. Fails with BufferFull, KafkaError if the topic can't be found or has no such partition,
        what kept its metadata from being read, or Closed. Cancelled before it fired, the record is not sent. Raises
        TypeError for what is no bytes.
        """
        stamp = self._now_ms() if timestamp is None else timestamp
        taken = self._producer.try_send(topic, value, key, partition, stamp, headers, on_delivery)
        if taken is not None:
            return succeed(taken)
        return Deferred.fromCoroutine(
            self._producer.send_later(topic, value, key, partition, stamp, headers, on_delivery)
        )

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
        return Deferred.fromCoroutine(self._producer.send_set(topic, taken, partition, on_delivery))

    def send_columns(
        self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None
    ) -> Deferred[list[Delivery]]:
        """Take each row of a `pyarrow.RecordBatch` as a record: of the columns `value` (binary or string) and, where it
        has them, `key` (the same), `timestamp` and `headers` (list<struct<key: string, value: binary>>).

        Waits and fails as `send`; KeyError: there is no `value`.
        """
        return Deferred.fromCoroutine(self._producer.send_columns(topic, rows, partition))

    # Waiting

    def result(self, delivery: Delivery, timeout: float | None) -> Deferred[int]:
        """As the delivery's own `result`."""
        return self._within(
            Deferred.fromCoroutine(self._producer.result(delivery)), timeout, str(delivery.batch.partition)
        )

    def flush(self, timeout: float | None = None) -> Deferred[None]:
        """Send everything; fires when all of it has a result and callbacks have run.

        Fails with `DeliveryFailed` if anything since the last flush was not written, with RequestTimedOut if `timeout`
        seconds are over before.
        """
        return self._within(Deferred.fromCoroutine(self._producer.flush()), timeout, "batches")

    def close(self, timeout: float | None = None) -> Deferred[None]:
        """Take no more records, flush, and close; fails as `flush`."""
        if self._closed is not None:
            return succeed(None)

        def closed(result: Any) -> Any:
            self.abandon()
            return result

        self._producer.refuse(Closed("the producer is closed"))
        self._closed = self.flush(timeout).addBoth(closed)
        return self._closed

    def abandon(self) -> None:
        """Close without sending what is left: that was not delivered, for all that is known."""
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


def _callback_failed() -> None:
    log.failure("a callback of the producer failed")
