"""The consistency check of a log on disk: for tests after every storage operation, and for users as a command.

Strategy: each segment is scanned once, CRC and all, while cursors walk its two indexes along. Nothing is changed, no
lock is taken; of a broker that runs, the end of the newest segment may be caught half-written.

What is checked: lengths, CRCs, offsets that ascend within and across segments and fit the file's name; that each index
entry points at the batch that it names, and a sealed segment's time index ends with its largest time stamp; snapshots,
checkpoints and metadata can be read and don't contradict the segments; with `records`, that records can be decoded.
Foreign files are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pylogd.errors import ProtocolError
from pylogd.log import checkpoints
from pylogd.log.directories import DATA_DIRECTORY_FILES, DELETE_SUFFIX, STRAY_SUFFIX, split_name
from pylogd.log.errors import CorruptFile
from pylogd.log.files import TEMPORARY_SUFFIX, FileSystem, RealFileSystem, SegmentFile, read_file
from pylogd.log.index import IndexCorrupt, OffsetIndex, TimeIndex
from pylogd.log.loader import ORPHANED_SUFFIX, is_segment_name
from pylogd.log.producers import SnapshotCorrupt, read_snapshot
from pylogd.log.scan import BadBatch, FoundBatch, scan
from pylogd.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from pylogd.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from pylogd.wire.records import decode_batch

STRAY = "a stray log: the metadata did not know its partition; kept until the operator removes it"
LEFTOVER = "half-written: left by a crash, or being written right now"


class Severity(Enum):
    """How bad a finding is."""

    INFO = "info"  # worth knowing
    WARNING = "warning"  # odd; nothing that was stored is lost by it, or the loader repairs it
    ERROR = "error"  # damage


@dataclass(slots=True, frozen=True)
class Finding:
    """Something found, and where: the file and, if it has one, the byte position."""

    path: str
    position: int | None
    severity: Severity
    message: str

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path}: byte {self.position}"
        return f"{self.severity.value}: {place}: {self.message}"


def verify_log_dir(path: str, *, records: bool = False, fs: FileSystem | None = None) -> Iterator[Finding]:
    """Check a partition's directory, or a data directory with all partitions in it. `OSError` if it can't be read."""
    fs = RealFileSystem() if fs is None else fs
    names = fs.listdir(path)
    if checkpoints.PARTITION_METADATA in names or any(name.endswith(LOG_SUFFIX) for name in names):
        yield from _Partition(fs, path, records).verify()
        return
    yield from _verify_data_directory(fs, path, sorted(names), records)


def _verify_data_directory(fs: FileSystem, path: str, names: list[str], records: bool) -> Iterator[Finding]:
    ends: dict[checkpoints.TopicPartition, int] = {}
    for name in names:
        child = os.path.join(path, name)
        key = split_name(name)
        if fs.islink(child):
            yield Finding(child, None, Severity.WARNING, "a symbolic link, which the broker does not follow")
        elif key is not None and fs.isdir(child):
            partition = _Partition(fs, child, records)
            yield from partition.verify()
            ends[key] = partition.end
        elif name.endswith(STRAY_SUFFIX) and fs.isdir(child):
            yield Finding(child, None, Severity.WARNING, STRAY)
            yield from _Partition(fs, child, records).verify()
        elif name.endswith(DELETE_SUFFIX):
            yield Finding(child, None, Severity.INFO, "a deleted partition that waits for its removal")
        elif name.endswith(TEMPORARY_SUFFIX):
            yield Finding(child, None, Severity.INFO, LEFTOVER)
        elif name not in DATA_DIRECTORY_FILES:
            yield Finding(child, None, Severity.WARNING, "a foreign file")
    try:
        checkpoints.read_meta_properties(fs, path)
    except CorruptFile as error:
        yield Finding(error.path, None, Severity.ERROR, error.reason)
    for name, what in (
        (checkpoints.RECOVERY_POINTS, "was durable up to"),
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
                message = f"{key[0]}-{key[1]} {what} offset {offset}, and its log ends with {ends[key]}"
                yield Finding(os.path.join(path, name), None, Severity.ERROR, message)


class _Partition:
    """The check of one partition's directory; `end` is the log's end afterwards."""

    def __init__(self, fs: FileSystem, directory: str, records: bool) -> None:
        self.fs = fs
        self.directory = directory
        self.records = records
        self.end = 0
        self.epoch = -1
        self.damaged = False  # whether the last segment could not be read to its end

    def verify(self) -> Iterator[Finding]:
        """All findings."""
        names = sorted(self.fs.listdir(self.directory))
        bases = [int(name[:20]) for name in names if is_segment_name(name) and name.endswith(LOG_SUFFIX)]
        for at, base in enumerate(bases):
            if at and base > self.end and not self.damaged:
                message = f"no records from offset {self.end} to {base - 1}: right only where the log is compacted"
                yield Finding(segment_path(self.directory, base), 0, Severity.WARNING, message)
            elif base < self.end:
                message = f"it starts with offset {base}, and the segment before it ends with {self.end - 1}"
                yield Finding(segment_path(self.directory, base), 0, Severity.ERROR, f"overlap: {message}")
            self.end = max(self.end, base)
            yield from self._segment(base, newest=at + 1 == len(bases))
        for name in names:
            yield from self._other(name, bases)
        yield from self._checkpoints()

    def _segment(self, base: int, *, newest: bool) -> Iterator[Finding]:
        path = segment_path(self.directory, base)
        size = self.fs.size(path)
        offsets = _OffsetCursor(self.fs, self.directory, base, size, newest)
        times = _TimeCursor(self.fs, self.directory, base, newest)
        try:
            for found in scan(SegmentFile(self.fs, path), size, base_offset=base):
                header = found.header
                offsets.pass_batch(found)
                times.pass_batch(found)
                if header.leader_epoch < self.epoch:
                    message = f"leader epoch {header.leader_epoch} behind epoch {self.epoch}"
                    yield Finding(path, found.position, Severity.WARNING, message)
                self.epoch = max(self.epoch, header.leader_epoch)
                self.end = max(self.end, header.next_offset)
                if self.records:
                    yield from _check_records(path, found)
        except BadBatch as bad:
            self.damaged = True
            message = f"{bad.reason}; the {size - bad.position} bytes from there on were not checked"
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
            elif int(name[:20]) not in bases:
                yield Finding(path, None, Severity.WARNING, "an index without its log")
        elif name.endswith(DELETED_SUFFIX):
            yield Finding(path, None, Severity.INFO, "a deleted segment that waits for its removal")
        elif name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            yield Finding(path, None, Severity.INFO, "a compaction under way; a start completes or discards it")
        elif name.endswith(TEMPORARY_SUFFIX):
            yield Finding(path, None, Severity.INFO, LEFTOVER)
        elif name.endswith(ORPHANED_SUFFIX):
            yield Finding(path, None, Severity.WARNING, "put aside by a recovery: it lay behind a damaged batch")
        elif name not in (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA):
            yield Finding(path, None, Severity.WARNING, "a foreign file")

    def _checkpoints(self) -> Iterator[Finding]:
        path = os.path.join(self.directory, checkpoints.LEADER_EPOCHS)
        try:
            for epoch, start in checkpoints.read_leader_epochs(self.fs, self.directory):
                if start > self.end:
                    message = f"epoch {epoch} starts at offset {start}, and the log ends with {self.end}"
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
    """Walks an offset index along a scan."""

    def __init__(self, fs: FileSystem, directory: str, base: int, size: int, newest: bool) -> None:
        self.path = segment_path(directory, base, INDEX_SUFFIX)
        self.problems: list[Finding] = []
        self.at = 0
        try:
            self.pairs = OffsetIndex.from_bytes(read_file(fs, self.path), base, size).pairs()
        except (FileNotFoundError, IndexCorrupt) as error:
            self.pairs = []
            self.problems = _unreadable_index(self.path, error, newest)

    def pass_batch(self, found: FoundBatch) -> None:
        """Compare with the entries up to this batch."""
        while self.at < len(self.pairs) and self.pairs[self.at][1] <= found.position:
            offset, position = self.pairs[self.at]
            if (offset, position) != (found.header.last_offset, found.position):
                self._wrong(f"it says that a batch ending with offset {offset} is at byte {position}; it is not")
            self.at += 1

    def finish(self) -> None:
        """Nothing may be left at the segment's end."""
        if self.at < len(self.pairs):
            self._wrong(f"it points at byte {self.pairs[self.at][1]}, where no batch starts")

    def _wrong(self, message: str) -> None:
        self.problems.append(Finding(self.path, self.at * 8, Severity.ERROR, message))


class _TimeCursor:
    """Walks a time index along a scan."""

    def __init__(self, fs: FileSystem, directory: str, base: int, newest: bool) -> None:
        self.path = segment_path(directory, base, TIME_INDEX_SUFFIX)
        self.problems: list[Finding] = []
        self.sealed = not newest
        self.at = 0
        self.largest = -1
        try:
            self.pairs = TimeIndex.from_bytes(read_file(fs, self.path), base).pairs()
        except (FileNotFoundError, IndexCorrupt) as error:
            self.pairs = []
            self.sealed = False
            self.problems = _unreadable_index(self.path, error, newest)

    def pass_batch(self, found: FoundBatch) -> None:
        """Compare with the entries up to this batch."""
        header = found.header
        self.largest = max(self.largest, header.max_timestamp)
        while self.at < len(self.pairs) and self.pairs[self.at][1] <= header.last_offset:
            stamp, offset = self.pairs[self.at]
            if stamp != self.largest or offset != header.last_offset:
                self._wrong(f"it says that {stamp} is the largest time stamp up to offset {offset}; it is not")
            self.at += 1

    def finish(self) -> None:
        """Nothing may be left at the segment's end, and a sealed segment's index ends with its largest time stamp."""
        if self.at < len(self.pairs):
            self._wrong(f"it names offset {self.pairs[self.at][1]}, which the segment does not have")
        elif self.sealed and self.largest >= 0:
            last = self.pairs[-1][0] if self.pairs else -1
            if last != self.largest:
                self._wrong(f"its last time stamp is {last}, and the segment's largest is {self.largest}")

    def _wrong(self, message: str) -> None:
        self.problems.append(Finding(self.path, self.at * 12, Severity.ERROR, message))


def _unreadable_index(path: str, error: Exception, newest: bool) -> list[Finding]:
    """An index that is missing or corrupt: the loader rebuilds it. The newest segment's is written at a roll."""
    if isinstance(error, FileNotFoundError):
        return [] if newest else [Finding(path, None, Severity.WARNING, "the index is missing")]
    return [Finding(path, None, Severity.ERROR, str(error))]
