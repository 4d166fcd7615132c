"""What a producer was given and has not delivered: records gathered into batches, and what the batches take up.

Strategy: one open batch for each partition. It is sealed when it is full in bytes or records or has lingered enough,
and then belongs to the outbox (`outbox.py`), which sends it, again if need be, until it has a result. Records without
a key stick to one partition until its batch is sealed (KIP-480), then go on at another, by chance.

Sans I/O, and shared by all faces:

    accumulator = Accumulator(batch_bytes=..., batch_records=..., linger=..., delivery_timeout=..., partitioner=...,
                              monotonic=clock)
    batch = accumulator.add(topic, partitions, partition, key, value, now_ms, headers)
    index = len(batch.records) - 1      # of this record
    accumulator.seal_due(now)           # or seal(place), seal_all()
    accumulator.sealed                  # what the outbox takes away
    accumulator.next_due()              # when seal_due has something to do, on the clock of `now`

Rules: `now` is what `monotonic` says, `now_ms` is in milliseconds since 1970. Nothing here waits,
locks or refuses: whoever drives it compares `buffered` with the limit before it adds, and holds a lock where there
are threads. `buffered` counts what the objects of a record take besides its bytes, so that a limit on it is one on
memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.partitioner import PARTITIONERS, Partitioner
from pylogd.errors import PylogdError
from pylogd.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Header,
    NewRecord,
    decode_batch,
    encode_batch,
    record_size_bound,
    with_producer,
)

_RECORD_OVERHEAD, _HEADER_OVERHEAD = 31, 10  # see record_size_bound
#: What CPython takes for a record besides its key and value: a tuple, a time stamp, the heads of two bytes objects, a
#: place in a list.
OBJECT_OVERHEAD = 190

MAX_SEQUENCE = (1 << 31) - 1
MAX_TIMESTAMP = (1 << 63) - 1

Fields = tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]


def check_timestamp(timestamp: Any) -> None:
    """Raise TypeError or ValueError for what is no time stamp."""
    if not isinstance(timestamp, int):
        raise TypeError(f"a timestamp is a whole number of milliseconds since 1970, not {timestamp!r}")
    if not -MAX_TIMESTAMP - 1 <= timestamp <= MAX_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp} does not fit into 64 bits")


def check_headers(headers: Sequence[Header]) -> list[Header]:
    """Return headers as they can be encoded. Raises TypeError that names what can't be."""
    checked = [(name, as_bytes(content, "a header's value")) for name, content in headers]
    for name, _ in checked:
        if not isinstance(name, str):
            raise TypeError(f"a header's key is str, not {type(name).__name__}")
    return checked


def to_bytes(content: Any, what: str) -> bytes:
    """Return key or value as it can be encoded. Raises TypeError."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}: encode it, or give a serializer")


def as_bytes(content: Any, what: str) -> bytes | None:
    """As `to_bytes`, of what may be None."""
    return None if content is None else to_bytes(content, what)


class BatchResult(NamedTuple):
    """What became of a batch. `base_offset` is -1 if it is not known: after an error, with acks=0, or when the broker
    only said that it has the batch already.
    """

    partition: TopicPartition
    records: int
    base_offset: int
    log_append_time_ms: int
    error: PylogdError | None


class Batch:
    """Records for one partition, on their way from the first `send` to a result.

    `maybe_written`: it was sent and no answer said what became of it. `out_of_order`: so the broker answered its last
    try. `error` is what its last try came to. `atomic`: a set, which is written whole or not at all. `parts`: the
    batches that it was split into because the broker found it too large, each with the index of its first record.
    """

    __slots__ = (
        "atomic", "count", "deadline", "due", "encoded", "epoch", "error", "held", "listeners", "maybe_written",
        "number", "out_of_order", "parent", "partition", "parts", "producer_id", "records", "result", "sequence",
        "size", "spacing", "stamp",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, number: float, due: float, deadline: float) -> None:
        """An empty one. `number` is its place in the order of batches; `due` is when it has lingered enough."""
        self.atomic = False
        self.parts: list[tuple[int, Batch]] = []
        self.parent: Batch | None = None  # which this is a part of
        self.spacing = 1.0  # to the number of the next batch
        self.partition = partition
        self.number = number
        self.due = due
        self.deadline = deadline
        self.records: list[Fields] = []
        self.count = 0  # of records, once sealed
        self.size = 0  # bytes at most, before compression
        self.held = 0  # bytes that count as buffered, once sealed
        self.encoded = b""
        self.stamp = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)  # what `encoded` was encoded with
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.sequence = NO_SEQUENCE
        self.maybe_written = False
        self.out_of_order = False
        self.error: PylogdError | None = None
        self.result: BatchResult | None = None
        self.listeners: list[tuple[Any, Callable[[Any], None]]] = []  # what to call when there is a result, with what

    def encode(self, compression: int, level: int | None) -> bytes:
        """The batch as it is sent, encoded once; its records' objects are let go of. Empty if it was given up: another
        thread may do that at any moment.
        """
        stamp = self.producer_id, self.epoch, self.sequence
        encoded, records = self.encoded, self.records
        if encoded:
            if stamp != self.stamp:
                self.encoded = encoded = with_producer(encoded, *stamp)
        elif records:
            self.encoded = encoded = encode_batch(
                records, compression=compression, level=level,
                producer_id=stamp[0], producer_epoch=stamp[1], base_sequence=stamp[2],
            )  # fmt: skip
            self.records = []
        self.stamp = stamp
        return encoded


class Accumulator:
    """Open and sealed batches of one producer.

    `buffered` counts bytes; `unfinished` are all batches without a result, by number; `next_number` is the next one's.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        batch_records: int,
        linger: float,
        delivery_timeout: float,
        partitioner: str | Partitioner,
        monotonic: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        """Times in seconds. A record that is larger than `batch_bytes` gets a batch of its own."""
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._linger = linger
        self._delivery_timeout = delivery_timeout
        self._partition_for = PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner
        self._asks_keyless = self._partition_for not in PARTITIONERS.values()  # ours stick: no need to ask them
        self._monotonic = monotonic
        self._random = rng or random.Random()
        self._sticky: dict[str, Batch] = {}  # the open batch for records without a key
        self.open: dict[TopicPartition, Batch] = {}
        self.sealed: list[Batch] = []
        self.buffered = 0
        self.unfinished: dict[float, Batch] = {}
        self.next_number = 0

    # Taking records

    def add(
        self,
        topic: str,
        partitions: int,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header] = (),
        encoded: bytes = b"",
    ) -> Batch:
        """Take a record of a topic with that many partitions; the batch that it was put last into.

        `encoded` are headers from `encode_headers`, for a record that has no others.
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
        if timestamp.__class__ is not int or not -1 <= timestamp <= MAX_TIMESTAMP:
            check_timestamp(timestamp)
        if headers:
            for name, content in headers:
                if name.__class__ is not str or (content.__class__ is not bytes and content is not None):
                    headers = check_headers(headers)
                    size = record_size_bound(key, value, headers)
                    break
                size += _HEADER_OVERHEAD + 4 * len(name) + (len(content) if content else 0)
        elif encoded:
            size += len(encoded)
        if key is not None or partition is not None or (batch := self._sticky.get(topic)) is None or self._asks_keyless:
            batch = self._batch_for(topic, partitions, partition, key)
        full = batch.size + size
        while full > self._batch_bytes and batch.size:  # the next one may be open for another kind of records
            self.seal(batch)
            batch = self._batch_for(topic, partitions, partition, key)
            full = batch.size + size
        records = batch.records
        records.append((key, value, timestamp, headers or encoded))
        batch.size = full
        self.buffered += size + OBJECT_OVERHEAD
        if full >= self._batch_bytes or len(records) >= self._batch_records:
            self.seal(batch)
        return batch

    def _batch_for(self, topic: str, partitions: int, partition: int | None, key: bytes | None) -> Batch:
        """The open batch that a record goes to."""
        if partition is None:
            partition = self._partition_for(topic, key, partitions)
        if partition is None:
            batch = self._sticky.get(topic)
            if batch is None:
                chosen = TopicPartition(topic, self._random.randrange(partitions))
                batch = self._sticky[topic] = self.open.get(chosen) or self._open_batch(chosen)
            return batch
        # A plain tuple is equal, and cheaper.
        found = self.open.get((topic, partition))  # type: ignore[call-overload]
        return self._open_batch(TopicPartition(topic, partition)) if found is None else found

    def add_set(
        self,
        topic: str,
        partitions: int,
        partition: int | None,
        records: Iterable[NewRecord | tuple[bytes | None, bytes | None]],
        now_ms: int,
    ) -> Batch:
        """Take records as one batch, sealed at once. Without `partition`, the first one's key decides. ValueError:
        there is none.
        """
        taken = [r if isinstance(r, NewRecord) else NewRecord(r[0], r[1], now_ms) for r in records]
        if not taken:
            raise ValueError("a set needs a record")
        for record in taken:
            check_timestamp(record.timestamp)
        taken = [
            NewRecord(as_bytes(r.key, "a key"), as_bytes(r.value, "a value"), r.timestamp, check_headers(r.headers))
            for r in taken
        ]
        batch = self._batch_for(topic, partitions, partition, taken[0].key)
        if batch.size:
            self.seal(batch)
            batch = self._open_batch(batch.partition)
        batch.atomic = True
        batch.records.extend(taken)
        batch.size = sum(record_size_bound(r.key, r.value, r.headers) for r in taken)
        self.buffered += batch.size + OBJECT_OVERHEAD * len(taken)
        self.seal(batch)
        return batch

    def _open_batch(self, place: TopicPartition) -> Batch:
        now = self._monotonic()
        batch = Batch(place, self.next_number, now + self._linger, now + self._delivery_timeout)
        self.open[place] = self.unfinished[batch.number] = batch
        self.next_number += 1
        return batch

    # Sealing

    def seal(self, batch: Batch) -> None:
        """Close an open batch: it takes no more records."""
        place = batch.partition
        del self.open[place]
        if self._sticky.get(place.topic) is batch:
            del self._sticky[place.topic]  # the next batch without keys goes elsewhere
        batch.count = len(batch.records)
        batch.held = batch.size + OBJECT_OVERHEAD * batch.count
        self.sealed.append(batch)

    def seal_due(self, now: float) -> None:
        """Seal what has lingered enough."""
        for batch in [batch for batch in self.open.values() if batch.due <= now]:
            self.seal(batch)

    def seal_all(self) -> None:
        """Seal everything: a flush, or a full buffer."""
        for batch in list(self.open.values()):
            self.seal(batch)

    def next_due(self) -> float | None:
        """When the first open batch has lingered enough; None if there is none."""
        return min([batch.due for batch in self.open.values()], default=None)

    def take_sealed(self) -> list[Batch]:
        """What was sealed since the last time, in order."""
        sealed, self.sealed = self.sealed, []
        return sealed

    # Letting go

    def was_encoded(self, batch: Batch) -> None:
        """A batch's records have become bytes: those count from now on."""
        self.buffered += len(batch.encoded) - batch.held
        batch.held = len(batch.encoded)

    def split(self, batch: Batch) -> list[Batch]:
        """Replace an encoded batch, which the broker found too large, by two of half its records each.

        They keep its place in the order, its deadline and its sequence numbers.
        """
        records = [
            (record.key, record.value, record.timestamp, record.headers) for record in decode_batch(batch.encoded)
        ]
        half, spacing = len(records) // 2, batch.spacing / 2
        for delivery, _ in batch.listeners:
            assert delivery.batch is batch  # its index counts from this batch's first record from now on
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
            part.listeners = [entry for entry in batch.listeners if start <= entry[0].index < start + part.count]
            self.buffered += part.held
            parts.append(part)
            self.unfinished[part.number] = part
        self.buffered -= batch.held
        batch.records, batch.encoded, batch.listeners = [], b"", []
        batch.parts = [(0, parts[0]), (half, parts[1])]  # at once: deliveries may be looked at from other threads
        self.unfinished = dict(sorted(self.unfinished.items()))
        return parts

    def finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: PylogdError | None) -> BatchResult:
        """A batch has its result, and what it held is free."""
        result = batch.result = BatchResult(batch.partition, batch.count, base_offset, log_append_time_ms, error)
        batch.records, batch.encoded = [], b""
        self.buffered -= batch.held
        del self.unfinished[batch.number]
        _finish_parent(batch.parent)
        return result


def _finish_parent(parent: Batch | None) -> None:
    """Give a batch that was split its result once all parts have theirs: that of the first, or the first failure."""
    while parent is not None and parent.result is None:
        results = [part.result for _, part in parent.parts if part.result is not None]
        if len(results) < len(parent.parts):
            return
        error = next((result.error for result in results if result.error is not None), None)
        parent.result = results[0]._replace(records=parent.count, error=error)
        parent = parent.parent
