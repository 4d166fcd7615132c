"""The log of one partition: segments in the order of their offsets, appended to at the end, read from any offset.

An append checks the batches, assigns offsets, and writes everything with one `pwritev`: 16 new bytes for each batch
(base offset, length, leader epoch), and the rest of it as received, without a copy. Nearly all batches of clients are
accepted by their headers alone (`append.header_check`), and `append.direct` writes many of them together; all others
go through `validator.check_batches`. Each append ends with `append.commit`. A read looks the position up (`reading`)
and returns a `FileSlice`: record bytes never pass through this module. `truncation`, `retention`, `compaction` and
`durability` (flushes) work on a log from outside.

Rules:
- An append stores all of its batches or none, even when the disk is full.
- `log_end_offset` moves only after the bytes are in the page cache, and is never lowered by an append.
- On the append path only batches are written. Indexes, snapshots, leader epochs and checkpoints are written by `flush`
  and `seal`, the manager's `tick`, and `close`.

Threads: `append`, truncation, `delete_records_before`, rolls and the removal of segments exclude each other by `lock`;
only truncation holds it during a sync. Reads take no lock, since the list of segments is replaced and never changed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import starmap
from operator import attrgetter

from pylogd.broker.log.append.commit import commit, written
from pylogd.broker.log.append.direct import BatchRun, append_one, append_own
from pylogd.broker.log.append.full_check import IOV_MAX, Accepted, accept
from pylogd.broker.log.append.header_check import REFUSE_ALL, FastAccept
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.config import LogConfig, TimestampType
from pylogd.broker.log.durability import flush_log, seal_segments, write_closing_state
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.errors import LogClosed, OffsetOutOfRange, OutOfOrderSequence, StorageFailure
from pylogd.broker.log.files import Buffer, FileSlice
from pylogd.broker.log.index import MAX_RELATIVE, TIME_ENTRY
from pylogd.broker.log.opening import open_files, open_for_append, open_for_readers
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.reading import BELOW_ZEROS, ZEROS, Range, SegmentsView
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.storage import Storage
from pylogd.broker.log.transactions import AbortedTransaction, TransactionTerms
from pylogd.broker.log.validator import AppendOrigin, Inspections, inspect, wants_inspection

_CLIENT, _COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
_size, _has_aborted = attrgetter("size"), attrgetter("has_aborted")
_NO_TAIL: tuple[int, Segment | None, int] = (-1, None, 0)
_making = threading.Lock()  # is held while a part of a log is made
#: How many seconds after a failed write the batches in flight may still arrive: Kafka's `request.timeout.ms`.
_IN_FLIGHT_SECONDS = 30.0


class WriteFailures:
    """Remembers path and error number of the last failure, but not the exception, which holds the request's bytes."""

    __slots__ = ("_code", "_end_offset", "_path", "_seconds")

    def __init__(self) -> None:
        self._path, self._code, self._end_offset, self._seconds = "", 0, -1, 0.0

    def note(self, failure: StorageFailure, end_offset: int, seconds: float) -> None:
        """Remember a failure of a log that ends at `end_offset`. The time is in seconds of a monotonic clock."""
        self._path, self._code = failure.path, failure.cause.errno or 0
        self._end_offset, self._seconds = end_offset, seconds

    def explain(self, gap: OutOfOrderSequence, end_offset: int, seconds: float) -> None:
        """Raise StorageFailure if a write that failed is the reason for a gap in a producer's sequence.

        It is the reason if it failed within _IN_FLIGHT_SECONDS and nothing was appended since. A producer has several
        batches in flight. If librdkafka is told that the batches after the failed one are out of order, it begins a new
        producer epoch and sends all of them again. This duplicates batches that another replica already has.
        """
        if end_offset == self._end_offset and seconds - self._seconds <= _IN_FLIGHT_SECONDS:
            raise StorageFailure(self._path, OSError(self._code, os.strerror(self._code))) from gap


class Log:
    """One log; see the module. `loader` makes logs.

    recovery_point: the offset up to which everything is durable.
    clean: whether the log was closed cleanly, so that its files are durable and complete.
    first_offset: the log end offset when the log was opened.
    removed_bytes: the bytes of segments removed since then, less the bytes that the log had then.
    deletable_offset: retention and compaction keep records at and after it; None for no such limit. Others set it.
    on_roll: set by others. It is called with the log after a roll, when the old segment can be made durable. `lock` is
        held, so it must not block.
    """

    __slots__ = (
        "__weakref__",
        "_active", "_config", "_lock", "_maintenance", "_roll_ms", "_sealed_bytes", "_tail", "_view", "_write_failures",
        "_writing", "abandoned",
        "cleaned_offset", "closed", "closed_at", "deletable_offset", "directory", "epochs",
        "fast_accept", "first_offset", "has_aborted", "index_interval", "key", "last_flush", "log_end_offset",
        "log_start_offset", "names_synced", "now_ms", "on_roll", "partition", "pending_unlinks", "producers",
        "recovery_point", "removed_bytes", "settled", "stamps", "storage", "topic", "topic_id", "truncations",
        "unwritten_snapshots",
    )  # fmt: skip

    def __init__(
        self, directory: str, topic: str, partition: int, topic_id: bytes, config: LogConfig, *,
        storage: Storage, now_ms: Callable[[], int], segments: Sequence[Segment], log_start_offset: int,
        log_end_offset: int, recovery_point: int, epochs: LeaderEpochs, producers: Producers, clean: bool = False,
    ) -> None:  # fmt: skip
        # Three locks take 280 bytes, and most logs of a large broker are never used: properties make them at first use.
        # Appends look at `_lock` before `lock`, since a property costs a call.
        self._lock: threading.RLock | None = None
        self._maintenance: threading.Lock | None = None
        self._writing: threading.Lock | None = None
        self._write_failures: WriteFailures | None = None
        self.directory, self.storage, self.now_ms = directory, storage, now_ms
        self.key, self.topic, self.partition, self.topic_id = (topic, partition), topic, partition, topic_id
        self.log_start_offset, self.log_end_offset = log_start_offset, log_end_offset
        self.recovery_point = recovery_point
        self.epochs, self.producers = epochs, producers
        self.deletable_offset: int | None = None
        self.cleaned_offset = 0  # the offset up to which the log was compacted
        self.truncations = 0  # how often the log was truncated at its end
        self.on_roll: Callable[[Log], object] | None = None
        self.closed = self.abandoned = False
        self.last_flush = storage.seconds()
        self.pending_unlinks: Sequence[tuple[float, list[str]]] = ()  # (time to unlink, paths of .deleted files)
        self.settled: object = None  # what the housekeeping remembers of the log
        self.unwritten_snapshots: Sequence[tuple[int, bytes]] = ()  # (offset, content) of snapshots made at rolls
        self.names_synced = clean  # whether the name of the log's directory is durable
        self.closed_at = log_end_offset if clean else -1  # the end offset for which closing state is on the disk
        self.fast_accept, self.first_offset = REFUSE_ALL, log_end_offset
        self._active, self._sealed_bytes, self.removed_bytes = segments[-1], 0, -segments[-1].size
        self._use(config)
        self.replace_segments(segments)

    def __repr__(self) -> str:
        return f"Log({self.directory!r}, {self.log_start_offset} to {self.log_end_offset})"

    @property
    def lock(self) -> threading.RLock:
        """Held by every change of the log."""
        if self._lock is None:
            with _making:
                self._lock = self._lock or threading.RLock()
        return self._lock

    @property
    def writing(self) -> threading.Lock:
        """Held during a staged append and by code that excludes staged appends; taken before `lock`."""
        if self._writing is None:
            with _making:
                self._writing = self._writing or threading.Lock()
        return self._writing

    @property
    def maintenance(self) -> threading.Lock:
        """Held by flush, truncation and removal; taken before `lock`."""
        if self._maintenance is None:
            with _making:
                self._maintenance = self._maintenance or threading.Lock()
        return self._maintenance

    @property
    def write_failures(self) -> WriteFailures:
        """The last write that failed. The caller holds `lock`."""
        if self._write_failures is None:
            self._write_failures = WriteFailures()
        return self._write_failures

    @property
    def config(self) -> LogConfig:
        """The log's settings. May be set while the log is in use."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        with self.lock:
            self._use(config)
            self.set_limits()

    def _use(self, config: LogConfig) -> None:
        self._config = config
        self.stamps = config.message_timestamp_type is not TimestampType.CREATE_TIME  # records get the broker's time
        self._roll_ms = config.roll_ms(self.topic_id, self.partition)
        self.index_interval = config.index_interval_bytes
        self.producers.most = config.producer_ids_max

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        return self._sealed_bytes + self._active.size

    @property
    def written_bytes(self) -> int:
        """How many bytes were appended since the log was opened."""
        return self._sealed_bytes + self._active.size + self.removed_bytes

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, oldest first; the last is the active one. The list is replaced, never changed."""
        return self._view.segments

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._active

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Replace the list of segments; the last one is open for writing. The caller holds `lock`."""
        *sealed, active = segments
        kept = sum(map(_size, sealed)) if sealed else 0
        self.removed_bytes += self._sealed_bytes + self._active.size - kept - active.size
        self._sealed_bytes, self._view = kept, SegmentsView(tuple(segments))
        self.has_aborted = any(map(_has_aborted, sealed)) or active.has_aborted  # whether any transaction was aborted
        self._active, self._tail = active, _NO_TAIL  # where the last read ended: log end offset, segment, size
        self.set_limits()

    # Appending -----------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspections: Inspections | None = None,
        may_inspect: bool = True,
        terms: TransactionTerms | None = None,
    ) -> AppendResult:
        """Append record batches. Raises InvalidAppend or StorageFailure if nothing was appended.

        inspections: the result of `inspect` for these records.
        may_inspect: whether this call may take long to inspect records. If not, it raises InspectionNeeded instead.
        terms: describes the transaction of transactional batches.
        """
        with self._lock or self.lock:
            try:
                now_ms = self.now_ms()
                segment = self._active
                if origin is _CLIENT and inspections is None and leader_epoch == self.epochs.latest:
                    fields = self.fast_accept.check(records, segment.size, self.log_end_offset, now_ms, terms)
                    if fields is not None:
                        return append_one(self, segment, memoryview(records), leader_epoch, fields, terms)
                elif origin is _COORDINATOR and leader_epoch == self.epochs.latest:
                    header = self.fast_accept.check_own(records, segment.size, self.log_end_offset)
                    if header is not None:
                        return append_own(self, segment, memoryview(records), leader_epoch, header, terms)
                return self._append_checked(
                    memoryview(records), leader_epoch, origin, now_ms, inspections, may_inspect, terms
                )
            except StorageFailure as failure:
                self.write_failures.note(failure, self.log_end_offset, self.storage.seconds())
                raise
            except OutOfOrderSequence as gap:
                self.write_failures.explain(gap, self.log_end_offset, self.storage.seconds())
                raise

    @property
    def at_rest(self) -> bool:
        """Whether the files have to be opened before an append, because there was no append since the start."""
        return self._active.file is None and not self.closed

    def open(self) -> None:
        """Open the files of a log at rest. Waits for the disk. Raises StorageFailure."""
        with self.maintenance:
            open_files(self)

    def wants_inspection(self, records: Buffer) -> bool:
        """Return whether `append` has to inspect any of these records of a client."""
        return wants_inspection(memoryview(records), self._config)

    def inspect(self, records: Buffer) -> Inspections:
        """Inspect records that a client wants to append, for `append`. May take long."""
        return inspect(memoryview(records), self._config, self.now_ms())

    def append_batches(self, run: BatchRun, *, leader_epoch: int) -> int:
        """Append batches of clients with one write, up to the first batch that needs the general path.

        Return how many were appended; `run` has the rest of the result. Raises StorageFailure: nothing was appended.
        """
        with self._lock or self.lock:
            segment = self._active
            if leader_epoch != self.epochs.latest or not segment.has_entries_for(run.most):
                return 0
            try:
                return run.append_to(self, segment, leader_epoch)
            except StorageFailure as failure:
                self.write_failures.note(failure, self.log_end_offset, self.storage.seconds())
                raise

    def _append_checked(
        self,
        records: memoryview,
        leader_epoch: int,
        origin: AppendOrigin,
        now_ms: int,
        inspections: Inspections | None,
        may_inspect: bool,
        terms: TransactionTerms | None,
    ) -> AppendResult:
        """Append any number of batches of any origin: the general path."""
        if self.at_rest:
            open_for_append(self, may_inspect)
        accepted = accept(
            self, records, leader_epoch, origin, now_ms, inspections, may_inspect, end=self.log_end_offset, terms=terms
        )
        if isinstance(accepted, AppendResult):
            return accepted
        if self.needs_roll(accepted, now_ms):
            self.roll(accepted.base_offset, now_ms)
            if self.on_roll is not None:
                self.on_roll(self)
        buffers = accepted.buffers()
        segment = self._active
        segment.write(buffers if len(buffers) <= IOV_MAX else [b"".join(buffers)], accepted.size)
        batches = starmap(written, accepted.checked)
        commit(self, segment, buffers, accepted.size, batches, keep=accepted.as_is is None, limits=True)
        return accepted.result

    def needs_roll(self, accepted: Accepted, now_ms: int) -> bool:
        """Return whether these batches go to a new segment."""
        segment = self._active
        return accepted.last_offset - segment.base_offset > MAX_RELATIVE or bool(
            segment.size
            and (
                segment.size + accepted.size > self._config.segment_bytes
                or segment.full
                or self._is_due(accepted.newest, now_ms)
            )
        )

    def set_limits(self) -> None:
        """Compute which batches `fast_accept` may accept until this is called again."""
        segment, config = self._active, self._config
        segment.max_entries = max(config.segment_index_bytes // TIME_ENTRY, 1)
        if segment.size and not self.stamps and segment.file is not None and not (segment.full or self.closed):
            if self.fast_accept is REFUSE_ALL:
                self.fast_accept = FastAccept()
            self.fast_accept.set_limits(config, segment, self._roll_ms)
        else:
            self.fast_accept = REFUSE_ALL

    def _is_due(self, newest: int, now_ms: int) -> bool:
        """Return whether the active segment is older than `segment.ms`, by time stamps if it has any, as in Kafka."""
        segment = self._active
        if segment.first_timestamp >= 0 and newest >= 0:
            return newest - segment.first_timestamp > self._roll_ms
        return now_ms - segment.created_ms > self._roll_ms

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Start a new segment. The next `flush` or `seal` makes the old one durable. The caller excludes appends."""
        self.rolled(self.make_segment(base_offset, now_ms))

    def make_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Create the segment that comes after the active one. Raises StorageFailure. The caller excludes appends."""
        try:
            self._active.truncate_torn()
            if self._active.reopened:
                self._active.drop_index_files()
            return Segment.create(self.storage, self.directory, base_offset, created_ms=now_ms)
        except OSError as error:
            raise StorageFailure(self.directory, error) from error

    def rolled(self, segment: Segment) -> None:
        """Append to `segment`, which `make_segment` has made, from now on."""
        with self.lock:
            self.unwritten_snapshots = (*self.unwritten_snapshots, (self.log_end_offset, self.producers.to_snapshot()))
            self.replace_segments([*self.segments, segment])

    def exclude_appends(self) -> AbstractContextManager[object]:
        """Exclude appends while files of the active segment are changed. Waits for a write under way.

        Where appends are staged, the reactor takes `lock`, so no thread may hold `lock` while it waits for a disk.
        """
        return self.writing if self.storage.staged_appends else self.lock

    # Reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int | None = None,
        min_one: bool = True,
        allow_cold: bool = False,
        empty: bool = False,
    ) -> FileSlice | None:
        """Return whole batches of one segment from `offset` on, None if there are none. Raises OffsetOutOfRange.

        end_offset: only batches that end before it are returned.
        allow_cold: whether to wait for the disk; otherwise ColdRead is raised.
        min_one, empty: see `SegmentsView.look_up`.
        """
        if allow_cold:
            open_for_readers(self)
            end, view, last, size = self._locked_end()
        else:
            end, view = self.log_end_offset, self._view
            last = view.segments[-1]
            size = last.size
        if offset == end:
            return None
        if offset > end or offset < self.log_start_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, end)
        bound = end if end_offset is None or end_offset > end else end_offset
        if offset >= bound:
            return None
        tail_offset, segment, position = self._tail
        if offset == tail_offset and bound == end and segment is last and 0 < (length := size - position) <= max_bytes:
            return self._slice(last, position, length, -1, allow_cold)
        try:
            if self.closed:
                raise LogClosed(f"the log of {self.topic}-{self.partition} is closed")
            found = view.look_up(
                offset, bound, end, size, max_bytes, min_one=min_one, allow_cold=allow_cold, empty=empty
            )
            return None if found is None else self._found(offset, found, view, allow_cold)
        except StorageFailure:
            if offset < self.log_start_offset:  # retention has just removed it
                raise OffsetOutOfRange(offset, self.log_start_offset, end) from None
            raise

    def read_again(self, offset: int, max_bytes: int, end_offset: int) -> FileSlice | None:
        """Return the earlier result of `read` for the same limit; None if it is not known or ends differently now."""
        found = self._view.slices.get(offset)
        if found is None:
            return None
        limit, behind, records, *_ = found
        if limit != max_bytes or behind > end_offset or offset < self.log_start_offset or self.closed:
            return None
        return records

    def _locked_end(self) -> tuple[int, SegmentsView, Segment, int]:
        """Return log end offset, segments, last segment and its size, all of one moment, while others append."""
        with self.lock:
            last = self._view.segments[-1]
            return self.log_end_offset, self._view, last, last.size

    def _found(self, offset: int, found: Range, view: SegmentsView, allow_cold: bool) -> FileSlice:
        """Return the slice of a range that `view` has found for `offset`."""
        records = self._slice(*found, allow_cold)
        view.keep(offset, found, records)
        return records

    def _slice(self, segment: Segment, position: int, length: int, next_offset: int, allow_cold: bool) -> FileSlice:
        if segment is self._active and position + length == segment.size:
            with self._lock or self.lock:
                self._tail = self.log_end_offset, self._active, self._active.size
        file, cached = segment.reader(allow_cold=allow_cold), segment.cached
        if cached is None:
            return FileSlice(file, position, length, ZEROS if 0 <= next_offset < BELOW_ZEROS else 0)
        return cached.slice(file, position, length, sealed=segment is not self._active)

    def offset_for_timestamp(self, timestamp_ms: int, *, allow_cold: bool = False) -> tuple[int, int, int] | None:
        """Return (time stamp, offset, leader epoch) of the first record with at least this time stamp, None if none.

        allow_cold: whether to wait for the disk; otherwise ColdRead is raised.
        """
        return self._view.offset_for_timestamp(timestamp_ms, self.log_start_offset, allow_cold=allow_cold)

    def max_timestamp(self, *, allow_cold: bool = False) -> tuple[int, int, int] | None:
        """Return (time stamp, offset, leader epoch) of the first record with the largest time stamp, None if empty."""
        return self._view.max_timestamp(self.log_start_offset, allow_cold=allow_cold)

    def aborted_in(
        self, offset: int, records: FileSlice, stable_end: int, *, allow_cold: bool = False
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions in `records`, which were read from `offset` up to `stable_end` at most."""
        end = min(stable_end, self.log_end_offset)
        return self._view.aborted_in(offset, records, end, allow_cold=allow_cold) if self.has_aborted else []

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch of this log up to `epoch`, and its end offset; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # Start and end offsets -----------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset`, and return it. The next `tick` removes segments before it.

        Raises OffsetOutOfRange if the offset is after the log end offset.
        """
        with self.lock:
            if offset > self.log_end_offset:
                raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
            if offset > self.log_start_offset:
                self.log_start_offset = offset
                self.epochs.truncate_start(offset)
            return self.log_start_offset

    def truncated_to(self, segments: Sequence[Segment], offset: int, *, restarted: bool = False) -> None:
        """Adopt the state after a truncation of the files to these segments, which end at `offset`.

        restarted: whether no earlier record is left. The caller holds `lock`, and restores `producers`.
        """
        self.truncations += 1
        self.replace_segments(segments)
        self.closed_at = -1
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        if restarted:
            self.epochs.clear()  # epochs that end before the first record are removed too
        else:
            self.epochs.truncate_end(offset)
        snapshots = () if restarted else self.unwritten_snapshots
        self.unwritten_snapshots = tuple(snapshot for snapshot in snapshots if snapshot[0] <= offset)

    # Durability (waits for the disk: call these in a thread) -------------------------------------------------------

    def seal(self) -> None:
        """Make all segments but the active one durable, with indexes and snapshots. Raises StorageFailure."""
        with self.maintenance:
            seal_segments(self)

    def flush(self) -> None:
        """Make everything durable that was appended so far, and move the recovery point. Raises StorageFailure."""
        with self.maintenance:
            flush_log(self)

    def close(self, *, sync: bool = True) -> None:
        """Flush the log, write indexes and the producer snapshot, and close its files. Raises StorageFailure.

        sync: False if the caller syncs the volume afterwards, and calls `durability.volume_synced` then.
        """
        with self.maintenance:
            with self.exclude_appends(), self.lock:
                if self.closed:
                    return
                self.closed = True
                self.set_limits()
            write_closing_state(self, sync=sync)
            self.forget()

    def abandon(self) -> None:
        """Close the files without flushing: for a log that is deleted or whose disk has failed."""
        self.refuse_all()
        self.forget()

    def refuse_all(self) -> None:
        """Refuse appends and look-ups from now on. The files stay open and unchanged."""
        with self.lock:
            self.closed = self.abandoned = True
            self.set_limits()

    def forget(self) -> None:
        """Close files and drop indexes. Slices that are still being sent keep their file open."""
        self._view.slices.clear()
        for segment in self.segments:
            segment.forget()
