"""One data directory: its lock, its owner, its checkpoints, and the partitions in it.

A data directory is locked by one process. It has `meta.properties`, which names the broker and cluster that own it, the
files in `DATA_DIRECTORY_FILES`, and a directory for each partition, `<topic>-<partition>`. A deleted partition is
renamed to `<topic>-<partition>.<random>-delete` at once, so that its name is available again. One that the metadata
does not know is renamed to `<topic>-<partition>.<random>-stray`, and never opened or removed by a broker.

Everything here waits for the disk. Checkpoints are written only if they say something new. A checkpoint that can't be
read costs time (logs are scanned, or compacted again), never data.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import uuid
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pylogd.broker.log import checkpoints
from pylogd.broker.log.checkpoints import MetaProperties, TopicPartition
from pylogd.broker.log.errors import CorruptFile, InconsistentMetadata, LogDirLocked, StorageFailure
from pylogd.broker.log.files import TEMPORARY_SUFFIX, FileSystem, SyncFailed, remove_tree, sync_directory, write_file
from pylogd.broker.log.loader import FoundLog
from pylogd.broker.log.log import Log
from pylogd.broker.log.stopped_logs import (
    STOPPED_LOGS,
    StoppedLog,
    is_unchanged,
    read_stopped_logs,
    remove_stopped_logs,
    write_stopped_logs,
)

_log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
DELETE_SUFFIX = "-delete"
#: The suffix of logs that the metadata does not know. Only the operator removes them.
STRAY_SUFFIX = "-stray"
_ID_BYTES = 16
_NAME_LIMIT = 255
_NO_LOCK = -1
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: The file that is written to find out whether the directory can be written to. A crash may leave it, like other
#: temporary files.
_PROBE_FILE = "probe" + TEMPORARY_SUFFIX
_PROBE_BYTES = 1
_SPACE_PROBE_BYTES = 1 << 16
#: A full volume is used again when this many bytes are free, or this fraction of the volume.
_MIN_FREE_BYTES = 1 << 30
_MIN_FREE_FRACTION = 1 / 20
DATA_DIRECTORY_FILES = frozenset(
    {
        LOCK_FILE,
        checkpoints.META_PROPERTIES,
        checkpoints.RECOVERY_POINTS,
        checkpoints.LOG_STARTS,
        checkpoints.CLEANER_OFFSETS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.CLEAN_SHUTDOWN,
        STOPPED_LOGS,
        # the embedded metadata store lives in the first data directory
        "metadata.sqlite",
        "metadata.sqlite-wal",
        "metadata.sqlite-shm",
        "metadata.sqlite-spare",
    }
)


class PartitionUsage(NamedTuple):
    """The size of a partition in bytes."""

    topic: str
    partition: int
    size: int


class DirectoryUsage(NamedTuple):
    """The partitions in a data directory, and the size of its volume in bytes (-1 if unknown).

    failed: whether the directory is offline.
    cordoned: whether it takes no new partitions.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    partitions: list[PartitionUsage]
    failed: bool = False
    cordoned: bool = False


@dataclass(slots=True)
class LogDirectory:
    """A data directory that this process uses, or that is offline.

    lock: the descriptor that holds the lock.
    clean: whether the last stop was a clean one.
    suspect: whether recent writes may be missing because the machine stopped unexpectedly.
    failure: why it is offline; None if it is online.
    full: whether its volume had no free space at the last write.
    identity: device and inode of the directory when it was opened; another one may be mounted at its path later.
    stopped: the state of the logs at the last clean stop, by the names of their directories; empty after `find_logs`.
    recovery_points, log_starts, cleaned_offsets, high_watermarks: the checkpoints as they were read.
    checkpointed: what the checkpoint files contain now, by file name.
    open_logs: how many open logs it has.
    pending_removals: directories renamed to `-delete`, with the time at which they may be removed.
    """

    fs: FileSystem
    path: str
    lock: int
    clean: bool
    properties: MetaProperties
    suspect: bool = False
    failure: StorageFailure | None = None
    full: bool = False
    identity: tuple[int, int] | None = None
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    cleaned_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    checkpointed: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    stopped: dict[str, StoppedLog] = field(default_factory=dict)
    open_logs: int = 0
    pending_removals: list[tuple[float, str]] = field(default_factory=list)

    def unlock(self) -> None:
        """Release the lock, so that another process can use the directory."""
        if self.lock != _NO_LOCK:
            self.fs.close(self.lock)
            self.lock = _NO_LOCK

    @property
    def syncs_volume(self) -> bool:
        """Whether `sync_volume` may be called."""
        return self.lock != _NO_LOCK and self.fs.can_sync_volume(self.lock)

    def sync_volume(self) -> None:
        """Make everything durable that was written to the directory. Raises StorageFailure."""
        try:
            self.fs.sync_volume(self.lock)
        except OSError as error:
            failed = SyncFailed(error.errno, f"sync failed: {error.strerror}", self.path)
            raise StorageFailure(self.path, failed) from error

    def holds(self, log: Log) -> bool:
        """Return whether the log is in this directory."""
        return os.path.dirname(log.directory) == self.path

    def find_logs(self) -> list[FoundLog]:
        """List the logs in the directory.

        Removes partitions whose deletion was not completed. Other files are left alone, with a warning.
        """
        found = []
        stopped, self.stopped = (self.stopped if self.clean else {}), {}
        prefix = os.path.join(self.path, "")
        for name in sorted(self.fs.listdir(self.path)):
            path = prefix + name
            if (state := stopped.get(name)) is not None and is_unchanged(self.fs, path, state):
                topic, topic_id, partition, end = state[:4]
                start = self.log_starts.get((topic, partition), 0)
                found.append(FoundLog(path, topic, partition, topic_id, end, start, True, False, state))
                continue
            key = split_name(name)
            if key is not None and self.fs.isdir(path):
                recovery_point, start = self.recovery_points.get(key, 0), self.log_starts.get(key, 0)
                found.append(FoundLog(path, *key, self._topic_id(path), recovery_point, start, self.clean))
            elif key is not None and self.fs.islink(path):
                found.append(FoundLog(path, *key, bytes(_ID_BYTES), 0, 0, self.clean, is_link=True))
            elif name.endswith(DELETE_SUFFIX) and self.fs.isdir(path):
                remove_tree(self.fs, path)
            elif name.endswith(STRAY_SUFFIX) and self.fs.isdir(path):
                _log.warning(
                    "%s is a stray log: the metadata did not know its partition, so it is not served. Remove it, or if "
                    "the metadata knows the partition again, stop the broker and give it back its old name", path,
                )  # fmt: skip
            elif name not in DATA_DIRECTORY_FILES and not name.endswith(".tmp"):
                _log.warning("%s is not a file of pylogd and is left alone", path)
        return found

    def _topic_id(self, path: str) -> bytes:
        """Return the topic id of a partition's directory, all zeros if it is unknown."""
        try:
            found = checkpoints.read_partition_metadata(self.fs, path)
            if found is None:
                checkpoints.restore_partition_metadata(self.fs, path)
                found = checkpoints.read_partition_metadata(self.fs, path)
            return found or bytes(_ID_BYTES)
        except CorruptFile as error:
            _log.warning("The topic id of %s is unknown: %s", path, error)
            return bytes(_ID_BYTES)

    def read_checkpoints(self) -> None:
        """Read all checkpoints of the directory."""
        scanned = "all logs in the data directory are scanned instead"
        self.recovery_points = self._read_or_scan(checkpoints.RECOVERY_POINTS, scanned)
        self.log_starts = self._read_or_scan(checkpoints.LOG_STARTS, scanned)
        again = "compacted logs are compacted again from their start"
        self.cleaned_offsets = self._read_offsets(checkpoints.CLEANER_OFFSETS, again) or {}
        unknown = "the high watermarks are determined from the other replicas again"
        self.high_watermarks = self._read_offsets(checkpoints.HIGH_WATERMARKS, unknown) or {}

    def _read_or_scan(self, name: str, consequence: str) -> dict[TopicPartition, int]:
        offsets = self._read_offsets(name, consequence)
        if offsets is None:
            self.clean = False
            return {}
        return offsets

    def _read_offsets(self, name: str, consequence: str) -> dict[TopicPartition, int] | None:
        """Read a checkpoint. Return None if it is damaged, and log the `consequence`."""
        try:
            offsets = checkpoints.read_offsets(self.fs, self.path, name)
        except CorruptFile as error:
            _log.warning("%s; %s", error, consequence)
            return None
        self.checkpointed[name] = offsets
        return offsets

    def write_offsets(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Write a checkpoint, unless the file already has these offsets. Raises StorageFailure."""
        if self.checkpointed.get(name) != offsets:
            try:
                checkpoints.write_offsets(self.fs, self.path, name, offsets)
            except OSError as error:
                raise StorageFailure(os.path.join(self.path, name), error) from error
        self.checkpointed[name] = offsets  # even if they are equal: these keys are the objects that the open logs have

    def forget_read(self, unopened: Container[TopicPartition]) -> None:
        """Forget what checkpoints said when they were read, except about the logs that are `unopened`."""
        self.recovery_points = {key: point for key, point in self.recovery_points.items() if key in unopened}
        self.log_starts = {key: start for key, start in self.log_starts.items() if key in unopened}
        self.cleaned_offsets = {}

    def has_entry(self, key: TopicPartition) -> bool:
        """Return whether a checkpoint has an entry of this partition."""
        return any(key in offsets for offsets in list(self.checkpointed.values()))

    def keep_entries(self, known: Container[TopicPartition]) -> None:
        """Remove the entries of partitions that are not `known` and have no directory here. Raises StorageFailure."""
        for name, offsets in list(self.checkpointed.items()):
            kept = {key: offset for key, offset in offsets.items() if key in known or self._has(key)}
            self.write_offsets(name, kept)

    def _has(self, key: TopicPartition) -> bool:
        """Return whether there is a directory of this partition."""
        topic, partition = key
        return self.fs.exists(os.path.join(self.path, f"{topic}-{partition}"))

    def mark_clean(self, logs: Iterable[Log]) -> None:
        """Note that all logs were closed cleanly, with the state of the logs in this directory. Raises OSError."""
        write_stopped_logs(self.fs, self.path, (log for log in logs if self.holds(log)))
        checkpoints.write_clean_shutdown(self.fs, self.path)

    def rename_partition(self, directory: str, suffix: str = DELETE_SUFFIX) -> str:
        """Durably rename a partition's directory to a unique name with a suffix; return the new path.

        Raises StorageFailure.
        """
        topic, _, partition = os.path.basename(directory).rpartition("-")
        suffix = f".{uuid.uuid4().hex}{suffix}"
        stem = f"{topic[: _NAME_LIMIT - len(suffix) - len(partition) - 1]}-{partition}"
        target = os.path.join(self.path, stem + suffix)
        try:
            self.fs.rename(directory, target)
            sync_directory(self.fs, self.path)
        except OSError as error:
            raise StorageFailure(directory, error) from error
        return target

    def probe(self, write: bool) -> None:
        """Raise OSError unless the path is still the directory that was opened, and can be written to.

        write: whether to try to write.
        """
        if self.fs.identity(self.path) != self.identity:
            raise OSError(errno.ESTALE, "another directory is mounted at this path now", self.path)
        if write:
            self._write_probe(_PROBE_BYTES)

    def has_free_space(self) -> bool:
        """Return whether a volume that was full has enough free space to be used again. Raises OSError."""
        total, usable = self.fs.space(self.path)
        if usable < min(_MIN_FREE_BYTES, int(total * _MIN_FREE_FRACTION)):
            return False
        try:
            self._write_probe(_SPACE_PROBE_BYTES)  # the free space of the volume does not show a quota
        except OSError as error:
            if StorageFailure(self.path, error).is_full:
                return False
            raise
        return True

    def _write_probe(self, size: int) -> None:
        path = os.path.join(self.path, _PROBE_FILE)
        try:
            write_file(self.fs, path, bytes(size), sync=False)
        finally:
            if self.fs.exists(path):
                self.fs.unlink(path)

    def reopen(self, boot_id: str | None) -> LogDirectory:
        """Open the directory again, which is offline. Return a new object for it.

        Raises OSError if it still fails. Raises InconsistentMetadata if it was never open in this process, or if
        another directory is at its path: then only a restart can decide what happens to the partitions.
        """
        known = self.properties
        found = checkpoints.read_meta_properties(self.fs, self.path)
        if not known.directory_id or found is None or found.directory_id != known.directory_id:
            raise InconsistentMetadata(
                f"{self.path} is not the data directory that failed: restart the broker to use it"
            )
        self.unlock()
        return open_directory(self.fs, self.path, known.node_id, known.cluster_id, boot_id)

    def usage(self, logs: Iterable[Log], cordoned: bool = False) -> DirectoryUsage:
        """Return the sizes of the logs that are in this directory, and of its volume."""
        if self.failure is not None:
            return DirectoryUsage(self.path, -1, -1, [], failed=True, cordoned=cordoned)
        try:
            total, usable = self.fs.space(self.path)
        except OSError:
            total, usable = -1, -1
        partitions = [PartitionUsage(log.topic, log.partition, log.size) for log in logs if self.holds(log)]
        return DirectoryUsage(self.path, total, usable, partitions, cordoned=cordoned)


def machine_boot_id() -> str | None:
    """Return an id that changes with each start of the operating system; None if the system has none."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip() or None
    except OSError:
        return None


def open_directory(
    fs: FileSystem, path: str, node_id: int, cluster_id: str | None, boot_id: str | None = None
) -> LogDirectory:
    """Lock a data directory, which is created if it does not exist, and read its checkpoints.

    node_id, cluster_id: compared with `meta.properties`; see `claim`.
    boot_id: `machine_boot_id()`, to find out whether recent writes may be missing. The kernel still writes what a
        killed process has written, but a machine that stops unexpectedly loses what was not synced. So a directory
        without the marker of a clean stop is suspect, unless it was last in use under the same boot id.

    Raises LogDirLocked if another process has it, InconsistentMetadata if it belongs to another broker, and OSError.
    """
    if not fs.exists(path):
        fs.mkdir(path)
        sync_directory(fs, os.path.dirname(path))
    lock = fs.lock(os.path.join(path, LOCK_FILE))
    if lock is None:
        raise LogDirLocked(path)
    try:
        used = fs.exists(os.path.join(path, checkpoints.META_PROPERTIES))
        properties = claim(fs, path, node_id, cluster_id)
        stopped = read_stopped_logs(fs, path)
        remove_stopped_logs(fs, path)
        entry = LogDirectory(fs, path, lock, checkpoints.take_clean_shutdown(fs, path), properties, stopped=stopped)
        if used and not entry.clean:
            entry.suspect = boot_id is None or properties.boot_id != boot_id
            _log.warning("Data directory %s was not closed cleanly: recovering its logs", path)
        entry.identity = fs.identity(path)
        entry.read_checkpoints()
    except BaseException:
        fs.close(lock)
        raise
    return entry


def failed_directory(fs: FileSystem, path: str, failure: StorageFailure) -> LogDirectory:
    """Return an object for a data directory that could not be opened."""
    return LogDirectory(fs, path, _NO_LOCK, False, MetaProperties(-1, None, ""), failure=failure)


def claim(
    fs: FileSystem, path: str, node_id: int, cluster_id: str | None, boot_id: str | None = None
) -> MetaProperties:
    """Compare `meta.properties` with this broker, add missing fields to the file, and return the result.

    node_id: -1 if it is not known yet.
    cluster_id: None if it is not known yet.
    boot_id: if given, it is written as the boot id of the current use.

    Raises InconsistentMetadata if the directory belongs to another broker or cluster.
    """
    known = checkpoints.read_meta_properties(fs, path)
    if known is None:
        known = MetaProperties(node_id, cluster_id, checkpoints.new_directory_id())
        checkpoints.write_meta_properties(fs, path, known)
    if node_id >= 0 and known.node_id >= 0 and known.node_id != node_id:
        raise InconsistentMetadata(f"{path} belongs to broker {known.node_id}, but this is broker {node_id}")
    if cluster_id is not None and known.cluster_id is not None and known.cluster_id != cluster_id:
        raise InconsistentMetadata(
            f"{path} belongs to cluster {known.cluster_id}, but this broker is in cluster {cluster_id}"
        )
    merged = MetaProperties(
        known.node_id if node_id < 0 else node_id,
        known.cluster_id or cluster_id,
        known.directory_id or checkpoints.new_directory_id(),
        boot_id or known.boot_id,
    )
    if merged != known:
        checkpoints.write_meta_properties(fs, path, merged)
    return merged


def split_name(name: str) -> TopicPartition | None:
    """Return the partition that a directory is named after; None if it is not the name of a partition."""
    topic, _, partition = name.rpartition("-")
    named = topic and partition.isascii() and partition.isdigit()
    return (sys.intern(topic), int(partition)) if named else None  # all partitions of a topic share one string
