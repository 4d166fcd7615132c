"""The state of a group coordinator for one partition of the offsets topic that its broker leads."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from pylogd.groups import transactions
from pylogd.groups.group import ClassicGroup
from pylogd.groups.values import TransactionalCommit
from pylogd.replica.partition import Partition


class Shard:
    """The groups of one partition of the offsets topic that this broker leads. A new leadership makes a new shard.

    transactions: for the id of each producer with an open transaction, the ids of the groups whose offsets are in it.
    ended: the transactions that ended while it was loaded: producer ids, and whether each was committed.
    """

    __slots__ = ("_late", "ended", "loading", "partition", "transactions")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.loading = True
        self.transactions: dict[int, set[str]] = {}
        self.ended: list[tuple[int, bool]] = []
        self._late: list[tuple[int, Callable[[], object]]] = []  # by the offset behind their records

    def apply_later(self, end: int, apply: Callable[[], object]) -> None:
        """Keep a change that was answered with an error, though its records, up to `end`, are in the log.

        They may still be committed: then the change takes effect, as the next coordinator would find it too.
        """
        insort(self._late, (end, apply), key=lambda late: late[0])

    def apply_committed(self) -> None:
        """Apply the changes that were kept and are committed now. Call it before a later change, and before reading."""
        while self._late and self._late[0][0] <= self.partition.high_watermark:
            self._late.pop(0)[1]()

    def note_open(self, group: ClassicGroup) -> None:
        """Take the open transactions of a group that was loaded into account."""
        for producer_id in group.transactions:
            self.transactions.setdefault(producer_id, set()).add(group.group_id)

    def begin(self, group: ClassicGroup, commit: TransactionalCommit, offset: int) -> None:
        """Note that offsets of a transaction are in the log from `offset` on."""
        self.transactions.setdefault(commit.producer_id, set()).add(group.group_id)
        transactions.add(group.transactions, commit.producer_id, commit.epoch, commit.offsets, offset)
