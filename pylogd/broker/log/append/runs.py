"""Append several batches of clients with one write, up to the first batch that needs the general path.

Strategy: `BatchList` has batches as views, and checks them one by one with `header_check`. `CompiledRun` has a compiled
function that finds batches among received bytes and checks them by the same rules. It returns the bytes to write and
what the log has to remember, without an object for each batch. Both leave the same files and the same state, which
`tests/property/test_request_batches.py` proves.

Rules: the caller holds `Log.lock`, and has checked that the indexes have space for the entries of `most` batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pylogd.broker.log.append.full_check import IOV_MAX, PREFIX_SIZE, pack_prefix
from pylogd.broker.log.append.header_check import CompiledLimits, FastAccept
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.segment import Segment
from pylogd.wire.records import LENGTH_OVERHEAD

_COPIED_BYTES = 4096  # smaller batches are copied into one buffer: that is cheaper than many small buffers

#: What a compiled function has to know of a log: the size of its active segment, the log end offset, the leader epoch,
#: the time in milliseconds, the log start offset, `index.interval.bytes`, the bytes since the last index entry, the
#: largest time stamp, and the last offset of the batch that has this time stamp.
LogState = tuple[int, int, int, int, int, int, int, int, int]
#: What the compiled function returns: the number of accepted batches, the position after them, the bytes to write, and
#: the replies; the values after these batches of: log end offset, bytes since the last index entry, largest time stamp
#: and its offset; the index entries, each with last offset, position, largest time stamp and its offset; and the
#: arguments of `Producers.wrote` for each of the last batches of the one producer, if there is one.
Taken = tuple[
    int, int, bytes, bytes, int, int, int, int, list[tuple[int, int, int, int]],
    list[tuple[int, int, int, int, int, int]],
]  # fmt: skip
#: Returns whether a batch continues its producer's sequence: see `Producers.due`.
Due = Callable[[int, int, int], bool]
Take = Callable[[CompiledLimits, LogState, Due], Taken | None]


class RunLog(Protocol):
    """The attributes of a `Log` that this module uses."""

    fast_accept: FastAccept
    index_interval: int
    log_start_offset: int
    log_end_offset: int
    producers: Producers

    @property
    def now_ms(self) -> Callable[[], int]: ...


class BatchRun(Protocol):
    """Batches that are appended with one write.

    most: the most batches that it may have.
    """

    @property
    def most(self) -> int: ...

    def append_to(self, log: RunLog, segment: Segment, leader_epoch: int) -> int:
        """Append to the active segment as many batches as are accepted; return how many. Raises StorageFailure."""


class BatchList:
    """Batches as views.

    bases: the base offsets of the appended batches.
    """

    __slots__ = ("_batches", "bases")

    def __init__(self, batches: Sequence[memoryview]) -> None:
        self._batches = batches
        self.bases: list[int] = []

    @property
    def most(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def append_to(self, log: RunLog, segment: Segment, leader_epoch: int) -> int:
        """See `BatchRun`."""
        producers = log.producers
        accepted = log.fast_accept.check_all(self._batches, segment.size, log.log_end_offset, log.now_ms(), producers)
        if not accepted:
            return 0
        parts: list[Buffer] = []
        size = 0
        for records, base, _ in accepted:
            length = len(records)
            parts += (pack_prefix(base, length - LENGTH_OVERHEAD, leader_epoch), records[PREFIX_SIZE:])
            size += length
        if size < len(accepted) * _COPIED_BYTES or len(parts) > IOV_MAX:
            parts = [b"".join(parts)]
        segment.write(parts, size)
        if segment.cached is not None:
            segment.note_cached(parts, size)
        for records, base, (delta, newest, producer_id, epoch, sequence) in accepted:
            segment.note_batch(len(records), base + delta, newest, log.index_interval)
            if producer_id >= 0:
                producers.wrote(producer_id, epoch, sequence, delta, base, newest)
        log.log_end_offset = base + delta + 1
        self.bases = [base for _, base, _ in accepted]
        return len(accepted)


class CompiledRun:
    """Batches that a compiled function finds and checks.

    replies: the encoded replies for the appended batches.
    end: the position after the appended batches. It is 0 if only the first one was appended.
    """

    __slots__ = ("_take", "end", "most", "replies")

    def __init__(self, take: Take, most: int) -> None:
        self._take = take
        self.most = most
        self.replies = b""
        self.end = 0

    def append_to(self, log: RunLog, segment: Segment, leader_epoch: int) -> int:
        """See `BatchRun`."""
        limits, producers = log.fast_accept.compiled, log.producers
        if limits is None:
            return 0
        state = (
            segment.size, log.log_end_offset, leader_epoch, log.now_ms(), log.log_start_offset,
            log.index_interval, segment.bytes_since_index, *segment.largest_timestamp(allow_cold=False),
        )  # fmt: skip
        taken = self._take(limits, state, producers.due)
        if taken is None:
            return 0
        count, self.end, data, self.replies, end_offset, since_index, stamp, stamp_offset, entries, wrote = taken
        size = len(data)
        segment.write((data,), size)
        if segment.cached is not None:
            segment.note_cached((data,), size)
        segment.note_run(size, since_index, stamp, stamp_offset, entries)
        for batch in wrote:
            producers.wrote(*batch)
        log.log_end_offset = end_offset
        return count
