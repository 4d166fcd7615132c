"""Decide which batches to send next, and how to handle the answers.

Strategy: each partition has a queue: batches that wait, in order, and batches in flight. `take` makes one request for
each broker that may get another request, with at most one batch of each queue. A batch that fails with a retriable
error goes back into its queue at its old position, and the queue is held until a pause is over and none of its batches
is in flight. This keeps the order of a partition's batches if the producer is idempotent or has one request in flight.

`leader_of(partition)` returns a node id, or None while the leader is unknown: then the batch waits, and the caller
requests metadata. The caller reports a failure of that with `partition_failed` or `topic_failed`, and a request that
could not be sent with `unsent`. Results are passed to `on_result`.

Rules: every batch gets exactly one result: by its deadline, or at the end of the request that is then in flight. A
split batch gets a result for each part. If a transactional producer gives up a batch, the transaction is broken, and no
other batch is sent until it is aborted. Nothing here waits or locks.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.errors import DeliveryFailed, DeliveryTimedOut, is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.idempotence import Numbering, ProducerId, may_be_written
from pylogd.client.core.producer.options import BatchResult
from pylogd.client.core.producer.transactions import Transactions
from pylogd.wire.records import NO_SEQUENCE

_log = logging.getLogger("pylogd.client.producer")

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_BY_NUMBER = attrgetter("number")
#: Seconds before a batch is sent again while its producer's previous transaction is still being ended.
_CONCURRENT_PAUSE = 0.02


@dataclass(slots=True)
class PartitionQueue:
    """The batches of one partition.

    node: the broker to which the batches in flight were sent.

    held_until: the time before which nothing is sent, after an error.
    """

    waiting: list[Batch] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)
    node: int = -1
    held_until: float | None = None
    backoff: Backoff | None = None
    numbering: Numbering | None = None

    def next_batch(self) -> Batch | None:
        """Return the batch that may be sent now, numbered if the producer is idempotent."""
        if self.numbering is None:
            return self.waiting[0]
        return self.numbering.next(self.waiting, len(self.in_flight))


@dataclass(slots=True)
class BatchRequest:
    """The batches of one request to a broker: at most one of each partition.

    call: the call of the request, until its outcome is known.
    """

    node: int
    batches: list[Batch]
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Failures:
    """The number of records that were not delivered, and for each of the latest failures the number before it."""

    records: int = 0
    causes: tuple[tuple[int, PylogdError], ...] = ()

    def plus(self, records: int, cause: PylogdError) -> Failures:
        """Return a copy with one more failure."""
        return Failures(self.records + records, (*self.causes[-99:], (self.records, cause)))

    def since(self, records: int) -> DeliveryFailed | None:
        """Return the error for the records that failed after the first `records` failures; None if none did."""
        if records >= self.records:
            return None
        cause = next((cause for before, cause in self.causes if before >= records), self.causes[-1][1])
        return DeliveryFailed(self.records - records, cause)


class SendQueue:
    """The sealed batches of one producer that have no result. `failures` counts undelivered records."""

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        idempotent: bool,
        retry: bool,
        max_request_bytes: int,
        backoff: Callable[[], Backoff] = Backoff,
        on_result: Callable[[Batch, BatchResult], None] | None = None,
        on_retry: Callable[[Batch], None] | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """`retry` is whether a batch is sent again after a retriable error. `backoff` makes the pauses of one queue.

        on_result: called with every batch that has its result.
        on_retry: called with every batch that is sent again.
        """
        self._accumulator = accumulator
        self._retry = retry
        self._max_request_bytes = max_request_bytes
        self._backoff = backoff
        self.on_result = on_result
        self._on_retry = on_retry
        self._producer_id = ProducerId(transactional=transactions is not None) if idempotent else None
        self._transactions = transactions
        self._dropped: PylogdError | None = None  # why no more batches of the present transaction are sent
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}  # the partitions with waiting batches
        self.failures = Failures()

    # Batches that wait

    @property
    def wants_id(self) -> bool:
        """Whether batches wait for a producer id."""
        own = self._transactions is None and self._producer_id is not None and self._producer_id.wanted
        return own and bool(self._busy)

    @property
    def waiting(self) -> bool:
        """Whether any batch waits to be sent."""
        return bool(self._busy)

    def topics(self) -> set[str]:
        """Return the topics of waiting batches: their leaders have to be known."""
        return {partition.topic for partition in self._busy}

    def partitions(self) -> set[TopicPartition]:
        """Return the partitions of waiting batches."""
        return set(self._busy)

    def next_time(self, after: float = float("-inf")) -> float | None:
        """Return the first time later than `after` at which a pause ends or a batch expires."""
        times = [queue.waiting[0].deadline for queue in self._busy.values()]
        times += [q.held_until for q in self._busy.values() if q.held_until is not None and not q.in_flight]
        return min((time for time in times if time > after), default=None)

    def collect(self) -> None:
        """Take over the batches that the accumulator has sealed."""
        for batch in self._accumulator.take_sealed():
            queue = self._queues.get(batch.partition)
            if queue is None:
                queue = self._queues[batch.partition] = PartitionQueue()
                if self._producer_id is not None:
                    queue.numbering = Numbering(self._producer_id)
            queue.waiting.append(batch)
            self._busy[batch.partition] = queue

    # Sending

    def take(
        self, now: float, leader_of: Callable[[TopicPartition], int | None], has_room: Callable[[int], bool]
    ) -> list[BatchRequest]:
        """Return a request for each broker that may get one; [] if there is nothing to send at the moment."""
        requests: dict[int, BatchRequest] = {}
        sizes: dict[int, int] = {}
        transactions = self._transactions
        for partition, queue in list(self._busy.items()):
            if queue.held_until is not None and not self._released(queue, now):
                continue
            if transactions is not None and not transactions.may_send(partition):
                continue
            node = leader_of(partition)
            if node is None or (queue.in_flight and queue.node != node):
                continue
            if node not in sizes and not has_room(node):
                continue
            batch = queue.next_batch()
            if batch is None:
                continue
            size = sizes.get(node, 0) + (len(batch.encoded) or batch.size)
            if node in sizes and size > self._max_request_bytes:
                continue
            sizes[node] = size
            self._start(partition, queue, batch, node)
            requests.setdefault(node, BatchRequest(node, [])).batches.append(batch)
        if requests and transactions is not None:
            transactions.sending()
        return list(requests.values())

    def _start(self, partition: TopicPartition, queue: PartitionQueue, batch: Batch, node: int) -> None:
        queue.waiting.remove(batch)
        queue.in_flight.append(batch)
        queue.node = node
        if not queue.waiting:
            del self._busy[partition]
        else:  # put it after the partitions that were not served
            self._busy[partition] = self._busy.pop(partition)

    def _released(self, queue: PartitionQueue, now: float) -> bool:
        """Whether a queue that had an error may send: its pause is over, and none of its batches is in flight."""
        assert queue.held_until is not None
        if now < queue.held_until or queue.in_flight:
            return False
        queue.held_until = None
        if queue.numbering is not None and not queue.numbering.settle(queue.waiting):
            batch = queue.waiting[0]
            self._give_up(queue, batch, batch.error or KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), now)
            return False
        return True

    # Answers

    def written(self, batch: Batch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Record that a broker has written a batch, or, with acks=0, that its bytes were sent."""
        queue = self._ended(batch)
        queue.backoff = None
        self._finish(batch, base_offset, log_append_time_ms, None)
        if queue.numbering is not None:
            for earlier in queue.numbering.acked(batch, queue.waiting):
                self._remove(earlier, queue)
                self._finish(earlier, -1, -1, None)

    def failed(self, batch: Batch, error: PylogdError, now: float) -> None:
        """Record that a batch's request failed or was answered with an error: send the batch again later, or give it
        up.
        """
        queue = self._ended(batch)
        batch.error = error
        code = error.code if isinstance(error, KafkaError) else None
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and queue.numbering is not None:
            queue.in_flight.append(batch)
            self.written(batch, -1)
            return
        if code in _TOO_LARGE and batch.count > 1 and self._retry and not (batch.atomic or batch.maybe_written):
            self._split(queue, batch)
            return
        if may_be_written(error):
            batch.maybe_written = True
        about_numbers = code is not None and queue.numbering is not None and queue.numbering.refused(batch, code)
        self._again(queue, batch, error, now, retriable=about_numbers or is_retriable(error))

    def unsent(self, batch: Batch, error: PylogdError, now: float) -> None:
        """Record that a batch could not be sent: the partition has no leader, or the leader can't be reached."""
        queue = self._ended(batch)
        batch.error = error
        self._again(queue, batch, error, now, retriable=is_retriable(error))

    def topic_failed(self, topic: str, error: PylogdError, now: float) -> None:
        """Record that the leaders of a topic's partitions could not be found."""
        for partition in [partition for partition in self._busy if partition.topic == topic]:
            self.partition_failed(partition, error, now)

    def partition_failed(self, partition: TopicPartition, error: PylogdError, now: float) -> None:
        """Record that a partition's leader could not be found: its first batch failed, unless one is in flight."""
        queue = self._busy.get(partition)
        if queue is not None and not queue.in_flight and (queue.held_until is None or queue.held_until <= now):
            self.unsent(queue.waiting[0], error, now)

    def expire(self, now: float) -> None:
        """Give up the batches that waited until their deadline."""
        for queue in list(self._busy.values()):
            while queue.waiting and queue.waiting[0].deadline <= now:
                batch = queue.waiting[0]
                cause = "" if batch.error is None else f": {batch.error}"
                error = DeliveryTimedOut(f"{batch.partition}: not delivered within delivery_timeout{cause}")
                error.__cause__ = batch.error
                self._give_up(queue, batch, error, now)

    def give_up_all(self, error: PylogdError) -> None:
        """Fail every batch that has no result with `error`."""
        self._accumulator.seal_all()
        self.collect()
        for queue in self._queues.values():
            for batch in [*queue.in_flight, *queue.waiting]:
                self._finish(batch, -1, -1, error)
            queue.in_flight.clear()
            queue.waiting.clear()
        self._busy.clear()

    def drop_waiting(self, error: PylogdError) -> bool:
        """Fail every batch that is not in flight with `error`, and send no batch until `resume`.

        Returns whether one of these batches has a sequence number, so that later batches leave a gap.
        """
        self._dropped = error
        self._accumulator.seal_all()
        self.collect()
        numbered = False
        for queue in self._busy.values():
            for batch in queue.waiting:
                numbered = numbered or batch.sequence != NO_SEQUENCE
                self._finish(batch, -1, -1, error)
            queue.waiting.clear()
            queue.held_until = None
        self._busy.clear()
        return numbered

    def resume(self) -> None:
        """Send batches again, in the next transaction."""
        self._dropped = None

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        """Use the producer id that InitProducerId, or the end of a transaction, returned."""
        assert self._producer_id is not None
        self._producer_id.given(producer_id, epoch)
        if self._transactions is not None:  # all batches have results: all partitions start a new epoch
            self._queues.clear()

    def producer_id_refused(self, error: PylogdError, now: float) -> None:
        """Give up all batches, because no producer id is available."""
        for queue in list(self._busy.values()):
            for batch in list(queue.waiting):
                self._give_up(queue, batch, error, now)

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        """Replace a batch that is too large for the broker by two, which keep its position and sequence numbers."""
        _log.info(
            "%s: batch of %d records is too large for the broker, sending it as two", batch.partition, batch.count
        )
        for part in self._accumulator.split(batch):
            insort(queue.waiting, part, key=_BY_NUMBER)
        self._busy[batch.partition] = queue

    def _ended(self, batch: Batch) -> PartitionQueue:
        queue = self._queues[batch.partition]
        self._remove(batch, queue)
        return queue

    def _remove(self, batch: Batch, queue: PartitionQueue) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
            return
        queue.waiting.remove(batch)
        if not queue.waiting:
            self._busy.pop(batch.partition, None)

    def _again(self, queue: PartitionQueue, batch: Batch, error: PylogdError, now: float, *, retriable: bool) -> None:
        insort(queue.waiting, batch, key=_BY_NUMBER)
        self._busy[batch.partition] = queue
        if queue.backoff is None:
            queue.backoff = self._backoff()
        until = now + queue.backoff.next() if queue.held_until is None or queue.held_until < now else queue.held_until
        if isinstance(error, KafkaError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            until = now + _CONCURRENT_PAUSE
        if not self._retry or not retriable or until > batch.deadline or self._dropped is not None:
            self._give_up(queue, batch, error, now)
        else:
            queue.held_until = until
            _log.debug("%s: retrying a batch of %d records: %s", batch.partition, batch.count, error)
            if self._on_retry is not None:
                self._on_retry(batch)

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: PylogdError, now: float) -> None:
        _log.info("%s: giving up a batch of %d records: %s", batch.partition, batch.count, error)
        self._remove(batch, queue)
        self._finish(batch, -1, -1, error)
        if self._transactions is not None:
            self._transactions.batch_failed(error)
        elif queue.numbering is not None:
            queue.numbering.gave_up(batch)
            queue.held_until = now if queue.held_until is None else queue.held_until

    def _finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> None:
        result = self._accumulator.finish(batch, base_offset, log_append_time_ms, error)
        if error is not None and self._transactions is None:  # a transaction reports its own failures
            self.failures = self.failures.plus(batch.count, error)
        if self.on_result is not None:
            self.on_result(batch, result)
