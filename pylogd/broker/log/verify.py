"""Check the consistency of a log on the disk: for `pylogd verify-log`, and for tests after each storage operation.

Each segment is scanned once, including CRCs, while its two indexes are read along. Nothing is changed, and no lock is
taken: in a log that is in use, the end of the active segment may be found incomplete.

It checks:
- lengths and CRCs;
- that offsets ascend within and across segments, and fit the file names;
- that each index entry points at the batch that it describes, and that the time index of a sealed segment ends with its
  largest time stamp;
- that each entry of a transaction index has its marker;
- that snapshots, checkpoints and metadata are readable and do not contradict the segments;
- that records can be decoded, if the caller asks for this;
- that there are no unknown files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pylogd.base.errors import ProtocolError
from pylogd.broker.log import checkpoints
from pylogd.broker.log.compaction.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from pylogd.broker.log.errors import CorruptFile
from pylogd.broker.log.files import TEMPORARY_SUFFIX, FileSystem, RealFileSystem, SegmentFile, read_file
from pylogd.broker.log.index import TRANSACTION_ENTRY, IndexCorrupt, OffsetIndex, TimeIndex, TransactionIndex
from pylogd.broker.log.loader import ORPHANED_SUFFIX, is_segment_name
from pylogd.broker.log.log_directory import DATA_DIRECTORY_FILES, DELETE_SUFFIX, STRAY_SUFFIX, split_name
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.producers import SnapshotCorrupt, read_snapshot
from pylogd.broker.log.scan import BadBatch, FoundBatch, scan
from pylogd.broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from pylogd.wire.records import decode_batch

STRAY = "a stray log: the metadata did not know its partition; kept until you remove it"
LEFTOVER = "an incomplete file: left by a crash, or being written right now"


class Severity(Enum):
    """How severe a finding is."""

    INFO = "info"  # worth knowing
    WARNING = "warning"  # unexpected, but no records are lost, or the next start repairs it
    ERROR = "error"  # damage


@dataclass(slots=True, frozen=True)
class Finding:
    """A finding: the file, the byte position if it is known, the severity and a message."""

    path: str
    position: int | None
    severity: Severity
    message: str

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}: byte {self.position}"
        return f"{self.severity.value}: {where}: {self.message}"


def verify_log_dir(path: str, *, records: bool = False, fs: FileSystem | None = None) -> Iterator[Finding]:
    """Check the directory of a partition, or a data directory with all of its partitions.

    records: whether to decode the records too.

    Raises OSError if a file can't be read.
    """
    fs = RealFileSystem() if fs is None else fs
    names = fs.listdir(path)
    if checkpoints.PARTITION_METADATA in names or any(name.endswith(LOG_SUFFIX) for name in names):
        yield from _Partition(fs, path, records).verify()
        return
    yield from _verify_data_directory(fs, path, sorted(names), records)


def _verify_data_directory(fs: FileSystem, path: str, names: list[str], records: bool) -> Iterator[Finding]:
    ends: dict[checkpoints.TopicPartition, int] = {}
    starts: dict[checkpoints.TopicPartition, int] = {}
    with contextlib.suppress(CorruptFile):  # reported below
        starts = checkpoints.read_offsets(fs, path, checkpoints.LOG_STARTS)
    for name in names:
        child = os.path.join(path, name)
        key = split_name(name)
        if fs.islink(child):
            yield Finding(child, None, Severity.WARNING, "a symbolic link; the broker does not follow links")
        elif key is not None and fs.isdir(child):
            partition = _Partition(fs, child, records, starts.get(key, 0))
            yield from partition.verify()
            ends[key] = partition.end
        elif name.endswith(STRAY_SUFFIX) and fs.isdir(child):
            yield Finding(child, None, Severity.WARNING, STRAY)
            yield from _Partition(fs, child, records).verify()
        elif name.endswith(DELETE_SUFFIX):
            yield Finding(child, None, Severity.INFO, "a deleted partition, about to be removed")
        elif name.endswith(TEMPORARY_SUFFIX):
            yield Finding(child, None, Severity.INFO, LEFTOVER)
        elif name not in DATA_DIRECTORY_FILES:
            yield Finding(child, None, Severity.WARNING, "not a file of pylogd")
    try:
        checkpoints.read_meta_properties(fs, path)
    except CorruptFile as error:
        yield Finding(error.path, None, Severity.ERROR, error.reason)
    for name, meaning in (
        (checkpoints.RECOVERY_POINTS, "is durable up to"),
        (checkpoints.LOG_STARTS, "starts at"),
        (checkpoints.CLEANER_OFFSETS, "is compacted up to"),
    ):
        try:
            offsets = checkpoints.read_offsets(fs, path, name)
        except CorruptFile as error:
            yield Finding(error.path, None, Severity.ERROR, error.reason)
            continue
        for key, offset in offsets.items():
            if key in ends and offset > ends[key]:
                message = f"it says that {key[0]}-{key[1]} {meaning} offset {offset}, but the log ends at {ends[key]}"
                yield Finding(os.path.join(path, name), None, Severity.ERROR, message)


class _Partition:
    """The check of one partition's directory.

    start: the log start offset.
    end: the log end offset, once the check is done.
    """

    def __init__(self, fs: FileSystem, directory: str, records: bool, start: int = 0) -> None:
        self.fs = fs
        self.directory = directory
        self.records = records
        self.start = start
        self.end = 0
        self.epoch = -1
        self.aborting: dict[int, dict[int, int]] = {}  # the aborting markers of each segment: the producer id by offset
        self.damaged = False  # whether the previous segment could not be read to its end

    def verify(self) -> Iterator[Finding]:
        """Iterate over all findings."""
        names = sorted(self.fs.listdir(self.directory))
        bases = [int(name[:20]) for name in names if is_segment_name(name) and name.endswith(LOG_SUFFIX)]
        for at, base in enumerate(bases):
            if at and base > self.end and base > self.start and not self.damaged:
                message = (
                    f"there are no records from offset {self.end} to {base - 1}: correct only if the log is compacted"
                )
                yield Finding(segment_path(self.directory, base), 0, Severity.WARNING, message)
            elif base < self.end:
                message = f"it starts at offset {base}, but the segment before it ends at {self.end - 1}: they overlap"
                yield Finding(segment_path(self.directory, base), 0, Severity.ERROR, message)
            self.end = max(self.end, base)
            yield from self._segment(base, newest=at + 1 == len(bases))
        for name in names:
            yield from self._other(name, bases)
        yield from self._checkpoints()

    def _segment(self, base: int, *, newest: bool) -> Iterator[Finding]:
        path = segment_path(self.directory, base)
        self.aborting[base] = {}
        size = self.fs.size(path)
        indexed = not newest and size > 0
        offsets = _OffsetCursor(self.fs, self.directory, base, size, indexed)
        times = _TimeCursor(self.fs, self.directory, base, indexed)
        try:
            for found in scan(SegmentFile(self.fs, path), size, base_offset=base):
                header = found.header
                offsets.pass_batch(found)
                times.pass_batch(found)
                if header.leader_epoch < self.epoch:
                    message = f"leader epoch {header.leader_epoch} follows epoch {self.epoch}"
                    yield Finding(path, found.position, Severity.WARNING, message)
                self.epoch = max(self.epoch, header.leader_epoch)
                self.end = max(self.end, header.next_offset)
                if header.is_control and (marker := read_marker(header, found.data)) and not marker.committed:
                    self.aborting[base][header.base_offset] = header.producer_id
                if self.records:
                    yield from _check_records(path, found)
        except BadBatch as bad:
            self.damaged = True
            message = f"{bad.reason}; the remaining {size - bad.position} bytes were not checked"
            yield Finding(path, bad.position, Severity.ERROR, message)
        else:
            self.damaged = False
            offsets.finish()
            times.finish()
        yield from offsets.problems
        yield from times.problems

    def _other(self, name: str, bases: list[int]) -> Iterator[Finding]:
        path = os.path.join(self.directory, name)
        if is_segment_name(name):
            if name.endswith(SNAPSHOT_SUFFIX):
                try:
                    read_snapshot(read_file(self.fs, path))
                except SnapshotCorrupt as error:
                    yield Finding(path, None, Severity.ERROR, str(error))
            elif name.endswith(TRANSACTION_INDEX_SUFFIX):
                yield from self._transaction_index(path, int(name[:20]))
            elif int(name[:20]) not in bases:
                yield Finding(path, None, Severity.WARNING, "an index without a log")
        elif name.endswith(DELETED_SUFFIX):
            yield Finding(path, None, Severity.INFO, "a deleted segment, about to be removed")
        elif name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            yield Finding(
                path,
                None,
                Severity.INFO,
                "a compaction in progress; if it was interrupted, the next start completes or discards it",
            )
        elif name.endswith(TEMPORARY_SUFFIX):
            yield Finding(path, None, Severity.INFO, LEFTOVER)
        elif name.endswith(ORPHANED_SUFFIX):
            yield Finding(
                path,
                None,
                Severity.WARNING,
                "a segment after a damaged batch, set aside by recovery; kept until you remove it",
            )
        elif name not in (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA):
            yield Finding(path, None, Severity.WARNING, "not a file of pylogd")

    def _transaction_index(self, path: str, base: int) -> Iterator[Finding]:
        """Compare a transaction index with the markers of its segment that abort a transaction."""
        if base not in self.aborting:
            yield Finding(path, None, Severity.WARNING, "an index without a log")
            return
        try:
            entries = TransactionIndex.from_bytes(read_file(self.fs, path), base).entries
        except IndexCorrupt as error:
            yield Finding(path, None, Severity.ERROR, str(error))
            return
        for at, entry in enumerate(entries):
            if self.aborting[base].get(entry.last_offset) != entry.producer_id:
                message = (
                    f"no marker at offset {entry.last_offset} aborts a transaction of producer {entry.producer_id}"
                )
                yield Finding(path, at * TRANSACTION_ENTRY, Severity.ERROR, message)

    def _checkpoints(self) -> Iterator[Finding]:
        path = os.path.join(self.directory, checkpoints.LEADER_EPOCHS)
        try:
            for epoch, start in checkpoints.read_leader_epochs(self.fs, self.directory):
                if start > self.end:
                    message = f"epoch {epoch} starts at offset {start}, but the log ends at {self.end}"
                    yield Finding(path, None, Severity.ERROR, message)
        except CorruptFile as error:
            yield Finding(error.path, None, Severity.ERROR, error.reason)
        try:
            checkpoints.read_partition_metadata(self.fs, self.directory)
        except CorruptFile as error:
            yield Finding(error.path, None, Severity.ERROR, error.reason)


def _check_records(path: str, found: FoundBatch) -> Iterator[Finding]:
    try:
        decode_batch(found.data, found.header, check_crc=False)
    except ProtocolError as error:
        yield Finding(path, found.position, Severity.ERROR, str(error))


class _OffsetCursor:
    """Compares an offset index with the batches of a scan."""

    def __init__(self, fs: FileSystem, directory: str, base: int, size: int, indexed: bool) -> None:
        self.path = segment_path(directory, base, INDEX_SUFFIX)
        self.problems: list[Finding] = []
        self.at = 0
        try:
            self.pairs = OffsetIndex.from_bytes(read_file(fs, self.path), base, size).pairs()
        except (FileNotFoundError, IndexCorrupt) as error:
            self.pairs = []
            self.problems = _unreadable_index(self.path, error, indexed)

    def pass_batch(self, found: FoundBatch) -> None:
        """Compare the next batch with the entries up to it."""
        while self.at < len(self.pairs) and self.pairs[self.at][1] <= found.position:
            offset, position = self.pairs[self.at]
            if (offset, position) != (found.header.last_offset, found.position):
                self._wrong(f"wrong entry: no batch at byte {position} ends at offset {offset}")
            self.at += 1

    def finish(self) -> None:
        """Report an entry after the end of the segment."""
        if self.at < len(self.pairs):
            self._wrong(f"it points to byte {self.pairs[self.at][1]}, where no batch starts")

    def _wrong(self, message: str) -> None:
        self.problems.append(Finding(self.path, self.at * 8, Severity.ERROR, message))


class _TimeCursor:
    """Compares a time index with the batches of a scan."""

    def __init__(self, fs: FileSystem, directory: str, base: int, indexed: bool) -> None:
        self.path = segment_path(directory, base, TIME_INDEX_SUFFIX)
        self.problems: list[Finding] = []
        self.sealed = indexed
        self.at = 0
        self.largest = -1
        try:
            self.pairs = TimeIndex.from_bytes(read_file(fs, self.path), base).pairs()
        except (FileNotFoundError, IndexCorrupt) as error:
            self.pairs = []
            self.sealed = False
            self.problems = _unreadable_index(self.path, error, indexed)

    def pass_batch(self, found: FoundBatch) -> None:
        """Compare the next batch with the entries up to it."""
        header = found.header
        self.largest = max(self.largest, header.max_timestamp)
        while self.at < len(self.pairs) and self.pairs[self.at][1] <= header.last_offset:
            stamp, offset = self.pairs[self.at]
            if stamp != self.largest or offset != header.last_offset:
                self._wrong(f"wrong entry: the largest time stamp up to offset {offset} is not {stamp}")
            self.at += 1

    def finish(self) -> None:
        """Report an entry after the end of the segment, and for a sealed one a wrong last time stamp."""
        if self.at < len(self.pairs):
            self._wrong(f"it points to offset {self.pairs[self.at][1]}, which the segment does not have")
        elif self.sealed and self.largest >= 0:
            last = self.pairs[-1][0] if self.pairs else -1
            if last != self.largest:
                self._wrong(f"its last time stamp is {last}, but the largest of the segment is {self.largest}")

    def _wrong(self, message: str) -> None:
        self.problems.append(Finding(self.path, self.at * 12, Severity.ERROR, message))


def _unreadable_index(path: str, error: Exception, indexed: bool) -> list[Finding]:
    """Return the findings for a missing or damaged index.

    indexed: False for an active or an empty segment.
    """
    if isinstance(error, FileNotFoundError):
        return [] if not indexed else [Finding(path, None, Severity.WARNING, "the index is missing")]
    return [Finding(path, None, Severity.ERROR, str(error))]
