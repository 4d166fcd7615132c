"""The log of one partition: segments in order of offset, appended to at the end, read from anywhere.

Strategy: an append checks the batches, gives them offsets, and writes them with one `pwritev`: sixteen new bytes (base
offset, length, leader epoch) and the rest of the batch as it came, uncopied. One plain batch of a client (`plain`),
which is nearly every append, goes a short way through `append` itself, and small ones that came together are written
together (`append_run`); all others go through `check_batches`. A read has `reading` find the place and hands out a
`FileSlice`; no record byte passes through here. What takes segments away works on a log from outside: `truncation`,
`retention`, `swap`.

Rules:
- an append is all or nothing, also with several batches and when the disk is full;
- offsets never go back, and `log_end_offset` moves only after the bytes are in the page cache;
- nothing is written to disk beyond the batches themselves on the append path: indexes, snapshots, epochs and
  checkpoints are written by `flush`, `tick` of the manager, and `close`.

Threads: `append`, truncation, `delete_records_before`, rolls and the removal of segments exclude each other by a
lock, which nobody but truncation holds while waiting for a sync. Reads take no lock: the list of segments is replaced,
never changed.
Must not know: high watermarks, replicas, the protocol's error codes.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pylogd.log.checkpoints import write_leader_epochs
from pylogd.log.config import LogConfig, TimestampType
from pylogd.log.epochs import LeaderEpochs
from pylogd.log.errors import LogClosed, OffsetOutOfRange, RecordListTooLarge, StorageFailure
from pylogd.log.files import Buffer, FileSlice, sync_directory
from pylogd.log.index import MAX_RELATIVE, TIME_ENTRY
from pylogd.log.plain import PlainBatches
from pylogd.log.producers import Producers, WrittenBatch
from pylogd.log.reading import SegmentsView
from pylogd.log.segment import Segment, Storage
from pylogd.log.snapshots import write_snapshot
from pylogd.log.validator import (
    AppendOrigin,
    Checked,
    Inspections,
    check_batches,
    check_epochs,
    inspect,
    wants_inspection,
    with_log_append_time,
)
from pylogd.wire.records import LENGTH_OVERHEAD

NO_TIMESTAMP = -1

_PREFIX = struct.Struct(">qii")  # base offset, batch length, leader epoch: what the broker writes into a batch
_PREFIX_SIZE = _PREFIX.size
_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)

_pack_prefix = _PREFIX.pack


class AppendResult(NamedTuple):
    """What an append came to. `log_append_time` is -1 where the time stamps are the client's."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False


class Log:
    """See the module. Made by the loader.

    `deletable_offset` is set by the replica: what lies at or behind it is never deleted by retention (`None`: no such
    bound). `on_roll` is called when an append has gone on in a new segment and the old one can be made durable; `lock`
    is held then, and it must not wait. `recovery_point` is the offset up to which all is on stable storage. `clean`
    says that the log was closed in order and is opened as it was.
    """

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        storage: Storage,
        now_ms: Callable[[], int],
        segments: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: Producers,
        clean: bool = False,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.storage = storage
        self.now_ms = now_ms
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.epochs = epochs
        self.producers = producers
        self.deletable_offset: int | None = None
        self.cleaned_offset = 0  # up to which the log was compacted
        self.cuts = 0  # how often the end was cut back
        self.on_roll: Callable[[], None] | None = None
        self.closed = False
        self.abandoned = False
        self.last_flush = storage.seconds()
        self.pending_unlinks: list[tuple[float, list[str]]] = []  # when they may go, files renamed to .deleted
        self.lock = threading.Lock()  # of everything that changes the log; held for no sync but truncation's
        self.maintenance = threading.Lock()  # of flush, truncation and removal; taken before `lock`
        self._snapshots: list[tuple[int, bytes]] = []  # taken at a roll, written by `flush`
        self._entered = clean  # whether the directory's own name is known to be on stable storage
        self._closed_at = log_end_offset if clean else -1  # the end at which a close would change nothing
        self._config = config
        self._create_time = True
        self._roll_ms = 0
        self._plain = PlainBatches()
        self.replace_segments(segments)
        self.config = config

    def __repr__(self) -> str:
        return f"Log({self.directory!r}, {self.log_start_offset} to {self.log_end_offset})"

    @property
    def config(self) -> LogConfig:
        """The log's settings; set it to change them while the log is in use."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        with self.lock:
            self._config = config
            self._create_time = config.message_timestamp_type is TimestampType.CREATE_TIME
            self._roll_ms = config.roll_ms(self.topic_id, self.partition)
            self._index_interval = config.index_interval_bytes
            self._set_limits()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum([segment.size for segment in self.segments])

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, oldest first; the last is the active one. The list is replaced, never changed."""
        return self._view.segments

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self._active

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Put another list of segments in place; the last one is open for writing. `lock` is held by the caller."""
        self._view = SegmentsView(segments)
        self._active = segments[-1]
        self._tail: tuple[int, Segment, int] = (-1, self._active, 0)  # the end as the last reader of it saw it
        self._set_limits()

    # Appending -----------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspections: Inspections | None = None,
        may_inspect: bool = True,
    ) -> AppendResult:
        """Append record batches. `InvalidAppend` and `StorageFailure` say that nothing was appended.

        inspections: what `inspect` found in these records. may_inspect: whether this call may take long over records
        that have to be looked into; if not, it raises InspectionNeeded.
        """
        with self.lock:
            now_ms = self.now_ms()
            if origin is AppendOrigin.CLIENT and inspections is None and leader_epoch == self.epochs.latest:
                plain = self._plain.look(records, self._active.size, self.log_end_offset, now_ms)
                if plain is not None:
                    return self._append_one(memoryview(records), leader_epoch, *plain)
            return self._append_checked(memoryview(records), leader_epoch, origin, now_ms, inspections, may_inspect)

    def wants_inspection(self, records: Buffer) -> bool:
        """Whether `append` has to look into any of these records of a client."""
        return wants_inspection(memoryview(records), self._config)

    def inspect(self, records: Buffer) -> Inspections:
        """Look into records that a client wants to append; what `append` has to know of them. May take long."""
        return inspect(memoryview(records), self._config, self.now_ms())

    def _append_one(
        self, view: memoryview, leader_epoch: int, delta: int, newest: int, producer_id: int, epoch: int, sequence: int
    ) -> AppendResult:
        """The short way: one plain batch."""
        if producer_id >= 0:
            duplicate = self.producers.check(producer_id, epoch, sequence, delta)
            if duplicate is not None:
                return self._duplicate(duplicate)
        size = len(view)
        base = self.log_end_offset
        last = base + delta
        segment = self._active
        segment.write((_pack_prefix(base, size - LENGTH_OVERHEAD, leader_epoch), view[_PREFIX_SIZE:]), size)
        if segment.note_batch(size, last, newest, self._index_interval):
            self._set_limits()
        if producer_id >= 0:
            self.producers.wrote(producer_id, epoch, sequence, delta, base, newest)
        self.log_end_offset = last + 1
        return _new_result((base, last, NO_TIMESTAMP, self.log_start_offset, False))

    @property
    def takes_runs(self) -> bool:
        """Whether `append_run` may append anything just now."""
        return self._plain.segment_bytes >= 0

    def append_run(self, run: Sequence[memoryview], *, leader_epoch: int) -> list[int]:
        """Append small batches of clients with one write, as many from the front as are plain; the base offset of each.

        The others are for `append`. `StorageFailure` says that none was appended.
        """
        with self.lock:
            segment = self._active
            if leader_epoch != self.epochs.latest or not segment.has_entries_for(len(run)):
                return []
            placed = self._plain.place(run, segment.size, self.log_end_offset, self.now_ms(), self.producers)
            if not placed:
                return []
            parts: list[Buffer] = []
            for records, base, _ in placed:
                parts += (_pack_prefix(base, len(records) - LENGTH_OVERHEAD, leader_epoch), records[_PREFIX_SIZE:])
            data = b"".join(parts)  # a copy: cheaper than to write so many small buffers
            segment.write([data], len(data))
            for records, base, (delta, newest, producer_id, epoch, sequence) in placed:
                segment.note_batch(len(records), base + delta, newest, self._index_interval)
                if producer_id >= 0:
                    self.producers.wrote(producer_id, epoch, sequence, delta, base, newest)
            self.log_end_offset = base + delta + 1
            return [base for _, base, _ in placed]

    def _append_checked(
        self,
        records: memoryview,
        leader_epoch: int,
        origin: AppendOrigin,
        now_ms: int,
        inspections: Inspections | None,
        may_inspect: bool,
    ) -> AppendResult:
        """The general way: any number of batches of any origin."""
        if self.closed:
            raise LogClosed(f"the log of {self.topic}-{self.partition} is closed")
        checked = check_batches(records, origin, self._config, now_ms, self.log_end_offset, inspections, may_inspect)
        if len(records) > self._config.segment_bytes and origin is not AppendOrigin.REPLICATION:
            raise RecordListTooLarge(
                f"batches of {len(records)} bytes together are over segment.bytes, {self._config.segment_bytes}"
            )
        stamp = NO_TIMESTAMP
        if origin is AppendOrigin.REPLICATION:
            check_epochs([header for header, _ in checked], self.epochs.latest, leader_epoch)
        else:
            duplicate = self.producers.check_all([header for header, _ in checked])
            if duplicate is not None:
                return self._duplicate(duplicate)
            if not self._create_time:
                stamp = now_ms
                checked = [with_log_append_time(batch, now_ms) for _, batch in checked]
            checked = self._with_offsets(checked, leader_epoch)
        self._write_checked(checked, records if origin is AppendOrigin.REPLICATION else None, len(records), now_ms)
        first, last = checked[0][0], checked[-1][0]
        return AppendResult(first.base_offset, last.last_offset, stamp, self.log_start_offset)

    def _with_offsets(self, checked: list[Checked], leader_epoch: int) -> list[Checked]:
        """The batches with the offsets that they get here."""
        offset = self.log_end_offset
        placed = []
        for header, batch in checked:
            placed.append((header._replace(base_offset=offset, leader_epoch=leader_epoch), batch))
            offset += header.last_offset_delta + 1
        return placed

    def _write_checked(self, checked: list[Checked], as_is: memoryview | None, size: int, now_ms: int) -> None:
        """Write the batches, with their offsets and epochs; `as_is` are their bytes where these have them already."""
        first, last_offset = checked[0][0], checked[-1][0].last_offset
        newest = max(header.max_timestamp for header, _ in checked)
        segment = self._active
        if last_offset - segment.base_offset > MAX_RELATIVE or (
            segment.size
            and (segment.size + size > self._config.segment_bytes or segment.full or self._is_due(newest, now_ms))
        ):
            self.roll(first.base_offset, now_ms)
            segment = self._active
            if self.on_roll is not None:
                self.on_roll()
        buffers: list[Buffer] = [] if as_is is None else [as_is]
        for header, batch in checked if as_is is None else ():
            buffers += (
                _pack_prefix(header.base_offset, header.batch_length, header.leader_epoch),
                batch[_PREFIX_SIZE:],
            )
        segment.write(buffers if len(buffers) <= _IOV_MAX else [b"".join(buffers)], size)
        for header, batch in checked:
            segment.note_batch(len(batch), header.last_offset, header.max_timestamp, self._index_interval)
            self.producers.note(header)
            self.epochs.assign(header.leader_epoch, header.base_offset)
        self._set_limits()
        self.log_end_offset = last_offset + 1

    def _duplicate(self, batch: WrittenBatch) -> AppendResult:
        stamp = NO_TIMESTAMP if self._create_time else batch.timestamp
        return AppendResult(batch.base_offset, batch.last_offset, stamp, self.log_start_offset, True)

    def _set_limits(self) -> None:
        """Work out how far the short way goes before the general one has to look at the segment again."""
        segment, config = self._active, self._config
        segment.max_entries = max(config.segment_index_bytes // TIME_ENTRY, 1)
        usable = self._create_time and segment.size and not (segment.full or self.closed or config.compacts)
        self._plain.set_limits(config, segment, self._roll_ms, bool(usable))

    def _is_due(self, newest: int, now_ms: int) -> bool:
        """Whether the active segment is older than `segment.ms`: by time stamps if there are any, as Kafka has it."""
        segment = self._active
        if segment.first_timestamp >= 0 and newest >= 0:
            return newest - segment.first_timestamp > self._roll_ms
        return now_ms - segment.created_ms > self._roll_ms

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Go on in a new segment. The old one is made durable by the next `flush` or `seal`. `lock` is held."""
        try:
            self._active.cut_torn()
            if self._active.reopened:
                self._active.drop_index_files()
            segment = Segment.create(self.storage, self.directory, base_offset, created_ms=now_ms)
        except OSError as error:
            raise StorageFailure(self.directory, error) from error
        self._snapshots.append((self.log_end_offset, self.producers.to_snapshot()))
        self.replace_segments([*self.segments, segment])

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
        """Batches from the one that holds `offset` on (the next one if compaction removed it), up to `max_bytes`.

        The first batch has records: those that compaction emptied are passed over, unless `empty`. A replica needs
        them, since they tell the last sequence of their producer.

        `None` if there is nothing to hand out before `end_offset`, which is exclusive and lets only whole batches
        through, or if the first batch is over `max_bytes` and not `min_one`. A slice is of whole
        batches of one segment. Raises `OffsetOutOfRange`, and `ColdRead` unless `allow_cold`.
        """
        if allow_cold:
            with self.lock:  # in a thread, beside appends: the segment's size has to be that of this end
                end, view = self.log_end_offset, self._view
                last = view.segments[-1]
                size = last.size
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
            return self._slice(segment, position, length, allow_cold)
        try:
            if self.closed:
                raise LogClosed(f"the log of {self.topic}-{self.partition} is closed")
            found = view.look_up(
                offset, bound, end, size, max_bytes, min_one=min_one, allow_cold=allow_cold, empty=empty
            )
            return None if found is None else self._slice(*found, allow_cold)
        except StorageFailure:
            if offset < self.log_start_offset:  # retention was faster
                raise OffsetOutOfRange(offset, self.log_start_offset, end) from None
            raise

    def _slice(self, segment: Segment, position: int, length: int, allow_cold: bool) -> FileSlice:
        if segment is self._active and position + length == segment.size:
            with self.lock:
                self._tail = self.log_end_offset, self._active, self._active.size
        return FileSlice(segment.reader(allow_cold=allow_cold), position, length)

    def offset_for_timestamp(self, timestamp_ms: int, *, allow_cold: bool = False) -> tuple[int, int, int] | None:
        """(time stamp, offset, leader epoch) of the first record as young as `timestamp_ms`, if there is one."""
        return self._view.offset_for_timestamp(timestamp_ms, self.log_start_offset, allow_cold=allow_cold)

    def max_timestamp(self, *, allow_cold: bool = False) -> tuple[int, int, int] | None:
        """(time stamp, offset, leader epoch) of the youngest record, the first of them; `None` of a log without any."""
        return self._view.max_timestamp(self.log_start_offset, allow_cold=allow_cold)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest leader epoch here that is not above `epoch`, and its end offset; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # Ends ----------------------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start up to `offset`; the start there is then. Segments go with the next `tick`."""
        with self.lock:
            if offset > self.log_end_offset:
                raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
            if offset > self.log_start_offset:
                self.log_start_offset = offset
                self.epochs.truncate_start(offset)
            return self.log_start_offset

    def end_at(self, segments: Sequence[Segment], offset: int, *, anew: bool = False) -> None:
        """Be cut back to `segments` and `offset`, the new end; `producers` is the caller's to cut. `lock` is held.

        `anew`: nothing of what was there before is left.
        """
        self.cuts += 1
        self.replace_segments(segments)
        self._closed_at = -1
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        self.epochs.truncate_end(offset)
        self._snapshots = [] if anew else [snapshot for snapshot in self._snapshots if snapshot[0] <= offset]

    # Durability ----------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Make segments that were rolled durable, with indexes and snapshots. Waits for the disk."""
        with self.maintenance:
            self.seal_held()

    def flush(self) -> None:
        """Make everything appended so far durable and move the recovery point. Waits for the disk: use a thread."""
        with self.maintenance:
            self._flush()

    def seal_held(self) -> None:
        """`seal`, for who holds `maintenance`."""
        with self.lock:
            if self.abandoned:  # the directory may have another name by now: that is no failure of the disk
                raise LogClosed(f"the log of {self.topic}-{self.partition} is closed")
            sealed = [segment for segment in self.segments[:-1] if segment.file is not None]
            snapshots = list(self._snapshots)
            base = self._active.base_offset
        fs = self.storage.fs
        try:
            with self.lock:
                self._active.cut_torn()
            for segment in sealed:
                segment.persist()
            for offset, data in snapshots:
                write_snapshot(fs, self.directory, offset, data)
            self._write_epochs()
            if sealed:
                sync_directory(fs, self.directory)
        except OSError as error:
            raise StorageFailure(self.directory, error) from error
        with self.lock:
            self._snapshots = [snapshot for snapshot in self._snapshots if snapshot not in snapshots]
        self._recovered_to(base)

    def _write_epochs(self) -> None:
        if self.epochs.dirty:
            self.epochs.dirty = False
            try:
                write_leader_epochs(self.storage.fs, self.directory, self.epochs.entries())
            except OSError:
                self.epochs.dirty = True
                raise

    def _flush(self) -> None:
        end = self.log_end_offset
        self.last_flush = self.storage.seconds()
        active = self._active  # if it is rolled from here on, it is sealed below
        self.seal_held()
        if end <= self.recovery_point and self._entered:
            return
        active.sync()
        try:
            self._sync_entries()
        except OSError as error:
            raise StorageFailure(self.directory, error) from error
        self._recovered_to(end)

    def _recovered_to(self, offset: int) -> None:
        if self.abandoned:  # meanwhile, so that the files may have been let go of before they were synced
            raise LogClosed(f"the log of {self.topic}-{self.partition} is closed")
        self.recovery_point = max(self.recovery_point, offset)

    def _sync_entries(self) -> None:
        """Make the names durable: of the newest segment, and the first time of the partition itself."""
        fs = self.storage.fs
        sync_directory(fs, self.directory)
        if not self._entered:
            sync_directory(fs, os.path.dirname(self.directory))
            self._entered = True

    def close(self) -> None:
        """Make everything durable, write indexes and the producers' snapshot, let go of the files."""
        with self.maintenance:
            with self.lock:
                if self.closed:
                    return
                self.closed = True
                self._set_limits()
            self._flush()
            if self.log_end_offset != self._closed_at or self._active.torn:
                self._active.persist(sync=False)
                write_snapshot(self.storage.fs, self.directory, self.log_end_offset, self.producers.to_snapshot())
            self.forget()

    def abandon(self) -> None:
        """Let go of the files as they are: of a log that is deleted, or whose disk has failed."""
        self.refuse_all()
        self.forget()

    def refuse_all(self) -> None:
        """Be closed to appends and look-ups, with the files left as they are."""
        with self.lock:
            self.closed = self.abandoned = True
            self._set_limits()

    def forget(self) -> None:
        """Let go of descriptors and indexes; slices in flight keep theirs."""
        for segment in self.segments:
            segment.forget()


_new_result: Callable[[tuple[int, int, int, int, bool]], AppendResult] = partial(tuple.__new__, AppendResult)
