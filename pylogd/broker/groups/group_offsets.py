"""Offsets of a group, committed and in open transactions: the effect of each record of the offsets topic on them.

Strategy: the offsets of a transaction are pending from the moment they are in the log of the offsets topic. The marker
after them decides whether they count. If several offsets of a partition count, the group's offset is the one whose
record is latest in the log, whatever the order of the markers. A deletion removes the offsets before it.

Rules: the order of the records in the log decides, not the order of the answers or of the markers. A coordinator that
writes the records and one that reads them, compacted or not, both call these methods in the order of the log, so they
get the same result.
Must not know: requests, logs, the clock.
Source: Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pylogd.broker.groups.records import Committed, PartitionId


class GroupOffsets:
    """The offsets of one group, including those of deleted topics; `CurrentOffsets` leaves them out.

    committed: the committed offsets by (topic, partition).
    transactions: the offsets that each open transaction will commit, by producer id and partition: the log offset of
        each record, and the committed offset. None instead of it means that a later record counts. See also `close`.
    """

    __slots__ = ("committed", "transactions")

    def __init__(self) -> None:
        self.committed: dict[PartitionId, Committed] = {}
        self.transactions: dict[int, dict[PartitionId, tuple[int, Committed | None]]] = {}

    def __bool__(self) -> bool:
        return bool(self.committed or self.transactions)

    def add(self, producer_id: int, offsets: Sequence[tuple[PartitionId, Committed]], base_offset: int) -> None:
        """Note offsets of a transaction, whose records are in the log from `base_offset` on."""
        transaction = self.transactions.setdefault(producer_id, {})
        for at, (partition, committed) in enumerate(offsets):
            transaction[partition] = base_offset + at, committed

    def commit(self, offsets: Sequence[tuple[PartitionId, Committed]], base_offset: int) -> None:
        """Note offsets without a transaction. Their records begin at `base_offset`."""
        self.committed.update(offsets)
        for at, (partition, _) in enumerate(offsets) if self.transactions else ():
            self._overtake(partition, base_offset + at)

    def drop(self, partitions: Iterable[PartitionId], offset: int) -> None:
        """Note that the offsets of partitions were deleted, by records in the log from `offset` on."""
        for partition in partitions:
            self.committed.pop(partition, None)
            for transaction in self.transactions.values():
                found = transaction.get(partition)
                if found is not None and found[0] < offset:
                    del transaction[partition]
        for producer_id in [producer_id for producer_id, found in self.transactions.items() if not found]:
            del self.transactions[producer_id]

    def close(self, producer_id: int, offset: int) -> int:
        """Note a marker that is in the log at `offset`. Return the key that `end` needs in place of the producer id.

        Later offsets of the producer belong to its next transaction, even if the marker is not committed yet.
        """
        key = -1 - offset  # no producer has a negative id
        transaction = self.transactions.pop(producer_id, None)
        if transaction is not None:
            self.transactions[key] = transaction
        return key

    def end(self, key: int, *, committed: bool) -> None:
        """Note that a marker is committed: commit the transaction's offsets, or forget them."""
        for partition, (record, found) in self.transactions.pop(key, {}).items():
            if committed and found is not None:
                self.committed[partition] = found
                self._overtake(partition, record)

    def _overtake(self, partition: PartitionId, offset: int) -> None:
        """Note that an offset whose record is at `offset` of the log counts, so that earlier ones never will."""
        for transaction in self.transactions.values():
            found = transaction.get(partition)
            if found is not None and found[0] < offset:
                transaction[partition] = found[0], None

    def pending(self) -> Iterator[PartitionId]:
        """Yield the partitions whose offset an open transaction may still change."""
        for transaction in self.transactions.values():
            yield from transaction

    def partitions(self) -> set[PartitionId]:
        """Return the partitions with an offset that is committed, or that an open transaction will commit."""
        return {*self.committed, *self.pending()}
