"""The data directories of a broker: their logs, their disks, and the caches before them.

Rules: a directory whose disk fails, or hangs for longer than `log.dir.failure.timeout.ms`, goes offline. Requests that
wait for its disk fail then. It is taken offline in a thread, since threads that wait for the disk may hold locks.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Thread
from typing import Any

from twisted.logger import Logger

from pylogd.base.clock import wall_ms
from pylogd.broker.cache.service import make_block_cache
from pylogd.broker.isolation.disk_meter import DiskMeter, DiskSampler
from pylogd.broker.isolation.disks import make_disks
from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import FileSystem, most_cached_files, most_partitions
from pylogd.broker.log.log_directory import machine_boot_id
from pylogd.broker.log.manager import LogManager
from pylogd.broker.replica.busy_disk_write_back import BusyDiskWriteBack
from pylogd.broker.replica.configs import cleaner_config, log_config
from pylogd.broker.replica.disk_calls import DiskCalls, InThread
from pylogd.config import Settings

log = Logger()


class Storage:
    """The storage of one broker.

    disks: the threads of each disk; None if disks do not have their own threads.
    block_cache: what producers appended last; None without such a cache.
    laggards: throttles readers that lag while a disk is busy.
    cleaners: the threads that compact logs. The broker starts and stops them.
    on_directory_failed: called in the reactor with the partitions of a directory that went offline.
    on_directory_full: called in the reactor.
    """

    def __init__(
        self, settings: Settings, reactor: Any, in_thread: InThread, fs: FileSystem | None, open_files: int
    ) -> None:
        """Make the parts. No file is opened yet.

        in_thread: runs a function in one of the broker's threads.
        fs: the file system; None for the operating system's.
        open_files: the most files that the process may have open.
        """
        self.on_directory_failed: Callable[[list[tuple[str, int]]], object] = lambda _: None
        self.on_directory_full: Callable[[], object] = lambda: None
        self._reactor = reactor
        self._in_thread = in_thread
        self.disks = make_disks(settings, reactor, self._directory_hangs)
        self.block_cache = make_block_cache(settings, reactor, self._storage_failed)
        self.logs = self._make_logs(settings, fs, open_files)
        self._disk_use = DiskSampler(DiskMeter(), lambda: self.logs.healthy, reactor, in_thread)
        self._unsubscribe: Callable[[], object] = lambda: None
        self.laggards = LaggardThrottle(settings, self._disk_use, reactor)
        calls = DiskCalls(in_thread, self.disks)
        if self.block_cache is None:  # the block cache hands over written bytes itself
            BusyDiskWriteBack(self.laggards, self.logs, calls, reactor).start()
        self.cleaners = Cleaners(self.logs, cleaner_config(settings), calls.parts, wall_ms)

    def _make_logs(self, settings: Settings, fs: FileSystem | None, open_files: int) -> LogManager:
        integer, cache = settings.integer, self.block_cache
        logs = LogManager(
            settings.words("log.dirs"), config=log_config(settings, {}), fs=fs, now_ms=wall_ms,
            node_id=integer("node.id"), recovery_threads=integer("num.recovery.threads.per.data.dir"),
            checkpoint_ms=integer("log.flush.offset.checkpoint.interval.ms"), boot_id=machine_boot_id(),
            partition_limit=most_partitions(open_files), cordoned=lambda: settings.cordoned_directories,
            cache=None if cache is None else cache.cache, cached_files=most_cached_files(open_files),
            staged_appends=self.disks is not None,
        )  # fmt: skip
        if self.disks is not None and self.disks.adaptive:
            logs.storage.appended = self.disks.wrote
        logs.on_directory_failed = lambda path, keys: self._reactor.callFromThread(self._directory_failed, path, keys)
        logs.on_directory_full = lambda: self._reactor.callFromThread(self.on_directory_full)
        return logs

    def _storage_failed(self, failure: StorageFailure) -> None:
        self.logs.storage_failed(failure)

    async def start(self) -> None:
        """Load the logs, in threads."""
        await self._in_thread(self.logs.load, self._loaded)
        if self.block_cache is not None:
            self.block_cache.start()
        if self.disks is not None:
            self.disks.other_calls = self.cleaners.working_at
            self.disks.start()
            if self.disks.adaptive:
                self._unsubscribe = self._disk_use.subscribe(self.disks.observe)

    async def stop(self) -> None:
        """Close the logs, which marks the stop as clean."""
        try:
            self._unsubscribe()
            if self.disks is not None:
                self.disks.stop()
            if self.block_cache is not None:
                self.block_cache.stop_reports()
                await self._in_thread(self.block_cache.stop_threads)
        finally:
            await self._in_thread(self.logs.close)

    def _loaded(self, done: int, total: int) -> None:  # this is called in a thread
        self._reactor.callFromThread(log.info, "loaded {done} of {total} logs", done=done, total=total)

    def _directory_hangs(self, path: str, seconds: float) -> None:
        """Take a data directory offline, because a call has not returned for a number of seconds."""
        reason = f"a call has not returned for {seconds:.1f} s (log.dir.failure.timeout.ms)"
        failure = StorageFailure(path, OSError(errno.ETIMEDOUT, reason))

        def take_offline() -> None:
            self.logs.storage_failed(failure)
            self._reactor.callFromThread(self._fail_calls, path)  # the directory may have been offline before

        Thread(target=take_offline, name="pylogd-hang", daemon=True).start()

    def _directory_failed(self, path: str, keys: list[tuple[str, int]]) -> None:
        self._fail_calls(path)
        self.on_directory_failed(keys)

    def _fail_calls(self, path: str) -> None:
        """Fail all requests that wait for the disk of an offline data directory."""
        if self.disks is not None:
            stuck = self.disks.failed(path, StorageFailure(path, OSError(errno.EIO, "the data directory is offline")))
            if stuck:
                log.error(
                    "{stuck} threads are stuck in calls to {path}, until its disk answers", stuck=stuck, path=path
                )
