"""Open the log of one partition: create a new one, or load one from the disk and recover it after a crash.

After a clean stop nothing is scanned: `stopped_logs` has the state of the log, or the last batch header of the last
segment gives the log end offset. Otherwise the
segments from the recovery point on are scanned, including CRCs. The log is truncated at the first batch that a crash
may have left incomplete, and indexes, leader epochs and producers are brought up to the new end. Everything before the
recovery point is left as it is. `bulk_loader` loads all logs of a broker.

Rules:
- Whatever is removed is logged, with file, position and number of bytes.
- Segments that would follow a gap after a truncation can't be served. They are renamed to `.orphaned`, never deleted.
- Files that contradict each other in a way that no crash can cause (intact batches with offsets that belong elsewhere,
  overlapping segments) are refused with CorruptLog, and nothing is changed.
- Unknown files are left alone, with a warning.
- Index files without their log, and files marked `.deleted`, are removed: they hold nothing that is needed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pylogd.broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_leader_epochs, sync_partition_metadata
from pylogd.broker.log.compaction.swap import finish_swaps
from pylogd.broker.log.config import NO_LIMIT, LogConfig
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.errors import LINK, CorruptFile, CorruptLog, StorageFailure
from pylogd.broker.log.files import FileSystem, SegmentFile, sync_directory
from pylogd.broker.log.index_files import read_transaction_index
from pylogd.broker.log.log import Log
from pylogd.broker.log.paced import log_class
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.scan import BadBatch, scan
from pylogd.broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from pylogd.broker.log.snapshots import (
    rebuild_transaction_indexes,
    remove_snapshots_above,
    restore_producers,
    write_snapshot,
)
from pylogd.broker.log.stopped_logs import StoppedLog, restore_log
from pylogd.broker.log.storage import Storage
from pylogd.wire.records import CONTROL

_log = logging.getLogger(__name__)

ORPHANED_SUFFIX = ".orphaned"
_SEGMENT_NAME = re.compile(r"^(\d{20})\.(log|index|timeindex|snapshot|txnindex)$", re.ASCII)
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp")
_KNOWN_NAMES = frozenset({LEADER_EPOCHS, PARTITION_METADATA})


@dataclass(slots=True)
class FoundLog:
    """A log on the disk that has to be loaded.

    topic_id: all zeros if unknown.
    recovery_point, log_start_offset: the values in the checkpoints of the data directory.
    clean: whether the data directory was closed cleanly.
    is_link: whether the log's directory is a symbolic link.
    stopped: the state of the log at the last stop; None if that is not known.
    """

    directory: str
    topic: str
    partition: int
    topic_id: bytes
    recovery_point: int
    log_start_offset: int
    clean: bool
    is_link: bool = False
    stopped: StoppedLog | None = None


def load_log(
    found: FoundLog,
    config: LogConfig,
    *,
    storage: Storage,
    now_ms: Callable[[], int],
    check: Callable[[], None],
    sync: bool = True,
) -> Log:
    """Load a log, and recover it if need be.

    check: called before each segment that is scanned. It may raise to end the loading.
    sync: False if the caller syncs the volume before the next checkpoint, so that recovery need not sync what it
        writes.

    Raises StorageFailure, and CorruptLog if the log can't be served.
    """
    if found.is_link:
        raise CorruptLog(f"{found.directory}: {LINK}")
    if found.stopped is not None:
        log = restore_log(
            found.stopped, found.directory, found.log_start_offset, config, storage=storage, now_ms=now_ms
        )
        if log is not None:
            return log
    try:
        return _Loader(found, config, storage, now_ms, check, sync).load()
    except OSError as error:
        raise StorageFailure(error.filename or found.directory, error) from error


def create_log(
    directory: str,
    topic: str,
    partition: int,
    topic_id: bytes,
    config: LogConfig,
    *,
    storage: Storage,
    now_ms: Callable[[], int],
) -> Log:
    """Create an empty log in a directory that exists and has no segments. Raises CorruptLog, StorageFailure."""
    try:
        segment = Segment.create(storage, directory, 0, created_ms=now_ms())
    except OSError as error:
        raise StorageFailure(directory, error) from error
    return log_class(storage)(
        directory, topic, partition, topic_id, config, storage=storage, now_ms=now_ms, segments=[segment],
        log_start_offset=0, log_end_offset=0, recovery_point=0, epochs=LeaderEpochs(), producers=Producers(),
    )  # fmt: skip


class _Loader:
    """The steps of loading one log, and the state that they share."""

    def __init__(
        self,
        found: FoundLog,
        config: LogConfig,
        storage: Storage,
        now_ms: Callable[[], int],
        check: Callable[[], None],
        sync: bool,
    ) -> None:
        self.check = check
        self.sync = sync
        self.found = found
        self.config = config
        self.storage = storage
        self.now_ms = now_ms
        self.fs: FileSystem = storage.fs
        self.directory = found.directory
        self.epochs = LeaderEpochs()
        self.without_producers: set[int] = set()  # base offsets of scanned segments without idempotent batches
        self.markers_unknown: set[int] = set()  # base offsets of segments whose transaction index has to be rebuilt
        self.names: Collection[str] = ()  # the names of the files in the directory
        self.scanned_producers: Producers | None = None  # set if the scan has seen all batches

    def load(self) -> Log:
        """Do all steps."""
        found = self.found
        names = self.names = finish_swaps(self.fs, self.directory)
        if LEADER_EPOCHS in names:
            self.epochs = self._read_epochs()
        stored = self.epochs.entries()
        segments = [self._segment(base) for base in sort_files(self.fs, self.directory, names)]
        if not segments:
            segments = [self._first_segment()]
        clean = found.clean and segments[-1].file is None and self._ends_well(segments[-1])
        if any(name.endswith(TRANSACTION_INDEX_SUFFIX) for name in names):
            self._check_transaction_indexes(segments)
        end = self._end_offset(segments) if clean else self._recover(segments)
        start = max(found.log_start_offset, segments[0].base_offset)
        if start > end:
            _log.warning("%s ends at offset %d, before its log start offset %d; it continues at the log start offset",
                         self.directory, end, start)  # fmt: skip
            segments.append(Segment.create(self.storage, self.directory, start, created_ms=self.now_ms()))
            end, clean = start, False
            self._forget_producers(start)
        incomplete = [segment for segment in segments[:-1] if self._lacks_indexes(segment)]
        self.markers_unknown.update(segment.base_offset for segment in incomplete)
        if self.markers_unknown:
            rebuild_transaction_indexes(self.fs, self.directory, segments, self.markers_unknown)
        for segment in incomplete:
            if segment.size:
                self._write_indexes(segment)
        self.epochs.truncate_end(end)
        self.epochs.truncate_start(start)
        self.epochs.saved(stored)
        if not clean and self.sync:
            self._sync_names()
        return log_class(self.storage)(
            self.directory, found.topic, found.partition, found.topic_id, self.config,
            storage=self.storage, now_ms=self.now_ms, segments=segments, log_start_offset=start, log_end_offset=end,
            recovery_point=end, epochs=self.epochs, producers=self._producers(segments, end), clean=clean,
        )  # fmt: skip

    def _producers(self, segments: list[Segment], end: int) -> Producers:
        """Return the state of the producers at the log end offset."""
        if self.scanned_producers is not None:
            return self.scanned_producers
        producers = Producers()
        if end or self._has_snapshots():
            restore_producers(self.fs, self.directory, segments, end, producers, self.without_producers)
        return producers

    def _forget_producers(self, start: int) -> None:
        """Forget the producers of a log that lost its end, also for the next start. Kafka does so too.

        The end of a transaction may be among the lost records, and its coordinator would not write it again.
        """
        remove_snapshots_above(self.fs, self.directory, -1)
        self.scanned_producers = Producers()
        write_snapshot(self.fs, self.directory, start, self.scanned_producers.to_snapshot(), sync=self.sync)

    def _has_snapshots(self) -> bool:
        return any(name.endswith(SNAPSHOT_SUFFIX) for name in self.names)

    def _sync_names(self) -> None:
        """Make the file names durable: the crash may have prevented it, and the log counts as flushed from now on."""
        sync_partition_metadata(self.fs, self.directory)
        sync_directory(self.fs, self.directory)

    def _read_epochs(self) -> LeaderEpochs:
        """Read the leader epochs. If the file is damaged, the whole log is scanned to find them in the batches."""
        try:
            return LeaderEpochs(read_leader_epochs(self.fs, self.directory))
        except CorruptFile as error:
            _log.warning("%s; the log is scanned to restore the leader epochs", error)
            self.found.clean = False
            self.found.recovery_point = 0
            return LeaderEpochs()

    def _segment(self, base: int) -> Segment:
        path = segment_path(self.directory, base)
        stamp = self.fs.stamp(path)
        if stamp is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        size, changed_ns = stamp
        return Segment(self.storage, self.directory, base, size, created_ms=changed_ns // 1_000_000)

    def _first_segment(self) -> Segment:
        """Create the first segment of a log that has none. It starts after everything that was ever flushed."""
        start = self.found.log_start_offset
        if self.found.recovery_point > start:
            _log.error(
                "%s has no segments, although it had records up to offset %d: these are lost",
                self.directory, self.found.recovery_point,
            )  # fmt: skip
            start = self.found.recovery_point
        return Segment.create(self.storage, self.directory, start, created_ms=self.now_ms())

    def _check_transaction_indexes(self, segments: list[Segment]) -> None:
        """Note which segments have aborted transactions, and which transaction indexes are damaged."""
        for segment in segments:
            path = segment_path(self.directory, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
            if self.fs.exists(path):
                segment.has_aborted = True
                try:
                    read_transaction_index(self.fs, path, segment.base_offset)
                except CorruptLog as error:
                    _log.warning("Rebuilding a transaction index: %s", error)
                    self.fs.unlink(path)
                    self.markers_unknown.add(segment.base_offset)

    def _ends_well(self, segment: Segment) -> bool:
        """Return whether the last batch of a segment ends at the end of its file."""
        try:
            if segment.size:
                segment.last_batch(allow_cold=True)
        except CorruptLog as error:
            _log.warning("Recovering %s: it was closed cleanly, but its end is damaged: %s", self.directory, error)
            self.storage.indexes.discard(segment.path)
            return False
        return True

    def _end_offset(self, segments: list[Segment]) -> int:
        last = segments[-1].last_batch(allow_cold=True) if segments[-1].size else None
        return segments[-1].base_offset if last is None else last.next_offset

    def _lacks_indexes(self, segment: Segment) -> bool:
        """Return whether a segment that was not scanned lacks indexes, since a crash came soon after it was rolled.

        Its transaction index is then missing or outdated too. The recovery point does not tell this: a flush of the
        active segment moves it without writing indexes.
        """
        *required, _ = segment.file_paths()  # a transaction index exists only if there are aborted transactions
        return segment.file is None and not all(map(self.fs.exists, required))

    def _write_indexes(self, segment: Segment) -> None:
        """Rebuild the index files of a segment. Every segment must have them, except the last one if it is small."""
        _log.warning("Rebuilding the indexes of %s: a file is missing", segment.path)
        path = segment_path(self.directory, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        aborted = read_transaction_index(self.fs, path, segment.base_offset)
        segment.rebuild_indexes(aborted, self.config.index_interval_bytes)

    # Recovery ------------------------------------------------------------------------------------------------------

    def _recover(self, segments: list[Segment]) -> int:
        """Scan from the recovery point on. Return the log end offset.

        Removes segments that can't be served from `segments`.
        """
        first = max(
            (at for at, segment in enumerate(segments) if segment.base_offset <= self.found.recovery_point), default=0
        )
        end = segments[first].base_offset
        if not first and not self._has_snapshots():
            self.scanned_producers = Producers()
        for at in range(first, len(segments)):
            self.check()
            segment = segments[at]
            next_base_offset = segments[at + 1].base_offset if at + 1 < len(segments) else None
            if segment.base_offset > end:
                self._log_gap(segment, end)
            end, truncated = self._recover_segment(segment, next_base_offset)
            if truncated and end != next_base_offset:
                self._orphan(segments[at + 1 :], end)
                del segments[at + 1 :]
                break
        return end

    def _log_gap(self, segment: Segment, end: int) -> None:
        if not self.config.compacts:
            _log.warning("%s: there are no records from offset %d to %d", self.directory, end, segment.base_offset - 1)

    def _recover_segment(self, segment: Segment, next_base_offset: int | None) -> tuple[int, bool]:
        """Scan a segment, and truncate it if need be; return the offset after it, and whether it was truncated."""
        size, base = segment.size, segment.base_offset
        if not size:
            self.without_producers.add(base)
            return base, False
        scanned = segment.empty_copy()
        scanned.file = SegmentFile(self.fs, segment.path, os.O_RDWR)
        end, bad = self._scan_batches(scanned, size, next_base_offset)
        if bad is not None:
            if not bad.torn:
                raise CorruptLog(f"{segment.path}: {bad}: the file does not belong to this log") from bad
            _log.warning("Truncating %s: %s. %d bytes are removed", segment.path, bad, size - bad.position)
            self.fs.ftruncate(scanned.file.fd, bad.position)
        segment.size = scanned.size
        segment.forget()
        segment.known_timestamp = scanned.known_timestamp
        unindexed = next_base_offset is None and scanned.is_small and base not in self.markers_unknown
        scanned.persist(sync=self.sync, indexed=not unindexed or self._has_index_files(base))
        return end, bad is not None

    def _has_index_files(self, base: int) -> bool:
        """Return whether a segment has any index file, which recovery replaces or removes."""
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        return any(f"{base:020d}{suffix}" in self.names for suffix in suffixes)

    def _scan_batches(self, scanned: Segment, size: int, next_base_offset: int | None) -> tuple[int, BadBatch | None]:
        """Note the batches of a file in `scanned`, up to its end or to the first invalid batch.

        Return the offset after them, and the invalid batch, if any. Raises CorruptLog.
        """
        assert scanned.file is not None
        idempotent = control = False
        invalid: BadBatch | None = None
        base = scanned.base_offset
        last, limit = base - 1, NO_LIMIT if next_base_offset is None else next_base_offset
        interval, epochs, note = self.config.index_interval_bytes, self.epochs, scanned.note_batch
        producers = self.scanned_producers
        try:
            # Fields are taken one by one: a start after a crash spends most of its time in this loop if batches are
            # small.
            for _, header, batch in scan(scanned.file, size, base_offset=base):
                start, _, epoch, _, _, attributes, delta, _, stamp, producer, _, _, _ = header
                if last < base and epochs.epoch_of(start) != epoch:  # the file of the leader epochs is older
                    epochs.truncate_end(start)
                last = start + delta
                if last >= limit:
                    raise CorruptLog(
                        f"{scanned.path}: the batch at byte {scanned.size} ends at offset {last}, but the next segment "
                        f"starts at {next_base_offset}: the segments overlap"
                    )
                note(len(batch), last, stamp, interval)
                if epoch > epochs.latest:
                    epochs.assign(epoch, start)
                if producer >= 0:
                    idempotent = True
                    control = control or bool(attributes & CONTROL)
                    if producers is not None:
                        producers.note(header, batch)
        except BadBatch as bad:
            invalid = bad
        if not idempotent:
            self.without_producers.add(base)
        if control:
            self.markers_unknown.add(base)
        return last + 1, invalid

    def _orphan(self, segments: list[Segment], end: int) -> None:
        """Rename the segments after a truncation, because they do not continue the log."""
        for segment in segments:
            segment.forget()
            for path in segment.file_paths():
                if self.fs.exists(path):
                    self.fs.rename(path, path + ORPHANED_SUFFIX)
            if segment.size:
                _log.error(
                    "%s: %d bytes after the log's new end at offset %d can't be served; they are kept as %s%s",
                    segment.path, segment.size, end, segment.path, ORPHANED_SUFFIX,
                )  # fmt: skip


def sort_files(fs: FileSystem, directory: str, names: Collection[str]) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, ascending.

    names: the names of the files in the directory.

    Removes leftovers of deletions and of interrupted writes; logs a warning for unknown files.
    """
    bases = sorted(int(name[:20]) for name in names if _SEGMENT_NAME.match(name) and name.endswith(LOG_SUFFIX))
    known = set(bases)
    for name in sorted(names):
        if name in _KNOWN_NAMES:
            continue
        path = os.path.join(directory, name)
        match = _SEGMENT_NAME.match(name)
        if match is not None:
            if (
                name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX))
                and int(match[1]) not in known
            ):
                _log.info("Removing %s: there is no log for this index", path)
                fs.unlink(path)
        elif name.endswith(_LEFTOVER_SUFFIXES):
            fs.unlink(path)
        elif not name.endswith(ORPHANED_SUFFIX):
            _log.warning("%s is not a file of pylogd and is left alone", path)
    return bases


def is_segment_name(name: str) -> bool:
    """Return whether a file with this name belongs to a segment."""
    return _SEGMENT_NAME.match(name) is not None
