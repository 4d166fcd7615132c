"""Do a compaction job: two passes over the segment files of one log, as in Kafka.

The first pass reads the part of the log that has not been compacted yet, and enters the last offset of each key in the
offset map, until the map is full. The second pass copies the log from its first segment on, without the records that
have a later one of the same key in the map. Small segments are merged. Batches that keep all of their records are
copied unchanged.

Rules:
- These are not touched: the active segment, records at or after the job's bound, and records at or after the start of
  an open transaction.
- The last batch of each new segment is kept, without records if need be, so that each segment ends where the next one
  starts. The last batch of each producer is kept too, since its sequence is restored from it after a crash. If a marker
  has ended the epoch of this batch, the markers of the producer's present epoch are kept instead.
- The transaction index keeps the entries whose markers are kept: without its marker, an aborted transaction would seem
  to a consumer not to end.
- A tombstone is kept for `delete.retention.ms` after the first compaction that met it. The marker of a transaction
  without remaining records is kept as long.
- Nothing here needs the open log: a job runs equally well in a thread or in a child process.

Source: Kafka documentation, "Log Compaction"; KIP-98, KIP-534.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from pylogd.base.errors import ProtocolError
from pylogd.broker.log.compaction.jobs import (
    CompactedSegment,
    CompactionJob,
    CompactionResult,
    InstallSegment,
    OffsetMapTooSmall,
    OnProgress,
)
from pylogd.broker.log.compaction.offset_map import OffsetMap
from pylogd.broker.log.compaction.rewrite import RecordColumns, delete_horizon, drop_records, keep_records, read_columns
from pylogd.broker.log.compaction.swap import CLEANED_SUFFIX, discard
from pylogd.broker.log.errors import CorruptLog, CorruptRecord, StorageFailure
from pylogd.broker.log.files import Buffer, SegmentFile, replace_file, sync_file, write_all
from pylogd.broker.log.index import MAX_RELATIVE
from pylogd.broker.log.index_files import read_transaction_index
from pylogd.broker.log.markers import END_MARKERS
from pylogd.broker.log.scan import BadBatch, FoundBatch, scan
from pylogd.broker.log.segment import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment, segment_path
from pylogd.broker.log.storage import Storage
from pylogd.broker.log.transactions import AbortedTransaction
from pylogd.wire.records import HEADER, BatchHeader, ControlType

_TYPE = slice(2, 4)  # the type in the key of a control record, which is int16 version, int16 type


def run_job(
    storage: Storage, offset_map: OffsetMap, job: CompactionJob, on_progress: OnProgress, install: InstallSegment
) -> CompactionResult:
    """Do the job in this thread. The offset map is emptied before and after.

    Raises CorruptLog if a batch can't be read, StorageFailure if the file system fails, and the errors of the
    callbacks.
    """
    offset_map.clear()
    try:
        return _Compaction(storage, offset_map, job, on_progress, install).run()
    except (BadBatch, CorruptRecord, ProtocolError) as error:
        raise CorruptLog(f"{job.directory}: can't be compacted: {error}") from error
    except OSError as error:
        raise StorageFailure(error.filename or job.directory, error) from error
    finally:
        offset_map.clear()


class _Compaction:
    """The two passes of one job, and the state that they share."""

    def __init__(
        self, storage: Storage, offset_map: OffsetMap, job: CompactionJob, on_progress: OnProgress,
        install: InstallSegment,
    ) -> None:  # fmt: skip
        self.fs = storage.fs
        self.offset_map = offset_map
        self.job = job
        self.segments = [Segment(storage, job.directory, base, size) for base, size in job.sources]
        self.bound = job.bound
        self.new_horizon_ms = job.now_ms + job.delete_retention_ms
        self.on_progress = on_progress
        self.unreported_bytes = 0
        self.install = install
        self.result = CompactionResult(job.first_dirty_offset, job.first_dirty_offset)
        self.outcomes: TransactionOutcomes | None = None  # set at the first transactional batch
        # The aborted transactions of the group that is copied, by the offset of the marker.
        self.aborted: dict[int, AbortedTransaction] = {}
        self.transactions_with_data: set[int] = set()  # producer ids whose current transaction has batches in the copy

    def run(self) -> CompactionResult:
        """Do both passes."""
        result = self.result
        result.end_offset = self._fill_map(self.segments)
        result.keys = len(self.offset_map)
        if result.end_offset > result.first_dirty_offset:
            sources = [segment for segment in self.segments if segment.base_offset < result.end_offset]
            for group in self._groups(sources):
                self._copy_group(group)
        return result

    def _scan(self, segment: Segment) -> Iterator[FoundBatch]:
        """Iterate over the batches of a segment."""
        for found in scan(segment.reader(allow_cold=True), segment.size, base_offset=segment.base_offset):
            yield found
            self._count(len(found.data))

    def _count(self, size: int) -> None:
        """Count bytes that were read or written, and report progress when it is due."""
        self.unreported_bytes += size
        if self.unreported_bytes >= self.job.check_bytes:
            self._report()

    def _report(self) -> None:
        self.on_progress(self.unreported_bytes)
        self.unreported_bytes = 0

    # The first pass ------------------------------------------------------------------------------------------------

    def _fill_map(self, segments: Sequence[Segment]) -> int:
        """Enter the last offset of each key that is not compacted yet. Return the offset up to which this was done."""
        first_dirty = self.result.first_dirty_offset
        starts = [at for at, segment in enumerate(segments) if segment.base_offset <= first_dirty]
        end = first_dirty
        for at in range(starts[-1] if starts else 0, len(segments)):
            for found in self._scan(segments[at]):
                header = found.header
                if header.last_offset < first_dirty:
                    continue
                if header.is_transactional and self.outcomes is None:
                    self._read_outcomes(segments[at:], header.base_offset)
                if header.last_offset >= self.bound or not self._enter_keys(header, found.data):
                    return end
                self.result.dirty_bytes += len(found.data)
                end = header.next_offset
        return end

    def _enter_keys(self, header: BatchHeader, batch: Buffer) -> bool:
        """Enter the keys of a batch in the map, and return True; return False if the map lacks the space.

        Raises OffsetMapTooSmall if not even an empty map could hold the batch.
        """
        if header.is_control or not header.record_count or (self.outcomes and self.outcomes.is_aborted(header)):
            return True
        offset_map = self.offset_map
        if header.record_count > offset_map.available:
            if not len(offset_map):
                raise OffsetMapTooSmall(
                    f"{self.job.directory}: a batch has {header.record_count} records, but a cleaner thread has memory "
                    f"for the keys of only {offset_map.capacity}: raise log.cleaner.dedupe.buffer.size"
                )
            return False
        columns = read_columns(batch, header)
        offset_map.put_all(columns.keys, _offsets(header, columns.offset_deltas))
        return True

    def _read_outcomes(self, segments: Sequence[Segment], start: int) -> None:
        """Find out how transactions from offset `start` on ended, and lower the bound to the first open one."""
        outcomes = self.outcomes = TransactionOutcomes()
        for segment in segments:
            for found in self._scan(segment):
                if start <= found.header.base_offset < self.bound:
                    outcomes.add(found.header, found.data)
        first_open = outcomes.first_open
        if first_open is not None:
            self.bound = min(self.bound, first_open)

    # The second pass -----------------------------------------------------------------------------------------------

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Divide the segments into groups. Each fits into one segment, by its size and by the range of its indexes."""
        segment_bytes = self.job.segment_bytes
        group: list[Segment] = []
        size = 0
        for at, segment in enumerate(segments):
            end = segments[at + 1].base_offset if at + 1 < len(segments) else self.result.end_offset
            if group and (size + segment.size > segment_bytes or end - 1 - group[0].base_offset > MAX_RELATIVE):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _copy_group(self, group: list[Segment]) -> None:
        """Write the new segment of a group and have it installed, unless it would equal the group's only segment."""
        if not any(segment.size for segment in group):
            return
        directory, base = self.job.directory, group[0].base_offset
        target = group[0].empty_copy()
        indexes = [read_transaction_index(self.fs, segment.file_paths()[-1], segment.base_offset) for segment in group]
        self.aborted = {aborted.last_offset: aborted for index in indexes for aborted in index.entries}
        try:
            path = segment_path(directory, base, LOG_SUFFIX) + CLEANED_SUFFIX
            file = SegmentFile(self.fs, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            changed = self._copy(group, target, file)
            if not changed and len(group) == 1:
                discard(self.fs, directory, base)
                return
            sync_file(self.fs, file.fd, file.path)
            assert target.indexes is not None
            target.write_indexes(target.indexes, sync=True, suffix=CLEANED_SUFFIX)
            if self.aborted and not target.indexes.aborted.entries:
                path = segment_path(directory, base, TRANSACTION_INDEX_SUFFIX) + CLEANED_SUFFIX
                replace_file(self.fs, path, b"", sync=True)  # an empty file replaces an index without entries
            self._report()
            replaces = tuple(segment.base_offset for segment in group)
            largest = target.largest_timestamp(allow_cold=True)
            has_aborted = bool(target.indexes.aborted.entries)
            self.install(CompactedSegment(replaces, target.size, largest, target.first_timestamp, has_aborted))
        except BaseException:
            with contextlib.suppress(OSError):
                discard(self.fs, directory, base)
            raise

    def _copy(self, group: list[Segment], target: Segment, file: SegmentFile) -> bool:
        """Write the batches of the group that are kept to `file`; return whether any batch was changed or dropped."""
        result, interval = self.result, self.job.index_interval_bytes
        last_segment = [segment for segment in group if segment.size][-1]
        pending: list[Buffer] = []
        written = 0
        changed = False
        for segment in group:
            for found in self._scan(segment):
                is_last = segment is last_segment and found.position + len(found.data) == segment.size
                batch = self._kept_part(found, is_last)
                result.bytes_read += len(found.data)
                result.records_read += found.header.record_count
                if batch is not found.data:
                    changed = True
                if batch is None:
                    continue
                header = found.header if batch is found.data else _header_of(batch)
                pending.append(batch)
                target.note_batch(len(batch), header.last_offset, header.max_timestamp, interval)
                if header.is_control and header.record_count and header.base_offset in self.aborted:
                    target.note_aborted(self.aborted[header.base_offset])
                result.records_kept += header.record_count
                if target.size - written >= self.job.io_buffer_bytes:
                    write_all(self.fs, file.fd, b"".join(pending), written)
                    self._count(target.size - written)
                    written, pending = target.size, []
        write_all(self.fs, file.fd, b"".join(pending), written)
        self._count(target.size - written)
        result.bytes_written += target.size
        return changed

    def _kept_part(self, found: FoundBatch, is_last: bool) -> Buffer | None:
        """Return the batch to keep: the batch itself, a smaller one, or None.

        is_last: whether the batch is the last of its new segment.
        """
        header, batch = found.header, found.data
        if header.base_offset >= self.result.end_offset:
            return batch
        horizon = delete_horizon(header)
        expired = horizon is not None and horizon <= self.job.now_ms
        if header.is_control:
            columns, kept, needs_horizon = self._kept_marker(header, batch, expired)
        else:
            columns, kept, needs_horizon = self._kept_records(header, batch, expired)
        if kept:
            new_horizon_ms = self.new_horizon_ms if needs_horizon and horizon is None else None
            if len(kept) == header.record_count and new_horizon_ms is None:
                return batch
            return keep_records(header, columns or read_columns(batch, header), kept, new_horizon_ms)
        if is_last or self._is_last_of_producer(header):
            return drop_records(header) if header.record_count else batch
        return None

    def _kept_records(self, header: BatchHeader, batch: Buffer, expired: bool) -> tuple[RecordColumns, list[int], bool]:
        """Return the records of a batch as columns, the indexes of the records to keep, and whether one is a tombstone.

        expired: whether the batch's delete horizon has passed.
        """
        aborted = self._note_transaction(header)
        columns = read_columns(batch, header)
        kept: list[int] = []
        if not aborted:
            offsets = _offsets(header, columns.offset_deltas)
            latest = self.offset_map.latest(columns.keys)
            kept = [at for at, (offset, last) in enumerate(zip(offsets, latest, strict=True)) if offset >= last]
            if None in columns.keys:
                kept = [at for at in kept if columns.keys[at] is not None]
        tombstones = columns.tombstones
        if not any(tombstones):
            return columns, kept, False
        if expired:
            kept = [at for at in kept if not tombstones[at]]
        return columns, kept, any(tombstones[at] for at in kept)

    def _kept_marker(
        self, header: BatchHeader, batch: Buffer, expired: bool
    ) -> tuple[RecordColumns | None, list[int], bool]:
        """Return the result of `_kept_records` for a control batch.

        Its marker is dropped once its transaction has no records left.
        """
        removable = self._is_marker_of_nothing(header, batch)
        kept = [] if removable and expired else list(range(header.record_count))
        return None, kept, removable and bool(kept)

    def _note_transaction(self, header: BatchHeader) -> bool:
        """Note that the transaction of a batch has data, if it has one; return whether it was aborted."""
        if not header.is_transactional:
            return False
        self.transactions_with_data.add(header.producer_id)
        return self.outcomes is not None and self.outcomes.is_aborted(header)

    def _is_marker_of_nothing(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether a control batch ends a transaction that has no batch in the copy."""
        if header.record_count and _control_type(header, batch) not in END_MARKERS:
            return False
        if header.producer_id in self.transactions_with_data:
            self.transactions_with_data.discard(header.producer_id)
            return False
        return True

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.is_control:
            return self.job.last_epochs.get(header.producer_id) == header.producer_epoch
        return self.job.last_offsets.get(header.producer_id) == header.last_offset


def _offsets(header: BatchHeader, deltas: Sequence[int]) -> Sequence[int]:
    """Return the offsets of a batch's records."""
    base = header.base_offset
    if len(deltas) == header.last_offset_delta + 1:
        return range(base, base + len(deltas))
    return [base + delta for delta in deltas]


def _header_of(batch: Buffer) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(batch))


class TransactionOutcomes:
    """Which transactional batches were aborted, and where the first open transaction starts.

    A transaction belongs to a producer and extends from its first batch to its marker. Only logs that have
    transactional batches are read for this.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> offset of the first batch
        self._aborted: dict[int, list[tuple[int, int]]] = {}  # producer id -> offsets of first batch and marker

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        """Add the next batch. Batches must be added in the order of the log."""
        if header.is_control:
            kind = _control_type(header, batch)
            first = self._open.pop(header.producer_id, None) if kind in END_MARKERS else None
            if first is not None and kind == ControlType.ABORT:
                self._aborted.setdefault(header.producer_id, []).append((first, header.base_offset))
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    @property
    def first_open(self) -> int | None:
        """The offset of the first batch of an open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        return any(first <= header.base_offset < end for first, end in self._aborted.get(header.producer_id, ()))


def _control_type(header: BatchHeader, batch: Buffer) -> int:
    """Return the type of a control batch, as in `ControlType`; -1 if compaction has removed its record."""
    keys = read_columns(batch, header).keys
    if not keys:
        return -1
    if keys[0] is None or len(keys[0]) < _TYPE.stop:
        raise CorruptRecord("a control record has no type")
    return int.from_bytes(keys[0][_TYPE], "big")
