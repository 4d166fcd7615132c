"""One data directory: its lock, whose it is, what its checkpoints say, what lies in it.

Strategy: a directory is locked for one process, says whose it is in `meta.properties`, and holds one directory for each
partition, `<topic>-<partition>`, beside the files named in `DATA_DIRECTORY_FILES`. A deleted partition is renamed to
`<topic>-<partition>.<random>-delete` at once, so that its name is free again. One that the metadata does not know is
renamed to `<topic>-<partition>.<random>-stray` and kept: nothing here opens or removes it.

Rules: all of this waits for the disk. Checkpoints are written only where they say something new. A checkpoint that
can't be read costs time (a scan, another compaction), never data.
Must not know: other directories, open logs beyond what it is handed, what a failure means to the broker.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pylogd.log import checkpoints
from pylogd.log.checkpoints import MetaProperties, TopicPartition
from pylogd.log.errors import CorruptFile, InconsistentMetadata, LogDirLocked, StorageFailure
from pylogd.log.files import TEMPORARY_SUFFIX, FileSystem, remove_tree, sync_directory, write_file
from pylogd.log.loader import Found
from pylogd.log.log import Log

_log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
DELETE_SUFFIX = "-delete"
#: Of a log that the metadata did not know. Only the operator removes it.
STRAY_SUFFIX = "-stray"
_ID_BYTES = 16
_NAME_LIMIT = 255
_NO_LOCK = -1
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Written to see whether the directory can be written to; a leftover is passed over as other temporary files are.
_PROBE_FILE = "probe" + TEMPORARY_SUFFIX
_PROBE_BYTES = 1
_ROOM_PROBE_BYTES = 1 << 16
#: A full volume is used again once it has so much room, in bytes, or so large a part of it.
_ENOUGH_BYTES = 1 << 30
_ENOUGH_PARTS = 20
DATA_DIRECTORY_FILES = frozenset(
    {
        LOCK_FILE,
        checkpoints.META_PROPERTIES,
        checkpoints.RECOVERY_POINTS,
        checkpoints.LOG_STARTS,
        checkpoints.CLEANER_OFFSETS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.CLEAN_SHUTDOWN,
        # the embedded metadata store lives in the first data directory
        "metadata.sqlite",
        "metadata.sqlite-wal",
        "metadata.sqlite-shm",
    }
)


@dataclass(slots=True, frozen=True)
class PartitionUsage:
    """Bytes that a partition takes."""

    topic: str
    partition: int
    size: int


@dataclass(slots=True, frozen=True)
class DirectoryUsage:
    """What is in a data directory, and how much room its volume has, in bytes (-1: not known)."""

    path: str
    total_bytes: int
    usable_bytes: int
    partitions: list[PartitionUsage]
    failed: bool = False


@dataclass(slots=True)
class LogDirectory:
    """One data directory that this process holds. Made by `open_directory` or `failed_directory`."""

    fs: FileSystem
    path: str
    lock: int
    clean: bool  # whether the last stop was a clean one
    properties: MetaProperties
    suspect: bool = False  # whether the machine may have stopped before it had all on the disk
    failure: StorageFailure | None = None  # why it is offline
    full: bool = False  # whether its volume had no room at the last write
    identity: tuple[int, int] | None = None  # the directory that was opened; another one may take its path
    # what the checkpoints said when it was opened
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    cleaned: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    checkpointed: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)  # by file, what they say now
    partitions: int = 0  # logs that are open in it
    doomed: list[tuple[float, str]] = field(default_factory=list)  # when it may go, a directory renamed to -delete

    def release(self) -> None:
        """Let another process have it."""
        if self.lock != _NO_LOCK:
            self.fs.close(self.lock)
            self.lock = _NO_LOCK

    def holds(self, log: Log) -> bool:
        """Whether `log` lies in this directory."""
        return os.path.dirname(log.directory) == self.path

    def find(self) -> list[Found]:
        """The partitions in it. What was being deleted goes; what is not ours is named and left alone."""
        found = []
        for name in sorted(self.fs.listdir(self.path)):
            path = os.path.join(self.path, name)
            key = split_name(name)
            if key is not None and self.fs.islink(path):
                found.append(Found(path, *key, bytes(_ID_BYTES), 0, 0, self.clean, is_link=True))
            elif name.endswith(DELETE_SUFFIX) and self.fs.isdir(path):
                remove_tree(self.fs, path)
            elif name.endswith(STRAY_SUFFIX) and self.fs.isdir(path):
                _log.warning(
                    "%s is a stray log: the metadata did not know its partition. It is not served. Remove it, or, once "
                    "the metadata knows the partition again, stop the broker and give it its old name back", path,
                )  # fmt: skip
            elif key is not None and self.fs.isdir(path):
                recovery_point, start = self.recovery_points.get(key, 0), self.log_starts.get(key, 0)
                found.append(Found(path, *key, self._topic_id(path), recovery_point, start, self.clean))
            elif name not in DATA_DIRECTORY_FILES and not name.endswith(".tmp"):
                _log.warning("%s is none of ours and is left alone", path)
        return found

    def _topic_id(self, path: str) -> bytes:
        """The topic's id, all zeros if it is not known."""
        try:
            checkpoints.restore_partition_metadata(self.fs, path)
            return checkpoints.read_partition_metadata(self.fs, path) or bytes(_ID_BYTES)
        except CorruptFile as error:
            _log.warning("%s: the topic's id is not known from it", error)
            return bytes(_ID_BYTES)

    def read_checkpoints(self) -> None:
        """Learn what was written last about the logs in it."""
        scanned = "every log in the directory is scanned instead"
        self.recovery_points = self._read_or_scan(checkpoints.RECOVERY_POINTS, scanned)
        self.log_starts = self._read_or_scan(checkpoints.LOG_STARTS, scanned)
        again = "compacted logs are compacted from their start again"
        self.cleaned = self._read_offsets(checkpoints.CLEANER_OFFSETS, again) or {}
        unknown = "what was committed is learned from the other replicas again"
        self.high_watermarks = self._read_offsets(checkpoints.HIGH_WATERMARKS, unknown) or {}

    def _read_or_scan(self, name: str, otherwise: str) -> dict[TopicPartition, int]:
        offsets = self._read_offsets(name, otherwise)
        if offsets is None:
            self.clean = False
            return {}
        self.checkpointed[name] = offsets
        return offsets

    def _read_offsets(self, name: str, otherwise: str) -> dict[TopicPartition, int] | None:
        """What the file says, `None` of one that can't be read; `otherwise`: what that comes to."""
        try:
            return checkpoints.read_offsets(self.fs, self.path, name)
        except CorruptFile as error:
            _log.warning("%s: %s", error, otherwise)
            return None

    def write_offsets(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Write the checkpoint `name`, if it says something else so far."""
        if self.checkpointed.get(name) == offsets:
            return
        try:
            checkpoints.write_offsets(self.fs, self.path, name, offsets)
        except OSError as error:
            raise StorageFailure(os.path.join(self.path, name), error) from error
        self.checkpointed[name] = offsets

    def take_away(self, directory: str, suffix: str = DELETE_SUFFIX) -> str:
        """Give the name of a partition's directory free, for good; the path it has now, which ends with `suffix`."""
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
        """Raise OSError unless the directory is the one that was opened, and, with `write`, can be written to."""
        if self.fs.identity(self.path) != self.identity:
            raise OSError(errno.ESTALE, "another directory is at this path now", self.path)
        if write:
            self._write_probe(_PROBE_BYTES)

    def has_room(self) -> bool:
        """Whether a volume that was full has enough room to be used again. Raises OSError."""
        total, usable = self.fs.space(self.path)
        if usable < min(_ENOUGH_BYTES, total // _ENOUGH_PARTS):
            return False
        try:
            self._write_probe(_ROOM_PROBE_BYTES)  # a quota does not show in the volume's room
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

    def reopened(self, boot_id: str | None) -> LogDirectory:
        """Return a fresh one for this directory, which is offline and can be used again.

        Raises OSError, or InconsistentMetadata if it was not in use before it failed, or another one is at its path
        now: what becomes of the partitions is then settled at the broker's start.
        """
        known = self.properties
        found = checkpoints.read_meta_properties(self.fs, self.path)
        if not known.directory_id or found is None or found.directory_id != known.directory_id:
            raise InconsistentMetadata(f"{self.path} is not the directory that failed: restart the broker to use it")
        self.release()
        return open_directory(self.fs, self.path, known.node_id, known.cluster_id, boot_id)

    def usage(self, logs: Iterable[Log]) -> DirectoryUsage:
        """Bytes of those of `logs` that lie in it, and of its volume."""
        if self.failure is not None:
            return DirectoryUsage(self.path, -1, -1, [], failed=True)
        try:
            total, usable = self.fs.space(self.path)
        except OSError:
            total, usable = -1, -1
        partitions = [PartitionUsage(log.topic, log.partition, log.size) for log in logs if self.holds(log)]
        return DirectoryUsage(self.path, total, usable, partitions)


def machine_boot_id() -> str | None:
    """Return an id that is another one after each start of the operating system, None where there is no such id."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip() or None
    except OSError:
        return None


def open_directory(
    fs: FileSystem, path: str, node_id: int, cluster_id: str | None, boot_id: str | None = None
) -> LogDirectory:
    """Lock the directory, made if need be, and read what it says.

    `boot_id`: `machine_boot_id`. A process that is killed leaves all that it wrote to the kernel; a machine that stops
    takes with it what was not synced. So a directory without the mark of a clean stop is suspect, unless the machine
    has not been started since.

    `LogDirLocked` if another process has it, `InconsistentMetadata` if it is another broker's, `OSError` from the disk.
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
        entry = LogDirectory(fs, path, lock, checkpoints.take_clean_shutdown(fs, path), properties)
        if used and not entry.clean:
            entry.suspect = boot_id is None or properties.boot_id != boot_id
            _log.warning("%s: the last stop was not a clean one: its logs are scanned", path)
        entry.identity = fs.identity(path)
        entry.read_checkpoints()
    except BaseException:
        fs.close(lock)
        raise
    return entry


def failed_directory(fs: FileSystem, path: str, failure: StorageFailure) -> LogDirectory:
    """One that could not be opened."""
    return LogDirectory(fs, path, _NO_LOCK, False, MetaProperties(-1, None, ""), failure=failure)


def claim(
    fs: FileSystem, path: str, node_id: int, cluster_id: str | None, boot_id: str | None = None
) -> MetaProperties:
    """Whose directory it is: this broker's, or nobody's yet. -1 and `None` stand for what is not known.

    With a `boot_id` the directory is said to be in use under it.
    """
    known = checkpoints.read_meta_properties(fs, path)
    if known is None:
        known = MetaProperties(node_id, cluster_id, checkpoints.new_directory_id())
        checkpoints.write_meta_properties(fs, path, known)
    if node_id >= 0 and known.node_id >= 0 and known.node_id != node_id:
        raise InconsistentMetadata(f"{path} belongs to broker {known.node_id}, and this is broker {node_id}")
    if cluster_id is not None and known.cluster_id is not None and known.cluster_id != cluster_id:
        raise InconsistentMetadata(f"{path} belongs to cluster {known.cluster_id}, and this is {cluster_id}")
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
    """The partition of a directory's name, `None` if it is no partition's."""
    topic, _, partition = name.rpartition("-")
    return (topic, int(partition)) if topic and partition.isascii() and partition.isdigit() else None
