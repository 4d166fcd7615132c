"""Compaction of one log: the last value of every key stays, at its offset and in its place.

Strategy, two passes (Kafka's): the dirty part is read and the last offset of each of its keys noted in the key map, as
far as the map has room; then the log is copied from its first segment on, without the records that have a later value
in the map. Segments that have become small are copied together. Batches of which all stays are copied as they are.

Rules:
- the active segment, what `deletable_offset` protects, what is younger than `min.compaction.lag.ms`, and what lies
  behind the start of an open transaction are not touched;
- the last batch of each new segment stays, empty if need be, so no segment ends before the next one starts; so does
  the last batch of each producer, by which its sequence is known after a crash;
- a delete marker, and the marker of a transaction of which nothing is left, stays `delete.retention.ms` from the first
  compaction that meets it;
- the log's locks are not held while copying. Before the swap it is looked whether the sources are still the log's.

`Stretch` says all that the two passes have to know of a log, so that they run as well in a process of their own
(`log.cleaning`) as in a thread; the swap is the broker's. `check` is called every
`check_bytes` with the bytes done since, to slow down or to stop by raising.
Must not know: which log is next, topics, the reactor.
Source: Kafka documentation, "Log Compaction"; KIP-98, KIP-534.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pylogd.errors import ProtocolError
from pylogd.log.errors import CorruptLog, CorruptRecord, LogClosed, StorageError, StorageFailure
from pylogd.log.files import Buffer, SegmentFile, sync_file, write_all
from pylogd.log.index import MAX_RELATIVE
from pylogd.log.keymap import KeyMap
from pylogd.log.log import Log
from pylogd.log.retention import unlink_later
from pylogd.log.rewrite import delete_horizon, emptied, rebuild, walk
from pylogd.log.scan import BadBatch, FoundBatch, scan
from pylogd.log.segment import LOG_SUFFIX, Segment, Storage, segment_path
from pylogd.log.swap import CLEANED_SUFFIX, commit, discard, is_undecided, put_away, take_place
from pylogd.log.transactions import ENDS, Outcomes, control_kind
from pylogd.wire.records import HEADER, BatchHeader

Check = Callable[[int], None]


class SourcesChanged(StorageError):
    """Retention, truncation or deletion took a segment while it was being compacted. Nothing was changed."""


class CleanerStopped(Exception):
    """The cleaner is to stop: raised at the next safe point of a compaction."""


class KeyMapTooSmall(StorageError):
    """One batch has more records than the key map has room for."""


@dataclass(slots=True)
class Cleaned:
    """What a compaction came to: the offsets it made clean, bytes and records before and after."""

    first_dirty: int
    end: int
    dirty_bytes: int = 0  # read by the first pass
    bytes_read: int = 0  # by the second
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0


@dataclass(slots=True, frozen=True)
class Stretch:
    """What of a log is to be compacted, and how.

    sources: (base offset, bytes) of each sealed segment up to `bound`, ascending.
    first_dirty: records from this offset on have not been compacted yet; `bound`: those from there on stay as they are.
    producers: the last offset of each producer whose sequence is remembered.
    """

    directory: str
    sources: tuple[tuple[int, int], ...]
    first_dirty: int
    bound: int
    producers: dict[int, int]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    io_buffer_bytes: int
    check_bytes: int

    @property
    def size(self) -> int:
        """Bytes of log in it."""
        return sum(size for _, size in self.sources)


@dataclass(slots=True, frozen=True)
class Made:
    """A new segment, written and synced under its `.cleaned` names, and what it is to take the place of.

    bases: the base offsets of those. largest: the largest time stamp and its offset; first: the first batch's.
    """

    bases: tuple[int, ...]
    size: int
    largest: tuple[int, int]
    first: int


Place = Callable[[Made], None]
#: Runs the passes over a stretch; `Place` is called with each new segment, `Check` on the way.
Passes = Callable[[Stretch, Check, Place], Cleaned]


def compact(log: Log, first_dirty: int, bound: int, passes: Passes, *, now_ms: int, check: Check,
            io_buffer_bytes: int = 1 << 20, check_bytes: int = 1 << 20) -> Cleaned:  # fmt: skip
    """Compact the log up to `bound`, or up to where the key map is full; sets `log.cleaned_offset`.

    Records from `first_dirty` on have not been compacted yet. Raises `CorruptLog`, `StorageFailure`, `SourcesChanged`.
    """
    cuts = log.cuts
    sealed = {segment.base_offset: segment for segment in log.segments[:-1] if segment.file is None}
    config = log.config
    with log.lock:
        producers = {key: known.batches[-1].last_offset for key, known in log.producers.by_id.items() if known.batches}
    stretch = Stretch(
        log.directory, tuple((base, segment.size) for base, segment in sealed.items() if base < bound),
        first_dirty, bound, producers, now_ms, config.delete_retention_ms,
        config.segment_bytes, config.index_interval_bytes, io_buffer_bytes, check_bytes,
    )  # fmt: skip

    def place(made: Made) -> None:
        try:
            swap(log, [sealed[base] for base in made.bases], made)
        except OSError as error:
            raise StorageFailure(error.filename or log.directory, error) from error

    result = passes(stretch, check, place)
    if result.end > result.first_dirty:
        with log.lock:
            if log.cuts != cuts:
                raise SourcesChanged(f"{log.directory}: it was truncated while it was compacted")
            log.cleaned_offset = result.end
    return result


def run_passes(storage: Storage, keys: KeyMap, stretch: Stretch, check: Check, place: Place) -> Cleaned:
    """Both passes, here and now. Raises `CorruptLog`, `StorageFailure`, and what `check` and `place` do."""
    keys.clear()
    try:
        return _Compaction(storage, keys, stretch, check, place).run()
    except (BadBatch, CorruptRecord, ProtocolError) as error:
        raise CorruptLog(f"{stretch.directory}: can't be compacted: {error}") from error
    except OSError as error:
        raise StorageFailure(error.filename or stretch.directory, error) from error
    finally:
        keys.clear()


class _Compaction:
    """The two passes, with what they share."""

    def __init__(self, storage: Storage, keys: KeyMap, stretch: Stretch, check: Check, place: Place) -> None:
        self.fs = storage.fs
        self.keys = keys
        self.stretch = stretch
        self.segments = [Segment(storage, stretch.directory, base, size) for base, size in stretch.sources]
        self.bound = stretch.bound
        self.horizon_ms = stretch.now_ms + stretch.delete_retention_ms
        self.check = check
        self.unchecked = 0
        self.place = place
        self.result = Cleaned(stretch.first_dirty, stretch.first_dirty)
        self.outcomes: Outcomes | None = None  # of transactions, once there is one
        self.observed: set[int] = set()  # producers whose transaction the copy is in, and some of it was there

    def run(self) -> Cleaned:
        result = self.result
        result.end = self._fill_map(self.segments)
        result.keys = len(self.keys)
        if result.end > result.first_dirty:
            for group in self._groups([segment for segment in self.segments if segment.base_offset < result.end]):
                self._copy_group(group)
        return result

    def _scan(self, segment: Segment) -> Iterator[FoundBatch]:
        """The segment's batches."""
        for found in scan(segment.reader(allow_cold=True), segment.size, base_offset=segment.base_offset):
            yield found
            self._done(len(found.data))

    def _done(self, count: int) -> None:
        """So many bytes more were read or written."""
        self.unchecked += count
        if self.unchecked >= self.stretch.check_bytes:
            self.check(self.unchecked)
            self.unchecked = 0

    # The first pass ------------------------------------------------------------------------------------------------

    def _fill_map(self, segments: Sequence[Segment]) -> int:
        """Note the last offset of each key of the dirty part; the offset up to which that was done."""
        first_dirty = self.result.first_dirty
        starts = [at for at, segment in enumerate(segments) if segment.base_offset <= first_dirty]
        end = first_dirty
        for at in range(starts[-1] if starts else 0, len(segments)):
            for found in self._scan(segments[at]):
                header = found.header
                if header.last_offset < first_dirty:
                    continue
                if header.is_transactional and self.outcomes is None:
                    self._read_outcomes(segments[at:], header.base_offset)
                if header.last_offset >= self.bound or not self._note_keys(header, found.data):
                    return end
                self.result.dirty_bytes += len(found.data)
                end = header.next_offset
        return end

    def _note_keys(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether the map had room for the batch."""
        if header.is_control or not header.record_count or (self.outcomes and self.outcomes.is_aborted(header)):
            return True
        keys = self.keys
        if header.record_count > keys.room:
            if not len(keys):
                raise KeyMapTooSmall(
                    f"{self.stretch.directory}: a batch of {header.record_count} records, and the key map of a cleaner "
                    f"thread has room for {keys.capacity}: raise log.cleaner.dedupe.buffer.size"
                )
            return False
        walked = walk(batch, header)
        keys.put_all(walked.keys, _offsets(header, walked.deltas))
        return True

    def _read_outcomes(self, segments: Sequence[Segment], start: int) -> None:
        """Learn how transactions ended, and that nothing from the first open one on is to be touched."""
        outcomes = self.outcomes = Outcomes()
        for segment in segments:
            for found in self._scan(segment):
                if start <= found.header.base_offset < self.bound:
                    outcomes.note(found.header, found.data)
        first_open = outcomes.first_open
        if first_open is not None:
            self.bound = min(self.bound, first_open)

    # The second pass -----------------------------------------------------------------------------------------------

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """The segments in runs that fit one segment together, by size and by the reach of its indexes."""
        segment_bytes = self.stretch.segment_bytes
        group: list[Segment] = []
        size = 0
        for at, segment in enumerate(segments):
            end = segments[at + 1].base_offset if at + 1 < len(segments) else self.result.end
            if group and (size + segment.size > segment_bytes or end - 1 - group[0].base_offset > MAX_RELATIVE):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _copy_group(self, group: list[Segment]) -> None:
        if not any(segment.size for segment in group):
            return
        directory, base = self.stretch.directory, group[0].base_offset
        target = group[0].twin()
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
            self.check(self.unchecked)
            self.unchecked = 0
            bases = tuple(segment.base_offset for segment in group)
            self.place(Made(bases, target.size, target.largest_timestamp(allow_cold=True), target.first_timestamp))
        except BaseException:
            with contextlib.suppress(OSError):
                discard(self.fs, directory, base)
            raise

    def _copy(self, group: list[Segment], target: Segment, file: SegmentFile) -> bool:
        """Write what stays of the group; whether anything did not stay as it was."""
        result, interval = self.result, self.stretch.index_interval_bytes
        last_segment = [segment for segment in group if segment.size][-1]
        pending: list[Buffer] = []
        written = 0
        changed = False
        for segment in group:
            for found in self._scan(segment):
                last = segment is last_segment and found.position + len(found.data) == segment.size
                batch = self._judge(found, last)
                result.bytes_read += len(found.data)
                result.records_read += found.header.record_count
                if batch is not found.data:
                    changed = True
                if batch is None:
                    continue
                header = found.header if batch is found.data else _header_of(batch)
                pending.append(batch)
                target.note_batch(len(batch), header.last_offset, header.max_timestamp, interval)
                result.records_kept += header.record_count
                if target.size - written >= self.stretch.io_buffer_bytes:
                    write_all(self.fs, file.fd, b"".join(pending), written)
                    self._done(target.size - written)
                    written, pending = target.size, []
        write_all(self.fs, file.fd, b"".join(pending), written)
        self._done(target.size - written)
        result.bytes_written += target.size
        return changed

    def _judge(self, found: FoundBatch, last: bool) -> Buffer | None:
        """What stays of a batch: the batch itself, a smaller one, or nothing. `last`: of the new segment."""
        header, batch = found.header, found.data
        if header.base_offset >= self.result.end:
            return batch
        horizon = delete_horizon(header)
        expired = horizon is not None and horizon <= self.stretch.now_ms
        if header.is_control:
            discardable = self._ends_nothing(header, batch)
            kept = [] if discardable and expired else list(range(header.record_count))
            marks = discardable and bool(kept)
            walked = walk(batch, header) if marks and horizon is None else None
        else:
            aborted = self._note_data(header)
            walked = walk(batch, header)
            kept = []
            if not aborted:
                offsets = _offsets(header, walked.deltas)
                latest = self.keys.latest(walked.keys)
                kept = [at for at, (offset, best) in enumerate(zip(offsets, latest, strict=True)) if offset >= best]
                if None in walked.keys:
                    kept = [at for at in kept if walked.keys[at] is not None]
            marks = any(walked.dead)
            if marks:
                if expired:
                    kept = [at for at in kept if not walked.dead[at]]
                marks = any(walked.dead[at] for at in kept)
        if kept:
            new_horizon = self.horizon_ms if marks and horizon is None else None
            if len(kept) == header.record_count and new_horizon is None:
                return batch
            assert walked is not None
            return rebuild(header, walked, kept, new_horizon)
        if last or self._is_producers_last(header):
            return emptied(header) if header.record_count else batch
        return None

    def _note_data(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction; and that its transaction has left something."""
        if not header.is_transactional:
            return False
        self.observed.add(header.producer_id)
        return self.outcomes is not None and self.outcomes.is_aborted(header)

    def _ends_nothing(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether a control batch marks the end of a transaction of which the copy met nothing."""
        if header.record_count and control_kind(header, batch) not in ENDS:
            return False
        if header.producer_id in self.observed:
            self.observed.discard(header.producer_id)
            return False
        return True

    def _is_producers_last(self, header: BatchHeader) -> bool:
        known = self.stretch.producers.get(header.producer_id)
        return known is not None and (known == header.last_offset or header.is_control)


def swap(log: Log, group: list[Segment], made: Made) -> None:
    """Put the new segment in the place of `group`. `SourcesChanged` if they are not the log's any more.

    A failure behind the point of no return leaves the log closed: the next start completes the swap.
    """
    fs, directory, base = log.storage.fs, log.directory, group[0].base_offset
    target = group[0].replacement(made.size, made.first, made.largest)
    with log.maintenance:
        _check_sources(log, group)
        for segment in group:
            segment.pin()
        try:
            commit(fs, directory, base)
            renamed = put_away(fs, directory, [segment.base_offset for segment in group[1:]])
            take_place(fs, directory, base)
        except BaseException:
            if is_undecided(fs, directory, base):
                for segment in group:
                    segment.unpin()
            else:
                log.refuse_all()
            raise
        with log.lock:
            segments = list(log.segments)
            at = segments.index(group[0])
            log.replace_segments([*segments[:at], target, *segments[at + len(group) :]])
        if renamed:
            unlink_later(log, renamed)


def _check_sources(log: Log, group: list[Segment]) -> None:
    with log.lock:
        if log.closed:
            raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")
        sealed = list(log.segments[:-1])
        at = sealed.index(group[0]) if group[0] in sealed else len(sealed)
        if sealed[at : at + len(group)] != group or any(segment.file is not None for segment in group):
            raise SourcesChanged(f"{log.directory}: segments from offset {group[0].base_offset} on were taken away")


def _offsets(header: BatchHeader, deltas: Sequence[int]) -> Sequence[int]:
    """The offsets of a batch's records."""
    base = header.base_offset
    if len(deltas) == header.last_offset_delta + 1:
        return range(base, base + len(deltas))
    return [base + delta for delta in deltas]


def _header_of(batch: Buffer) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(batch))
