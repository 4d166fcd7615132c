"""A producer's batches between the accumulator and the brokers: what to send next, and what an answer means.

Strategy: a lane for each partition: batches that wait, in order, and batches under way. `take` makes up requests: one
to each broker that has room for one more, with a batch of each lane in it (`shipping.py` words them). A batch that
fails with a retriable error goes back into its lane in its old place, and the lane is held until a pause is over and
nothing of it is under way. The order of a partition's batches is thereby kept if the producer is idempotent or has one
request in flight.

Sans I/O, and shared by both faces. Whoever drives it does this, again and again:

    accumulator.seal_due(now); outbox.collect()
    outbox.expire(now)
    if outbox.wants_id: send InitProducerId, then outbox.producer_id_given(...) or outbox.producer_id_refused(...)
    for shipment in outbox.take(now, leader_of, has_room):
        batch.encode(...) and accumulator.was_encoded(batch) for its batches; send them to shipment.node in one request
    for each answer: outbox.written(batch, ...), or outbox.failed(batch, error, now)

`leader_of(place)` answers a node, or None while that is not known: then the batch waits, and the driver, who knows
what it does not know, asks for metadata, or calls `place_failed` or `topic_failed` with the error that it got, and
`unsent` when it has no connection to the node. Results are told to `on_result`.

Rules: every batch gets exactly one result: by its deadline, or when the request that is under way then has ended.
Nothing here waits or locks.
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

_BY_NUMBER = attrgetter("number")


@dataclass(slots=True)
class Lane:
    """A partition's batches. `node` is the broker that those under way went to; `held` the end of a pause."""

    waiting: list[Batch] = field(default_factory=list)
    flying: list[Batch] = field(default_factory=list)
    node: int = -1
    held: float | None = None
    backoff: Backoff | None = None
    numbering: Numbering | None = None


@dataclass(slots=True)
class Shipment:
    """What one request to a broker carries: at most one batch of a partition."""

    node: int
    batches: list[Batch]


class Outbox:
    """Batches on their way. `failed_since` counts what was not delivered until somebody takes it."""

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
        """`retry`: whether a batch is sent again after a retriable error. `backoff` makes a lane's pauses."""
        self._accumulator = accumulator
        self._retry = retry
        self._max_request_bytes = max_request_bytes
        self._backoff = backoff
        self.on_result = on_result
        self._producer_id = ProducerId() if idempotent else None
        self._lanes: dict[TopicPartition, Lane] = {}
        self._busy: dict[TopicPartition, Lane] = {}  # those where something waits
        self.failed_since: DeliveryFailed | None = None

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
        return {place.topic for place in self._busy}

    def next_time(self, after: float = float("-inf")) -> float | None:
        """When a pause ends or a batch expires, if nothing happens before; the first such time behind `after`."""
        times = [lane.waiting[0].deadline for lane in self._busy.values()]
        times += [lane.held for lane in self._busy.values() if lane.held is not None and not lane.flying]
        return min((time for time in times if time > after), default=None)

    def collect(self) -> None:
        """Take over what the accumulator has sealed."""
        for batch in self._accumulator.take_sealed():
            lane = self._lanes.get(batch.partition)
            if lane is None:
                lane = self._lanes[batch.partition] = Lane()
                if self._producer_id is not None:
                    lane.numbering = Numbering(self._producer_id)
            lane.waiting.append(batch)
            self._busy[batch.partition] = lane

    # Sending

    def take(
        self, now: float, leader_of: Callable[[TopicPartition], int | None], has_room: Callable[[int], bool]
    ) -> list[Shipment]:
        """One request for each broker that may have one; [] if there is nothing more to send at the moment."""
        shipments: dict[int, Shipment] = {}
        sizes: dict[int, int] = {}
        for place, lane in list(self._busy.items()):
            if lane.held is not None and not self._released(lane, now):
                continue
            node = leader_of(place)
            if node is None or (lane.flying and lane.node != node):
                continue
            if node not in sizes and not has_room(node):
                continue
            batch = lane.waiting[0] if lane.numbering is None else lane.numbering.next(lane.waiting, len(lane.flying))
            if batch is None:
                continue
            size = sizes.get(node, 0) + (len(batch.encoded) or batch.size)
            if node in sizes and size > self._max_request_bytes:
                continue
            sizes[node] = size
            self._depart(place, lane, batch, node)
            shipments.setdefault(node, Shipment(node, [])).batches.append(batch)
        return list(shipments.values())

    def _depart(self, place: TopicPartition, lane: Lane, batch: Batch, node: int) -> None:
        lane.waiting.remove(batch)
        lane.flying.append(batch)
        lane.node = node
        if not lane.waiting:
            del self._busy[place]
        else:  # whoever was served goes behind those that were not
            self._busy[place] = self._busy.pop(place)

    def _released(self, lane: Lane, now: float) -> bool:
        """Whether a lane that had an error may go on: the pause is over and nothing of it is under way."""
        assert lane.held is not None
        if now < lane.held or lane.flying:
            return False
        if lane.numbering is not None:
            lane.numbering.settle(lane.waiting)
        lane.held = None
        return True

    # Answers

    def written(self, batch: Batch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """The broker says that a batch is written; or, with acks=0, its bytes have left."""
        lane = self._landed(batch)
        lane.backoff = None
        self._finish(batch, base_offset, log_append_time_ms, None)
        if lane.numbering is not None:
            for earlier in lane.numbering.acked(batch, lane.waiting):
                self._remove(earlier, lane)
                self._finish(earlier, -1, -1, None)

    def failed(self, batch: Batch, error: PylogdError, now: float) -> None:
        """A request that carried the batch came to nothing, or its answer was an error: try again later, or give up."""
        lane = self._landed(batch)
        batch.error = error
        code = error.code if isinstance(error, KafkaError) else None
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and lane.numbering is not None:
            lane.flying.append(batch)
            self.written(batch, -1)
            return
        if may_be_written(error):
            batch.maybe_written = True
        about_numbers = code is not None and lane.numbering is not None and lane.numbering.refused(batch, code)
        self._again(lane, batch, error, now, retriable=about_numbers or is_retriable(error))

    def unsent(self, batch: Batch, error: PylogdError, now: float) -> None:
        """A batch that was taken, or one that waits, could not be sent at all: no leader, or no connection to it."""
        lane = self._landed(batch)
        batch.error = error
        self._again(lane, batch, error, now, retriable=is_retriable(error))

    def topic_failed(self, topic: str, error: PylogdError, now: float) -> None:
        """Nobody says who leads the partitions of a topic."""
        for place in [place for place in self._busy if place.topic == topic]:
            self.place_failed(place, error, now)

    def place_failed(self, place: TopicPartition, error: PylogdError, now: float) -> None:
        """Nobody says who leads a partition: its first batch that waits has failed, unless others are under way."""
        lane = self._busy.get(place)
        if lane is not None and not lane.flying and (lane.held is None or lane.held <= now):
            self.unsent(lane.waiting[0], error, now)

    def expire(self, now: float) -> None:
        """Give up what waited until its deadline."""
        for lane in list(self._busy.values()):
            while lane.waiting and lane.waiting[0].deadline <= now:
                batch = lane.waiting[0]
                cause = "" if batch.error is None else f": {batch.error}"
                error = DeliveryTimedOut(f"{batch.partition}: not delivered within delivery_timeout{cause}")
                error.__cause__ = batch.error
                self._give_up(lane, batch, error, now)

    def give_up_all(self, error: PylogdError) -> None:
        """Everything that has no result gets this one."""
        self._accumulator.seal_all()
        self.collect()
        for lane in self._lanes.values():
            for batch in [*lane.flying, *lane.waiting]:
                self._finish(batch, -1, -1, error)
            lane.flying.clear()
            lane.waiting.clear()
        self._busy.clear()

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        """InitProducerId was answered."""
        assert self._producer_id is not None
        self._producer_id.given(producer_id, epoch)

    def producer_id_refused(self, error: PylogdError, now: float) -> None:
        """There is no producer id to be had, for good."""
        for lane in list(self._busy.values()):
            for batch in list(lane.waiting):
                self._give_up(lane, batch, error, now)

    def _landed(self, batch: Batch) -> Lane:
        lane = self._lanes[batch.partition]
        self._remove(batch, lane)
        return lane

    def _remove(self, batch: Batch, lane: Lane) -> None:
        if batch in lane.flying:
            lane.flying.remove(batch)
            return
        lane.waiting.remove(batch)
        if not lane.waiting:
            self._busy.pop(batch.partition, None)

    def _again(self, lane: Lane, batch: Batch, error: PylogdError, now: float, *, retriable: bool) -> None:
        insort(lane.waiting, batch, key=_BY_NUMBER)
        self._busy[batch.partition] = lane
        if lane.backoff is None:
            lane.backoff = self._backoff()
        until = now + lane.backoff.next() if lane.held is None or lane.held < now else lane.held
        if not self._retry or not retriable or until > batch.deadline:
            self._give_up(lane, batch, error, now)
        else:
            lane.held = until

    def _give_up(self, lane: Lane, batch: Batch, error: PylogdError, now: float) -> None:
        self._remove(batch, lane)
        self._finish(batch, -1, -1, error)
        if lane.numbering is not None:
            lane.numbering.gave_up(batch)
            lane.held = now if lane.held is None else lane.held

    def _finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> None:
        result = self._accumulator.finish(batch, base_offset, log_append_time_ms, error)
        if error is not None:
            earlier = self.failed_since
            self.failed_since = DeliveryFailed(
                batch.count + (earlier.records if earlier else 0), (earlier.__cause__ if earlier else None) or error
            )
        if self.on_result is not None:
            self.on_result(batch, result)
