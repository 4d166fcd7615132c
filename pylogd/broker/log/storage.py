"""What all segments and logs of a broker share."""

from __future__ import annotations

import time
from collections.abc import Callable

from pylogd.base.histogram import Histogram
from pylogd.broker.log.caching import BlockCache
from pylogd.broker.log.files import FileSystem, SegmentFile, most_cached_files
from pylogd.broker.log.index import Indexes
from pylogd.broker.log.lru_cache import LruCache
from pylogd.broker.log.write_times import WriteTimes

_INDEX_BYTES = 32 << 20


class Storage:
    """What all segments of a broker share: the file system, a monotonic clock, caches of open files and indexes."""

    __slots__ = ("appended", "cache", "files", "flushes", "fs", "indexes", "seconds", "staged_appends", "writes")

    def __init__(
        self, fs: FileSystem, *, open_files: int = most_cached_files(0), index_bytes: int = _INDEX_BYTES,
        seconds: Callable[[], float] = time.monotonic, cache: BlockCache | None = None, staged_appends: bool = False,
        appended: Callable[[str, float], object] | None = None,
    ) -> None:  # fmt: skip
        """Create the caches.

        open_files: the capacity of the cache of open files.
        index_bytes: the capacity of the cache of indexes.
        seconds: a monotonic clock, for delays.
        cache: the block cache; None without one.
        staged_appends: whether appends are made by `append.staged`: all, or only some if `appended` is given (see
            `log.paced`).
        appended: called after each slow append that is not staged, with the log's directory and the seconds it took.
        """
        self.fs, self.cache, self.seconds = fs, cache, seconds
        self.staged_appends, self.appended = staged_appends, appended
        self.flushes = Histogram()  # the durations of syncs of segments, in seconds
        self.writes = WriteTimes(fs, seconds)
        self.files: LruCache[SegmentFile] = LruCache(open_files, lambda _: 1)
        self.indexes: LruCache[Indexes] = LruCache(index_bytes, lambda indexes: indexes.nbytes + 1)
