"""Append to a log in three steps, so that the write can be made in a thread while others use the log.

Strategy: `prepare` checks records, gives them offsets and lays out the bytes; `write` makes the system calls; `commit`
accounts for the batches in the log. Appends that arrive while a write is under way are prepared together as the next
one. `Log.append` is the same in one step; tests/property/test_staged_append.py proves that both leave the same log.

Rules:
- `Log.writing` is held from before `prepare` until after `commit` or `fail`: truncation, rolls by age, closing and a
  second append wait for that. `Log.lock` is held in `prepare` and `commit` only, never during the write.
- Between the steps the log is as if the append had not begun. Readers see nothing of it before `commit`.
- A write has only one kind of batches of a producer: batches outside of transactions, batches of one transaction, or
  one marker. Later batches can be checked only after these are committed.
- A write stores all of its appends or none. Only the first append of a write may be refused: a later one that can't be
  accepted yet ends the write before it, and is judged again when that is committed.

Threads: `prepare`, `commit` and `fail` in one thread, `write` in any.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.broker.log.append.commit import Written, commit, written
from pylogd.broker.log.append.full_check import IOV_MAX, NO_TIMESTAMP, Accepted, accept, fast_buffers, repeated
from pylogd.broker.log.append.header_check import BatchFields
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import LogAtRest, LogClosed, OutOfOrderSequence, StorageFailure
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.index import MAX_RELATIVE
from pylogd.broker.log.log import Log
from pylogd.broker.log.producers import MAX_SEQUENCE, WrittenBatch
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.broker.log.validator import AppendOrigin, Inspections
from pylogd.wire.records import CONTROL, TRANSACTIONAL

#: The most appends and the most bytes of records that are written together. A single append may be larger.
MOST_APPENDS = 500
MOST_BYTES = 1 << 20
#: If the buffers are smaller than this on average, they are copied into one.
_COPIED_BYTES = 4096
_KIND = TRANSACTIONAL | CONTROL


class AppendRequest(NamedTuple):
    """The arguments of an append.

    inspections: the result of `Log.inspect` for the records, if they were inspected.
    terms: describes the transaction of transactional batches.
    """

    records: Buffer
    leader_epoch: int
    origin: AppendOrigin = AppendOrigin.CLIENT
    inspections: Inspections | None = None
    terms: TransactionTerms | None = None


class _FastBatch(NamedTuple):
    """One batch that was accepted by its header."""

    records: memoryview
    base_offset: int
    fields: BatchFields


class StagedAppend:
    """One write of a log, made of one or more appends. `prepare` makes it.

    results: what the appends return once the write is committed. At most one is the result of a duplicate, which writes
        nothing.
    """

    __slots__ = (
        "_accepted", "_batches", "_buffers", "_end", "_kinds", "_log", "_now_ms", "_position", "_roll_at", "_rolled",
        "_sequences", "_size", "results",
    )  # fmt: skip

    def __init__(self, log: Log) -> None:
        self.results: list[AppendResult] = []
        self._log = log
        self._now_ms = log.now_ms()
        self._accepted: list[Accepted | _FastBatch] = []
        self._batches = 0
        self._buffers: list[Buffer] = []
        self._end = log.log_end_offset
        self._position = log.active.size
        self._size = 0
        self._sequences: dict[int, tuple[int, int]] = {}  # the epoch and sequence that must come next, by producer id
        self._kinds: dict[int, int] = {}  # the `_KIND` of the attributes of added batches, by producer id
        self._roll_at: int | None = None
        self._rolled: Segment | None = None

    @property
    def size(self) -> int:
        """The number of bytes to write; 0 if no append has any."""
        return self._size

    # -- prepare

    def add(self, request: AppendRequest) -> bool:
        """Add an append, if it can be written together with the earlier ones.

        For the first append it raises the errors of `Log.append`.
        """
        first = not self.results
        if not first and self._size + len(request.records) > MOST_BYTES:
            return False
        try:
            return self._add(request, first)
        except PylogdError:
            if first:
                raise
            return False

    def _add(self, request: AppendRequest, first: bool) -> bool:
        log, records = self._log, memoryview(request.records)
        client = request.origin is AppendOrigin.CLIENT and request.inspections is None
        if client and self._roll_at is None and request.leader_epoch == log.epochs.latest:
            fields = log.fast_accept.check(records, self._position, self._end, self._now_ms)
            if fields is not None:
                return self._add_fast(records, request.leader_epoch, fields, first)
        accepted = accept(
            log, records, request.leader_epoch, request.origin, self._now_ms, request.inspections, False,
            end=self._end, sequences=self._sequences, terms=request.terms,
        )  # fmt: skip
        if isinstance(accepted, AppendResult):
            return first and self._add_duplicate(accepted)
        if first:
            if log.needs_roll(accepted, self._now_ms):
                self._roll_at, self._position = accepted.base_offset, 0
        elif not self._fits(accepted) or not self._is_of_one_kind(accepted):
            return False
        self._take(accepted, accepted.size, accepted.last_offset, accepted.buffers())
        for header, _ in accepted.checked:
            if header.producer_id >= 0:
                self._kinds[header.producer_id] = header.attributes & _KIND
            if header.producer_id >= 0 and header.base_sequence >= 0:
                self._note_sequence(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
                )
        self.results.append(accepted.result)
        return True

    def _add_fast(self, records: memoryview, leader_epoch: int, fields: BatchFields, first: bool) -> bool:
        log = self._log
        delta, _, producer_id, epoch, sequence = fields
        if producer_id >= 0:
            expected = self._sequences.get(producer_id)
            if self._kinds.get(producer_id):
                return False
            if expected is not None:
                if expected != (epoch, sequence):
                    return False
            else:
                earlier: WrittenBatch | None = log.producers.check(producer_id, epoch, sequence, delta)
                if earlier is not None:
                    return first and self._add_duplicate(repeated(log, earlier))
        if not first and not log.active.has_entries_for(self._batches + 1):
            return False
        base, last = self._end, self._end + delta
        if producer_id >= 0:
            self._note_sequence(producer_id, epoch, sequence, delta)
            self._kinds[producer_id] = 0
        self._take(_FastBatch(records, base, fields), len(records), last, fast_buffers(records, base, leader_epoch))
        self.results.append(AppendResult(base, last, NO_TIMESTAMP, log.log_start_offset))
        return True

    def _add_duplicate(self, result: AppendResult) -> bool:
        """Use the result of an earlier append. No append is added after it, since its sequence would be refused."""
        self.results.append(result)
        return True

    def _is_of_one_kind(self, accepted: Accepted) -> bool:
        """Return whether batches can be written together with the added batches of the same producers."""
        for header, _ in accepted.checked:
            kind = header.attributes & _KIND
            if self._kinds.get(header.producer_id, kind) != kind or (
                header.is_control and header.producer_id in self._kinds
            ):
                return False
        return True

    def _fits(self, accepted: Accepted) -> bool:
        """Return whether batches can be written after the added ones, to the same segment."""
        log, config = self._log, self._log.config
        segment = log.active
        if accepted.as_is is not None or self._roll_at is not None or not segment.size:
            return False
        return (
            self._position + accepted.size <= config.segment_bytes
            and accepted.last_offset - segment.base_offset <= MAX_RELATIVE
            and segment.has_entries_for(self._batches + len(accepted.checked))
            and not log.needs_roll(accepted, self._now_ms)
        )

    def _take(self, accepted: Accepted | _FastBatch, size: int, last_offset: int, buffers: Sequence[Buffer]) -> None:
        self._accepted.append(accepted)
        self._batches += len(accepted.checked) if isinstance(accepted, Accepted) else 1
        self._buffers += buffers
        self._size += size
        self._position += size
        self._end = last_offset + 1

    def _note_sequence(self, producer_id: int, epoch: int, sequence: int, delta: int) -> None:
        self._sequences[producer_id] = epoch, (sequence + delta + 1) & MAX_SEQUENCE

    # -- write

    def write(self) -> None:
        """Write all batches, to a new segment if need be. Waits for the disk. Raises StorageFailure."""
        if not self._size:
            return
        log = self._log
        segment = log.active
        if self._roll_at is not None:
            segment = self._rolled = log.make_segment(self._roll_at, self._now_ms)
        buffers = self._buffers
        if self._size < len(self._accepted) * _COPIED_BYTES or len(buffers) > IOV_MAX:
            buffers = [b"".join(buffers)]
        segment.write(buffers, self._size)

    # -- commit

    def commit(self) -> list[AppendResult]:
        """Account for the batches in the log, and return the results. Raises LogClosed if the log was abandoned."""
        log = self._log
        with log.lock:
            if log.abandoned:
                raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")
            self._take_over_roll()
            if self._size:
                self._commit(log)
        return self.results

    def _commit(self, log: Log) -> None:
        batches: list[Written] = []
        checked = fetched = False
        for accepted in self._accepted:
            if isinstance(accepted, Accepted):
                batches += starmap(written, accepted.checked)
                checked, fetched = True, accepted.as_is is not None
            else:
                batches.append((len(accepted.records), accepted.base_offset, accepted.fields, False))
        commit(log, log.active, self._buffers, self._size, batches, keep=not fetched, limits=checked)

    def _take_over_roll(self) -> None:
        if self._rolled is not None:
            self._log.rolled(self._rolled)
            if self._log.on_roll is not None:
                self._log.on_roll(self._log)

    def fail(self, failure: StorageFailure) -> None:
        """Give the appends up: the write has failed."""
        log = self._log
        with log.lock:
            if not log.abandoned:
                self._take_over_roll()
            log.write_failures.note(failure, log.log_end_offset, log.storage.seconds())


def prepare(log: Log, requests: Sequence[AppendRequest]) -> StagedAppend:
    """Prepare one write of as many appends as fit together, from the first on; `results` has one result for each.

    The caller holds `Log.writing`. Appends that are left go into the next write. Raises the errors of `Log.append` if
    the first append is refused, InspectionNeeded if it has to be inspected first, and LogAtRest if the files are not
    open.
    """
    with log.lock:
        if log.at_rest:
            raise LogAtRest(log.directory)
        staged = StagedAppend(log)
        try:
            for request in requests[:MOST_APPENDS]:
                if not staged.add(request) or (staged.results and not staged.size):
                    break
        except OutOfOrderSequence as gap:
            log.write_failures.explain(gap, log.log_end_offset, log.storage.seconds())
            raise
        return staged


def wait_to_begin(log: Log) -> None:
    """Take `Log.writing`, in a thread, if it could not be taken at once. Raises LogClosed if the log was abandoned."""
    log.writing.acquire()
    if log.abandoned:  # the caller that waited for this may have given up
        log.writing.release()
        raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")
