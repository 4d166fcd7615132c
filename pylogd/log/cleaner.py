"""Who compacts, when, and which log: the cleaner threads of a broker.

Strategy: each thread, as long as it finds one, takes the compacted log that needs it most and compacts it; then it
waits `log.cleaner.backoff.ms`. A log that holds a record older than `max.compaction.lag.ms` comes first; of the others
that with the largest share of bytes not compacted yet, if that is over `min.cleanable.dirty.ratio`. Each thread has its
share of the memory for key maps; all share one limit of bytes a second. What takes more than a moment is done in a
process of the thread's own (`log.cleaning`), which ends when there is nothing to do: a thread that walks over records
would hold the interpreter that the reactor needs.

Rules: a log is in one thread at a time. How far each was compacted is written to `cleaner-offset-checkpoint` after the
new segments are in place, so a crash at worst has something compacted twice. A log that can't be compacted because its
batches are damaged is left alone until the next start; one that found no room is tried again later; any other failure
of the disk takes the data directory offline.
`stop` returns when every thread has come to a safe point, and leaves no half-written files.

Must not know: the reactor, topics' settings beyond `LogConfig`.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pylogd.log.checkpoints import TopicPartition
from pylogd.log.cleaning import CleaningProcess, ProcessLost
from pylogd.log.compaction import Check, Cleaned, CleanerStopped, Place, SourcesChanged, Stretch, compact, run_passes
from pylogd.log.config import NO_LIMIT
from pylogd.log.errors import CorruptLog, StorageError, StorageFailure
from pylogd.log.files import FileSystem, RealFileSystem
from pylogd.log.keymap import KeyMap
from pylogd.log.log import Log
from pylogd.log.manager import LogManager
from pylogd.log.segment import Segment, Storage

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0
#: Less than this is compacted before a process has started, and the reactor hardly notices.
_PROCESS_BYTES = 1 << 20
_CHECK_BYTES = 16 << 20
_LEAST_CHECK_BYTES = 1 << 16
_UNLIMITED = float(sys.maxsize)


@dataclass(slots=True, frozen=True)
class CleanerConfig:
    """The settings `log.cleaner.…`. Sizes in bytes; `dedupe_buffer_bytes` is for all threads together."""

    enabled: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    max_bytes_per_second: float = _UNLIMITED
    backoff_ms: int = 15_000


@dataclass(slots=True, frozen=True)
class Cleanable:
    """A log that may be compacted: from where to where, its bytes before and in that stretch, and why."""

    log: Log
    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The share of bytes that were not compacted yet."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    @property
    def is_due(self) -> bool:
        """Whether it should be compacted now."""
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio)


class Throttle:
    """Holds its callers to so many bytes a second, all together. `wait(seconds)` pauses, `seconds()` is the time."""

    def __init__(self, rate: float, seconds: Callable[[], float], wait: Callable[[float], object]) -> None:
        self.rate = rate
        self._seconds = seconds
        self._wait = wait
        self._free_at = 0.0  # when all that was done is paid for
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Say that `count` bytes were read or written; returns when they are paid for."""
        if self.rate >= _UNLIMITED or not count:
            return
        now = self._seconds()
        with self._lock:
            self._free_at = max(self._free_at, now) + count / self.rate
            pause = self._free_at - now
        self._wait(pause)


class Worker:
    """A thread's means: the key map here, or the process that has one. Files that are not the operating system's are
    only seen here.
    """

    def __init__(self, fs: FileSystem, config: CleanerConfig) -> None:
        memory = config.dedupe_buffer_bytes // max(config.threads, 1)
        self.keys = KeyMap(memory, config.load_factor)
        self._fs = fs
        self._process = CleaningProcess(memory, config.load_factor)

    def passes(self, stretch: Stretch, check: Check, place: Place) -> Cleaned:
        """See `compaction.Passes`."""
        if stretch.size >= _PROCESS_BYTES and isinstance(self._fs, RealFileSystem):
            return self._process.passes(stretch, check, place)
        return run_passes(Storage(self._fs), self.keys, stretch, check, place)

    def close(self) -> None:
        """End the process, if there is one. It starts again when there is need."""
        self._process.close()


class Cleaner:
    """See the module. `start` and `stop` once each; `clean_one` is what a thread does."""

    def __init__(
        self,
        manager: LogManager,
        config: CleanerConfig,
        *,
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.cleaned = 0  # compactions that were completed
        self._manager = manager
        self._now_ms = now_ms
        self._seconds = seconds
        self._stopping = threading.Event()
        self._throttle = Throttle(config.max_bytes_per_second, seconds, self._stopping.wait)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()  # of the choice, and of the checkpoint
        self._busy: set[TopicPartition] = set()
        self._given_up: dict[int, float] = {}  # id of a log -> when to try again

    def start(self) -> None:
        """Start the threads."""
        if not self.config.enabled:
            return
        for number in range(self.config.threads):
            thread = threading.Thread(target=self._run, name=f"log-cleaner-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Return once every thread has ended. Waits: call it in a thread."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def worker(self) -> Worker:
        """What a thread compacts with; close it."""
        return Worker(self._manager.fs, self.config)

    def _run(self) -> None:
        worker = self.worker()
        try:
            while not self._stopping.is_set():
                if self._next(worker) is None:
                    worker.close()
                    self._stopping.wait(self.config.backoff_ms / 1000)
        except CleanerStopped:
            return
        finally:
            worker.close()

    def _next(self, worker: Worker) -> Cleaned | None:
        try:
            return self.clean_one(worker)
        except CleanerStopped:
            raise
        except Exception:
            _log.exception("a cleaner thread met what nobody foresaw, and goes on")
            return None

    def clean_one(self, worker: Worker) -> Cleaned | None:
        """Compact the log that needs it most, of those that can be; what it came to, `None` if there is none."""
        while (chosen := self._choose()) is not None:
            cleaned = self._clean(chosen, worker)
            if cleaned is not None:
                return cleaned
        return None

    def _clean(self, chosen: Cleanable, worker: Worker) -> Cleaned | None:
        log = chosen.log
        try:
            cleaned = compact(
                log, chosen.first_dirty, chosen.end, worker.passes,
                now_ms=self._now_ms(), check=self._check, io_buffer_bytes=self.config.io_buffer_bytes,
                check_bytes=self._check_bytes(),
            )  # fmt: skip
            with self._lock:
                self._manager.checkpoint_cleaned(log)
        except (SourcesChanged, ProcessLost) as error:
            _log.log(logging.INFO if isinstance(error, SourcesChanged) else logging.ERROR, "%s", error)
            self._postpone(log)
            return None
        except StorageError as error:
            self._give_up(log, error)
            return None
        finally:
            with self._lock:
                self._busy.discard((log.topic, log.partition))
        if cleaned.end <= cleaned.first_dirty:
            self._postpone(log)  # an open transaction stands in the way
            return None
        self.cleaned += 1
        _log.info(
            "%s-%d is compacted up to offset %d: %d of %d records, %d of %d bytes are left",
            log.topic, log.partition, cleaned.end,
            cleaned.records_kept, cleaned.records_read, cleaned.bytes_written, cleaned.bytes_read,
        )  # fmt: skip
        return cleaned

    def _check(self, count: int) -> None:
        if self._stopping.is_set():
            raise CleanerStopped
        self._throttle.take(count)

    def _check_bytes(self) -> int:
        """Every question of the process's wakes a thread that takes the interpreter from the reactor: ask seldom."""
        return int(min(_CHECK_BYTES, max(self._throttle.rate / 8, _LEAST_CHECK_BYTES)))

    def _give_up(self, log: Log, error: StorageError) -> None:
        if isinstance(error, StorageFailure):
            if isinstance(error.cause, FileNotFoundError) and self._was_taken(log):
                _log.info("%s-%d: taken away while it was compacted: %s", log.topic, log.partition, error)
                self._postpone(log)
                return
            if self._manager.storage_failed(error):
                return
            _log.error("%s-%d could not be compacted, later again: %s", log.topic, log.partition, error)
            self._postpone(log)
        elif not log.closed:
            kind = "is damaged and" if isinstance(error, CorruptLog) else ""
            _log.error("%s-%d %s is not compacted until the next start: %s", log.topic, log.partition, kind, error)
            self._given_up[id(log)] = math.inf

    def _was_taken(self, log: Log) -> bool:
        """Whether a file that is missing says nothing about the disk: retention, truncation or deletion took it.

        A swap that failed half-way has closed its log, and the manager has it still: there it is a failure.
        """
        return not log.closed or self._manager.logs.get((log.topic, log.partition)) is not log

    def _postpone(self, log: Log) -> None:
        self._given_up[id(log)] = self._seconds() + _RETRY_SECONDS

    def _choose(self) -> Cleanable | None:
        """The log that needs it most, which is busy from now on."""
        now_ms, now = self._now_ms(), self._seconds()
        with self._lock:
            logs = list(self._manager.logs.items())
            known = {id(log) for _, log in logs}
            self._given_up = {key: until for key, until in self._given_up.items() if key in known and until > now}
            found = []
            for key, log in logs:
                if key in self._busy or id(log) in self._given_up or log.closed or not log.config.compacts:
                    continue
                try:
                    if any(segment.file is not None for segment in log.segments[:-1]):
                        log.seal()
                    candidate = cleanable(log, now_ms)
                except StorageError as error:
                    self._give_up(log, error)
                    continue
                if candidate is not None and candidate.is_due:
                    found.append(candidate)
            if not found:
                return None
            chosen = max(found, key=lambda candidate: (candidate.overdue, candidate.ratio))
            self._busy.add((chosen.log.topic, chosen.log.partition))
            return chosen


def cleanable(log: Log, now_ms: int) -> Cleanable | None:
    """What of the log may be compacted now; `None` if nothing. May read headers: use a thread."""
    segments = log.segments
    first_dirty = log.cleaned_offset
    if not segments[0].base_offset <= first_dirty <= log.log_end_offset:
        first_dirty = segments[0].base_offset
    first_dirty = max(first_dirty, min(log.log_start_offset, log.active.base_offset))
    bound = log.active.base_offset if log.deletable_offset is None else log.deletable_offset
    clean, dirty = [], []
    end = first_dirty
    for at, segment in enumerate(segments[:-1]):
        following = segments[at + 1].base_offset
        if following <= first_dirty:
            clean.append(segment)
            continue
        if segment.file is not None or following > bound or _is_young(log, segment, now_ms):
            break
        dirty.append(segment)
        end = following
    if not dirty:
        return None
    return Cleanable(
        log, first_dirty, end, sum(segment.size for segment in clean), sum(segment.size for segment in dirty),
        _is_overdue(log, dirty, now_ms),
    )  # fmt: skip


def _is_young(log: Log, segment: Segment, now_ms: int) -> bool:
    """Whether the segment has a record that has to stay uncompacted for now."""
    lag = log.config.min_compaction_lag_ms
    return lag > 0 and _newest(segment) > now_ms - lag


def _newest(segment: Segment) -> int:
    stamp, _ = segment.largest_timestamp(allow_cold=True)
    return segment.created_ms if stamp < 0 else stamp


def _is_overdue(log: Log, dirty: list[Segment], now_ms: int) -> bool:
    """Whether a segment starts with a record that has waited for as long as any may (as Kafka has it)."""
    lag = log.config.max_compaction_lag_ms
    if lag >= NO_LIMIT:
        return False
    for segment in dirty:
        for _, header in segment.headers(0, allow_cold=True):
            if now_ms - header.max_timestamp >= lag:
                return True
            break
    return False
