"""A producer's batches between the accumulator and the brokers: what to send next, and what an answer means.

Strategy: a queue for each partition: batches that wait, in order, and batches in flight. `take` makes up requests: one
to each broker that has room for one more, with a batch of each queue in it. A batch that fails with a retriable error
goes back into its queue in its old place, and the queue is held until a pause is over and nothing of it is in flight.
The order of a partition's batches is thereby kept if the producer is idempotent or has one request in flight.

`leader_of(partition)` answers a node, or None while that is not known: the batch then waits, and the driver asks for
metadata, or calls `partition_failed` or `topic_failed` with the error that it got, and `unsent` when a request could
not be sent. Results are told to `on_result`.

Rules: every batch gets exactly one result: by its deadline, or when the request that is in flight then has ended. A
batch that was split gets one for each part. Nothing here waits or locks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import DeliveryFailed, DeliveryTimedOut, is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch, BatchResult
from pylogd.client.core.producer.idempotence import Numbering, ProducerId, may_be_written
from pylogd.errors import ErrorCode, KafkaError, PylogdError

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_BY_NUMBER = attrgetter("number")


@dataclass(slots=True)
class PartitionQueue:
    """The batches of one partition. `node` is the broker that those in flight went to. The queue is not looked at
    before `held_until`, the end of a pause after an error.
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
    """What one request to a broker carries: at most one batch of a partition."""

    node: int
    batches: list[Batch]


@dataclass(frozen=True, slots=True)
class Failures:
    """Records that were not delivered: how many so far, and for the latest failures how many there were before each."""

    records: int = 0
    causes: tuple[tuple[int, PylogdError], ...] = ()

    def plus(self, records: int, cause: PylogdError) -> Failures:
        """Return this with one more failure."""
        return Failures(self.records + records, (*self.causes[-99:], (self.records, cause)))

    def since(self, records: int) -> DeliveryFailed | None:
        """Return the error for what failed after so many had, if anything did."""
        if records >= self.records:
            return None
        cause = next((cause for before, cause in self.causes if before >= records), self.causes[-1][1])
        return DeliveryFailed(self.records - records, cause)


class SendQueue:
    """The batches of one producer that are sealed and have no result. `failures` counts what was not delivered."""

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        idempotent: bool,
        retry: bool,
        max_request_bytes: int,
        backoff: Callable[[], Backoff] = Backoff,
        on_result: Callable[[Batch, BatchResult], None] | None = None,
    ) -> None:
        """`retry`: whether a batch is sent again after a retriable error. `backoff` makes the pauses of one queue."""
        self._accumulator = accumulator
        self._retry = retry
        self._max_request_bytes = max_request_bytes
        self._backoff = backoff
        self.on_result = on_result
        self._producer_id = ProducerId() if idempotent else None
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}  # those where something waits
        self.failures = Failures()

    # What waits

    @property
    def wants_id(self) -> bool:
        """Whether InitProducerId must be answered before all can go on."""
        return self._producer_id is not None and self._producer_id.wanted and bool(self._busy)

    @property
    def waiting(self) -> bool:
        """Whether any batch waits to be sent."""
        return bool(self._busy)

    def topics(self) -> set[str]:
        """The topics of batches that wait: their leaders have to be known."""
        return {partition.topic for partition in self._busy}

    def next_time(self, after: float = float("-inf")) -> float | None:
        """When a pause ends or a batch expires, if nothing happens before; the first such time behind `after`."""
        times = [queue.waiting[0].deadline for queue in self._busy.values()]
        times += [q.held_until for q in self._busy.values() if q.held_until is not None and not q.in_flight]
        return min((time for time in times if time > after), default=None)

    def collect(self) -> None:
        """Take over what the accumulator has sealed."""
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
        """One request for each broker that may have one; [] if there is nothing more to send at the moment."""
        requests: dict[int, BatchRequest] = {}
        sizes: dict[int, int] = {}
        for partition, queue in list(self._busy.items()):
            if queue.held_until is not None and not self._released(queue, now):
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
        return list(requests.values())

    def _start(self, partition: TopicPartition, queue: PartitionQueue, batch: Batch, node: int) -> None:
        queue.waiting.remove(batch)
        queue.in_flight.append(batch)
        queue.node = node
        if not queue.waiting:
            del self._busy[partition]
        else:  # whoever was served goes behind those that were not
            self._busy[partition] = self._busy.pop(partition)

    def _released(self, queue: PartitionQueue, now: float) -> bool:
        """Whether a queue that had an error may go on: the pause is over and nothing of it is in flight."""
        assert queue.held_until is not None
        if now < queue.held_until or queue.in_flight:
            return False
        if queue.numbering is not None:
            queue.numbering.settle(queue.waiting)
        queue.held_until = None
        return True

    # Answers

    def written(self, batch: Batch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """The broker says that a batch is written; or, with acks=0, its bytes have left."""
        queue = self._ended(batch)
        queue.backoff = None
        self._finish(batch, base_offset, log_append_time_ms, None)
        if queue.numbering is not None:
            for earlier in queue.numbering.acked(batch, queue.waiting):
                self._remove(earlier, queue)
                self._finish(earlier, -1, -1, None)

    def failed(self, batch: Batch, error: PylogdError, now: float) -> None:
        """A request that carried the batch came to nothing, or its answer was an error: try again later, or give up."""
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
        """A batch that was taken, or one that waits, could not be sent at all: no leader, or no connection to it."""
        queue = self._ended(batch)
        batch.error = error
        self._again(queue, batch, error, now, retriable=is_retriable(error))

    def topic_failed(self, topic: str, error: PylogdError, now: float) -> None:
        """Nobody says who leads the partitions of a topic."""
        for partition in [partition for partition in self._busy if partition.topic == topic]:
            self.partition_failed(partition, error, now)

    def partition_failed(self, partition: TopicPartition, error: PylogdError, now: float) -> None:
        """Nobody says who leads a partition: its first batch that waits has failed, unless others are in flight."""
        queue = self._busy.get(partition)
        if queue is not None and not queue.in_flight and (queue.held_until is None or queue.held_until <= now):
            self.unsent(queue.waiting[0], error, now)

    def expire(self, now: float) -> None:
        """Give up what waited until its deadline."""
        for queue in list(self._busy.values()):
            while queue.waiting and queue.waiting[0].deadline <= now:
                batch = queue.waiting[0]
                cause = "" if batch.error is None else f": {batch.error}"
                error = DeliveryTimedOut(f"{batch.partition}: not delivered within delivery_timeout{cause}")
                error.__cause__ = batch.error
                self._give_up(queue, batch, error, now)

    def give_up_all(self, error: PylogdError) -> None:
        """Everything that has no result gets this one."""
        self._accumulator.seal_all()
        self.collect()
        for queue in self._queues.values():
            for batch in [*queue.in_flight, *queue.waiting]:
                self._finish(batch, -1, -1, error)
            queue.in_flight.clear()
            queue.waiting.clear()
        self._busy.clear()

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        """InitProducerId was answered."""
        assert self._producer_id is not None
        self._producer_id.given(producer_id, epoch)

    def producer_id_refused(self, error: PylogdError, now: float) -> None:
        """There is no producer id to be had, for good."""
        for queue in list(self._busy.values()):
            for batch in list(queue.waiting):
                self._give_up(queue, batch, error, now)

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        """Send a batch that the broker found too large as two, in its place and under its sequence numbers."""
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
        if not self._retry or not retriable or until > batch.deadline:
            self._give_up(queue, batch, error, now)
        else:
            queue.held_until = until

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: PylogdError, now: float) -> None:
        self._remove(batch, queue)
        self._finish(batch, -1, -1, error)
        if queue.numbering is not None:
            queue.numbering.gave_up(batch)
            queue.held_until = now if queue.held_until is None else queue.held_until

    def _finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> None:
        result = self._accumulator.finish(batch, base_offset, log_append_time_ms, error)
        if error is not None:
            self.failures = self.failures.plus(batch.count, error)
        if self.on_result is not None:
            self.on_result(batch, result)
