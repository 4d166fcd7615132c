"""The state of a group coordinator for one partition of the offsets topic that its broker leads."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from pylogd.broker.groups import transactions
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.values import TransactionalCommit
from pylogd.broker.replica.partition import Partition


class Shard:
    """The groups of one partition of the offsets topic that this broker leads. A new leadership makes a new shard.

    transactions: for the id of each producer with an open transaction, the ids of the groups whose offsets are in it.
    markers: the markers that arrived during the load: producer ids, offsets, and whether they commit.
    """

    __slots__ = ("_changes", "loading", "markers", "partition", "transactions")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.loading = True
        self.transactions: dict[int, set[str]] = {}
        self.markers: list[tuple[int, int, bool]] = []
        self._changes: list[tuple[int, Callable[[], object]]] = []  # each with the offset after its records

    def apply_later(self, end: int, apply: Callable[[], object]) -> None:
        """Keep a change, whose records up to offset `end` are in the log, until they are committed.

        Changes take effect in the order of the log, even if they are answered in another order, or with an error
        because their commit takes too long. So the next coordinator gets the same state.
        """
        insort(self._changes, (end, apply), key=lambda change: change[0])

    def apply_committed(self) -> None:
        """Apply the changes that are committed by now. Call this before reading a group's offsets."""
        while self._changes and self._changes[0][0] <= self.partition.high_watermark:
            self._changes.pop(0)[1]()

    def note_open(self, group: ClassicGroup) -> None:
        """Note the open transactions of a group that was loaded."""
        for producer_id in group.transactions:
            self.transactions.setdefault(producer_id, set()).add(group.group_id)

    def begin(self, group: ClassicGroup, commit: TransactionalCommit, offset: int) -> None:
        """Note that offsets of a transaction are in the log from `offset` on."""
        self.transactions.setdefault(commit.producer_id, set()).add(group.group_id)
        transactions.add(group.transactions, commit.producer_id, commit.offsets, offset)
