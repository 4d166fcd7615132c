"""Idempotent producers of one partition: what each wrote last, so that a retry is known as one.

Strategy: per producer id its epoch and its last five batches. A batch that is one of the five is a duplicate and is
answered with the offsets it got then; one that continues the sequence is appended; anything else is refused. The state
is written to `<offset, 20 digits>.snapshot` when a segment is rolled and at a clean stop; `offset` is the first one
that the snapshot does not know. After a crash the last good snapshot and a scan of the batches behind it restore it.

Rules: sequence numbers run from 0 to 2^31 - 1 and start over. A producer id that is not known may start anywhere
(KIP-360). A producer that wrote nothing for `producer.id.expiration.ms` is forgotten.
Must not know: files, offsets' places, transactions' outcomes (the snapshot has room for them).

Format: Kafka's ProducerSnapshot, version 1: version (int16), CRC-32C of all that follows (uint32), number of entries
(int32), entries as in `_ENTRY`; big-endian. It keeps the last batch of a producer, so older duplicates are known only
until a restart.
Source: KIP-98, KIP-360.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pylogd.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from pylogd.wire.records import BatchHeader, crc32c

MAX_SEQUENCE = (1 << 31) - 1
REMEMBERED = 5  # batches: no client has more in flight

_SNAPSHOT_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
#: producer id, epoch, last sequence, last offset, offset delta, time stamp, coordinator epoch, first offset of the
#: transaction
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotCorrupt(ValueError):
    """Bytes that are no producer snapshot."""


class WrittenBatch(NamedTuple):
    """A batch that a producer wrote."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class SnapshotEntry(NamedTuple):
    """A producer as a snapshot has it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class Producer:
    """One producer id. `next_sequence` is -1 if any may come."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms", "next_sequence", "transaction_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = -1
        self.batches: deque[WrittenBatch] = deque(maxlen=REMEMBERED)
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1


class Producers:
    """All producers of a partition. Empty, and so free, where nobody is idempotent."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def check(self, producer_id: int, epoch: int, base_sequence: int, last_delta: int) -> WrittenBatch | None:
        """`None` if the batch may be appended, the batch it repeats if it is a duplicate; raises otherwise."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            return None
        if epoch == producer.epoch:
            if base_sequence == producer.next_sequence or producer.next_sequence < 0:
                return None
            last_sequence = (base_sequence + last_delta) & MAX_SEQUENCE
            for batch in producer.batches:
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return batch
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {base_sequence}, and {producer.next_sequence} was next"
            )
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id} has epoch {producer.epoch} by now, not {epoch}")
        if base_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} starts its epoch {epoch} with sequence {base_sequence} instead of 0"
            )
        return None

    def due(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Whether that is what a known producer is to go on with."""
        producer = self.by_id.get(producer_id)
        return producer is not None and (producer.epoch, producer.next_sequence) == (epoch, base_sequence)

    def check_all(self, headers: list[BatchHeader]) -> WrittenBatch | None:
        """The same for batches that are appended together, each after the ones before it.

        A duplicate among them makes the whole append one: a client repeats a request as it was.
        """
        first_of: dict[int, tuple[int, int]] = {}
        for header in headers:
            if header.producer_id < 0 or header.is_control:
                continue
            expected = first_of.get(header.producer_id)
            if expected is None:
                found = self.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
                )
                if found is not None:
                    return found
            elif expected != (header.producer_epoch, header.base_sequence):
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} sent sequence {header.base_sequence}, and {expected[1]} was next"
                )
            following = (header.base_sequence + header.last_offset_delta + 1) & MAX_SEQUENCE
            first_of[header.producer_id] = header.producer_epoch, following
        return None

    def wrote(
        self, producer_id: int, epoch: int, base_sequence: int, last_delta: int, base_offset: int, timestamp: int
    ) -> None:
        """Note a batch that was appended."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self.by_id[producer_id] = Producer(epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        last_sequence = (base_sequence + last_delta) & MAX_SEQUENCE
        producer.next_sequence = (last_sequence + 1) & MAX_SEQUENCE
        producer.last_seen_ms = timestamp
        producer.batches.append(
            WrittenBatch(base_sequence, last_sequence, base_offset, base_offset + last_delta, timestamp)
        )

    def note(self, header: BatchHeader) -> None:
        """Note a batch of the log, appended or found there. Markers carry no sequence and are passed over."""
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self.wrote(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
                header.base_offset, header.max_timestamp,
            )  # fmt: skip

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch is older than `before_ms`; how many there were."""
        gone = [key for key, producer in list(self.by_id.items()) if producer.last_seen_ms < before_ms]
        for key in gone:
            self.by_id.pop(key, None)
        return len(gone)

    def clear(self) -> None:
        """Forget all."""
        self.by_id.clear()

    def entries(self) -> Iterator[SnapshotEntry]:
        """Each producer as a snapshot has it."""
        for producer_id, producer in list(self.by_id.items()):
            if producer.batches:
                last = producer.batches[-1]
                yield SnapshotEntry(
                    producer_id, producer.epoch, last.last_sequence, last.last_offset,
                    last.last_offset - last.base_offset, last.timestamp,
                    producer.coordinator_epoch, producer.transaction_first_offset,
                )  # fmt: skip

    def to_snapshot(self) -> bytes:
        """The content of a snapshot file."""
        entries = [_ENTRY.pack(*entry) for entry in self.entries()]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Take the state from a snapshot file's content."""
        self.by_id.clear()
        for entry in read_snapshot(data):
            producer = self.by_id[entry.producer_id] = Producer(entry.epoch)
            producer.last_seen_ms = entry.timestamp
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.transaction_first_offset = entry.transaction_first_offset
            if entry.last_sequence >= 0:
                producer.next_sequence = (entry.last_sequence + 1) & MAX_SEQUENCE
                base_sequence = (entry.last_sequence - entry.offset_delta) & MAX_SEQUENCE
                base_offset = entry.last_offset - entry.offset_delta
                producer.batches.append(
                    WrittenBatch(base_sequence, entry.last_sequence, base_offset, entry.last_offset, entry.timestamp)
                )


def read_snapshot(data: bytes) -> list[SnapshotEntry]:
    """The entries of a snapshot file; `SnapshotCorrupt` says what is wrong with it."""
    head = _PREFIX.size + _COUNT.size
    if len(data) < head:
        raise SnapshotCorrupt(f"{len(data)} bytes are too few for a snapshot")
    version, crc = _PREFIX.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise SnapshotCorrupt(f"snapshot version {version}, where only {_SNAPSHOT_VERSION} is known")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise SnapshotCorrupt("the snapshot fails its CRC")
    (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    if len(data) != head + count * _ENTRY.size:
        raise SnapshotCorrupt(f"{count} entries in {len(data)} bytes")
    return [SnapshotEntry._make(_ENTRY.unpack_from(data, head + n * _ENTRY.size)) for n in range(count)]
