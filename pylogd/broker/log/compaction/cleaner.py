"""Cleaner threads: choose the next log to compact, and compact it.

Each thread takes the log that needs compaction most and compacts it, again and again; when no log needs it, the thread
waits `log.cleaner.backoff.ms`. Logs with a record older than `max.compaction.lag.ms` come first, then those with the
largest share of bytes that are not compacted yet, if it exceeds `min.cleanable.dirty.ratio`. The memory for offset maps
is divided among the threads; all share one limit of bytes per second. Large jobs are done in a child process
(`process`): a thread that goes through records would hold the interpreter that the reactor needs. The process ends when
there is nothing to do. Where disks have threads of their own, `cleaners` has a cleaner for each disk.

Rules: a log is compacted by one thread at a time. How far it was compacted is written to `cleaner-offset-checkpoint`
after the new segments are installed, so that a crash at worst has something compacted twice. A log with damaged batches
is skipped until the next start; a log for which the disk is full is tried again later; any other failure of the file
system takes the data directory offline. `stop` waits until each thread has reached a safe point, at which no incomplete
file is left; it does not wait for a disk that hangs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.compaction.candidates import LogToClean, log_to_clean
from pylogd.broker.log.compaction.jobs import (
    CleanerStopped,
    CompactionJob,
    CompactionResult,
    InstallSegment,
    OnProgress,
    SourcesChanged,
)
from pylogd.broker.log.compaction.log_compaction import compact
from pylogd.broker.log.compaction.offset_map import OffsetMap
from pylogd.broker.log.compaction.passes import run_job
from pylogd.broker.log.compaction.process import CompactionProcess, ProcessLost
from pylogd.broker.log.compaction.rate_limit import UNLIMITED, RateLimit
from pylogd.broker.log.errors import CorruptLog, StorageError, StorageFailure
from pylogd.broker.log.files import FileSystem, RealFileSystem
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.storage import Storage

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0
#: The seconds between two looks of `stop` at whether a directory has failed, and the seconds for which `stop` then
#: still waits for the threads of that directory.
_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 1.0
#: Smaller jobs are done in the thread, since they end before a process would have started.
_MIN_PROCESS_BYTES = 1 << 20
_MAX_CHECK_BYTES = 16 << 20
_MIN_CHECK_BYTES = 1 << 16


class CleanerConfig(NamedTuple):
    """The settings `log.cleaner.…`. Sizes are in bytes; all threads of a cleaner share `dedupe_buffer_bytes`."""

    enabled: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    max_bytes_per_second: float = UNLIMITED
    backoff_ms: int = 15_000


class JobRunner:
    """Does the jobs of one cleaner thread: small ones in the thread, large ones in a child process.

    Jobs on a file system other than the operating system's are always done in the thread.
    """

    def __init__(self, fs: FileSystem, config: CleanerConfig) -> None:
        memory = config.dedupe_buffer_bytes // max(config.threads, 1)
        self.offset_map = OffsetMap(memory, config.load_factor)
        self._fs = fs
        self._process = CompactionProcess(memory, config.load_factor)

    def run(self, job: CompactionJob, on_progress: OnProgress, install: InstallSegment) -> CompactionResult:
        """Do the job; see `jobs.RunJob`."""
        if job.size >= _MIN_PROCESS_BYTES and isinstance(self._fs, RealFileSystem):
            return self._process.run(job, on_progress, install)
        return run_job(Storage(self._fs), self.offset_map, job, on_progress, install)

    def close(self) -> None:
        """End the process, if one is running. The next large job starts a new one."""
        self._process.close()


class Cleaner:
    """Threads that compact the same logs. Call `start` and `stop` once each; `clean_one` is one step of a thread.

    `configure` may change the settings while the threads run: each thread uses them for its next log.

    now_ms: the wall clock.
    seconds: a monotonic clock.
    path: the only data directory whose logs are compacted; None for all.
    throttle: a limit that is shared with other cleaners; it has to stop waiting when `stop` is called.
    """

    def __init__(
        self,
        manager: LogManager,
        config: CleanerConfig,
        *,
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
        path: str | None = None,
        throttle: RateLimit | None = None,
    ) -> None:
        self.config = config
        self.completed = 0  # how many compactions were done
        self.most_dirty = 0.0  # the largest share of bytes of a log that waited for compaction at the last look
        self.read_bytes = self.written_bytes = 0  # the bytes that compactions have read and written
        self._manager = manager
        self._now_ms = now_ms
        self._seconds = seconds
        self._path = path
        self._stopping = threading.Event()
        self._started = False
        self._throttle = throttle or RateLimit(config.max_bytes_per_second, seconds, self._stopping.wait)
        # By number; numbers are below `config.threads`, except those of threads that are ending.
        self._threads: dict[int, threading.Thread] = {}
        self._sleeping = threading.Condition()  # threads without work wait for it; it guards `config` and `_threads`
        self._working: set[int] = set()  # the ids of the threads that look for a log or compact one
        self._lock = threading.Lock()  # is held while a log is chosen, and while the checkpoint is written
        self._in_progress: set[TopicPartition] = set()
        self._skipped_until: dict[int, float] = {}  # the time until which a log is skipped, by the id() of the log

    def start(self) -> None:
        """Start the threads."""
        self._started = True
        self._start_threads()

    def configure(self, config: CleanerConfig) -> None:
        """Use other settings. Excess threads end after the log that they are compacting. Never waits for a disk."""
        with self._sleeping:
            self.config = config
            self._sleeping.notify_all()
        if self._started and not self._stopping.is_set():
            self._start_threads()

    def _start_threads(self) -> None:
        """Start the threads that are missing."""
        name = "log-cleaner" if self._path is None else f"log-cleaner-{os.path.basename(self._path)}"
        with self._sleeping:
            for number in range(self.config.threads if self.config.enabled else 0):
                if number not in self._threads:
                    thread = threading.Thread(target=self._run, args=(number,), name=f"{name}-{number}", daemon=True)
                    self._threads[number] = thread
                    thread.start()

    def ask_to_stop(self) -> None:
        """Have the threads end at their next safe points."""
        self._stopping.set()
        with self._sleeping:
            self._sleeping.notify_all()

    def stop(self) -> None:
        """Stop the threads and wait until they have ended. Blocks: call it in a thread.

        Threads that are stuck in a call to a data directory that is offline are left behind.
        """
        self.ask_to_stop()
        for thread in list(self._threads.values()):
            while thread.is_alive() and (self._path is None or self._path in self._manager.healthy):
                thread.join(_LOOK_SECONDS)
            thread.join(_GRACE_SECONDS)
        self._threads = {}

    @property
    def working(self) -> int:
        """The number of threads that are compacting a log, or choosing one. Never waits."""
        return len(self._working)

    def new_runner(self) -> JobRunner:
        """Return a runner for one thread, which the caller must close."""
        return JobRunner(self._manager.fs, self.config)

    def _run(self, number: int) -> None:
        config = self.config
        runner = self.new_runner()
        try:
            while not self._ended(number):
                if self.config is not config:
                    config = self.config
                    runner.close()
                    runner = self.new_runner()  # it has this thread's part of the memory
                self._working.add(threading.get_ident())
                try:
                    result = self._next(runner)
                finally:
                    self._working.discard(threading.get_ident())
                if result is None:
                    runner.close()
                    self._sleep(config)
        except CleanerStopped:
            return
        finally:
            runner.close()

    def _ended(self, number: int) -> bool:
        """Return whether a thread has to end: at a stop, or if there should be fewer threads."""
        with self._sleeping:
            if number < self.config.threads:
                return self._stopping.is_set()
            self._threads.pop(number, None)
            return True

    def _sleep(self, config: CleanerConfig) -> None:
        """Wait `log.cleaner.backoff.ms`, or until a stop or another change of the settings."""
        with self._sleeping:
            self._sleeping.wait_for(
                lambda: self.config is not config or self._stopping.is_set(), config.backoff_ms / 1000
            )

    def _next(self, runner: JobRunner) -> CompactionResult | None:
        try:
            return self.clean_one(runner)
        except CleanerStopped:
            raise
        except Exception:
            _log.exception("Unexpected error while compacting a log; the cleaner thread continues")
            return None

    def clean_one(self, runner: JobRunner) -> CompactionResult | None:
        """Compact the log that needs it most. Return the result, or None if no log needs it or can be compacted."""
        while (chosen := self._choose()) is not None:
            result = self._clean(chosen, runner)
            if result is not None:
                return result
        return None

    def _clean(self, chosen: LogToClean, runner: JobRunner) -> CompactionResult | None:
        log = chosen.log
        try:
            result = compact(
                log, chosen.first_dirty_offset, chosen.end_offset, runner.run,
                now_ms=self._now_ms(), on_progress=partial(self._on_progress, log),
                io_buffer_bytes=self.config.io_buffer_bytes, check_bytes=self._check_bytes(),
            )  # fmt: skip
            with self._lock:
                self._manager.checkpoint_cleaned(log)
        except (SourcesChanged, ProcessLost) as error:
            _log.log(logging.INFO if isinstance(error, SourcesChanged) else logging.ERROR, "%s", error)
            self._retry_later(log)
            return None
        except StorageError as error:
            self._failed(log, error)
            return None
        finally:
            with self._lock:
                self._in_progress.discard((log.topic, log.partition))
        if result.end_offset <= result.first_dirty_offset:
            self._retry_later(log)  # an open transaction prevents it
            return None
        self.completed += 1
        self.read_bytes += result.bytes_read
        self.written_bytes += result.bytes_written
        _log.info(
            "Compacted %s-%d up to offset %d: kept %d of %d records, %d of %d bytes",
            log.topic, log.partition, result.end_offset,
            result.records_kept, result.records_read, result.bytes_written, result.bytes_read,
        )  # fmt: skip
        return result

    def _on_progress(self, log: Log, count: int) -> None:
        if self._stopping.is_set():
            raise CleanerStopped
        if log.closed:
            raise SourcesChanged(f"{log.directory}: the log was closed while it was being compacted")
        self._throttle.take(count)

    def _check_bytes(self) -> int:
        """Return `CompactionJob.check_bytes`: large, since each report wakes a thread that holds up the reactor."""
        return int(min(_MAX_CHECK_BYTES, max(self._throttle.rate / 8, _MIN_CHECK_BYTES)))

    def _failed(self, log: Log, error: StorageError) -> None:
        """Handle a failed compaction: take the data directory offline, or skip the log for a while or for good."""
        if isinstance(error, StorageFailure):
            if isinstance(error.cause, FileNotFoundError) and self._was_removed(log):
                _log.info("%s-%d was deleted or truncated while it was being compacted: %s",
                          log.topic, log.partition, error)  # fmt: skip
                self._retry_later(log)
                return
            if self._manager.storage_failed(error):
                return
            _log.error("Could not compact %s-%d, will retry in %d s: %s",
                       log.topic, log.partition, _RETRY_SECONDS, error)  # fmt: skip
            self._retry_later(log)
        elif not log.closed:
            reason = "it is damaged: " if isinstance(error, CorruptLog) else ""
            _log.error("%s-%d is not compacted until the next start: %s%s", log.topic, log.partition, reason, error)
            self._skipped_until[id(log)] = math.inf

    @property
    def given_up(self) -> int:
        """How many damaged logs are not compacted until the next start."""
        return list(self._skipped_until.values()).count(math.inf)

    def _was_removed(self, log: Log) -> bool:
        """Return whether retention, truncation or deletion can explain a missing file.

        They can't if the log is closed and the manager still has it: then a failed replacement of segments closed it.
        """
        return not log.closed or self._manager.logs.get((log.topic, log.partition)) is not log

    def _retry_later(self, log: Log) -> None:
        self._skipped_until[id(log)] = self._seconds() + _RETRY_SECONDS

    def _is_ours(self, log: Log) -> bool:
        return self._path is None or os.path.dirname(log.directory) == self._path

    def _choose(self) -> LogToClean | None:
        """Choose the log that needs compaction most, and mark it as in progress."""
        now_ms, now = self._now_ms(), self._seconds()
        with self._lock:
            logs = self._manager.logs.copy()
            if self._skipped_until:
                known = {id(log) for log in logs.values() if self._is_ours(log)}
                self._skipped_until = {
                    key: until for key, until in self._skipped_until.items() if key in known and until > now
                }
            candidates = []
            for key, log in logs.items():
                if not log.config.compacts or log.closed or not self._is_ours(log):
                    continue
                if key in self._in_progress or id(log) in self._skipped_until:
                    continue
                try:
                    if any(segment.file is not None for segment in log.segments[:-1]):
                        log.seal()
                    candidate = log_to_clean(log, now_ms)
                except StorageError as error:
                    self._failed(log, error)
                    continue
                if candidate is not None:
                    candidates.append(candidate)
            self.most_dirty = max((candidate.dirty_ratio for candidate in candidates), default=0.0)
            due = [candidate for candidate in candidates if candidate.is_due]
            if not due:
                return None
            chosen = max(due, key=lambda candidate: (candidate.overdue, candidate.dirty_ratio))
            self._in_progress.add((chosen.log.topic, chosen.log.partition))
            return chosen
