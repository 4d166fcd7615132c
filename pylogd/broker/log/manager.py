"""The logs of a broker, in one or several data directories: loading, creating, deleting, truncating and closing them.

A new partition goes to the data directory with the fewest partitions. The name of a deleted partition is available at
once, and its files are removed after `file.delete.delay.ms`. The manager's parts are:

- `registry`: which logs are open, which can't be used, and why;
- `directories`: the data directories, their failures, and whose they are;
- `bulk_loader`, `stopped_logs`: open many logs at a start, from the state that a clean stop has left;
- `closing`: closes them at a stop;
- `creation`: creates logs;
- `checkpoint_writer`: decides when which offsets are written to the checkpoints;
- `housekeeping`: flushes, applies retention, and removes deleted files, regularly.

Methods wait for the disk unless they say otherwise: call them in a thread. `logs` may be read in any thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pylogd.broker.log.bulk_loader import BulkLoader, ConfigOf, Progress
from pylogd.broker.log.caching import BlockCache
from pylogd.broker.log.checkpoint_writer import CheckpointWriter
from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.closing import abandon_logs, close_logs
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.creation import LogCreator, NewLogs
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.errors import StorageError, StorageFailure
from pylogd.broker.log.files import FileSystem, RealFileSystem, most_cached_files
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import STRAY_SUFFIX, DirectoryUsage, LogDirectory
from pylogd.broker.log.maintenance import LogMaintenance
from pylogd.broker.log.registry import LogRegistry
from pylogd.broker.log.storage import Storage
from pylogd.broker.log.truncation import truncate_fully_and_start_at, truncate_to

_log = logging.getLogger(__name__)

_CHECKPOINT_MS = 60_000
_RECOVERY_THREADS = 2

DirectoryFailed = Callable[[str, list[TopicPartition]], object]


class LogManager:
    """The logs of a broker; see the module.

    directories: the paths of the data directories.
    config: the settings of logs whose topic has no settings.
    now_ms: the wall clock, for time stamps and retention by age.
    seconds: a monotonic clock, for delays.
    node_id, cluster_id: compared with `meta.properties` of the directories, and written there if it has none.
    recovery_threads: how many logs are opened at the same time.
    checkpoint_ms: the time between two checkpoints.
    boot_id: identifies the boot of the machine; see `log_directory.open_directory`.
    partition_limit: how many logs may be open. May be changed until `load`.
    cached_files: how many files of older segments are kept open.
    cordoned: returns the absolute paths of the directories that take no new partitions (KIP-1066).
    cache: the block cache; None without one.
    staged_appends: whether all appends are made by `append.staged`, for writes in threads.
    """

    def __init__(
        self,
        directories: Sequence[str],
        *,
        config: LogConfig | None = None,
        fs: FileSystem | None = None,
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
        node_id: int = -1,
        cluster_id: str | None = None,
        recovery_threads: int = _RECOVERY_THREADS,
        checkpoint_ms: int = _CHECKPOINT_MS,
        boot_id: str | None = None,
        partition_limit: int = sys.maxsize,
        cached_files: int = most_cached_files(0),
        cordoned: Callable[[], frozenset[str]] = frozenset,
        cache: BlockCache | None = None,
        staged_appends: bool = False,
    ) -> None:
        self.fs: FileSystem = RealFileSystem() if fs is None else fs
        self.storage = Storage(
            self.fs, open_files=cached_files, seconds=seconds, cache=cache, staged_appends=staged_appends
        )
        self.config = LogConfig() if config is None else config
        self.partition_limit = partition_limit
        self._cordoned = cordoned
        self._now_ms = now_ms
        self._seconds = seconds
        self._reopening = threading.Lock()
        self._registry = LogRegistry()
        self._directories = LogDirectories(
            directories, self._registry, fs=self.fs, node_id=node_id, cluster_id=cluster_id, boot_id=boot_id
        )
        self._loader = BulkLoader(
            self._registry, self._directories, self.storage, self.config, now_ms=now_ms, threads=recovery_threads
        )
        self._checkpoints = CheckpointWriter(self._registry, self._directories)
        self._creator = LogCreator(
            self._registry, self._directories, self._checkpoints, self.storage, cordoned=cordoned,
            partition_limit=lambda: self.partition_limit, now_ms=now_ms,
        )  # fmt: skip
        self._maintenance = LogMaintenance(
            self._registry, self._directories, self._checkpoints, self.fs,
            now_ms=now_ms, seconds=seconds, checkpoint_ms=checkpoint_ms,
        )  # fmt: skip

    # What there is (never waits for the disk) ----------------------------------------------------------------------

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """The open logs."""
        return self._registry.logs

    @property
    def offline(self) -> dict[TopicPartition, StorageError]:
        """The logs that can't be used, and why."""
        return {key: log.error for key, log in list(self._registry.offline.items())}

    @property
    def directories(self) -> list[LogDirectory]:
        """All data directories; none before `load` and after `close`."""
        return self._directories.entries

    @property
    def healthy(self) -> list[str]:
        """The paths of the data directories that are not offline."""
        return [entry.path for entry in self._directories.online]

    @property
    def cordoned(self) -> bool:
        """Whether all online data directories are cordoned, so that the broker gets no new replicas."""
        return bool(self.healthy) and self._cordoned().issuperset(self.healthy)

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks in the checkpoints when the directories were opened."""
        return self._directories.high_watermarks

    @property
    def in_full_directories(self) -> list[TopicPartition]:
        """The partitions whose logs are on full volumes."""
        return self._directories.logs_on_full_volumes()

    @property
    def directory_id(self) -> str | None:
        """The id of the first online data directory. It is unique while this process has the directory's lock."""
        return next((entry.properties.directory_id for entry in self._directories.online), None)

    @property
    def directory_ids(self) -> frozenset[str]:
        """The ids of the data directories that are online."""
        return frozenset(entry.properties.directory_id for entry in self._directories.online)

    def directory_id_of(self, key: TopicPartition) -> str | None:
        """Return the id of the data directory that has a partition's log; None if there is no such log."""
        log = self.logs.get(key)
        return None if log is None else self._directories.directory_of(log).properties.directory_id

    def path_of(self, key: TopicPartition) -> str | None:
        """Return the path of a partition's log; None if there is no such log."""
        log = self.logs.get(key)
        return None if log is None else log.directory

    @property
    def suspect(self) -> frozenset[str]:
        """The ids of the data directories that may lack recent writes because the machine stopped unexpectedly."""
        return frozenset(entry.properties.directory_id for entry in self.directories if entry.suspect)

    # Starting and stopping -----------------------------------------------------------------------------------------

    def cancel_load(self) -> None:
        """Make a `load` that runs in another thread end soon, with LoadCancelled. Never waits for the disk."""
        self._loader.cancel()

    def load(self, progress: Progress | None = None, config_of: ConfigOf | None = None) -> None:
        """Lock the data directories, and open all logs in them.

        Raises LogDirLocked, InconsistentMetadata, LoadCancelled, and StorageFailure if no directory can be used.
        """
        directories = self._directories
        try:
            directories.open_all()
            found = [log for entry in directories.entries for log in directories.find_logs(entry)]
            self._loader.load(found, self.partition_limit, progress, config_of)
            directories.sync_names()
            self._checkpoint_unless_full()
            for key, offset in directories.cleaned_offsets.items():
                log = self.logs.get(key)
                if log is not None and log.cleaned_offset < offset:  # recovery truncated the log
                    self.checkpoint_cleaned(log)
            directories.forget_read()
            if not directories.online:
                failure = directories.entries[0].failure
                assert failure is not None
                raise failure
        except BaseException:
            self.close(clean=False)
            raise

    def reopen(self, path: str) -> list[TopicPartition]:
        """Use a data directory again that is offline or full. Return the partitions that are available again.

        The logs are recovered as after a crash. A directory that is already in use is not changed. Raises the errors of
        `LogDirectories.reopen`.
        """
        with self._reopening:
            entry = self._directories.reopen(path)
            if entry is None:
                return []
            found = [log for log in self._directories.find_logs(entry) if (log.topic, log.partition) not in self.logs]
            self._loader.load(found, self.partition_limit)
            self._directories.sync_names()
            if entry.failure is not None:
                raise entry.failure
            keys = [(log.topic, log.partition) for log in found]
            _log.info("Data directory %s is online again with %d partitions", entry.path, len(keys))
            return [key for key in keys if key in self.logs]

    def use_threads(self, threads: int) -> None:
        """Open and close logs in this many threads from now on (`num.recovery.threads.per.data.dir`)."""
        self._loader.threads = threads

    def close(self, clean: bool = True) -> None:
        """Close all logs and release the data directories.

        clean: whether to flush the logs. Directories whose logs were all flushed and closed are marked as cleanly
            stopped.
        """
        offline = list(self._registry.offline.values())
        unclean = {path for log in offline if log.needs_recovery for path in log.directories}
        unclean |= {entry.path for entry in self.directories if entry.failure is not None}
        if clean:
            logs = self._registry.open_logs()
            unclean |= close_logs(self._directories, logs, self._loader.threads)
            self._mark_clean(unclean, logs)
        else:
            abandon_logs(self._registry.open_logs())
        self._directories.close()
        self._registry.clear()

    def _mark_clean(self, unclean: set[str], logs: Sequence[Log]) -> None:
        try:
            self.checkpoint()
            for entry in self.directories:
                # The checkpoint may have made the directory fail.
                if entry.path not in unclean and entry.failure is None:
                    entry.mark_clean(logs)
        except (StorageError, OSError) as error:
            _log.error("Could not write the clean-shutdown marker; the next start recovers the logs: %s", error)

    # Partitions ----------------------------------------------------------------------------------------------------

    def choose_directories(self, count: int) -> Sequence[str | None]:
        """Return a data directory for each of `count` new logs, or Nones if all are offline. Never waits for a disk."""
        return self._creator.choose_directories(count)

    def create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None = None, directory: str | None = None
    ) -> Log:
        """Create an empty log and return it. If the log is already open, return that.

        directory: the data directory, if the caller has chosen it.

        Raises the errors that `LogCreator.create` returns.
        """
        (made,) = self.create_all(topic, [partition], topic_id, config, directory)
        if isinstance(made, StorageError):
            raise made
        return made

    def create_all(
        self, topic: str, partitions: Sequence[int], topic_id: bytes, config: LogConfig | None = None,
        directory: str | None = None,
    ) -> list[Log | StorageError]:  # fmt: skip
        """Create empty logs of a topic. Return each log, or its error. See `LogCreator.create`."""
        config = self.config if config is None else config
        return self._creator.create(NewLogs(topic, partitions, topic_id, config, directory))

    def delete(self, topic: str, partition: int) -> None:
        """Delete a log, after a write under way has ended. Ignores an unknown partition. Raises StorageFailure.

        Its name is available at once; its files are removed later.
        """
        key = topic, partition
        with self._registry.removing(key):
            log = self.logs.get(key)
            if log is None:
                self._delete_unopened(key)
                return
            try:
                with log.maintenance:
                    with log.exclude_appends():  # a roll would fail when the directory has another name
                        entry = self._remove(key, log)
                        log.abandon()
                    if entry is not None:
                        self._delete_later(entry, log.directory, log.config)
            except StorageFailure as error:
                self.storage_failed(error)
                raise

    def _delete_unopened(self, key: TopicPartition) -> None:
        """Delete a log that was not opened because there are too many partitions, if the partition has one."""
        offline = self._registry.offline.get(key)
        path = None if offline is None else offline.unopened_path
        if offline is None or path is None:
            return
        offline.unopened_path = None
        try:
            self._delete_later(self._directories.at(os.path.dirname(path)), path, self.config)
        except StorageFailure as error:
            self.storage_failed(error)
            raise
        with self._registry.lock:
            self._registry.offline.pop(key, None)

    def _delete_later(self, entry: LogDirectory, path: str, config: LogConfig) -> None:
        """Rename a partition's directory, so that it is removed after the delay."""
        target = entry.rename_partition(path)
        entry.pending_removals.append((self._seconds() + config.file_delete_delay_ms / 1000, target))

    def keep_aside(self, topic: str, partition: int) -> str | None:
        """Close a log that the metadata does not know, and rename its directory to `-stray`. No broker removes it.

        Returns the new path of the directory, None if there is no such log. Raises StorageFailure.
        """
        key = topic, partition
        with self._registry.removing(key):
            log = self.logs.get(key)
            if log is None:
                return None
            with log.exclude_appends():  # waits for a write under way
                entry = self._remove(key, log)
            if entry is None:
                return None
            try:
                log.close()
                return entry.rename_partition(log.directory, STRAY_SUFFIX)
            except StorageFailure as error:
                self.storage_failed(error)
                raise

    def _remove(self, key: TopicPartition, log: Log) -> LogDirectory | None:
        """Remove a log from the open logs. Return its data directory, or None if that went offline meanwhile."""
        with self._registry.lock:
            if self.logs.get(key) is not log:
                return None
            del self.logs[key]
            entry = self._directories.directory_of(log)
            entry.open_logs -= 1
            return entry

    def truncate_to(self, topic: str, partition: int, offset: int) -> int:
        """Truncate a log to end at `offset` at most, update the checkpoints, and return the new log end offset."""
        log = self.logs[topic, partition]
        self._checkpoints.lower_cleaned(log, offset)
        end = truncate_to(log, offset)
        self._checkpoints.write_truncated(log)
        return end

    def begin_at(self, topic: str, partition: int, offset: int) -> None:
        """Remove all records of a log, have it start and end at `offset`, and update the checkpoints."""
        log = self.logs[topic, partition]
        self._checkpoints.lower_cleaned(log, offset)
        truncate_fully_and_start_at(log, offset)
        self._checkpoints.write_truncated(log)

    # Data directories ----------------------------------------------------------------------------------------------

    @property
    def on_directory_failed(self) -> DirectoryFailed | None:
        """Called with the path of a directory that failed and its partitions, in the thread that found the failure."""
        return self._directories.on_failed

    @on_directory_failed.setter
    def on_directory_failed(self, callback: DirectoryFailed | None) -> None:
        self._directories.on_failed = callback

    @property
    def on_directory_full(self) -> Callable[[], object] | None:
        """Called when a volume is full, or has free space again, in the thread that noticed it."""
        return self._directories.on_full

    @on_directory_full.setter
    def on_directory_full(self, callback: Callable[[], object] | None) -> None:
        self._directories.on_full = callback

    def storage_failed(self, error: StorageError) -> bool:
        """Take a data directory offline if the error calls for it; see `LogDirectories.storage_failed`."""
        return self._directories.storage_failed(error)

    def check_directories(self, write: bool = True, path: str | None = None) -> None:
        """Look for data directories that failed or have free space again; see `LogDirectories.check`."""
        self._directories.check(write, path)

    def trust(self) -> None:
        """Write to each directory that it is in use under this boot id: then none is `suspect` any more.

        Call this when the missing writes of suspect directories can no longer do harm.
        """
        self._directories.claim_for_this_boot()

    def adopt_cluster_id(self, cluster_id: str) -> None:
        """Write the cluster id to the directories that have none. Raises InconsistentMetadata for another one."""
        self._directories.claim(cluster_id)

    def usage(self) -> list[DirectoryUsage]:
        """Return the bytes used by directory and partition."""
        cordoned = self._cordoned()
        return [entry.usage(self._registry.open_logs(), entry.path in cordoned) for entry in self.directories]

    # LogMaintenance --------------------------------------------------------------------------------------------------

    def tick(self, path: str | None = None) -> list[TopicPartition]:
        """Do the maintenance that is due; return the partitions whose log start offset has moved.

        path: as for `LogMaintenance.tick`.
        """
        return self._maintenance.tick(path)

    def _checkpoint_unless_full(self) -> None:
        """Write the checkpoints. If the disk is full, leave them to the next `tick`, so that the broker starts."""
        try:
            self.checkpoint()
        except StorageFailure as error:
            if not error.is_full:
                raise
            _log.error("Starting without new checkpoints, since the disk is full: %s", error)

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets; see `CheckpointWriter.write`."""
        self._checkpoints.write()

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, int], path: str | None = None) -> None:
        """Write high watermarks; see `CheckpointWriter.write_high_watermarks`."""
        self._checkpoints.write_high_watermarks(offsets, path)

    def checkpoint_cleaned(self, log: Log) -> None:
        """Write how far logs were compacted; see `CheckpointWriter.write_cleaned`."""
        self._checkpoints.write_cleaned(log)
