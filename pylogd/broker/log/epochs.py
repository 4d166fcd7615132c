"""The leader epochs of a log: at which offset each one starts, to find where the logs of two replicas diverge.

Two ascending columns, to which a batch of a newer epoch adds an entry. The file `leader-epoch-checkpoint` is written
when the log is made durable, never by an append: batches contain their epoch, so recovery finds again what a crash
lost. So a written recovery point is never above `LeaderEpochs.unsaved`, and recovery scans from that offset on.

Source: KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

UNDEFINED = (-1, -1)
_NOTHING: Final = (1 << 63) - 1


class LeaderEpochs:
    """(epoch, start offset) pairs, both ascending.

    dirty: whether they have changed since the file was written.
    unsaved: the start offset of the first epoch that the file lacks; if it lacks none, an offset above all others.

    The columns are tuples. Logs without epochs share the empty tuple; few logs have more than one epoch.
    """

    __slots__ = ("dirty", "epochs", "latest", "starts", "unsaved")

    def __init__(self, entries: Sequence[Sequence[int]] = ()) -> None:
        self.epochs: tuple[int, ...] = ()
        self.starts: tuple[int, ...] = ()
        if entries:
            self.epochs, self.starts = zip(*entries, strict=True)
        self.latest = self.epochs[-1] if entries else -1
        self.dirty = False
        self.unsaved = _NOTHING

    def saved(self, entries: Sequence[tuple[int, int]]) -> None:
        """Note that the file has all epochs. No epoch may be assigned during the call."""
        found = self.entries()
        starts = dict(entries)
        self.dirty = found != list(entries)
        self.unsaved = min((start for epoch, start in found if starts.get(epoch, _NOTHING) > start), default=_NOTHING)

    def entries(self) -> list[tuple[int, int]]:
        """Return all (epoch, start offset) pairs."""
        return list(zip(self.epochs, self.starts, strict=False))

    def assign(self, epoch: int, offset: int) -> None:
        """Note that there is a batch of `epoch` at `offset`. Only the first batch of a new epoch changes anything."""
        if epoch <= self.latest:
            return
        self._cut(bisect_left(self.starts, offset))  # removes epochs without any batch
        self.epochs += (epoch,)
        self.starts += (offset,)
        self.latest = epoch
        self.dirty = True
        self.unsaved = min(self.unsaved, offset)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch that is not above `epoch`, and its end offset; (-1, -1) if there is none."""
        if epoch < 0 or not self.epochs or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        at = bisect_right(self.epochs, epoch)
        return (self.epochs[at - 1] if at else epoch), self.starts[at]

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, -1 if unknown."""
        at = bisect_right(self.starts, offset)
        return self.epochs[at - 1] if at else -1

    def truncate_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`."""
        self._cut(bisect_left(self.starts, end_offset))

    def truncate_start(self, start_offset: int) -> None:
        """Remove epochs that end before `start_offset`. The epoch that contains this offset now starts there."""
        at = bisect_right(self.starts, start_offset) - 1
        if at > 0 or (at == 0 and self.starts[0] < start_offset):
            self.epochs, self.starts = self.epochs[at:], (start_offset, *self.starts[at + 1 :])
            self.dirty = True

    def clear(self) -> None:
        """Remove all epochs."""
        self._cut(0)

    def _cut(self, keep: int) -> None:
        if keep < len(self.epochs):
            self.epochs, self.starts = self.epochs[:keep], self.starts[:keep]
            self.latest = self.epochs[-1] if self.epochs else -1
            self.dirty = True
