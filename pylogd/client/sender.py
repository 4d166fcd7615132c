"""Sealed batches on their way to the partitions' leaders, and the results on their way back.

Strategy: a queue of batches for each partition. A turn takes in the replies that have come, then sends one request to
each broker that may have one more, with the first batch of each queue in it; up to `max_in_flight` requests are under
way to a broker. A batch that fails with a retriable error goes back into its queue, in its old place, and the partition
is held until a pause is over and nothing of it is under way.

Rules: nothing waits but `turn(wait)`. One thread at a time. It knows nothing of topics' sizes, keys, or lingering.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pylogd.client.clock import Backoff
from pylogd.client.cluster import Cluster, error_text
from pylogd.client.connection import Connection, Reply
from pylogd.client.errors import DeliveryFailed, RequestTimedOut, is_retriable
from pylogd.client.model import TopicPartition
from pylogd.errors import KafkaError, PylogdError, error_for
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pylogd.wire.records import Header, encode_batch
from pylogd.wire.values import ZERO_UUID

_TOPIC_IDS_FROM = 13


class BatchResult(NamedTuple):
    """What became of a batch. `base_offset` is -1 if it is not known: after an error, or with acks=0."""

    partition: TopicPartition
    records: int
    base_offset: int
    log_append_time_ms: int
    error: PylogdError | None


class Batch:
    """Records for one partition, on their way from the first `send` to a result."""

    __slots__ = ("deadline", "due_ms", "encoded", "number", "partition", "records", "result", "size")

    def __init__(self, partition: TopicPartition, number: int, due_ms: int) -> None:
        """An empty one. `number` is its place in the order of batches; `due_ms` is when it has lingered enough."""
        self.partition = partition
        self.number = number
        self.due_ms = due_ms
        self.records: list[tuple[bytes | None, bytes | None, int, Sequence[Header]]] = []
        self.size = 0
        self.deadline = 0.0
        self.encoded = b""
        self.result: BatchResult | None = None


class _Request(NamedTuple):
    """A produce request under way."""

    connection: Connection
    reply: Reply
    batches: dict[tuple[str | bytes, int], Batch]  # by topic name or id, and partition


class Sender:
    """Sends batches. `buffered` counts the bytes and `unfinished` the batches that have no result yet."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int,
        compression: CompressionType,
        compression_level: int | None,
        max_request_bytes: int,
        max_in_flight: int,
        request_timeout: float,
        delivery_timeout: float,
        retry: bool,
        on_batch: Callable[[BatchResult], None] | None,
    ) -> None:
        """As the producer's options of the same names."""
        self._cluster = cluster
        self._acks = acks
        self._compression = compression
        self._level = compression_level
        self._max_request_bytes = max_request_bytes
        self._max_in_flight = max_in_flight
        self._request_timeout = request_timeout
        self._delivery_timeout = delivery_timeout
        self._retry = retry
        self._on_batch = on_batch
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._held: dict[TopicPartition, float] = {}  # no new request before this time
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._under_way: deque[_Request] = deque()
        self._flying: dict[TopicPartition, int] = {}  # batches under way
        self.buffered = 0
        self.unfinished = 0
        self.failed: DeliveryFailed | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not self._queues and not self._under_way

    def add(self, batch: Batch) -> None:
        """Take a sealed batch, which has until `delivery_timeout` from now."""
        batch.deadline = self._cluster.clock.monotonic() + self._delivery_timeout
        self._queues.setdefault(batch.partition, deque()).append(batch)
        self.turn()

    def turn(self, wait: float = 0.0) -> None:
        """Take in replies and send what may go; with `wait`, sleep that long at most for something to happen."""
        if wait:
            self._sleep(wait)
        if self._under_way:
            self._collect()
        while self._queues and self._dispatch():
            pass

    def _sleep(self, wait: float) -> None:
        now = self._cluster.clock.monotonic()
        held = [until - now for place, until in self._held.items() if place in self._queues]
        wait = max(0.0, min([wait, *held]))
        connections = {request.connection for request in self._under_way}
        if not connections:
            if held and wait:
                self._cluster.clock.sleep(wait)
            return
        late = min(request.reply.deadline for request in self._under_way) - now
        ready = [c for c in connections if not c.closed]
        if len(ready) == len(connections):
            poll = select.poll()
            for connection in ready:
                poll.register(connection, select.POLLIN)
            poll.poll(max(0.0, min(wait, late) * 1000))

    def _collect(self) -> None:
        for connection in {request.connection for request in self._under_way}:
            connection.poll()
        still: deque[_Request] = deque()
        for request in self._under_way:
            if request.reply.done:
                self._land(request)
            else:
                still.append(request)
        self._under_way = still

    def _land(self, request: _Request) -> None:
        """A request has its reply, or never will."""
        batches = request.batches
        for batch in batches.values():
            self._flying[batch.partition] -= 1
        if request.reply.error is not None:
            for batch in batches.values():
                self._fail(batch, request.reply.error)
            return
        response: ProduceResponse | None = request.reply.response
        if response is None:  # acks=0
            for batch in batches.values():
                self._finish(batch, -1, -1, None)
            return
        for topic in response.responses:
            for answer in topic.partition_responses:
                found = batches.pop((topic.name or topic.topic_id, answer.index), None)
                if found is not None:
                    self._answer(found, answer)
        for batch in batches.values():
            self._fail(batch, RequestTimedOut("the broker's reply leaves the partition out"))

    def _answer(self, batch: Batch, answer: PartitionProduceResponse) -> None:
        if answer.error_code:
            text = answer.error_message or error_text(answer.error_code)
            self._fail(batch, KafkaError(error_for(answer.error_code), f"{batch.partition}: {text}"))
        else:
            self._backoffs.pop(batch.partition, None)
            self._finish(batch, answer.base_offset, answer.log_append_time_ms, None)

    def _fail(self, batch: Batch, error: PylogdError) -> None:
        """Try again later, in order, or give up."""
        self._cluster.note(error)
        place = batch.partition
        pause = self._backoffs.setdefault(place, Backoff()).next()
        again = self._cluster.clock.monotonic() + pause
        if not self._retry or not is_retriable(error) or again > batch.deadline:
            self._finish(batch, -1, -1, error)
            return
        self._held[place] = again
        self._queues[place] = deque(sorted([*self._queues.get(place, ()), batch], key=lambda b: b.number))

    def _finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> None:
        count = len(batch.records)
        batch.result = BatchResult(batch.partition, count, base_offset, log_append_time_ms, error)
        batch.records, batch.encoded = [], b""
        self.buffered -= batch.size
        self.unfinished -= 1
        if error is not None:
            earlier = self.failed
            self.failed = DeliveryFailed(
                count + (earlier.records if earlier else 0), (earlier.__cause__ if earlier else None) or error
            )
        if self._on_batch is not None:
            self._on_batch(batch.result)

    def _dispatch(self) -> bool:
        """Send one request to each broker that may have one; whether any was sent."""
        now = self._cluster.clock.monotonic()
        for_node: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        for place in list(self._queues):
            if place in self._held and not self._released(place, now):
                continue
            batch = self._queues[place][0]
            try:
                node = self._cluster.leader(place).leader
            except PylogdError as error:
                self._fail(self._take(place), error)
                continue
            size = sizes.get(node, 0) + batch.size
            if (node in sizes and size > self._max_request_bytes) or self._requests_to(node) >= self._max_in_flight:
                continue
            sizes[node] = size
            for_node.setdefault(node, []).append(self._take(place))
        for node, batches in for_node.items():
            self._send(node, batches)
        return bool(for_node)

    def _released(self, place: TopicPartition, now: float) -> bool:
        """Whether a partition that had an error may go on: the pause is over and nothing of it is under way."""
        if now < self._held[place] or self._flying.get(place):
            return False
        del self._held[place]
        return True

    def _take(self, place: TopicPartition) -> Batch:
        queue = self._queues[place]
        batch = queue.popleft()
        if not queue:
            del self._queues[place]
        return batch

    def _requests_to(self, node: int) -> int:
        try:
            return self._cluster.connection(node, "produce").in_flight
        except PylogdError:
            return 0  # sending will say so, batch by batch

    def _send(self, node: int, batches: list[Batch]) -> None:
        for batch in batches:
            if not batch.encoded:
                batch.encoded = encode_batch(batch.records, compression=self._compression, level=self._level)
        try:
            connection = self._cluster.connection(node, "produce")
            request, version, by_place = self._build(connection, batches)
            reply = connection.send(
                request, version=version, timeout=self._request_timeout, expect_reply=self._acks != 0
            )
        except PylogdError as error:
            for batch in batches:
                self._fail(batch, error)
            return
        for batch in batches:
            self._flying[batch.partition] = self._flying.get(batch.partition, 0) + 1
        self._under_way.append(_Request(connection, reply, by_place))

    def _build(
        self, connection: Connection, batches: list[Batch]
    ) -> tuple[ProduceRequest, int, dict[tuple[str | bytes, int], Batch]]:
        request = ProduceRequest(acks=self._acks, timeout_ms=int(self._request_timeout * 1000))
        ids = {batch.partition.topic: self._cluster.try_topic(batch.partition.topic).topic_id for batch in batches}
        highest = _TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None
        version = connection.version_for(request, highest)
        topics: dict[str, TopicProduceData] = {}
        by_place: dict[tuple[str | bytes, int], Batch] = {}
        for batch in batches:
            name, index = batch.partition
            key: Any = ids[name] if version >= _TOPIC_IDS_FROM else name
            if name not in topics:
                field = "topic_id" if version >= _TOPIC_IDS_FROM else "name"
                topics[name] = TopicProduceData(**{field: key})
            topics[name].partition_data.append(PartitionProduceData(index=index, records=batch.encoded))
            by_place[key, index] = batch
        request.topic_data = list(topics.values())
        return request, version, by_place
