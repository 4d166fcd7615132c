"""The idempotent producers of one partition: the last batches of each, to detect batches that were sent again.

For each producer id there are its epoch and its last five batches. A batch that equals one of the five is a duplicate,
and is answered with the offsets that it got then. One that continues the sequence is appended. Any other one is
refused. The state is written to `<offset, 20 digits>.snapshot` when a segment is rolled and at a clean stop; it covers
the batches before that offset. After a crash the state is restored from the last valid snapshot and a scan of the
batches after it.

Rules: sequence numbers go from 0 to 2^31 - 1 and then start over. A producer id that is not known may start with any
sequence number (KIP-360). A producer without a batch for `producer.id.expiration.ms` is removed.

Format of a snapshot, as in Kafka: int16 version (1), uint32 CRC-32C of what follows, int32 count, then entries as in
`_ENTRY`; big-endian. An entry has only the last batch of its producer, so earlier duplicates are not detected after a
restart. It has fields for transactions, which are not used.
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
REMEMBERED = 5  # batches per producer: clients have no more in flight

_SNAPSHOT_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
#: producer id, epoch, last sequence, last offset, offset delta, time stamp, coordinator epoch, first offset of the
#: transaction
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotCorrupt(ValueError):
    """The bytes are not a valid producer snapshot."""


class WrittenBatch(NamedTuple):
    """One of the last batches that were appended for a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class SnapshotEntry(NamedTuple):
    """The state of one producer in a snapshot."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class Producer:
    """The state of one producer id. `next_sequence` is -1 if any sequence number is valid next."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms", "next_sequence", "transaction_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = -1
        self.batches: deque[WrittenBatch] = deque(maxlen=REMEMBERED)
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1


class Producers:
    """The idempotent producers of a partition, by producer id."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def check(self, producer_id: int, epoch: int, base_sequence: int, last_delta: int) -> WrittenBatch | None:
        """Return None if a batch may be appended, or the earlier batch if it is a duplicate of that.

        Raises OutOfOrderSequence and InvalidProducerEpoch.
        """
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
                f"producer {producer_id} sent sequence {base_sequence}, expected {producer.next_sequence}"
            )
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} sent epoch {epoch}, its current epoch is {producer.epoch}"
            )
        if base_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} started epoch {epoch} with sequence {base_sequence}, expected 0"
            )
        return None

    def due(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Return whether a batch continues the sequence of a known producer."""
        producer = self.by_id.get(producer_id)
        return producer is not None and (producer.epoch, producer.next_sequence) == (epoch, base_sequence)

    def check_all(self, headers: list[BatchHeader]) -> WrittenBatch | None:
        """Do as `check` for batches that are appended together; each must continue those before it.

        If one of them is a duplicate, the whole append is: a client repeats requests unchanged.
        """
        next_of: dict[int, tuple[int, int]] = {}  # by producer id: epoch and sequence number
        for header in headers:
            if header.producer_id < 0 or header.is_control:
                continue
            expected = next_of.get(header.producer_id)
            if expected is None:
                found = self.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
                )
                if found is not None:
                    return found
            elif expected != (header.producer_epoch, header.base_sequence):
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected[1]}"
                )
            next_sequence = (header.base_sequence + header.last_offset_delta + 1) & MAX_SEQUENCE
            next_of[header.producer_id] = header.producer_epoch, next_sequence
        return None

    def wrote(
        self, producer_id: int, epoch: int, base_sequence: int, last_delta: int, base_offset: int, timestamp: int
    ) -> None:
        """Record that a batch was appended."""
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
        """Record a batch by its header. Transaction markers, which have no sequence numbers, are ignored."""
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self.wrote(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
                header.base_offset, header.max_timestamp,
            )  # fmt: skip

    def expire(self, before_ms: int) -> int:
        """Remove the producers whose last batch is older than `before_ms`; return how many."""
        expired = [key for key, producer in list(self.by_id.items()) if producer.last_seen_ms < before_ms]
        for key in expired:
            self.by_id.pop(key, None)
        return len(expired)

    def clear(self) -> None:
        """Remove all producers."""
        self.by_id.clear()

    def entries(self) -> Iterator[SnapshotEntry]:
        """Iterate over the snapshot entries of all producers."""
        for producer_id, producer in list(self.by_id.items()):
            if producer.batches:
                last = producer.batches[-1]
                yield SnapshotEntry(
                    producer_id, producer.epoch, last.last_sequence, last.last_offset,
                    last.last_offset - last.base_offset, last.timestamp,
                    producer.coordinator_epoch, producer.transaction_first_offset,
                )  # fmt: skip

    def to_snapshot(self) -> bytes:
        """Return the contents of a snapshot file."""
        entries = [_ENTRY.pack(*entry) for entry in self.entries()]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a snapshot file. Raises SnapshotCorrupt."""
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
    """Parse a snapshot file. Raises SnapshotCorrupt."""
    head = _PREFIX.size + _COUNT.size
    if len(data) < head:
        raise SnapshotCorrupt(f"{len(data)} bytes are too few for a snapshot")
    version, crc = _PREFIX.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise SnapshotCorrupt(f"unknown snapshot version {version}, should be {_SNAPSHOT_VERSION}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise SnapshotCorrupt("the snapshot fails its CRC")
    (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    if len(data) != head + count * _ENTRY.size:
        raise SnapshotCorrupt(f"{len(data)} bytes do not fit {count} entries")
    return [SnapshotEntry._make(_ENTRY.unpack_from(data, head + n * _ENTRY.size)) for n in range(count)]
