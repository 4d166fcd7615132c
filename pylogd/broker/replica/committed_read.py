"""Read the records of a partition that read_committed consumers may see, with their aborted transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylogd.broker.log.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from pylogd.broker.log.files import FileSlice
    from pylogd.broker.log.transactions import AbortedTransaction
    from pylogd.broker.replica.partition import Partition


class CommittedRead:
    """Reads like `Partition.read`, but only up to the last stable offset at the time when this object is made.

    aborted: after a read, the aborted transactions in the result, in the order of their markers.
    """

    __slots__ = ("aborted", "partition", "stable_end")

    def __init__(self, partition: Partition) -> None:
        """Raises PartitionOffline. Make it in the reactor's thread; call it in any thread."""
        self.partition = partition
        self.stable_end = partition.last_stable_offset
        self.aborted: list[AbortedTransaction] = []

    def __call__(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """See `Partition.read`."""
        log, end = self.partition.log, self.stable_end
        if offset >= end:
            if offset > log.log_end_offset:
                raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            return None
        records = self.partition.read_before(offset, max_bytes, end, min_one, allow_cold)
        if records is not None:
            self.aborted = log.aborted_in(offset, records, end, allow_cold=allow_cold)
        return records
