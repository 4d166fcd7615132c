"""What a group coordinator knows of one partition of the offsets topic that its broker leads."""

from __future__ import annotations

from pylogd.groups import transactions
from pylogd.groups.group import ClassicGroup
from pylogd.groups.values import TransactionalCommit
from pylogd.replica.partition import Partition


class Shard:
    """The groups of one partition of the offsets topic that this broker leads. A new leadership makes a new shard.

    transactions: for the id of each producer with an open transaction, the ids of the groups whose offsets are in it.
    ended: the transactions that ended while it was loaded: producer ids, and whether each was committed.
    """

    __slots__ = ("ended", "loading", "partition", "transactions")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.loading = True
        self.transactions: dict[int, set[str]] = {}
        self.ended: list[tuple[int, bool]] = []

    def note_open(self, group: ClassicGroup) -> None:
        """Take the open transactions of a group that was loaded into account."""
        for producer_id in group.transactions:
            self.transactions.setdefault(producer_id, set()).add(group.group_id)

    def begin(self, group: ClassicGroup, commit: TransactionalCommit, offset: int) -> None:
        """Note that offsets of a transaction are in the log from `offset` on."""
        self.transactions.setdefault(commit.producer_id, set()).add(group.group_id)
        transactions.add(group.transactions, commit.producer_id, commit.epoch, commit.offsets, offset)
