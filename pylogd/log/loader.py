"""Making the log of a partition: a new one, or one that is on disk, with its end repaired after a crash.

Strategy: after a clean stop nothing is scanned: the last segment's last header gives the end. Otherwise the segments
from the recovery point on are scanned, CRC and all; the first batch that a crash may have torn is cut off with all that
follows it, and indexes, leader epochs and producers are brought up to the new end. Everything before is not touched.

Rules:
- nothing is dropped in silence: what is cut is logged with file, byte, and count of bytes;
- segments behind a cut that leaves a hole can't be offered to readers; they are renamed to `.orphaned` for a human,
  never deleted;
- files that contradict each other in a way no crash explains (whole batches with offsets that belong elsewhere,
  segments that overlap) are refused with `CorruptLog`; nothing is changed then;
- files that are not ours are left alone and named in the log;
- index files without their log, and files marked `.deleted`, are removed: they hold nothing that is not elsewhere.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from pylogd.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_leader_epochs, sync_partition_metadata
from pylogd.log.config import NO_LIMIT, LogConfig
from pylogd.log.epochs import LeaderEpochs
from pylogd.log.errors import LINK, CorruptFile, CorruptLog, StorageFailure
from pylogd.log.files import FileSystem, SegmentFile, sync_directory
from pylogd.log.index import Indexes
from pylogd.log.log import Log
from pylogd.log.producers import Producers
from pylogd.log.scan import BadBatch, scan
from pylogd.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    Storage,
    segment_path,
)
from pylogd.log.snapshots import restore_producers
from pylogd.log.swap import finish_swaps

_log = logging.getLogger(__name__)

ORPHANED_SUFFIX = ".orphaned"
_SEGMENT_NAME = re.compile(r"^(\d{20})\.(log|index|timeindex|snapshot|txnindex)$", re.ASCII)
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp")
_KNOWN_NAMES = frozenset({LEADER_EPOCHS, PARTITION_METADATA})


@dataclass(slots=True)
class Found:
    """Which log is to be opened, and what the checkpoints of its data directory say about it.

    is_link: a symbolic link stands in the place of the partition's directory.
    """

    directory: str
    topic: str
    partition: int
    topic_id: bytes
    recovery_point: int
    log_start_offset: int
    clean: bool
    is_link: bool = False


def load_log(
    found: Found, config: LogConfig, *, storage: Storage, now_ms: Callable[[], int], check: Callable[[], None]
) -> Log:
    """Open the log, recovered if need be. `CorruptLog` if it can't be offered; `StorageFailure` from the disk.

    `check` is called before each segment that is scanned, and may raise to end it there.
    """
    if found.is_link:
        raise CorruptLog(f"{found.directory}: {LINK}")
    try:
        return _Loader(found, config, storage, now_ms, check).load()
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
    """A new log, empty. The directory is there and holds no segment. `StorageFailure` from the disk."""
    try:
        segment = Segment.create(storage, directory, 0, created_ms=now_ms())
    except OSError as error:
        raise StorageFailure(directory, error) from error
    return Log(
        directory, topic, partition, topic_id, config, storage=storage, now_ms=now_ms, segments=[segment],
        log_start_offset=0, log_end_offset=0, recovery_point=0, epochs=LeaderEpochs(), producers=Producers(),
    )  # fmt: skip


class _Loader:
    """The steps of one load, with what they share."""

    def __init__(
        self,
        found: Found,
        config: LogConfig,
        storage: Storage,
        now_ms: Callable[[], int],
        check: Callable[[], None],
    ) -> None:
        self.check = check
        self.found = found
        self.config = config
        self.storage = storage
        self.now_ms = now_ms
        self.fs: FileSystem = storage.fs
        self.directory = found.directory
        self.epochs = self._read_epochs()
        self.without_producers: set[int] = set()  # scanned segments in which no batch has a producer id

    def load(self) -> Log:
        found = self.found
        finish_swaps(self.fs, self.directory)
        segments = [self._segment(base) for base in sort_files(self.fs, self.directory)]
        if not segments:
            segments = [self._first_segment()]
        clean = found.clean and segments[-1].file is None and self._ends_well(segments[-1])
        end = self._end_of(segments) if clean else self._recover(segments)
        for segment in segments[:-1]:
            self._complete(segment)
        start = max(found.log_start_offset, segments[0].base_offset)
        if start > end:
            _log.warning("%s: ends at offset %d, before its start, %d; it goes on there", self.directory, end, start)
            segments.append(Segment.create(self.storage, self.directory, start, created_ms=self.now_ms()))
            end, clean = start, False
        if segments[-1].file is None:
            segments[-1].open_for_append()
        self.epochs.truncate_end(end)
        self.epochs.truncate_start(start)
        if not clean:
            self._sync_entries()
        producers = Producers()
        restore_producers(self.fs, self.directory, segments, end, producers, self.without_producers)
        return Log(
            self.directory, found.topic, found.partition, found.topic_id, self.config,
            storage=self.storage, now_ms=self.now_ms, segments=segments, log_start_offset=start, log_end_offset=end,
            recovery_point=end, epochs=self.epochs, producers=producers, clean=clean,
        )  # fmt: skip

    def _sync_entries(self) -> None:
        """Make names durable that the crash may have caught: what they hold counts as flushed from here on."""
        sync_partition_metadata(self.fs, self.directory)
        sync_directory(self.fs, self.directory)

    def _read_epochs(self) -> LeaderEpochs:
        """The checkpoint; without a good one the epochs of the scanned segments are what is known."""
        try:
            return LeaderEpochs(read_leader_epochs(self.fs, self.directory))
        except CorruptFile as error:
            _log.warning("%s: leader epochs are read from the batches instead", error)
            self.found.clean = False
            self.found.recovery_point = 0
            return LeaderEpochs()

    def _segment(self, base: int) -> Segment:
        path = segment_path(self.directory, base)
        return Segment(self.storage, self.directory, base, self.fs.size(path), created_ms=self.fs.mtime_ms(path))

    def _first_segment(self) -> Segment:
        start = self.found.log_start_offset
        if self.found.recovery_point > start:
            _log.error(
                "%s: holds no segment, and held records up to offset %d: they are gone",
                self.directory, self.found.recovery_point,
            )  # fmt: skip
            start = self.found.recovery_point
        return Segment.create(self.storage, self.directory, start, created_ms=self.now_ms())

    def _ends_well(self, segment: Segment) -> bool:
        """Whether the last segment's index and headers lead to the end of its file."""
        try:
            segment.last_batch(allow_cold=True)
        except CorruptLog as error:
            _log.warning("%s: stopped cleanly, yet its end is damaged: it is recovered: %s", self.directory, error)
            self.storage.indexes.discard(segment.path)
            return False
        return True

    def _end_of(self, segments: list[Segment]) -> int:
        last = segments[-1].last_batch(allow_cold=True)
        return segments[-1].base_offset if last is None else last.next_offset

    def _complete(self, segment: Segment) -> None:
        """Rebuild indexes that are missing: of a segment that was rolled just before a crash, or by a careless hand."""
        if segment.file is None and not all(map(self.fs.exists, segment.file_paths())):
            segment.load_indexes()

    # Recovery ------------------------------------------------------------------------------------------------------

    def _recover(self, segments: list[Segment]) -> int:
        """Scan from the recovery point on; the log's end. Leaves in `segments` what can be offered."""
        first = max(
            (at for at, segment in enumerate(segments) if segment.base_offset <= self.found.recovery_point), default=0
        )
        end = segments[first].base_offset
        for at in range(first, len(segments)):
            self.check()
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            if segment.base_offset > end:
                self._note_gap(segment, end)
            end, cut = self._recover_segment(segment, following)
            if cut and end != following:
                self._orphan(segments[at + 1 :], end)
                del segments[at + 1 :]
                break
        return end

    def _note_gap(self, segment: Segment, end: int) -> None:
        if not self.config.compacts:
            _log.warning("%s: no records from offset %d to %d", segment.path, end, segment.base_offset - 1)

    def _recover_segment(self, segment: Segment, following: int | None) -> tuple[int, bool]:
        """The offset at which the segment ends, and whether something was cut off it."""
        size, base = segment.size, segment.base_offset
        twin = Segment(self.storage, self.directory, base, 0, created_ms=segment.created_ms)
        twin.indexes = Indexes.empty(base)
        twin.file = SegmentFile(self.fs, segment.path, os.O_RDWR)
        cut = idempotent = False
        last, limit = base - 1, NO_LIMIT if following is None else following
        interval, epochs, note = self.config.index_interval_bytes, self.epochs, twin.note_batch
        try:
            # By single fields: with small batches, this loop is what a start after a crash takes.
            for _, header, batch in scan(twin.file, size, base_offset=base):
                start, _, epoch, _, _, _, delta, _, stamp, producer, _, _, _ = header
                last = start + delta
                if last >= limit:
                    raise CorruptLog(
                        f"{segment.path}: byte {twin.size}: a batch up to offset {last}, "
                        f"where the next segment starts with {following}: the segments overlap"
                    )
                note(len(batch), last, stamp, interval)
                if epoch > epochs.latest:
                    epochs.assign(epoch, start)
                if producer >= 0:
                    idempotent = True
        except BadBatch as bad:
            if not bad.torn:
                raise CorruptLog(f"{segment.path}: {bad}: the file does not belong here") from bad
            cut = True
            _log.warning("%s: %s; cut there, %d bytes dropped", segment.path, bad, size - bad.position)
            self.fs.ftruncate(twin.file.fd, bad.position)
        segment.size = twin.size
        segment.forget()
        segment.adopt_timestamps(twin)
        twin.persist()
        if not idempotent:
            self.without_producers.add(base)
        return last + 1, cut

    def _orphan(self, segments: list[Segment], end: int) -> None:
        """Put aside what follows a cut: between it and the log's end there is a hole."""
        for segment in segments:
            segment.forget()
            for path in segment.file_paths():
                if self.fs.exists(path):
                    self.fs.rename(path, path + ORPHANED_SUFFIX)
            if segment.size:
                _log.error(
                    "%s: %d bytes behind the cut at offset %d can't be offered; kept as %s%s",
                    segment.path, segment.size, end, segment.path, ORPHANED_SUFFIX,
                )  # fmt: skip


def sort_files(fs: FileSystem, directory: str) -> list[int]:
    """The base offsets of the segments in the directory, ascending. Leftovers go, foreign files are named."""
    names = set(fs.listdir(directory))
    bases = sorted(int(name[:20]) for name in names if _SEGMENT_NAME.match(name) and name.endswith(LOG_SUFFIX))
    known = set(bases)
    for name in sorted(names):
        path = os.path.join(directory, name)
        match = _SEGMENT_NAME.match(name)
        if match is not None:
            if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and int(match[1]) not in known:
                _log.info("%s: an index without its log is removed", path)
                fs.unlink(path)
        elif name.endswith(_LEFTOVER_SUFFIXES):
            fs.unlink(path)
        elif name not in _KNOWN_NAMES and not name.endswith(ORPHANED_SUFFIX):
            _log.warning("%s is none of ours and is left alone", path)
    return bases


def is_segment_name(name: str) -> bool:
    """Whether a file of that name belongs to a segment."""
    return _SEGMENT_NAME.match(name) is not None
