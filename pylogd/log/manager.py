"""All logs of a broker, over its data directories.

Strategy: what lies in one data directory is `directories`' business; here are the open logs of all of them. A new
partition goes to the directory with the fewest. A deleted one gives its name free at once and is removed after a delay.

Rules:
- `load`, `create`, `delete`, `tick` and `close` wait for the disk and belong in a thread; `logs` may be looked up
anywhere. One partition that can't be opened does not stop the others: it is in `offline`, with the reason.
- No more logs are opened than `partition_limit` says; the others are in `offline`, as the last stop left them.
- A data directory whose disk fails goes offline alone: it is not written to again, its logs move to `offline`, and the
  next start recovers them. A full disk is no such failure; a sync that failed always is.
Must not know: topics' settings beyond what it is handed, replicas, the reactor.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pylogd.log import checkpoints
from pylogd.log.checkpoints import TopicPartition
from pylogd.log.config import LogConfig
from pylogd.log.directories import (
    STRAY_SUFFIX,
    DirectoryUsage,
    LogDirectory,
    claim,
    failed_directory,
    open_directory,
)
from pylogd.log.errors import (
    LINK,
    CorruptLog,
    LoadCancelled,
    NoLogDirectory,
    StorageError,
    StorageFailure,
    TooManyPartitions,
    UnknownLogDirectory,
)
from pylogd.log.files import FileSystem, RealFileSystem, remove_tree, sync_directory
from pylogd.log.loader import Found, create_log, load_log
from pylogd.log.log import Log
from pylogd.log.retention import retain, unlink_deleted
from pylogd.log.segment import Storage
from pylogd.log.truncation import truncate_fully_and_start_at, truncate_to

_log = logging.getLogger(__name__)

_CHECKPOINT_MS = 60_000
_RECOVERY_THREADS = 2
_INTERNAL = "__"  # how the names of the broker's own topics begin

Progress = Callable[[int, int, str], None]
ConfigOf = Callable[[str], LogConfig]
DirectoryFailed = Callable[[str, list[TopicPartition]], object]


class LogManager:
    """See the module. `config` is for logs whose topic nobody gave settings; `config_of` gives a topic's while loading.

    `now_ms` is the wall clock, for time stamps and retention by age; `seconds` a monotonic clock, for all that waits.

    `node_id` and `cluster_id` are compared with what the directories say; a directory that says nothing takes them.
    `boot_id`: of the machine, as `open_directory` takes it.
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
    ) -> None:
        self.fs: FileSystem = RealFileSystem() if fs is None else fs
        self.storage = Storage(self.fs, seconds=seconds)
        self.config = LogConfig() if config is None else config
        self.logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, StorageError] = {}
        self._offline_in: dict[TopicPartition, list[str]] = {}  # data directories
        self._untouched: set[TopicPartition] = set()  # of those offline, what needs no recovery that it did not get
        self.directories: list[LogDirectory] = []
        self.on_directory_failed: DirectoryFailed | None = None  # called in whatever thread it happened
        self.on_directory_full: Callable[[], object] | None = None  # the same: one is full, or has room again
        self._paths = [os.path.abspath(path) for path in directories]
        self._now_ms = now_ms
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._boot_id = boot_id
        self.partition_limit = partition_limit
        self._unopened: dict[TopicPartition, str] = {}  # directories of logs beyond the limit
        self._recovery_threads = recovery_threads
        self._seconds = seconds
        self._checkpoint_seconds = checkpoint_ms / 1000
        self._next_checkpoint = 0.0
        self._cleaned: dict[TopicPartition, int] = {}  # up to where, as the checkpoints said at the start
        self.high_watermarks: dict[TopicPartition, int] = {}  # as the checkpoints said at the start
        self._cancelled = False
        self._cleaned_lock = threading.Lock()  # of the writing of that file
        self._reopening = threading.Lock()
        self._checkpointing = threading.Lock()  # from when the offsets are looked up until they are written
        self._truncations = [0, 0]  # how many there were, and how many of them the checkpoint knows
        self._lock = threading.Lock()  # of `logs`' keys and of the choice of a directory

    # Starting ------------------------------------------------------------------------------------------------------

    def cancel_load(self) -> None:
        """Have a `load` under way in another thread end soon, with `LoadCancelled` and nothing marked as clean."""
        self._cancelled = True

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise LoadCancelled("the start was called off")

    def load(self, progress: Progress | None = None, config_of: ConfigOf | None = None) -> None:
        """Lock the directories and open every log in them. `progress(done, total, name)` is told of each log."""
        try:
            for path in self._paths:
                self.directories.append(self._try_directory(path))
            self._load_logs([found for entry in self.directories for found in self._find(entry)], progress, config_of)
            self._sync_names()
            self.checkpoint()
            for key, log in list(self.logs.items()):
                if log.cleaned_offset < self._cleaned.get(key, 0):  # cut, and then the crash came
                    self.checkpoint_cleaned(log)
            if not self.healthy:
                failure = self.directories[0].failure
                assert failure is not None
                raise failure
        except BaseException:
            self.close(clean=False)
            raise

    def _sync_names(self) -> None:
        """After a crash: make the partitions' names durable, before what they hold counts as flushed."""
        for entry in self.directories:
            if not entry.clean and entry.failure is None:
                try:
                    sync_directory(self.fs, entry.path)
                except OSError as error:
                    self.storage_failed(StorageFailure(entry.path, error))

    def _try_directory(self, path: str) -> LogDirectory:
        """The directory, offline if its disk fails and there are others."""
        try:
            entry = open_directory(self.fs, path, self._node_id, self._cluster_id, self._boot_id)
        except OSError as error:
            failure = StorageFailure(error.filename or path, error)
            if len(self._paths) == 1:
                raise failure from error
            _log.critical("%s: %s: the data directory is offline, with all of its partitions", path, failure)
            return failed_directory(self.fs, path, failure)
        self._cleaned |= entry.cleaned
        self.high_watermarks |= entry.high_watermarks
        return entry

    @property
    def healthy(self) -> list[str]:
        """The data directories that are not offline."""
        return [entry.path for entry in self.directories if entry.failure is None]

    def storage_failed(self, error: StorageError) -> bool:
        """Take the data directory offline that `error` is about, if it is such an error; whether it is offline.

        May be called in any thread, by who holds no log's lock.
        """
        if not isinstance(error, StorageFailure):
            return False
        entry = next((e for e in self.directories if f"{error.path}/".startswith(f"{e.path}/")), None)
        if entry is None:
            return False
        if not error.is_fatal:
            if error.is_full:
                self._set_full(entry, True)
            return False
        with self._lock:
            if entry.failure is not None:
                return True
            entry.failure = error
            lost = [log for log in self.logs.values() if entry.holds(log)]
            keys = [(log.topic, log.partition) for log in lost]
            for key in keys:
                del self.logs[key]
                self.offline[key] = error
                self._offline_in[key] = [entry.path]
        _log.critical(
            "%s: the data directory is offline, with %d partitions; once the disk is seen to, use it again by "
            "`pylogd cluster reopen` or a restart: %s",
            entry.path, len(keys), error,
        )  # fmt: skip
        for log in lost:
            log.abandon()
        if self.on_directory_failed is not None:
            self.on_directory_failed(entry.path, keys)
        return True

    def _set_full(self, entry: LogDirectory, full: bool) -> None:
        with self._lock:
            if entry.full == full:
                return
            entry.full = full
        if full:
            _log.error("%s: the volume is full: other brokers lead its partitions, where possible", entry.path)
        else:
            _log.info("%s: the volume has free space again", entry.path)
        if self.on_directory_full is not None:
            self.on_directory_full()

    def check_directories(self, write: bool = True) -> None:
        """Find data directories that are gone, can't be written to (tried with `write` only), or have room again.

        For a thread: it waits for the disk.
        """
        for entry in self.directories:
            if entry.failure is None:
                try:
                    entry.probe(write and not entry.full)
                    if entry.full and entry.has_room():
                        self._set_full(entry, False)
                except OSError as error:
                    self.storage_failed(StorageFailure(error.filename or entry.path, error))

    def reopen(self, path: str) -> list[TopicPartition]:
        """Use a data directory again that is offline, or full; the partitions that it brings back.

        For a thread: logs are recovered as after a crash. One that is in use stays as it is. Raises
        UnknownLogDirectory, StorageFailure if it still fails, and InconsistentMetadata as `LogDirectory.reopened`.
        """
        path = os.path.abspath(path)
        with self._reopening:
            failed = next((entry for entry in self.directories if entry.path == path), None)
            if failed is None:
                raise UnknownLogDirectory(f"{path} is no data directory of this broker")
            if failed.failure is None:
                self._set_full(failed, False)
                return []
            try:
                entry = failed.reopened(self._boot_id)
            except OSError as error:
                raise StorageFailure(error.filename or path, error) from error
            return self._take_back(failed, entry)

    def _take_back(self, failed: LogDirectory, entry: LogDirectory) -> list[TopicPartition]:
        with self._lock:
            for key in [key for key, paths in self._offline_in.items() if paths == [entry.path]]:
                del self.offline[key], self._offline_in[key]
                self._unopened.pop(key, None)
                self._untouched.discard(key)
            self.directories[self.directories.index(failed)] = entry
        self._cleaned |= entry.cleaned
        self.high_watermarks |= entry.high_watermarks
        found = [one for one in self._find(entry) if (one.topic, one.partition) not in self.logs]
        self._load_logs(found, None, None)
        self._sync_names()
        if entry.failure is not None:
            raise entry.failure
        keys = [(one.topic, one.partition) for one in found]
        _log.info("%s: the data directory is in use again, with %d partitions", entry.path, len(keys))
        return [key for key in keys if key in self.logs]

    @property
    def in_full_directories(self) -> list[TopicPartition]:
        """The partitions whose logs are on volumes without room."""
        full = {entry.path for entry in self.directories if entry.full and entry.failure is None}
        if not full:
            return []
        return [key for key, log in list(self.logs.items()) if os.path.dirname(log.directory) in full]

    @property
    def directory_id(self) -> str | None:
        """The id of the first data directory that is there; nobody else has it while this process holds its lock."""
        return next((entry.properties.directory_id for entry in self.directories if entry.failure is None), None)

    @property
    def directory_ids(self) -> frozenset[str]:
        """The ids of the data directories that are there."""
        return frozenset(entry.properties.directory_id for entry in self.directories if entry.failure is None)

    def directory_id_of(self, key: TopicPartition) -> str | None:
        """The id of the data directory that holds a partition's log, None if there is no such log."""
        log = self.logs.get(key)
        return None if log is None else self._directory_of(log).properties.directory_id

    @property
    def suspect(self) -> frozenset[str]:
        """The ids of the data directories that may lack the last of what was written to them: the machine stopped."""
        return frozenset(entry.properties.directory_id for entry in self.directories if entry.suspect)

    def trust(self) -> None:
        """Say in each directory that it is in use under this boot id: none is suspect from now on.

        To be called once nobody counts any more on what they may lack.
        """
        for entry in self.directories:
            if entry.failure is None:
                entry.properties = claim(self.fs, entry.path, self._node_id, self._cluster_id, self._boot_id)
                entry.suspect = False

    def adopt_cluster_id(self, cluster_id: str) -> None:
        """Compare with the directories' cluster id, or write it to those that have none."""
        self._cluster_id = cluster_id
        for entry in self.directories:
            if entry.failure is None:
                entry.properties = claim(self.fs, entry.path, self._node_id, cluster_id)

    def _find(self, entry: LogDirectory) -> list[Found]:
        if entry.failure is not None:
            return []
        try:
            return entry.find()
        except OSError as error:
            self.storage_failed(StorageFailure(error.filename or entry.path, error))
            return []

    def _load_logs(self, found: list[Found], progress: Progress | None, config_of: ConfigOf | None) -> None:
        places: dict[TopicPartition, list[str]] = {}
        for entry in found:
            places.setdefault((entry.topic, entry.partition), []).append(entry.directory)
        done = 0
        with ThreadPoolExecutor(self._recovery_threads, "log-recovery") as pool:
            unique = self._within_limit([entry for entry in found if len(places[entry.topic, entry.partition]) == 1])
            for entry in pool.map(lambda entry: self._load_one(entry, config_of), unique):
                done += 1
                if progress is not None:
                    progress(done, len(unique), os.path.basename(entry.directory))
        for key, paths in places.items():
            if len(paths) > 1:
                error = CorruptLog(f"one partition in several places: {', '.join(paths)}; keep one")
                self._set_offline(key, paths, error)

    def _within_limit(self, found: list[Found]) -> list[Found]:
        """Those of the logs that may be opened, the broker's own topics first; the others are offline."""
        room = max(self.partition_limit - len(self.logs), 0)
        if len(found) <= room:
            return found
        found.sort(key=lambda entry: not entry.topic.startswith(_INTERNAL))
        error = TooManyPartitions(self.partition_limit)
        rest = found[room:]
        for entry in rest:
            key = entry.topic, entry.partition
            self.offline[key] = error
            self._offline_in[key] = [os.path.dirname(entry.directory)]
            self._unopened[key] = entry.directory
            if entry.clean:
                self._untouched.add(key)
        _log.critical("%d of %d partitions are offline, the first is %s-%d: %s", len(rest), len(found), rest[0].topic,
                      rest[0].partition, error)  # fmt: skip
        return found[:room]

    def _load_one(self, found: Found, config_of: ConfigOf | None) -> Found:
        key = found.topic, found.partition
        config = self.config if config_of is None else config_of(found.topic)
        self._check_cancelled()
        try:
            log = load_log(found, config, storage=self.storage, now_ms=self._now_ms, check=self._check_cancelled)
        except LoadCancelled:
            raise
        except StorageError as error:
            self._set_offline(key, [found.directory], error)
            if found.is_link:
                self._untouched.add(key)
            self.storage_failed(error)
            return found
        log.cleaned_offset = min(self._cleaned.get(key, 0), log.log_end_offset)
        entry = self._directory_of(log)
        with self._lock:
            failure = entry.failure
            if failure is None:
                self.logs[key] = log
                entry.partitions += 1
        if failure is not None:
            log.abandon()
            self._set_offline(key, [found.directory], failure)
        return found

    def _set_offline(self, key: TopicPartition, paths: list[str], error: StorageError) -> None:
        _log.error("%s-%d is offline: %s", *key, error)
        self.offline[key] = error
        self._offline_in[key] = [os.path.dirname(path) for path in paths]

    # Partitions ----------------------------------------------------------------------------------------------------

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None = None) -> Log:
        """A new, empty log; the one that is there if it is the same topic's."""
        try:
            return self._create(topic, partition, topic_id, config)
        except StorageFailure as error:
            self.storage_failed(error)
            raise

    def _create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None) -> Log:
        key = topic, partition
        with self._lock:
            known = self.logs.get(key)
            if known is not None:
                return known
            if key in self.offline:
                raise self.offline[key]
            if len(self.logs) >= self.partition_limit and not topic.startswith(_INTERNAL):
                raise TooManyPartitions(self.partition_limit)
            left = [entry for entry in self.directories if entry.failure is None]
            if not left:
                raise NoLogDirectory("every data directory has failed")
            entry = min(left, key=lambda entry: (entry.full, entry.partitions))
            path = os.path.join(entry.path, f"{topic}-{partition}")
            try:
                if self.fs.islink(path):
                    raise OSError(errno.ELOOP, LINK, path)
                self.fs.mkdir(path)
                checkpoints.write_partition_metadata(self.fs, path, topic_id)
            except OSError as error:
                raise StorageFailure(path, error) from error
            log = create_log(
                path, topic, partition, topic_id, self.config if config is None else config,
                storage=self.storage, now_ms=self._now_ms,
            )  # fmt: skip
            self.logs[key] = log
            entry.partitions += 1
            return log

    def _directory_of(self, log: Log) -> LogDirectory:
        return next(entry for entry in self.directories if entry.holds(log))

    def delete(self, topic: str, partition: int) -> None:
        """Take the log away; its files go after the delay. An unknown one is no error."""
        taken = self._take(topic, partition)
        if taken is None:
            self._delete_unopened((topic, partition))
            return
        log, entry = taken
        try:
            with log.maintenance:
                log.abandon()
                target = entry.take_away(log.directory)
            entry.doomed.append((self._seconds() + log.config.file_delete_delay_ms / 1000, target))
            self._forget_cleaned(log)
        except StorageFailure as error:
            self.storage_failed(error)
            raise

    def _delete_unopened(self, key: TopicPartition) -> None:
        """Delete a log that was never opened, if it is one."""
        path = self._unopened.pop(key, None)
        if path is None:
            return
        entry = next(entry for entry in self.directories if entry.path == os.path.dirname(path))
        try:
            target = entry.take_away(path)
        except StorageFailure as error:
            self.storage_failed(error)
            raise
        with self._lock:
            self.offline.pop(key, None)
            self._offline_in.pop(key, None)
        entry.doomed.append((self._seconds() + self.config.file_delete_delay_ms / 1000, target))

    def keep_aside(self, topic: str, partition: int) -> str | None:
        """Close a log that the metadata does not know and rename its directory to `-stray`, where it stays.

        Returns the directory's new path, None if there is no such log. Raises StorageFailure.
        """
        taken = self._take(topic, partition)
        if taken is None:
            return None
        log, entry = taken
        try:
            log.close()
            target = entry.take_away(log.directory, STRAY_SUFFIX)
            self._forget_cleaned(log)
        except StorageFailure as error:
            self.storage_failed(error)
            raise
        return target

    def _take(self, topic: str, partition: int) -> tuple[Log, LogDirectory] | None:
        """Take a log out of `logs`; the log and its data directory, None if there is no such log."""
        with self._lock:
            log = self.logs.pop((topic, partition), None)
            if log is None:
                return None
            entry = self._directory_of(log)
            entry.partitions -= 1
            return log, entry

    def _forget_cleaned(self, log: Log) -> None:
        """Drop a log that was taken out from the cleaner's checkpoint."""
        if log.cleaned_offset:
            self.checkpoint_cleaned(log)

    def truncate_to(self, topic: str, partition: int, offset: int) -> int:
        """Truncate a log and say so in the checkpoints; the log's new end."""
        log = self.logs[topic, partition]
        cleaned = log.cleaned_offset
        end = truncate_to(log, offset)
        self._note_cut()
        if log.cleaned_offset < cleaned:
            self.checkpoint_cleaned(log)
        return end

    def begin_at(self, topic: str, partition: int, offset: int) -> None:
        """Drop all of a log, begin it anew at `offset`, and say so in the checkpoints."""
        log = self.logs[topic, partition]
        cleaned = log.cleaned_offset
        truncate_fully_and_start_at(log, offset)
        self._note_cut()
        if log.cleaned_offset < cleaned:
            self.checkpoint_cleaned(log)

    def _note_cut(self) -> None:
        """Write the checkpoint, together with whoever else has cut a log meanwhile."""
        with self._lock:
            self._truncations[0] += 1
            mine = self._truncations[0]
        with self._checkpointing:
            if self._truncations[1] < mine:  # else somebody has written it together with their own
                done = self._truncations[0]
                self._checkpoint_all()
                self._truncations[1] = done

    def usage(self) -> list[DirectoryUsage]:
        """Bytes by directory and partition."""
        return [entry.usage(list(self.logs.values())) for entry in self.directories]

    # Housekeeping --------------------------------------------------------------------------------------------------

    def tick(self) -> list[TopicPartition]:
        """Flush what is due, make rolled segments durable, apply retention, remove what was deleted, checkpoint.

        Returns the topics and partitions of logs whose start has moved.
        """
        now_ms, now = self._now_ms(), self._seconds()
        moved = []
        for key, log in list(self.logs.items()):
            start = log.log_start_offset
            try:
                _keep(log, now_ms, now)
            except StorageError as error:
                if not self.storage_failed(error) and not log.closed:
                    _log.error("%s-%d: %s", log.topic, log.partition, error)
            if log.log_start_offset != start:
                moved.append(key)
        for entry in self.directories:
            self._remove_doomed(entry, now)
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + self._checkpoint_seconds
            try:
                self.checkpoint()
            except StorageError as error:
                _log.error("Could not write the checkpoints: %s", error)
        return moved

    def _remove_doomed(self, entry: LogDirectory, now: float) -> None:
        due = [path for when, path in entry.doomed if when <= now]
        entry.doomed = [doomed for doomed in entry.doomed if doomed[0] > now]
        for path in due:
            try:
                remove_tree(self.fs, path)
            except OSError as error:
                if not self.storage_failed(StorageFailure(path, error)):
                    _log.error("Could not remove %s: %s", path, error)

    def checkpoint(self) -> None:
        """Write recovery points and log starts, where they have changed. Raises StorageFailure of what passes."""
        with self._checkpointing:
            self._checkpoint_all()

    def _checkpoint_all(self) -> None:
        failed: StorageFailure | None = None
        for entry in self.directories:
            try:
                if entry.failure is None:
                    self._checkpoint(entry)
            except StorageFailure as error:
                if not self.storage_failed(error):
                    failed = error
        if failed is not None:
            raise failed

    def _checkpoint(self, entry: LogDirectory) -> None:
        logs = [(key, log) for key, log in list(self.logs.items()) if entry.holds(log)]
        points = {key: point for key, point in entry.recovery_points.items() if key in self._unopened}
        points |= {key: log.recovery_point for key, log in logs}
        entry.write_offsets(checkpoints.RECOVERY_POINTS, points)
        starts = {key: start for key, start in entry.log_starts.items() if key in self.offline}
        starts |= {key: log.log_start_offset for key, log in logs if log.log_start_offset > 0}
        entry.write_offsets(checkpoints.LOG_STARTS, starts)

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks of replicated partitions, where they have changed. Raises StorageFailure."""
        with self._checkpointing:
            self._checkpoint_high_watermarks(offsets)

    def _checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        logs = [(key, offset, self.logs.get(key)) for key, offset in offsets.items()]
        for entry in self.directories:
            found = {key: offset for key, offset, log in logs if log is not None and entry.holds(log)}
            if entry.failure is None and (found or checkpoints.HIGH_WATERMARKS in entry.checkpointed):
                try:
                    entry.write_offsets(checkpoints.HIGH_WATERMARKS, found)
                except StorageFailure as error:
                    if not self.storage_failed(error):
                        raise

    def checkpoint_cleaned(self, log: Log) -> None:
        """Write how far the logs in the directory of `log` were compacted, where that has changed."""
        with self._cleaned_lock:
            for entry in self.directories:
                if entry.holds(log) and entry.failure is None:
                    logs = [item for item in list(self.logs.items()) if entry.holds(item[1])]
                    offsets = {key: other.cleaned_offset for key, other in logs if other.cleaned_offset}
                    entry.write_offsets(checkpoints.CLEANER_OFFSETS, offsets)

    # Stopping ------------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Close all logs and let go of the directories; with `clean`, mark those whose logs all closed in order."""
        # What was neither closed nor recovered, unless it is as the last clean stop left it.
        failed = {path for key, paths in self._offline_in.items() if key not in self._untouched for path in paths}
        failed |= {entry.path for entry in self.directories if entry.failure is not None}
        for log in list(self.logs.values()):
            try:
                if clean:
                    if log.closed:  # by a failure: its end is not known to be on the disk
                        failed.add(os.path.dirname(log.directory))
                    log.close()
                else:
                    log.abandon()
            except (StorageError, OSError) as error:
                _log.error(
                    "Could not close %s-%d cleanly; it will be recovered at the next start: %s",
                    log.topic, log.partition, error,
                )  # fmt: skip
                failed.add(os.path.dirname(log.directory))
        if clean:
            self._mark_clean(failed)
        for entry in self.directories:
            entry.release()
        self.directories = []
        self.logs = {}

    def _mark_clean(self, failed: set[str]) -> None:
        try:
            self.checkpoint()
            for entry in self.directories:
                if entry.path not in failed and entry.failure is None:  # it may have failed in the checkpoint just now
                    checkpoints.write_clean_shutdown(self.fs, entry.path)
        except (StorageError, OSError) as error:
            _log.error("Could not write the clean-shutdown marker; logs will be recovered at the next start: %s", error)


def _keep(log: Log, now_ms: int, now: float) -> None:
    """One log's share of a tick. `now_ms` is the wall clock, `now` the monotonic one, in seconds."""
    config = log.config
    if (
        log.log_end_offset - log.recovery_point >= config.flush_messages
        or (now - log.last_flush) * 1000 >= config.flush_ms
    ):
        log.flush()
    else:
        log.seal()
    retain(log, now_ms)
    unlink_deleted(log)
    if len(log.producers):
        with log.lock:
            log.producers.expire(now_ms - config.producer_id_expiration_ms)
