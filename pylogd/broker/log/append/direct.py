"""Append batches that are accepted by their headers with one write, on the caller's thread.

Strategy: `append_one` and `append_own` append one batch that `header_check` has accepted. A `BatchRun` has several
batches of clients, and appends them up to the first one that needs the general path. `BatchList` has batches as views,
and checks them one by one with `header_check`. `CompiledRun` has a compiled function that finds batches among received
bytes and checks them by the same rules. It returns the bytes to write and what the log has to remember, without an
object for each batch. Both leave the same files and the same state, which `tests/property/test_request_batches.py`
proves.

Rules: the caller holds `Log.lock`, and for a run has checked that the indexes have space for the entries of `most`
batches. What is stored, answered and refused is the same as by the general path (`tests/property/test_log_append.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pylogd.broker.log.append.commit import CommittedLog, Taken, commit, commit_run, written
from pylogd.broker.log.append.full_check import (
    IOV_MAX,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    AcceptingLog,
    fast_buffers,
    pack_prefix,
    repeated,
)
from pylogd.broker.log.append.header_check import BatchFields, CompiledLimits, FastAccept
from pylogd.broker.log.append.result import AppendResult, new_append_result
from pylogd.broker.log.errors import InvalidRecord
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.transaction_checks import check_first, check_marker
from pylogd.broker.log.transactions import UNGUARDED, TransactionTerms
from pylogd.wire.records import LENGTH_OVERHEAD, BatchHeader

_COPIED_BYTES = 4096  # smaller batches are copied into one buffer: that is cheaper than many small buffers

#: What a compiled function has to know of a log: the size of its active segment, the log end offset, the leader epoch,
#: the time in milliseconds, the log start offset, `index.interval.bytes`, the bytes since the last index entry, the
#: largest time stamp, and the last offset of the batch that has this time stamp.
LogState = tuple[int, int, int, int, int, int, int, int, int]
#: Returns whether a batch continues its producer's sequence: see `Producers.due`.
Due = Callable[[int, int, int], bool]
Take = Callable[[CompiledLimits, LogState, Due], Taken | None]


class WritableLog(AcceptingLog, CommittedLog, Protocol):
    """The attributes of a `Log` that this module uses."""

    fast_accept: FastAccept

    @property
    def now_ms(self) -> Callable[[], int]: ...


def append_one(
    log: WritableLog,
    segment: Segment,
    view: memoryview,
    leader_epoch: int,
    fields: BatchFields,
    terms: TransactionTerms | None,
) -> AppendResult:
    """Append a client's batch to the active segment. Raises InvalidAppend.

    terms: describes the transaction of a transactional batch.
    """
    delta, _, producer_id, epoch, sequence = fields
    if producer_id >= 0:
        producers = log.producers
        duplicate = producers.check(producer_id, epoch, sequence, delta, terms is not None)
        if duplicate is not None:
            return repeated(log, duplicate)
        if terms is not None and not producers.in_transaction(producer_id, epoch):
            check_first(producers, producer_id, sequence, terms)
    elif terms is not None:
        raise InvalidRecord("a transactional batch has no producer id")
    base, size = log.log_end_offset, len(view)
    parts = pack_prefix(base, size - LENGTH_OVERHEAD, leader_epoch), view[PREFIX_SIZE:]  # `fast_buffers` without a call
    segment.write(parts, size)
    commit(log, segment, parts, size, ((size, base, fields, terms is not None),))
    return new_append_result((base, base + delta, NO_TIMESTAMP, log.log_start_offset, False))


def append_own(
    log: WritableLog,
    segment: Segment,
    view: memoryview,
    leader_epoch: int,
    header: BatchHeader,
    terms: TransactionTerms | None,
) -> AppendResult:
    """Append a marker or another batch of the broker's own to the active segment. Raises InvalidAppend for a marker."""
    base, size = log.log_end_offset, len(view)
    header = header._replace(base_offset=base, leader_epoch=leader_epoch)
    if header.producer_id >= 0:
        check_marker(log.producers, header, read_marker(header, view), (terms or UNGUARDED).version)
    parts = fast_buffers(view, base, leader_epoch)
    segment.write(parts, size)
    commit(log, segment, parts, size, (written(header, view),))
    return new_append_result((base, header.last_offset, NO_TIMESTAMP, log.log_start_offset, False))


class BatchRun(Protocol):
    """Batches that are appended with one write.

    most: the most batches that it may have.
    """

    @property
    def most(self) -> int: ...

    def append_to(self, log: WritableLog, segment: Segment, leader_epoch: int) -> int:
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

    def append_to(self, log: WritableLog, segment: Segment, leader_epoch: int) -> int:
        """See `BatchRun`."""
        accepted = log.fast_accept.check_all(
            self._batches, segment.size, log.log_end_offset, log.now_ms(), log.producers
        )
        if not accepted:
            return 0
        parts: list[Buffer] = []
        size = 0
        for records, base, _ in accepted:
            parts += fast_buffers(records, base, leader_epoch)
            size += len(records)
        if size < len(accepted) * _COPIED_BYTES or len(parts) > IOV_MAX:
            parts = [b"".join(parts)]
        segment.write(parts, size)
        commit(log, segment, parts, size, [(len(records), base, fields, False) for records, base, fields in accepted])
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

    def append_to(self, log: WritableLog, segment: Segment, leader_epoch: int) -> int:
        """See `BatchRun`."""
        limits = log.fast_accept.compiled
        if limits is None:
            return 0
        state = (
            segment.size, log.log_end_offset, leader_epoch, log.now_ms(), log.log_start_offset,
            log.index_interval, segment.bytes_since_index, *segment.largest_timestamp(allow_cold=False),
        )  # fmt: skip
        taken = self._take(limits, state, log.producers.due)
        if taken is None:
            return 0
        count, self.end, data, self.replies, *_ = taken
        segment.write((data,), len(data))
        commit_run(log, segment, taken)
        return count
