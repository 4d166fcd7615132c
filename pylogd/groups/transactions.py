"""Offsets that open transactions will commit to a group; they are kept beside the committed ones until the marker.

Strategy: the offsets of a transaction are pending from the moment they are in the log of the offsets topic. The marker
behind them says whether they count. An offset that was committed without a transaction meanwhile counts more, as its
record is behind theirs; a deletion removes them.

Rules: the order of the records in the log decides, not the order of the answers, so that a new coordinator that reads
the log gets the same. Must not know: requests, logs, the clock.
Source: Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pylogd.groups.records import Committed, PartitionId


class OpenTransaction:
    """The offsets that a producer's open transaction will commit, each with the offset of its record in the log.

    epoch: the producer's. An entry of None is overtaken: an offset that was committed since counts in its place.
    """

    __slots__ = ("epoch", "offsets")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.offsets: dict[PartitionId, tuple[int, Committed] | None] = {}


#: The open transactions with offsets of one group, by producer id.
OpenTransactions = dict[int, OpenTransaction]


def add(
    open_: OpenTransactions,
    producer_id: int,
    epoch: int,
    offsets: Sequence[tuple[PartitionId, Committed]],
    base_offset: int,
) -> None:
    """Note offsets of a transaction, whose records are in the log from `base_offset` on."""
    transaction = open_.get(producer_id)
    if transaction is None or transaction.epoch != epoch:
        transaction = open_[producer_id] = OpenTransaction(epoch)
    for at, (partition, committed) in enumerate(offsets):
        transaction.offsets[partition] = base_offset + at, committed


def overtake(open_: OpenTransactions, partitions: Iterable[PartitionId], offset: int) -> None:
    """Note that offsets were committed without a transaction, with records from `offset` of the log on."""
    for transaction in open_.values():
        for partition in partitions:
            found = transaction.offsets.get(partition)
            if found is not None and found[0] < offset:
                transaction.offsets[partition] = None


def drop(open_: OpenTransactions, partitions: Iterable[PartitionId]) -> None:
    """Note that the offsets of partitions were deleted."""
    for transaction in open_.values():
        for partition in partitions:
            transaction.offsets.pop(partition, None)


def end(open_: OpenTransactions, producer_id: int, offsets: dict[PartitionId, Committed], *, committed: bool) -> None:
    """Note a marker: add the transaction's offsets to the group's `offsets`, or forget them."""
    transaction = open_.pop(producer_id, None)
    if transaction is not None and committed:
        offsets.update((partition, found[1]) for partition, found in transaction.offsets.items() if found is not None)


def pending(open_: Mapping[int, OpenTransaction]) -> Iterator[PartitionId]:
    """Yield the partitions of which an open transaction may still change the offset."""
    for transaction in open_.values():
        yield from transaction.offsets


def all_partitions(offsets: Iterable[PartitionId], open_: Mapping[int, OpenTransaction]) -> set[PartitionId]:
    """Return the partitions with an offset that is committed, or that an open transaction will commit."""
    return {*offsets, *pending(open_)}
