"""Account for batches that were written at the end of a log's active segment: the last step of each append.

Strategy: whatever has checked and written the batches, the log is changed here only, in this order: the block cache,
the segment (size, time stamps, indexes), producers and transactions, leader epochs, the limits of `header_check`, and
the log end offset. `commit_run` does the same for batches that compiled code has prepared; `note_written` in
`api/fast/_repeated.c` is `commit_run` without the interpreter.

Rules: the caller holds `Log.lock`, and has written the batches. A transaction begins or ends before the log end offset
moves (`transactions`). Nothing here may refuse a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pylogd.broker.log.append.header_check import BatchFields
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.validator import Checked
from pylogd.wire.records import BatchHeader

#: What a batch means for its producer: False if it is outside of transactions, and True if it belongs to one. A batch
#: with its header, which has the batch's offset and leader epoch, may also be a marker or have no sequence number.
Kind = bool | Checked
#: A batch that was written: its size, base offset, fields and kind.
Written = tuple[int, int, BatchFields, Kind]
#: What compiled code has prepared: the number of accepted batches, the position after them, the bytes to write, and the
#: replies; the values after these batches of: log end offset, bytes since the last index entry, largest time stamp and
#: its offset; the index entries, each with last offset, position, largest time stamp and its offset; and the arguments
#: of `Producers.wrote` for each of the last batches of the one producer, if there is one.
Taken = tuple[
    int, int, bytes, bytes, int, int, int, int, list[tuple[int, int, int, int]],
    list[tuple[int, int, int, int, int, int]],
]  # fmt: skip


class CommittedLog(Protocol):
    """The attributes of a `Log` that this module uses."""

    epochs: LeaderEpochs
    producers: Producers
    index_interval: int
    has_aborted: bool
    log_end_offset: int

    def set_limits(self) -> None: ...


def commit(
    log: CommittedLog, segment: Segment, buffers: Sequence[Buffer], size: int, batches: Iterable[Written], *,
    keep: bool = True, limits: bool = False,
) -> None:  # fmt: skip
    """Account for batches, at least one, of `size` bytes in `buffers`.

    keep: whether a producer appended them, so that the block cache keeps them.
    limits: whether the limits of `header_check` may have changed, even if the segment is not full now.
    """
    if segment.cached is not None:
        segment.note_cached(buffers, size, keep=keep)
    producers, interval = log.producers, log.index_interval
    for length, base, (delta, newest, producer_id, epoch, sequence), kind in batches:
        last = base + delta
        if segment.note_batch(length, last, newest, interval):
            limits = True
        if kind is False or kind is True:
            if producer_id >= 0:
                producers.wrote(producer_id, epoch, sequence, delta, base, newest)
                if kind:
                    producers.note_transactional(producer_id, base)
        else:
            _note_checked(log, segment, kind)
    if limits:
        log.set_limits()
    log.log_end_offset = last + 1


def written(header: BatchHeader, batch: memoryview) -> Written:
    """Return what `commit` takes for a batch of any kind, whose header has its offset and leader epoch."""
    fields = (
        header.last_offset_delta, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
    )  # fmt: skip
    return len(batch), header.base_offset, fields, (header, batch)


def _note_checked(log: CommittedLog, segment: Segment, checked: Checked) -> None:
    header, batch = checked
    aborted = log.producers.note(header, batch)
    if aborted is not None:
        segment.note_aborted(aborted)
        log.has_aborted = True
    log.epochs.assign(header.leader_epoch, header.base_offset)


def commit_run(log: CommittedLog, segment: Segment, taken: Taken) -> None:
    """Account for the batches of a run, for whose entries the indexes have space."""
    _, _, data, _, end_offset, since_index, stamp, stamp_offset, entries, wrote = taken
    size = len(data)
    if segment.cached is not None:
        segment.note_cached((data,), size)
    segment.note_run(size, since_index, stamp, stamp_offset, entries)
    for batch in wrote:
        log.producers.wrote(*batch)
    log.log_end_offset = end_offset
