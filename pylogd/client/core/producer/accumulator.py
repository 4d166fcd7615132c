"""Gather a producer's records into batches, and count the memory that they take.

Strategy: each partition has at most one open batch. It is sealed when it is full in bytes or records, or has lingered
long enough. Then it belongs to the send queue (`send_queue.py`), which sends and retries it until it has a result.
Records without a key go to one partition for some batches (`partitioner.StickyPartitions`).

    accumulator = Accumulator(options, monotonic=clock)
    batch = accumulator.add(topic, partitions, partition, key, value, now_ms, headers)
    index = len(batch.records) - 1      # of this record
    accumulator.seal_due(now)           # or seal(batch), seal_all()
    accumulator.take_sealed()           # for the send queue
    accumulator.next_due()              # when seal_due has something to do, on the clock of `now`

Rules: no I/O. `now` comes from the clock `monotonic`; `now_ms` is in milliseconds since 1970. Nothing here waits,
locks or refuses a record: the caller compares `buffered` with the limit before it adds, and holds a lock if there are
threads. `buffered` includes Python's objects, so that a limit on it limits memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.partitioner import (
    PARTITIONERS,
    StickyPartitions,
    murmur2_partitioner,
    positive_murmur2,
)
from pylogd.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    Header,
    NewRecord,
    decode_batch,
    encode_batch,
    encode_headers,
    parse_header,
    record_size_bound,
    speedups,
    with_producer,
)

_encode_headers: Callable[[Sequence[Header]], bytes] = encode_headers if speedups is None else speedups.encode_headers

_RECORD_OVERHEAD = 31  # see `record_size_bound`
#: Bytes that CPython needs for a record besides its key and value: a tuple, a time stamp, the heads of two bytes
#: objects, an entry in a list.
OBJECT_OVERHEAD = 190

MAX_SEQUENCE = (1 << 31) - 1
MAX_TIMESTAMP = (1 << 63) - 1

#: A record in a batch: key, value, time stamp, and headers encoded by `encode_headers`.
Fields = tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]


def check_timestamp(timestamp: Any) -> int:
    """Return `timestamp`. Raises TypeError or ValueError unless it is an int of 64 bits."""
    if not isinstance(timestamp, int):
        raise TypeError(f"a timestamp is a whole number of milliseconds since 1970, not {timestamp!r}")
    if not -MAX_TIMESTAMP - 1 <= timestamp <= MAX_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp} does not fit into 64 bits")
    return timestamp


def check_headers(headers: Sequence[Header]) -> list[Header]:
    """Return headers with bytes as values. Raises TypeError for a key that is not str, or a value that is not bytes."""
    checked = [(name, as_bytes(content, "a header's value")) for name, content in headers]
    for name, _ in checked:
        if not isinstance(name, str):
            raise TypeError(f"a header's key is str, not {type(name).__name__}")
    return checked


def to_bytes(content: Any, what: str) -> bytes:
    """Return a key or value as bytes. Raises TypeError, whose text names it by `what`."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}: encode it, or give a serializer")


def as_bytes(content: Any, what: str) -> bytes | None:
    """Return what `to_bytes` returns; None for None."""
    return None if content is None else to_bytes(content, what)


def as_new_records(records: Iterable[NewRecord | tuple[Any, Any]], now_ms: int) -> list[NewRecord]:
    """Return records; records given as (key, value) pairs get the time stamp `now_ms`.

    Raises ValueError without records.
    """
    found = [each if isinstance(each, NewRecord) else NewRecord(each[0], each[1], now_ms) for each in records]
    if not found:
        raise ValueError("a record set needs at least one record")
    return found


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Records for one partition, from the first `send` to a result.

    number: orders batches.
    due: the time at which the batch has lingered long enough.
    atomic: whether the batch is a set, which must not be split.
    parts: the batches that it was split into because it was too large for the broker, each with the index of its first
    record.
    parent: the split batch of which this is a part.
    spacing: the distance to the number of the next batch.
    count: the number of records, once sealed.
    size: an upper bound of the bytes before compression.
    held: the bytes that count as buffered, once sealed.
    stamp: the producer id, epoch and sequence in `encoded`; None if another producer encoded the batch.
    maybe_written: whether the batch was sent, and no answer told if it was written.
    out_of_order: whether the broker's last answer was an error of the sequence number.
    error: the error of the last attempt.
    listeners: deliveries, each followed by its callback. Tuples of both would keep the garbage collector busy. If a
    delivery is None, the callback gets the result.
    """

    partition: TopicPartition
    number: float
    due: float
    deadline: float
    atomic: bool = False
    parts: list[tuple[int, Batch]] = field(default_factory=list)
    parent: Batch | None = None
    spacing: float = 1.0
    records: list[Fields] = field(default_factory=list)
    count: int = 0
    size: int = 0
    held: int = 0
    encoded: bytes | memoryview = b""
    stamp: tuple[int, int, int] | None = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE
    maybe_written: bool = False
    out_of_order: bool = False
    error: PylogdError | None = None
    result: BatchResult | None = None
    listeners: list[Any] = field(default_factory=list)

    def calls(self) -> Iterator[tuple[Any, Callable[[Any], None]]]:
        """Return the deliveries with a callback, each with the function to call when it is done.

        A delivery may be None: then the function is called with the batch's result.
        """
        return zip(self.listeners[::2], self.listeners[1::2], strict=True)

    def encode(self, compression: int, level: int | None, attributes: int = 0) -> bytes | memoryview:
        """Return the encoded batch with its present sequence number. The first call drops the objects of its records.

        Returns b"" if the batch was given up. Another thread may do that at any moment.
        """
        stamp = self.producer_id, self.epoch, self.sequence
        encoded, records = self.encoded, self.records
        if encoded:
            if stamp != self.stamp:
                self.encoded = encoded = with_producer(encoded, *stamp, transactional=bool(attributes & TRANSACTIONAL))
        elif records:
            self.encoded = encoded = encode_batch(
                records, compression=compression, level=level,
                producer_id=stamp[0], producer_epoch=stamp[1], base_sequence=stamp[2], attributes=attributes,
            )  # fmt: skip
            self.records = []
        self.stamp = stamp
        return encoded


class Accumulator:
    """Open and sealed batches of one producer.

    buffered: the number of buffered bytes.
    limit: with more buffered bytes (at first `buffer_memory`), callers wait or fail; -1 once the producer is closed.
    unfinished: all batches without a result, by number.
    next_number: the number of the next batch.
    """

    def __init__(
        self,
        options: ProducerOptions,
        monotonic: Callable[[], float],
        with_leader: Callable[[str], Sequence[int] | None] = lambda _topic: None,
        rng: random.Random | None = None,
    ) -> None:
        """A record that is larger than `batch_bytes` gets its own batch. with_leader: see `StickyPartitions`."""
        self._batch_bytes = options.batch_bytes
        self._batch_records = options.batch_records
        self._linger = options.linger_ms / 1000
        self._delivery_timeout = options.delivery_timeout
        partitioner = options.partitioner
        self._partition_for = PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner
        self._asks_keyless = self._partition_for not in PARTITIONERS.values()  # built-in ones give None
        self._is_murmur2 = self._partition_for is murmur2_partitioner
        self._monotonic = monotonic
        self._availability_timeout = options.partitioner_availability_timeout
        self._queued: dict[TopicPartition, int] = {}  # the number of batches without a result
        self._sticky: dict[str, Batch] = {}  # the open batch for records without a key
        self._sticky_partitions = StickyPartitions(
            self._queued, adaptive=options.partitioner_adaptive, with_leader=with_leader, late=self._late,
            rng=rng or random.Random(),
        )  # fmt: skip
        self.open: dict[TopicPartition, Batch] = {}
        self.sealed: list[Batch] = []
        self.buffered = 0
        self.limit: float = options.buffer_memory
        self.unfinished: dict[float, Batch] = {}
        self.next_number = 0

    # Taking records

    def add(
        self, topic: str, partitions: int, partition: int | None, key: bytes | None, value: bytes | None,
        timestamp: int, headers: Sequence[Header] = (), encoded: bytes = b"",
    ) -> Batch:  # fmt: skip
        """Add a record of a topic with `partitions` partitions. Return its batch, in which it is the last record.

        The caller has checked a `timestamp` that is not from the clock (`check_timestamp`). `encoded` are headers from
        `encode_headers`, in place of `headers`. Raises TypeError, ValueError.
        """
        size = _RECORD_OVERHEAD
        if value is not None:
            if value.__class__ is not bytes:
                value = to_bytes(value, "a value")
            size += len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = to_bytes(key, "a key")
            size += len(key)
        if headers:
            try:
                encoded = _encode_headers(headers)
            except (AttributeError, TypeError, ValueError):
                encoded = _encode_headers(check_headers(headers))  # this raises the right error
        if encoded:
            size += len(encoded)
        if partition is None and (key is not None or self._asks_keyless):
            hashed = self._is_murmur2 and key is not None
            partition = positive_murmur2(key) % partitions if hashed else self._partition_for(topic, key, partitions)
        # A tuple equals a TopicPartition, and costs less.
        batch = self._sticky.get(topic) if partition is None else self.open.get((topic, partition))  # type: ignore[call-overload]
        if batch is None:
            batch = self._batch_for(topic, partitions, partition)
        full = batch.size + size
        while full > self._batch_bytes and batch.size:  # the next batch may be open for another kind of records
            self.seal(batch, full=True)
            batch = self._batch_for(topic, partitions, partition)
            full = batch.size + size
        records = batch.records
        records.append((key, value, timestamp, encoded))
        batch.size = full
        self.buffered += size + OBJECT_OVERHEAD
        if full >= self._batch_bytes or len(records) >= self._batch_records:
            self.seal(batch, full=True)
        return batch

    def _batch_for(self, topic: str, partitions: int, partition: int | None) -> Batch:
        """Return the open batch of the chosen partition; without a partition, the batch for records without a key."""
        if partition is not None:
            chosen = TopicPartition(topic, partition)
            return self.open.get(chosen) or self._open_batch(chosen)
        batch = self._sticky.get(topic)
        if batch is None:
            chosen = TopicPartition(topic, self._sticky_partitions.partition(topic, partitions))
            batch = self._sticky[topic] = self.open.get(chosen) or self._open_batch(chosen)
        return batch

    def add_set(
        self,
        topic: str,
        partitions: int,
        partition: int | None,
        records: Sequence[NewRecord],
    ) -> Batch:
        """Add records as one batch, which is sealed at once. Without `partition`, the first record's key selects the
        partition.

        Raises TypeError or ValueError for records that can't be encoded.
        """
        for record in records:
            check_timestamp(record.timestamp)
        taken = [
            NewRecord(as_bytes(r.key, "a key"), as_bytes(r.value, "a value"), r.timestamp, check_headers(r.headers))
            for r in records
        ]
        if partition is None:
            partition = self._partition_for(topic, taken[0].key, partitions)
        batch = self._batch_for(topic, partitions, partition)
        if batch.size:
            self.seal(batch)
            batch = self._open_batch(batch.partition)
        batch.atomic = True
        batch.records.extend(taken)
        batch.size = sum(record_size_bound(r.key, r.value, r.headers) for r in taken)
        self.buffered += batch.size + OBJECT_OVERHEAD * len(taken)
        self.seal(batch)
        return batch

    def add_encoded(
        self, topic: str, partitions: int, partition: int | None, encoded: bytes, *, transactional: bool
    ) -> Batch:
        """Add an encoded batch (`columns.ColumnEncoder`) of a topic with `partitions` partitions. It is sealed at once.

        partition: the partition; None for any.

        Raises ValueError if the batch is transactional and `transactional` is false, or the other way round.
        """
        header = parse_header(encoded)
        if header.is_transactional is not transactional:
            is_for = "with" if header.is_transactional else "without"
            raise ValueError(f"topic {topic!r}: the batch was encoded for a producer {is_for} transactions")
        if partition is not None:
            return self._add_whole(TopicPartition(topic, partition), encoded, header.record_count)
        chosen = TopicPartition(topic, self._sticky_partitions.partition(topic, partitions))
        batch = self._add_whole(chosen, encoded, header.record_count)
        self._sticky_partitions.sealed(topic, batch.size, full=False)
        return batch

    def add_copy(self, partition: TopicPartition, encoded: memoryview, count: int) -> Batch:
        """Add an encoded batch of `count` records from another broker: it gets this producer's sequence numbers, and
        its records are sent unchanged. It is sealed at once and never split.
        """
        batch = self._add_whole(partition, encoded, count)
        batch.stamp, batch.atomic = None, True
        return batch

    def _add_whole(self, partition: TopicPartition, encoded: bytes | memoryview, count: int) -> Batch:
        former = self.open.get(partition)
        if former is not None:
            self.seal(former)
        batch = self._new_batch(partition)
        batch.encoded, batch.count = encoded, count
        batch.size = batch.held = len(encoded)
        self.buffered += batch.size
        self.sealed.append(batch)
        return batch

    def _open_batch(self, partition: TopicPartition) -> Batch:
        batch = self.open[partition] = self._new_batch(partition)
        return batch

    def _new_batch(self, partition: TopicPartition) -> Batch:
        now = self._monotonic()
        batch = Batch(partition, self.next_number, now + self._linger, now + self._delivery_timeout)
        self.unfinished[batch.number] = batch
        self._queued[partition] = self._queued.get(partition, 0) + 1
        self.next_number += 1
        return batch

    def _late(self, topic: str) -> set[int]:
        """Return the partitions of a topic that have kept a batch waiting for `availability_timeout`."""
        if not self._availability_timeout:
            return set()
        before = self._monotonic() - self._availability_timeout
        late = [batch.partition for batch in self.unfinished.values() if batch.due <= before]
        return {partition for name, partition in late if name == topic}

    # Sealing

    def seal(self, batch: Batch, *, full: bool = False) -> None:
        """Seal an open batch: it accepts no more records.

        full: whether the batch has reached its limit.
        """
        topic = batch.partition.topic
        del self.open[batch.partition]
        if self._sticky.get(topic) is batch:
            del self._sticky[topic]
            self._sticky_partitions.sealed(topic, batch.size, full=full)
        batch.count = len(batch.records)
        batch.held = batch.size + OBJECT_OVERHEAD * batch.count
        self.sealed.append(batch)

    def seal_due(self, now: float) -> None:
        """Seal the batches that have lingered long enough."""
        for batch in [batch for batch in self.open.values() if batch.due <= now]:
            self.seal(batch)

    def seal_all(self) -> None:
        """Seal every batch, because of a flush or a full buffer."""
        for batch in list(self.open.values()):
            self.seal(batch)

    def next_due(self) -> float | None:
        """Return when the first open batch will have lingered long enough; None if there is no open batch."""
        return min([batch.due for batch in self.open.values()], default=None)

    def take_sealed(self) -> list[Batch]:
        """Return the batches that were sealed since the last call, in order."""
        sealed, self.sealed = self.sealed, []
        return sealed

    # Results

    def was_encoded(self, batch: Batch) -> None:
        """Count a batch's encoded bytes from now on, in place of its records."""
        self.buffered += len(batch.encoded) - batch.held
        batch.held = len(batch.encoded)

    def split(self, batch: Batch) -> list[Batch]:
        """Replace an encoded batch that is too large for the broker by two with half of its records each.

        They keep its position in the order, its deadline and its sequence numbers.
        """
        records = [
            (record.key, record.value, record.timestamp, record.headers) for record in decode_batch(batch.encoded)
        ]
        half, spacing = len(records) // 2, batch.spacing / 2
        for delivery, _ in batch.calls():
            assert delivery.batch is batch  # from now on its index counts from this batch's first record
        parts = []
        for start, number, taken in ((0, batch.number, records[:half]), (half, batch.number + spacing, records[half:])):
            part = Batch(batch.partition, number, batch.due, batch.deadline)
            part.spacing, part.count, part.records = spacing, len(taken), list(taken)
            part.size = sum(record_size_bound(key, value, headers) for key, value, _, headers in taken)
            part.held = part.size + OBJECT_OVERHEAD * part.count
            part.error, part.parent = batch.error, batch
            if batch.sequence != NO_SEQUENCE:
                part.producer_id, part.epoch = batch.producer_id, batch.epoch
                part.sequence = (batch.sequence + start) & MAX_SEQUENCE
            part.listeners = [
                each for call in batch.calls() if start <= call[0].index < start + part.count for each in call
            ]
            self.buffered += part.held
            parts.append(part)
            self.unfinished[part.number] = part
        self.buffered -= batch.held
        self._queued[batch.partition] += 1
        batch.records, batch.encoded, batch.listeners = [], b"", []
        batch.parts = [(0, parts[0]), (half, parts[1])]  # in one step, since other threads may read deliveries
        self.unfinished = dict(sorted(self.unfinished.items()))
        return parts

    def finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> BatchResult:
        """Give a batch its result, and free its memory."""
        result = batch.result = BatchResult(batch.partition, batch.count, base_offset, log_append_time_ms, error)
        batch.records, batch.encoded = [], b""
        self.buffered -= batch.held
        del self.unfinished[batch.number]
        left = self._queued[batch.partition] = self._queued[batch.partition] - 1
        if not left:
            del self._queued[batch.partition]
        _finish_parent(batch.parent)
        return result


def _finish_parent(parent: Batch | None) -> None:
    """Give a split batch its result once all parts have theirs: the first failure, or else the first result."""
    while parent is not None and parent.result is None:
        results = [part.result for _, part in parent.parts if part.result is not None]
        if len(results) < len(parent.parts):
            return
        error = next((result.error for result in results if result.error is not None), None)
        parent.result = results[0]._replace(records=parent.count, error=error)
        parent = parent.parent
