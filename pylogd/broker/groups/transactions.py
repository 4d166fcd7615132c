"""Offsets of a group, committed and in open transactions: the effect of each record of the offsets topic on them.

Strategy: the offsets of a transaction are pending from the moment they are in the log of the offsets topic. The marker
after them decides whether they count. If several offsets of a partition count, the group's offset is the one whose
record is latest in the log, whatever the order of the markers. A deletion removes the offsets before it.

Rules: the order of the records in the log decides, not the order of the answers or of the markers. A coordinator that
writes the records and one that reads them, compacted or not, both call these functions in the order of the log, so they
get the same result.
Must not know: requests, logs, the clock.
Source: Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pylogd.broker.groups.records import Committed, PartitionId

#: The offsets that a producer's open transaction will commit, by partition: the log offset of each record, and the
#: committed offset. None instead of it means that a later record counts.
OpenTransaction = dict[PartitionId, tuple[int, Committed | None]]
#: The open transactions with offsets of one group, by producer id; see also `close`.
OpenTransactions = dict[int, OpenTransaction]


def add(
    open_: OpenTransactions, producer_id: int, offsets: Sequence[tuple[PartitionId, Committed]], base_offset: int
) -> None:
    """Note offsets of a transaction, whose records are in the log from `base_offset` on."""
    transaction = open_.setdefault(producer_id, {})
    for at, (partition, committed) in enumerate(offsets):
        transaction[partition] = base_offset + at, committed


def commit(
    open_: OpenTransactions,
    known: dict[PartitionId, Committed],
    offsets: Sequence[tuple[PartitionId, Committed]],
    base_offset: int,
) -> None:
    """Add offsets without a transaction to the group's `known` ones. Their records begin at `base_offset`."""
    known.update(offsets)
    for at, (partition, _) in enumerate(offsets) if open_ else ():
        _overtake(open_, partition, base_offset + at)


def drop(
    open_: OpenTransactions, known: dict[PartitionId, Committed], partitions: Iterable[PartitionId], offset: int
) -> None:
    """Note that the offsets of partitions were deleted, by records in the log from `offset` on."""
    for partition in partitions:
        known.pop(partition, None)
        for transaction in open_.values():
            found = transaction.get(partition)
            if found is not None and found[0] < offset:
                del transaction[partition]
    for producer_id in [producer_id for producer_id, transaction in open_.items() if not transaction]:
        del open_[producer_id]


def close(open_: OpenTransactions, producer_id: int, offset: int) -> int:
    """Note a marker that is in the log at `offset`. Return the key that `end` needs in place of the producer id.

    Later offsets of the producer belong to its next transaction, even if the marker is not committed yet.
    """
    key = -1 - offset  # no producer has a negative id
    transaction = open_.pop(producer_id, None)
    if transaction is not None:
        open_[key] = transaction
    return key


def end(open_: OpenTransactions, known: dict[PartitionId, Committed], key: int, *, committed: bool) -> None:
    """Note that a marker is committed: add the transaction's offsets to the group's `known` ones, or forget them."""
    for partition, (record, found) in open_.pop(key, {}).items():
        if committed and found is not None:
            known[partition] = found
            _overtake(open_, partition, record)


def _overtake(open_: OpenTransactions, partition: PartitionId, offset: int) -> None:
    """Note that an offset whose record is at `offset` of the log counts, so that earlier ones never will."""
    for transaction in open_.values():
        found = transaction.get(partition)
        if found is not None and found[0] < offset:
            transaction[partition] = found[0], None


def pending(open_: Mapping[int, OpenTransaction]) -> Iterator[PartitionId]:
    """Yield the partitions whose offset an open transaction may still change."""
    for transaction in open_.values():
        yield from transaction


def all_partitions(offsets: Iterable[PartitionId], open_: Mapping[int, OpenTransaction]) -> set[PartitionId]:
    """Return the partitions with an offset that is committed, or that an open transaction will commit."""
    return {*offsets, *pending(open_)}
