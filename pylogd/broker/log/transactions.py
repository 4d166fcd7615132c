"""The open transactions of one partition: they decide the last stable offset, and which producers were verified.

A transaction belongs to a producer, and extends from its first batch in the log to its marker. Records before the first
open transaction are stable. A transaction whose marker is not below the high watermark counts as open, since a new
leader may lack the marker. A read_committed consumer is sent stable records, with a list of the aborted transactions
among them.

Rules: an offset that was stable stays so while the high watermark does not move back, since a transaction begins at the
log's end. `end` counts a transaction as ended before it stops counting it as open, and `begin` is called before the log
end offset moves: a reader in another thread never sees too much. Changes of these objects hold `Log.lock`; only the
reactor's thread calls `stable_end`.

Source: KIP-98 (last stable offset), KIP-890 (verification).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

_NONE: Final = (1 << 63) - 1  # after all offsets


class AbortedTransaction(NamedTuple):
    """An aborted transaction: producer id, first offset, offset of its marker, and the last stable offset at that time.

    The last stable offset is computed as if the log were replicated up to its end.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class UnstableTransactions:
    """The transactions that are open, or whose markers are not replicated.

    active: whether there may be any, as of the last `stable_end`.
    """

    __slots__ = ("_ended", "_first_ended", "_first_open", "_open", "active")

    def __init__(self, open_: Iterable[tuple[int, int]] = ()) -> None:
        """open_: the producer id and the first offset of each open transaction, ascending by offset."""
        self._open = dict(open_)
        # Offsets of marker and first batch. Made when needed, since an empty deque has 600 bytes.
        self._ended: deque[tuple[int, int]] | None = None
        self._first_open = next(iter(self._open.values()), _NONE)
        self._first_ended = _NONE
        self.active = bool(self._open)

    def __len__(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    @property
    def first_open(self) -> int | None:
        """The first offset of all open transactions; None if none is open."""
        return None if self._first_open == _NONE else self._first_open

    def begin(self, producer_id: int, offset: int) -> None:
        """Note that a producer without an open transaction has begun one at the log's end, at `offset`."""
        self._first_open = min(self._first_open, offset)
        self.active = True
        self._open[producer_id] = offset

    def end(self, producer_id: int, marker: int) -> int:
        """Note that the batch at offset `marker` ended a producer's open transaction.

        Return the first offset of the remaining open transactions. If none remains, return the offset after the marker.
        """
        first = self._open[producer_id]
        self._first_ended = min(self._first_ended, first)
        if self._ended is None:
            self._ended = deque()
        self._ended.append((marker, first))
        del self._open[producer_id]
        if first == self._first_open:
            self._first_open = next(iter(self._open.values()), _NONE)
        return marker + 1 if self._first_open == _NONE else self._first_open

    def stable_end(self, high_watermark: int) -> int:
        """Return the last stable offset: everything before it is committed and in no open transaction."""
        ended = self._ended
        if ended and ended[0][0] < high_watermark:
            while ended and ended[0][0] < high_watermark:
                ended.popleft()
            self._first_ended = min((first for _, first in ended), default=_NONE)
        self.active = bool(self._open or ended)
        return min(self._first_open, self._first_ended, high_watermark)


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """Stands for one verification of a producer's transaction, until its first batch or a marker is appended.

    lowest_sequence: the lowest sequence number that was sent in `epoch`. A batch with a higher one is not appended
        before it.
    epoch_bump: whether each transaction of the producer has its own epoch (KIP-890 part 2).
    created_ms: when the guard was made, by the wall clock.
    """

    epoch: int
    lowest_sequence: int
    epoch_bump: bool
    created_ms: int

    def note(self, epoch: int, sequence: int) -> None:
        """Note another batch of the producer that must be verified too."""
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch, self.lowest_sequence = epoch, sequence


class TransactionTerms(NamedTuple):
    """Proof that the coordinator verified the transaction of the batches to be appended.

    guard: the guard of a successful verification; None without a verification.
    verified: whether a first batch is accepted without a guard, because verification is turned off.
    version: the version of the transactions of a marker's producer. From version 2 on each transaction has its own
        epoch.
    """

    guard: VerificationGuard | None = None
    verified: bool = False
    version: int = 0


#: For batches of a transaction whose first batch is in the log, or that is known to be open.
UNGUARDED: Final = TransactionTerms()
#: Used where verification is turned off.
VERIFICATION_OFF: Final = TransactionTerms(verified=True)
EPOCH_BUMP_VERSION: Final = 2
