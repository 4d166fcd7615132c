"""Drop pages from the kernel's page cache if they are in blocks, were written by followers, or are read only once.

Strategy: written ranges are collected by file, and each data directory has a thread that handles them periodically. The
thread first has the kernel start writing (`sync_file_range`), then waits for each chunk and drops its clean pages
(`posix_fadvise` with POSIX_FADV_DONTNEED). So bytes are not in memory twice, and dirty pages never reach the limit at
which the kernel delays writers. This is not a flush: neither the file's size nor the disk's own cache is synced.

Rules: only `drop_now` blocks the caller's thread. A disk that hangs stops only its own thread. The last page of a range
may still be appended to, so it is left for the next range: an append to a page that the kernel is about to write waits
for the write. The kernel reports an error of the write-back only once, so it must be handled like an error of a sync:
`on_failure` is called.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable

from pylogd.broker.cache.counters import CacheCounters
from pylogd.broker.log.early_write_back import WAIT_AFTER, WAIT_BEFORE, WRITE, sync_file_range
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import SegmentFile, SyncFailed

_log = logging.getLogger(__name__)

_CHUNK = 4 << 20
#: Pages are dropped in whole folios: a folio that begins before a range is dropped with the range that ends it.
_BACK = 1 << 20
#: The time for which writes are collected, and for which dirty pages are in the page cache.
_LINGER_SECONDS = 0.05

Written = tuple[SegmentFile, int, int]


#: Whether the system can drop written pages.
AVAILABLE = sync_file_range is not None and hasattr(os, "posix_fadvise")


class PageDropper:
    """See the module.

    on_failure: called in a thread of the dropper with the failure of a write-back.
    """

    def __init__(self, counters: CacheCounters, on_failure: Callable[[StorageFailure], object]) -> None:
        self._counters = counters
        self._on_failure = on_failure
        self._directories: dict[str, _Directory] = {}
        self._stopped = False

    def written(self, file: SegmentFile, position: int, end: int) -> None:
        """Write back the bytes from `position` to `end` soon, and remove them from the page cache."""
        name = os.path.dirname(os.path.dirname(file.path))
        directory = self._directories.get(name)
        if directory is None:
            if self._stopped:
                return
            directory = self._directories[name] = _Directory(self._drop_all, f"pylogd-page-cache {name}")
        directory.add(file, position, end)

    def drop_now(self, fd: int, position: int, length: int) -> None:
        """Remove read pages from the page cache, except pages that are not written back yet."""
        start, end = position & -mmap.PAGESIZE, (position + length) & -mmap.PAGESIZE
        if end > start:  # a length of 0 would mean the rest of the file
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def stop(self, seconds: float) -> None:
        """End the threads. Wait `seconds` for each to finish its work; a thread whose disk hangs is abandoned."""
        self._stopped = True
        for directory in self._directories.values():
            directory.stop(seconds)

    def _drop_all(self, ranges: list[Written]) -> None:
        assert sync_file_range is not None
        failed: set[str] = set()
        for wait in (False, True):
            for file, position, end in ranges:
                if file.path in failed:
                    continue
                start, stop = position & -mmap.PAGESIZE, end & -mmap.PAGESIZE
                try:
                    if wait:
                        self._wait_and_drop(file, start, stop)
                    elif stop > start:  # a length of 0 would mean the rest of the file
                        sync_file_range(file.fd, start, stop - start, WRITE)
                except OSError as error:
                    failed.add(file.path)
                    self._on_failure(StorageFailure(file.path, _as_sync_failure(error, file.path)))

    def _wait_and_drop(self, file: SegmentFile, position: int, end: int) -> None:
        assert sync_file_range is not None
        while position < end:
            count = min(end - position, _CHUNK)
            sync_file_range(file.fd, position, count, WAIT_BEFORE | WRITE | WAIT_AFTER)
            start = max(position - _BACK, 0)
            os.posix_fadvise(file.fd, start, position + count - start, os.POSIX_FADV_DONTNEED)
            self._counters.dropped_bytes += count
            position += count


def _as_sync_failure(error: OSError, path: str) -> SyncFailed:
    return SyncFailed(error.errno, f"write-back failed: {error.strerror}", path)


class _Directory:
    """The thread of one data directory, and its queue of work."""

    def __init__(self, work: Callable[[list[Written]], None], name: str) -> None:
        self._work = work
        self._pending: dict[SegmentFile, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, file: SegmentFile, position: int, end: int) -> None:
        with self._lock:
            found = self._pending.get(file)
            self._pending[file] = (position, end) if found is None else (min(found[0], position), max(found[1], end))
        if not self._some.is_set():
            self._some.set()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._some.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._stopping.wait(_LINGER_SECONDS)
            self._some.clear()
            stopping = self._stopping.is_set()  # `stop` sets it first: if not seen here, `_some` is set again
            with self._lock:
                pending, self._pending = self._pending, {}
            self._work([(file, *span) for file, span in pending.items()])
            if stopping:
                return
