"""The idempotent producers of one partition: the last batches of each, to detect batches that were sent again.

For each producer id the epoch and the last five batches are known. A batch that equals one of the five is a duplicate,
and is answered with the offsets of the earlier batch. A batch that continues the sequence is appended. Any other batch
is refused. The state is written to `<offset, 20 digits>.snapshot` when a segment is rolled and at a clean stop; it
covers the batches before that offset. After a crash the state is restored from the last valid snapshot and a scan of
the batches after it.

Rules: sequence numbers go from 0 to 2^31 - 1 and then start over. A producer id that is not known may start with any
sequence number (KIP-360). A producer without a batch for `producer.id.expiration.ms` is removed. If there are more than
`producer.ids.max.per.partition`, those whose last batch is furthest back in the log are removed, an eighth at a time.

Transactions: a producer's first transactional batch opens a transaction, and a marker ends it. Until then the producer
is never removed, and its batches have to be transactional. A marker may bring a new epoch, which starts with sequence
number 0. `transaction_checks` decides what may be appended to a transaction and what may end it.

Memory: 330 bytes for a producer of one batch, 500 for one of many. Its batches are numbers in one array, not objects.

Format of a snapshot, as in Kafka: int16 version (1), uint32 CRC-32C of what follows, int32 count, then entries as in
`_ENTRY`; big-endian. An entry has only the last batch of its producer, so earlier duplicates are not detected after a
restart.
Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from pylogd.broker.log.errors import InvalidProducerEpoch, OutOfOrderSequence, TransactionNotOpen
from pylogd.broker.log.markers import Marker, read_marker
from pylogd.broker.log.transactions import AbortedTransaction, UnstableTransactions, VerificationGuard
from pylogd.wire.records import CONTROL, NO_SEQUENCE, TRANSACTIONAL, BatchHeader, Buffer, crc32c

MAX_SEQUENCE = (1 << 31) - 1
REMEMBERED = 5  # batches per producer: clients have no more batches in flight

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


#: The empty collections at the start, which all partitions share. They are never changed.
_NO_PRODUCERS: dict[int, Producer] = {}
_NO_GUARDS: dict[int, VerificationGuard] = {}
_NO_TRANSACTIONS = UnstableTransactions()
_NO_BATCH = WrittenBatch(NO_SEQUENCE, NO_SEQUENCE, -1, -1, -1)
_FIELDS = len(WrittenBatch._fields)
_KEPT = REMEMBERED * _FIELDS
_LAST_OFFSET = 3 - _FIELDS  # index of the last batch's last offset in `Producer.batches`


class Producer:
    """The state of one producer id.

    plain_epoch: the epoch of its batches outside of transactions: -1 while a transaction is open, else `epoch`.
    next_sequence: the next sequence number; -1 if any number is valid next.
    batches: the fields of up to `REMEMBERED` WrittenBatches, one after the other, the oldest first.
    coordinator_epoch: the coordinator epoch of its last marker, -1 for none.
    transaction_first_offset: the first offset of its open transaction, -1 for none.
    """

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "last_seen_ms", "next_sequence", "plain_epoch",
        "transaction_first_offset",
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = self.plain_epoch = epoch
        self.next_sequence = -1
        self.batches: array[int] = array("q")
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1

    @property
    def last_batch(self) -> WrittenBatch | None:
        """The last batch, if any is known."""
        return WrittenBatch._make(self.batches[-_FIELDS:]) if self.batches else None

    @property
    def last_offset(self) -> int:
        """The last offset of the last batch, -1 if none is known."""
        return self.batches[_LAST_OFFSET] if self.batches else -1

    def before(self, offset: int) -> Producer | None:
        """Return the state that the known batches before `offset` give; None if no known batch ends before it."""
        batches = self.batches
        end = len(batches)
        while end and batches[end + _LAST_OFFSET] >= offset:
            end -= _FIELDS
        if not end:
            return None
        earlier = Producer(self.epoch)
        earlier.batches = batches[:end]
        last = WrittenBatch._make(earlier.batches[-_FIELDS:])
        earlier.next_sequence = (last.last_sequence + 1) & MAX_SEQUENCE
        earlier.last_seen_ms = last.timestamp
        return earlier

    def find(self, base_sequence: int, last_sequence: int) -> WrittenBatch | None:
        """Return the batch with these sequence numbers, if it is one of the last batches."""
        batches = self.batches
        for at in range(0, len(batches), _FIELDS):
            if batches[at] == base_sequence and batches[at + 1] == last_sequence:
                return WrittenBatch._make(batches[at : at + _FIELDS])
        return None

    def repeated(self, producer_id: int, base_sequence: int, last_delta: int) -> WrittenBatch:
        """Return the known batch that a batch of the current epoch repeats. Raises OutOfOrderSequence if none is."""
        duplicate = self.find(base_sequence, (base_sequence + last_delta) & MAX_SEQUENCE)
        if duplicate is None:
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {base_sequence}, expected {self.next_sequence}"
            )
        return duplicate


class Producers:
    """The idempotent producers of a partition, by producer id.

    most: how many producers are remembered.
    unstable: their transactions that are open, or whose markers are not replicated.
    guards: the guards of verifications under way, by producer id.
    """

    __slots__ = ("by_id", "guards", "most", "unstable")

    def __init__(self, most: int = sys.maxsize) -> None:
        # Partitions without producers share the empty collections. `add` and the methods that begin something replace
        # them.
        self.by_id = _NO_PRODUCERS
        self.most = most
        self.unstable = _NO_TRANSACTIONS
        self.guards = _NO_GUARDS

    def __len__(self) -> int:
        return len(self.by_id)

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_delta: int, transactional: bool = False
    ) -> WrittenBatch | None:
        """Return None if a batch may be appended. If it is a duplicate, return the earlier batch.

        Raises OutOfOrderSequence, InvalidProducerEpoch, and TransactionNotOpen for a batch that must be transactional.
        """
        producer = self.by_id.get(producer_id)
        if producer is None:
            return None
        if epoch == producer.plain_epoch:
            if base_sequence == producer.next_sequence or producer.next_sequence < 0:
                return None
            return producer.repeated(producer_id, base_sequence, last_delta)
        if epoch == producer.epoch:
            if base_sequence != producer.next_sequence:
                return producer.repeated(producer_id, base_sequence, last_delta)
        elif epoch < producer.epoch:
            raise _fenced(producer_id, epoch, producer.epoch)
        elif base_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} started epoch {epoch} with sequence {base_sequence}, expected 0"
            )
        if producer.transaction_first_offset >= 0 and not transactional:
            raise TransactionNotOpen(
                f"producer {producer_id} has an open transaction: its batches have to be part of it"
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise InvalidProducerEpoch if a newer epoch of a producer is known."""
        producer = self.by_id.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise _fenced(producer_id, epoch, producer.epoch)

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a producer has an open transaction here, in this epoch.

        With an epoch for each transaction (KIP-890), a transaction of an earlier epoch has ended, and its marker is
        still to come: a batch of the next epoch does not belong to it.
        """
        producer = self.by_id.get(producer_id)
        return producer is not None and producer.transaction_first_offset >= 0 and producer.epoch == epoch

    def begin_verification(self, header: BatchHeader, epoch_bump: bool, now_ms: int) -> VerificationGuard:
        """Return the guard for the first batch of a transaction: the guard of a verification under way, or a new one.

        epoch_bump: whether each transaction of the producer has its own epoch.
        """
        new = VerificationGuard(header.producer_epoch, header.base_sequence, epoch_bump, now_ms)
        guard = self.keep_guard(header.producer_id, new)
        guard.note(header.producer_epoch, header.base_sequence)
        return guard

    def keep_guard(self, producer_id: int, new: VerificationGuard) -> VerificationGuard:
        """Return the guard of a producer's verification under way, else `new`. The oldest beyond `most` are forgotten.

        The number of guards is limited because anyone can invent producer ids, and a guard stays if its verification
        fails.
        """
        if not self.guards:
            self.guards = {}
        guard = self.guards.setdefault(producer_id, new)
        if guard is new and len(self.guards) > self.most:
            del self.guards[next(iter(self.guards))]
        return guard

    def is_verified(self, producer_id: int, epoch: int, guard: VerificationGuard) -> bool:
        """Return whether no marker came since `guard` was returned, or the producer's transaction is open here."""
        return self.guards.get(producer_id) is guard or self.in_transaction(producer_id, epoch)

    def due(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Return whether a batch continues the sequence of a known producer."""
        producer = self.by_id.get(producer_id)
        return producer is not None and (producer.plain_epoch, producer.next_sequence) == (epoch, base_sequence)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """Return the next sequence number of a producer in an epoch; -1 if that is not known."""
        producer = self.by_id.get(producer_id)
        return -1 if producer is None or producer.epoch != epoch else producer.next_sequence

    def check_all(
        self, headers: list[BatchHeader], sequences: dict[int, tuple[int, int]] | None = None
    ) -> WrittenBatch | None:
        """Do the work of `check` for batches that are appended together; each must continue those before it.

        sequences: for producers whose batches are still being written: the epoch and the sequence number that must come
            next, by producer id.

        If one of the batches is a duplicate, the whole append is: a client repeats requests unchanged.
        """
        next_of = {} if sequences is None else dict(sequences)  # epoch and sequence number, by producer id
        for header in headers:
            if header.producer_id < 0 or header.is_control:
                continue
            if header.base_sequence < 0:  # it is from a group coordinator, for offsets in a transaction
                self.check_epoch(header.producer_id, header.producer_epoch)
                continue
            expected = next_of.get(header.producer_id)
            if expected is None:
                found = self.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
                    header.is_transactional,
                )  # fmt: skip
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
        """Record that a batch outside of a transaction was appended."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self.add(producer_id, Producer(epoch))
        elif producer.epoch != epoch:
            producer.epoch = producer.plain_epoch = epoch
            del producer.batches[:]
        last_sequence = (base_sequence + last_delta) & MAX_SEQUENCE
        producer.next_sequence = (last_sequence + 1) & MAX_SEQUENCE
        producer.last_seen_ms = timestamp
        batches = producer.batches
        if len(batches) == _KEPT:
            del batches[:_FIELDS]
        batches.extend((base_sequence, last_sequence, base_offset, base_offset + last_delta, timestamp))

    def add(self, producer_id: int, producer: Producer) -> Producer:
        """Add a producer that is not known, and return it. If there are too many, remove others."""
        if len(self.by_id) >= self.most:
            self._forget_oldest()
        if not self.by_id:
            self.by_id = {}
        self.by_id[producer_id] = producer
        return producer

    def _forget_oldest(self) -> None:
        """Remove producers to make space, first those without a batch in their present epoch (last offset -1)."""
        idle = [key for key, producer in self.by_id.items() if producer.transaction_first_offset < 0]
        idle.sort(key=lambda producer_id: self.by_id[producer_id].last_offset)
        for producer_id in idle[: max(len(self.by_id) - self.most + max(self.most // 8, 1), 0)]:
            del self.by_id[producer_id]

    def note(self, header: BatchHeader, batch: Buffer = b"") -> AbortedTransaction | None:
        """Record a batch by its header. If it is a marker that aborts a transaction, return the transaction.

        batch: the whole batch; needed only for a control batch.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        if header.attributes & CONTROL:
            marker = read_marker(header, batch)
            return None if marker is None else self.ended(header, marker, header.base_offset)
        if header.base_sequence >= 0:
            self.wrote(
                producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
                header.base_offset, header.max_timestamp,
            )  # fmt: skip
        elif header.attributes & TRANSACTIONAL:
            self._wrote_unnumbered(header)
        if header.attributes & TRANSACTIONAL:
            self.note_transactional(producer_id, header.base_offset)
        return None

    def _wrote_unnumbered(self, header: BatchHeader) -> None:
        """Record a transactional batch without sequence numbers; a group coordinator writes these for offsets."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        producer = self.by_id.get(producer_id) or self.add(producer_id, Producer(epoch))
        producer.epoch = epoch
        producer.next_sequence = 0
        producer.last_seen_ms = header.max_timestamp
        producer.batches[:] = array(
            "q", (NO_SEQUENCE, NO_SEQUENCE, header.base_offset, header.last_offset, header.max_timestamp)
        )

    def note_transactional(self, producer_id: int, base_offset: int) -> None:
        """Note that a batch that was just recorded belongs to its producer's open transaction, or opens one."""
        producer = self.by_id[producer_id]
        producer.plain_epoch = -1
        if producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            if self.unstable is _NO_TRANSACTIONS:
                self.unstable = UnstableTransactions()
            self.unstable.begin(producer_id, base_offset)
        self.guards.pop(producer_id, None)

    def ended(self, header: BatchHeader, marker: Marker, offset: int) -> AbortedTransaction | None:
        """Record a marker at `offset`. If it aborted a transaction that has a batch here, return the transaction."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.guards.pop(producer_id, None)
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self.add(producer_id, Producer(epoch))
            producer.next_sequence = 0
        elif producer.epoch != epoch:
            producer.next_sequence = 0
            del producer.batches[:]
        producer.epoch = producer.plain_epoch = epoch
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_seen_ms = header.max_timestamp
        first = producer.transaction_first_offset
        if first < 0:
            return None
        stable = self.unstable.end(producer_id, offset)
        producer.transaction_first_offset = -1
        return None if marker.committed else AbortedTransaction(producer_id, first, offset, stable)

    def expire(self, before_ms: int) -> int:
        """Remove producers and verifications that are older than `before_ms`. Return how many producers were removed.

        Producers with an open transaction stay.
        """
        expired = [
            key
            for key, producer in list(self.by_id.items())
            if producer.last_seen_ms < before_ms and producer.transaction_first_offset < 0
        ]
        for key in expired:
            self.by_id.pop(key, None)
        for key, guard in list(self.guards.items()):
            if guard.created_ms < before_ms:
                self.guards.pop(key, None)
        return len(expired)

    def clear(self) -> None:
        """Remove all producers."""
        self.by_id, self.guards, self.unstable = _NO_PRODUCERS, _NO_GUARDS, _NO_TRANSACTIONS

    def entries(self) -> Iterator[SnapshotEntry]:
        """Iterate over the snapshot entries of all producers, one for each known batch, the oldest first.

        Kafka writes an entry for the last batch only. A producer with several batches in flight when the broker stopped
        would then be answered OUT_OF_ORDER_SEQUENCE_NUMBER for batches that it sends again. Kafka can read these
        snapshots: it uses the last entry of each producer.
        """
        for producer_id, producer in list(self.by_id.items()):
            batches = producer.batches
            for start in range(0, len(batches), _FIELDS) if batches else (None,):
                batch = _NO_BATCH if start is None else WrittenBatch._make(batches[start : start + _FIELDS])
                last = start is None or start + _FIELDS == len(batches)
                yield SnapshotEntry(
                    producer_id, producer.epoch, batch.last_sequence, batch.last_offset,
                    batch.last_offset - batch.base_offset, producer.last_seen_ms if last else batch.timestamp,
                    producer.coordinator_epoch, producer.transaction_first_offset,
                )  # fmt: skip

    def to_snapshot(self) -> bytes:
        """Return the contents of a snapshot file."""
        entries = [_ENTRY.pack(*entry) for entry in self.entries()]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Replace the state by the contents of a snapshot file. Raises SnapshotCorrupt."""
        self.clear()
        found: dict[int, Producer] = {}
        for entry in read_snapshot(data):
            earlier = found.get(entry.producer_id)
            found[entry.producer_id] = producer = _restored(entry)
            if earlier is not None and earlier.epoch == entry.epoch:
                producer.batches[:0] = earlier.batches[_FIELDS - _KEPT :]
        firsts = [(producer_id, producer.transaction_first_offset) for producer_id, producer in found.items()]
        opened = [(producer_id, first) for producer_id, first in firsts if first >= 0]
        if found:
            self.by_id = found
        if opened:
            self.unstable = UnstableTransactions(sorted(opened, key=lambda pair: pair[1]))


def _fenced(producer_id: int, epoch: int, current: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(f"producer {producer_id} sent epoch {epoch}, its current epoch is {current}")


def _restored(entry: SnapshotEntry) -> Producer:
    """Read the state of one producer from its entry in a snapshot."""
    producer = Producer(entry.epoch)
    producer.last_seen_ms = entry.timestamp
    producer.coordinator_epoch = entry.coordinator_epoch
    producer.transaction_first_offset = entry.transaction_first_offset
    if entry.transaction_first_offset >= 0:
        producer.plain_epoch = -1
    sequence = entry.last_sequence
    producer.next_sequence = (sequence + 1) & MAX_SEQUENCE
    if entry.last_offset >= 0:
        base_sequence = (sequence - entry.offset_delta) & MAX_SEQUENCE if sequence >= 0 else NO_SEQUENCE
        base_offset = entry.last_offset - entry.offset_delta
        producer.batches.extend((base_sequence, sequence, base_offset, entry.last_offset, entry.timestamp))
    return producer


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
