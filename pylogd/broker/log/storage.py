"""What all segments and logs of a broker share: the file system, caches of open files and indexes, and measurements."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pylogd.base.histogram import Histogram
from pylogd.broker.log.caching import BlockCache
from pylogd.broker.log.files import Buffer, FileSystem, SegmentFile, most_cached_files
from pylogd.broker.log.index import Indexes

V = TypeVar("V")

_INDEX_BYTES = 32 << 20


class LruCache(Generic[V]):
    """A cache of values by key, limited by the sum of their weights. Drops the least recently used. Thread-safe."""

    def __init__(self, capacity: int, weigh: Callable[[V], int]) -> None:
        self.capacity = capacity
        self.weight = 0
        self._weigh = weigh
        self._entries: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        """Return a value, and mark it as used; None if it is not in the cache."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: str, value: V) -> None:
        """Add a value. The value added last is always kept, whatever its weight."""
        with self._lock:
            self._drop(key)
            self._entries[key] = value
            self.weight += self._weigh(value)
            while self.weight > self.capacity and len(self._entries) > 1:
                _, old = self._entries.popitem(last=False)
                self.weight -= self._weigh(old)

    def discard(self, key: str) -> None:
        """Remove a value, if it is in the cache."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self.weight -= self._weigh(old)


class WriteTimes:
    """Measures the next write after each call of `sample`.

    seconds: the durations of writes, in any thread.
    """

    def __init__(self, fs: FileSystem, clock: Callable[[], float]) -> None:
        """Measure writes by `clock`, which returns monotonic seconds."""
        self._fs = fs
        self._clock = clock
        self.seconds = Histogram()

    def sample(self) -> None:
        """Measure the next write: replace the file system's function by one that removes itself when it is called."""
        self._fs.__dict__["pwritev"] = self._measured

    def _measured(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._fs.__dict__.pop("pwritev", None)
        began = self._clock()
        try:
            return self._fs.pwritev(fd, buffers, position)
        finally:
            self.seconds.observe(self._clock() - began)


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
