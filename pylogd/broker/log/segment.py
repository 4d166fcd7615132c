"""A segment: one `.log` file of record batches with its indexes.

The active segment keeps its file open and its indexes in memory, from the first append after a start on (`opening`). A
sealed segment, once it is durable, hands both over to bounded caches. When they are needed again, it gets them from
there or from the disk. To look an offset up, the offset index is bisected and batch headers are read through one small
window; records are not read.

Files: `<base offset, 20 digits>.log`, and the same with `.index` and `.timeindex`; `.txnindex` if a transaction was
aborted. The last segment of a log gets index files at a stop, unless it is small. One read of a small segment's batches
tells the same, and creating 20,000 files for 10,000 segments takes seconds.

Crash policy: the known end is `size`. Bytes after it, from a write that failed half-way, are truncated at once if
possible, otherwise overwritten by the next write, and never returned to a reader.

Threads: the log ensures that only one thread writes at a time. Any thread may look up and read.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pylogd.broker.log.caching import CachedRange
from pylogd.broker.log.errors import ColdRead, CorruptLog, LogClosed, StorageFailure
from pylogd.broker.log.files import (
    Buffer,
    SegmentFile,
    read_file,
    sync_file,
    write_all,
)
from pylogd.broker.log.index import TIME_ENTRY, IndexCorrupt, Indexes, OffsetIndex, TimeIndex, TransactionIndex
from pylogd.broker.log.index_files import read_transaction_index, write_index_files
from pylogd.broker.log.scan import BadBatch, scan
from pylogd.broker.log.storage import Storage
from pylogd.broker.log.transactions import AbortedTransaction
from pylogd.wire import records
from pylogd.wire.records import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader

_log = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"

_WINDOW = 8192  # more than the default distance between two index entries
_MAX_ENTRIES = (10 << 20) // TIME_ENTRY
_SMALL_BYTES = 16 << 10
#: This many bytes at the end of the active segment count as in memory, without asking the kernel.
_RECENT_BYTES = 4 << 20

_replacements = itertools.count(1)
#: The fields of a batch header that a look-up needs: base offset, batch length, last offset delta, record count.
PROBE = struct.Struct(">qi11xi30xi")


def segment_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Return the path of a file of the segment that starts at `base_offset`."""
    return f"{directory}/{str(base_offset).zfill(20)}{suffix}"  # takes half the time of the format 020d


@dataclass(slots=True, eq=False)
class BatchLocation:
    """A batch in a segment: position and size in the file, offsets, and whether compaction removed its records."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    empty: bool


class Segment:
    """One segment; see the module.

    size: its size in bytes.
    created_ms: when the file was created.
    first_timestamp: the largest time stamp of the first batch, -1 if unknown.
    file, indexes: set while the segment is appended to or pinned, else None.
    torn: whether a failed write left bytes after the end.
    reopened: whether there are index files of an earlier stop.
    has_aborted: whether a marker in the segment aborts a transaction.
    full: whether the indexes have `max_entries`.
    cached: the bytes that the block cache holds; None without a block cache.
    """

    __slots__ = (
        "_key", "_max_timestamp", "_max_timestamp_offset", "base_offset", "bytes_since_index", "cached", "created_ms",
        "directory", "file", "first_timestamp", "full", "has_aborted", "indexes", "max_entries", "reopened", "size",
        "storage", "torn",
    )  # fmt: skip

    def __init__(self, storage: Storage, directory: str, base_offset: int, size: int, *, created_ms: int = 0) -> None:
        self.storage, self.directory, self.base_offset = storage, directory, base_offset
        self._key: str | None = None
        self.size, self.created_ms = size, created_ms
        self.cached: CachedRange | None = None if storage.cache is None else storage.cache.new_range()
        self.first_timestamp = -1
        self.file: SegmentFile | None = None
        self.indexes: Indexes | None = None
        self.torn = self.reopened = self.full = self.has_aborted = False
        self.bytes_since_index, self.max_entries = 0, _MAX_ENTRIES
        self._max_timestamp: int | None = -1 if not size else None
        self._max_timestamp_offset = base_offset

    @classmethod
    def create(cls, storage: Storage, directory: str, base_offset: int, *, created_ms: int) -> Segment:
        """Create an empty segment, open for writing. Raises CorruptLog if its file exists and is not empty, OSError."""
        segment = cls(storage, directory, base_offset, 0, created_ms=created_ms)
        segment.file = SegmentFile(storage.fs, segment.path, os.O_RDWR | os.O_CREAT)
        storage.fs.never_read_ahead(segment.file.fd)
        if storage.fs.size(segment.path):
            raise CorruptLog(f"{segment.path} should be new, but has {storage.fs.size(segment.path)} bytes")
        segment.indexes = Indexes.empty(base_offset)
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.path!r}, {self.size} bytes)"

    @property
    def path(self) -> str:
        """The path of the `.log` file. It is not kept, since most segments of a large broker are never read."""
        return segment_path(self.directory, self.base_offset)

    @property
    def key(self) -> str:
        """What identifies the segment in the caches."""
        return self._key or self.path

    # Writing -------------------------------------------------------------------------------------------------------

    @property
    def known_timestamp(self) -> tuple[int | None, int]:
        """The largest time stamp (None if it was not searched for yet), and the last offset of its batch.

        It may be set to the values that another object for the same file has found.
        """
        return self._max_timestamp, self._max_timestamp_offset

    @known_timestamp.setter
    def known_timestamp(self, found: tuple[int | None, int]) -> None:
        self._max_timestamp, self._max_timestamp_offset = found

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Write `size` bytes at the end, all or none. Call `note_batch` afterwards.

        Raises StorageFailure, and LogClosed if another thread has just abandoned the log.
        """
        storage, file, position = self.storage, self.file, self.size
        if file is None:
            raise LogClosed(f"{self.path} is closed")
        try:
            written = storage.fs.pwritev(file.fd, buffers, position)
            if written != size:
                write_all(storage.fs, file.fd, memoryview(b"".join(buffers))[written:], position + written)
        except OSError as error:
            self.write_failed(error)

    def write_failed(self, error: OSError) -> NoReturn:
        """Remove the bytes that a failed write left after the end of the segment. Always raises StorageFailure."""
        self.torn = True
        try:
            self.truncate_torn()
        except OSError as also:
            _log.warning("%s: could not truncate to byte %d after a failed write: %s", self.path, self.size, also)
        raise StorageFailure(self.path, error) from error

    def truncate_torn(self) -> None:
        """Truncate the bytes that a failed write left after the end, if they are still there. Raises OSError."""
        if self.torn and self.file is not None:
            self.storage.fs.ftruncate(self.file.fd, self.size)
            self.torn = False

    def note_batch(self, size: int, last_offset: int, max_timestamp: int, index_interval: int) -> bool:
        """Account for a batch that was written at the end; return whether the indexes are full now."""
        position = self.size
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]  # known of every segment that is written
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self.first_timestamp = max_timestamp
        elif self.bytes_since_index > index_interval:
            self._note_index(last_offset, position)
        self.bytes_since_index += size
        self.size = position + size
        return self.full

    def note_run(
        self, size: int, since_index: int, stamp: int, stamp_offset: int, entries: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """Account for batches that were written at the end, like a `note_batch` for each; see `append.commit.Taken`."""
        for last_offset, position, self._max_timestamp, self._max_timestamp_offset in entries:
            self._note_index(last_offset, position)
        self._max_timestamp, self._max_timestamp_offset, self.bytes_since_index = stamp, stamp_offset, since_index
        self.size += size

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Add a transaction that the last batch, which is a marker, aborts."""
        assert self.indexes is not None
        self.indexes.aborted.append(aborted)
        self.has_aborted = True

    def note_cached(self, buffers: Sequence[Buffer], size: int, *, keep: bool = True) -> None:
        """Tell the block cache, if any, of a write, before `note_batch`.

        keep: whether a producer appended the bytes.
        """
        if self.cached is not None and self.file is not None:
            self.cached.wrote(self.file, self.size, buffers, size, keep)

    def has_entries_for(self, batches: int) -> bool:
        """Return whether the indexes have space for `batches` more entries."""
        return False if self.indexes is None else len(self.indexes.offsets) + batches < self.max_entries

    def _note_index(self, last_offset: int, position: int) -> None:
        indexes = self.indexes
        assert indexes is not None and self._max_timestamp is not None
        indexes.offsets.append(last_offset, position)
        if self._max_timestamp >= 0:
            indexes.times.append(self._max_timestamp, self._max_timestamp_offset)
        self.bytes_since_index = 0
        self.full = len(indexes.offsets) >= self.max_entries

    @property
    def is_small(self) -> bool:
        """Whether one read of its batches can replace its index files, and a snapshot without producers."""
        return self.size <= _SMALL_BYTES

    def needs_index_files(self) -> bool:
        """Return whether the indexes have to be written when the log is closed. Waits for the disk. Raises OSError."""
        if self.is_small and not self.has_aborted:
            return self.reopened and any(map(self.storage.fs.exists, self.file_paths()[1:]))
        return True

    def persist(self, *, sync: bool = True, indexed: bool = True) -> None:
        """Make a segment that takes no more appends durable, with its indexes, and hand both over to the caches.

        indexed: False to close the file instead, and not to write or keep indexes.

        The caller syncs the directory. Waits for the disk: call it in a thread. Raises StorageFailure.
        """
        file, indexes = self.file, self.indexes
        if file is None or indexes is None:
            return
        try:
            self.truncate_torn()
            if sync:
                sync_file(self.storage.fs, file.fd, self.path)
            if indexed:
                self.write_indexes(indexes, sync=sync)
        except OSError as error:
            raise StorageFailure(self.path, error) from error
        if indexed:
            self.storage.indexes.put(self.key, indexes)
            self.storage.files.put(self.key, file)
        self.indexes = None
        self.file = None

    def write_indexes(self, indexes: Indexes, *, sync: bool, suffix: str = "") -> None:
        """Write the index files. The last entry of the time index is the largest time stamp of the segment."""
        if self._max_timestamp is not None and self._max_timestamp >= 0:
            indexes.times.append(self._max_timestamp, self._max_timestamp_offset)
        offsets, times, transactions = [path + suffix for path in self.file_paths()[1:]]
        write_index_files(self.storage.fs, offsets, times, transactions, indexes, sync=sync)

    def drop_index_files(self) -> None:
        """Remove index files that are outdated. Missing ones are rebuilt when they are needed."""
        for path in self.file_paths()[1:]:
            if self.storage.fs.exists(path):
                self.storage.fs.unlink(path)
        self.reopened = False

    def sync(self) -> None:
        """Make what was written so far durable. Waits for the disk. Raises StorageFailure."""
        file = self.file
        if file is not None:
            began = self.storage.seconds()
            try:
                sync_file(self.storage.fs, file.fd, self.path)
            except OSError as error:
                raise StorageFailure(self.path, error) from error
            self.storage.flushes.observe(self.storage.seconds() - began)

    def truncate(self, offset: int) -> int:
        """Remove the batch with `offset` and all after it from the active segment; return how many bytes these were."""
        assert self.file is not None and self.indexes is not None
        found = self.locate(offset, allow_cold=True)
        if found is None:
            return 0
        dropped = self.size - found.position
        self.drop_cached()
        try:
            self.drop_index_files()
            self.storage.fs.ftruncate(self.file.fd, found.position)
        except OSError as error:
            raise StorageFailure(self.path, error) from error
        self.size = found.position
        self.indexes.offsets.truncate(found.base_offset, found.position)
        self.indexes.times.truncate(found.base_offset)
        self.indexes.aborted.truncate(found.base_offset)
        self.has_aborted = bool(self.indexes.aborted.entries)
        self.bytes_since_index = self.size - self.indexes.offsets.last_position()
        self._max_timestamp, self._max_timestamp_offset = self._walk_largest_timestamp(self.indexes, allow_cold=True)
        return dropped

    # Reading -------------------------------------------------------------------------------------------------------

    def reader(self, *, allow_cold: bool) -> SegmentFile:
        """Return the open file. Raises ColdRead if the file must be opened, which may wait, unless `allow_cold`."""
        file = self.file or self.storage.files.get(self.key)
        if file is None:
            if not allow_cold:
                raise ColdRead(self.path)
            try:
                file = SegmentFile(self.storage.fs, self.path)
                file.fs.never_read_ahead(file.fd)
            except OSError as error:
                if self.file is not None:  # another thread has pinned and renamed it
                    return self.file
                raise StorageFailure(self.path, error) from error
            self.storage.files.put(self.key, file)
        return self.file or file  # if another thread has pinned it, another file may have the name now

    def locate(self, offset: int, *, allow_cold: bool) -> BatchLocation | None:
        """Return the first batch that ends at or after `offset`; None if the segment has none."""
        return self._walk(self.get_indexes(allow_cold=allow_cold).offsets.lookup(offset), offset, 0, allow_cold)

    def batch_at(self, position: int, *, allow_cold: bool) -> BatchLocation | None:
        """Return the batch that contains the byte at `position`; None if the segment has none."""
        return self._walk(
            self.get_indexes(allow_cold=allow_cold).offsets.lookup_position(position), 0, position, allow_cold
        )

    def _walk(self, position: int, offset: int, beyond: int, allow_cold: bool) -> BatchLocation | None:
        """Return the first batch, from the one at `position` on, that ends at or after `offset` and after `beyond`."""
        limit = self.size
        file = self.reader(allow_cold=allow_cold)
        while position < limit:
            window = self.read_at(file, position, min(_WINDOW, limit - position), allow_cold)
            at, last = _skip_batches(window, offset, beyond - position), len(window) - PROBE.size
            while at <= last:
                base, length, delta, count = PROBE.unpack_from(window, at)
                if base + delta >= offset and position + at + length + LENGTH_OVERHEAD > beyond:
                    return BatchLocation(position + at, length + LENGTH_OVERHEAD, base, base + delta, not count)
                if length <= 0:
                    raise CorruptLog(f"{self.path}: byte {position + at}: invalid batch length {length}")
                at += length + LENGTH_OVERHEAD
            if not at:
                raise CorruptLog(f"{self.path}: byte {position}: too few bytes for a batch header")
            position += at
        return None

    def headers(self, position: int, *, allow_cold: bool) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over (position, header) of the batches, from the one at `position` on."""
        limit = self.size
        file = self.reader(allow_cold=allow_cold)
        while position < limit:
            window = self.read_at(file, position, min(_WINDOW, limit - position), allow_cold)
            at = 0
            while at + HEADER_SIZE <= len(window):
                header = BatchHeader._make(HEADER.unpack_from(window, at))
                if header.batch_length <= 0:
                    raise CorruptLog(f"{self.path}: byte {position + at}: invalid batch length {header.batch_length}")
                yield position + at, header
                at += header.batch_length + LENGTH_OVERHEAD
            if not at:
                raise CorruptLog(f"{self.path}: byte {position}: too few bytes for a batch header")
            position += at

    def last_batch(self, *, allow_cold: bool) -> BatchHeader | None:
        """Return the header of the last batch, None without one. Raises CorruptLog if the file does not end with it."""
        end = self.get_indexes(allow_cold=allow_cold).offsets.last_position()
        last = None
        for position, header in self.headers(end, allow_cold=allow_cold):
            last, end = header, position + header.size
        if end != self.size:
            raise CorruptLog(f"{self.path}: the last batch ends at byte {end}, the file at {self.size}")
        return last

    def largest_timestamp(self, *, allow_cold: bool) -> tuple[int, int]:
        """Return (largest time stamp, last offset of the batch that has it); (-1, base offset) without a batch."""
        if self._max_timestamp is None:
            indexes = self.get_indexes(allow_cold=allow_cold)
            found = self._walk_largest_timestamp(indexes, allow_cold=allow_cold)
            self._max_timestamp, self._max_timestamp_offset = found
        return self._max_timestamp, self._max_timestamp_offset

    def _walk_largest_timestamp(self, indexes: Indexes, *, allow_cold: bool) -> tuple[int, int]:
        """Find the largest time stamp from the last entry of the time index and the batch headers after it."""
        stamp, offset = indexes.times.last() or (-1, self.base_offset)
        for _, header in self.headers(indexes.offsets.lookup(offset), allow_cold=allow_cold):
            if header.max_timestamp > stamp:
                stamp, offset = header.max_timestamp, header.base_offset + header.last_offset_delta
        return stamp, offset

    def read_at(self, file: SegmentFile, position: int, length: int, allow_cold: bool) -> Buffer:
        """Return exactly `length` bytes, which the file should have. Raises ColdRead, CorruptLog, StorageFailure."""
        if self.cached is not None and (held := self.cached.copy(position, length)) is not None:
            return held
        # Even a read that does not wait submits I/O, and the submission waits if the disk is busy.
        older = self.file is None or self.size - position > _RECENT_BYTES
        if older and not allow_cold and file.fs.missing(file.fd, position, length):
            raise ColdRead(self.path)
        try:
            data = file.read(position, length) if allow_cold else file.read_warm(position, length)
        except OSError as error:
            raise StorageFailure(self.path, error) from error
        if data is not None and len(data) == length:
            return data
        if data is None or not allow_cold:
            raise ColdRead(self.path)
        raise CorruptLog(f"{self.path}: the file ends at byte {position + len(data)} instead of {self.size}")

    def get_indexes(self, *, allow_cold: bool) -> Indexes:
        """Return the indexes. Raises ColdRead, StorageFailure, CorruptLog."""
        indexes = self.indexes or self.storage.indexes.get(self.key)
        if indexes is None:
            if not allow_cold:
                raise ColdRead(self.path)
            indexes = self.load_indexes()
            self.storage.indexes.put(self.key, indexes)
        return self.indexes or indexes

    def load_indexes(self) -> Indexes:
        """Read the indexes from their files. Rebuild them if the offset or the time index is not usable."""
        fs, base = self.storage.fs, self.base_offset
        if not self.size:
            return Indexes.empty(base)
        _, offsets, times, transactions = self.file_paths()
        aborted = read_transaction_index(fs, transactions, base)
        try:
            index = OffsetIndex.from_bytes(read_file(fs, offsets), base, self.size)
            return Indexes(index, TimeIndex.from_bytes(read_file(fs, times), base), aborted)
        except (FileNotFoundError, IndexCorrupt) as error:
            if self.is_small and isinstance(error, FileNotFoundError):
                return self.rebuild_indexes(aborted, write=False)
            _log.warning("Rebuilding the indexes of %s: %s", self.path, error)
        except OSError as error:
            raise StorageFailure(self.path, error) from error
        return self.rebuild_indexes(aborted)

    def rebuild_indexes(self, aborted: TransactionIndex, index_interval: int = 4096, *, write: bool = True) -> Indexes:
        """Rebuild the indexes but `aborted` by a scan of the log, and return all. `write`: also write them."""
        scanned = self.empty_copy()
        assert scanned.indexes is not None
        scanned.indexes.aborted = aborted
        try:
            for _, header, batch in scan(
                self.reader(allow_cold=True), self.size, base_offset=self.base_offset, check_crc=False
            ):
                scanned.note_batch(len(batch), header.last_offset, header.max_timestamp, index_interval)
            if (
                write and self.indexes is None
            ):  # otherwise another thread has pinned it, and its name may be another segment's
                scanned.write_indexes(scanned.indexes, sync=True)
        except BadBatch as bad:
            raise CorruptLog(f"{self.path}: {bad}") from bad
        except OSError as error:
            raise StorageFailure(self.path, error) from error
        return scanned.indexes

    # Replacement by compaction ------------------------------------------------------------------------------------

    def empty_copy(self) -> Segment:
        """Return an empty segment object with the same name, to collect the indexes of a file."""
        copy = Segment(self.storage, self.directory, self.base_offset, 0, created_ms=self.created_ms)
        copy.indexes = Indexes.empty(self.base_offset)
        return copy

    def replacement(self, size: int, first_timestamp: int, largest: tuple[int, int], has_aborted: bool) -> Segment:
        """Return a sealed segment that will take over the name of this one. It has its own key in the caches."""
        copy = Segment(self.storage, self.directory, self.base_offset, size, created_ms=self.created_ms)
        copy._key = f"{self.path}#{next(_replacements)}"
        copy.first_timestamp = first_timestamp
        copy.has_aborted = has_aborted
        copy._max_timestamp, copy._max_timestamp_offset = largest
        return copy

    def pin(self) -> None:
        """Keep file and indexes in this object, because another segment is about to take over its name."""
        self.file = self.reader(allow_cold=True)
        self.indexes = self.get_indexes(allow_cold=True)
        self.storage.files.discard(self.key)
        self.storage.indexes.discard(self.key)

    def unpin(self) -> None:
        """Undo `pin`: get file and indexes from the caches again."""
        self.file = self.indexes = None

    # Closing -------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Close the file and drop the indexes. Readers that have a slice keep the file open."""
        self.file = self.indexes = None
        self.storage.files.discard(self.key)
        self.storage.indexes.discard(self.key)
        self.drop_cached()

    def drop_cached(self) -> None:
        """Drop the segment's blocks from the block cache."""
        if self.cached is not None:
            self.cached = self.cached.drop()

    def file_paths(self) -> list[str]:
        """Return the paths of the files of this segment, including files that do not exist."""
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        return [segment_path(self.directory, self.base_offset, suffix) for suffix in suffixes]


def _skip_batches(window: records.Buffer, offset: int, beyond: int) -> int:
    """Return how many bytes at the start of `window`, which begins with a batch, a look-up can skip.

    They are whole headers of batches that end before `offset`, or at byte `beyond` or before. The result is 0 without a
    compiler.
    """
    speedups = records.speedups
    if speedups is None:
        return 0
    skipped: int = speedups.skip_batches(window, offset, beyond)
    return skipped
