"""Create empty logs: choose a data directory for each, and make its files.

The file with the topic id is durable before it gets its name (`checkpoints`). Logs that are created together share one
sync for that: all files are written, then the volume is synced once, then all files get their names. Syncing each file
by itself would take most of the time.

Methods wait for the disk unless they say otherwise: call them in a thread.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pylogd.broker.log import checkpoints
from pylogd.broker.log.bulk_loader import INTERNAL_PREFIX, SYNCED_TOGETHER
from pylogd.broker.log.checkpoint_writer import CheckpointWriter
from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.errors import LINK, NoLogDirectory, StorageError, StorageFailure, TooManyPartitions
from pylogd.broker.log.loader import create_log
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import LogDirectory
from pylogd.broker.log.registry import LogRegistry
from pylogd.broker.log.storage import Storage

_log = logging.getLogger(__name__)


class NewLogs(NamedTuple):
    """Logs that are to be created for partitions of a topic.

    directory: the data directory; None if `LogCreator` has to choose one.
    """

    topic: str
    partitions: Sequence[int]
    topic_id: bytes
    config: LogConfig
    directory: str | None = None


class _Begun(NamedTuple):
    """A log whose files are being made.

    synced: whether the file with the topic id was synced when it was written.
    """

    key: TopicPartition
    entry: LogDirectory
    path: str
    synced: bool


class LogCreator:
    """Creates empty logs; see the module.

    cordoned: as for `LogManager`.
    partition_limit: returns how many logs may be open.
    now_ms: the wall clock.
    """

    def __init__(
        self,
        registry: LogRegistry,
        directories: LogDirectories,
        writer: CheckpointWriter,
        storage: Storage,
        *,
        cordoned: Callable[[], frozenset[str]],
        partition_limit: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._directories = directories
        self._writer = writer
        self._storage = storage
        self._cordoned = cordoned
        self._partition_limit = partition_limit
        self._now_ms = now_ms
        self._made = threading.Condition(registry.lock)  # notified when the making of a log in `_being_made` has ended
        self._being_made: set[TopicPartition] = set()

    # Data directories ----------------------------------------------------------------------------------------------

    def choose_directories(self, count: int) -> Sequence[str | None]:
        """Return a data directory for each of `count` new logs, or Nones if all are offline. Never waits for a disk."""
        if not self._directories.online:
            return [None] * count
        added: dict[str, int] = {}
        chosen = []
        for _ in range(count):
            entry = self._best_directory(added)
            added[entry.path] = added.get(entry.path, 0) + 1
            chosen.append(entry.path)
        return chosen

    def _best_directory(self, added: Mapping[str, int]) -> LogDirectory:
        """Return the directory for a new partition, given how many partitions are about to be `added` to each.

        A cordoned directory is chosen only if there is no other: the replica was assigned before the cluster learned
        that the directory is cordoned. Raises NoLogDirectory.
        """
        online = self._directories.online
        if not online:
            raise NoLogDirectory("all data directories are offline")
        cordoned = self._cordoned()
        return min(
            online,
            key=lambda entry: (entry.path in cordoned, entry.full, entry.open_logs + added.get(entry.path, 0)),
        )

    def _choose_directory(self, key: TopicPartition, path: str | None) -> LogDirectory:
        chosen = [entry for entry in self._directories.online if entry.path == path]
        entry = chosen[0] if chosen else self._best_directory({})
        if entry.path in self._cordoned():
            _log.warning(
                "%s-%d is created in %s although that is cordoned: all data directories that are not offline are "
                "(cordoned.log.dirs), and the replica was assigned to this broker before the others knew",
                *key, entry.path,
            )  # fmt: skip
        return entry

    # Creation ------------------------------------------------------------------------------------------------------

    def create(self, new: NewLogs) -> list[Log | StorageError]:
        """Create empty logs. Return for each partition its log, which may have existed before, or an error.

        The errors are TooManyPartitions, NoLogDirectory, StorageFailure, CorruptLog, and the reason for which a log is
        offline. A data directory that fails goes offline; logs that are not begun yet are then created in another one.
        """
        volumes: frozenset[str] = frozenset()  # the data directories whose volumes are synced, instead of single files
        if len(new.partitions) >= SYNCED_TOGETHER:
            volumes = frozenset(entry.path for entry in self._directories.online if entry.syncs_volume)
        begun: dict[int, _Begun] = {}
        made: dict[int, Log | StorageError] = {}
        try:
            for partition in sorted(set(new.partitions)):  # sorted, so that no two calls wait for each other
                try:
                    found = self._begin(new, partition, volumes)
                    if isinstance(found, Log):
                        made[partition] = found
                    else:
                        begun[partition] = found
                        self._make_directory(found, new.topic_id)
                except StorageError as error:
                    made[partition] = self._failed(error)
            self._sync([one for partition, one in begun.items() if partition not in made])
            for partition, one in begun.items():
                if partition not in made:
                    try:
                        made[partition] = self._finish(new, one)
                    except StorageError as error:
                        made[partition] = self._failed(error)
            return [made[partition] for partition in new.partitions]
        finally:
            with self._made:
                for partition, one in begun.items():
                    if not isinstance(made.get(partition), Log):
                        one.entry.open_logs -= 1
                        self._being_made.discard(one.key)
                self._made.notify_all()

    def _failed(self, error: StorageError) -> StorageError:
        self._directories.storage_failed(error)
        return error

    def _begin(self, new: NewLogs, partition: int, volumes: frozenset[str]) -> Log | _Begun:
        """Return the open log of a partition. If there is none, reserve its name for a log to be made.

        Raises TooManyPartitions, NoLogDirectory, or the error of a log that is offline.
        """
        key, registry = (new.topic, partition), self._registry
        with self._made:
            while key in self._being_made:
                self._made.wait()
            registry.wait_until_removed(key)
            if (known := registry.logs.get(key)) is not None:
                return known
            if (offline := registry.offline.get(key)) is not None:
                raise offline.error
            limit = self._partition_limit()
            if len(registry.logs) + len(self._being_made) >= limit and not new.topic.startswith(INTERNAL_PREFIX):
                raise TooManyPartitions(limit)
            entry = self._choose_directory(key, new.directory)
            entry.open_logs += 1
            self._being_made.add(key)
        path = os.path.join(entry.path, f"{new.topic}-{partition}")
        return _Begun(key, entry, path, entry.path not in volumes)

    def _make_directory(self, one: _Begun, topic_id: bytes) -> None:
        """Make a partition's directory and the file with the topic id in it. Raises StorageFailure."""
        fs, path = self._storage.fs, one.path
        self._writer.forget_deleted(one.key, one.entry)
        try:
            if fs.islink(path):
                raise OSError(errno.ELOOP, LINK, path)
            fs.mkdir(path)
            checkpoints.prepare_partition_metadata(fs, path, topic_id, sync=one.synced)
        except OSError as error:
            raise StorageFailure(path, error) from error

    def _sync(self, begun: Sequence[_Begun]) -> None:
        """Make the files with the topic id durable. A data directory whose sync fails goes offline."""
        by_entry: dict[str, list[_Begun]] = {}
        for one in begun:
            if not one.synced:
                by_entry.setdefault(one.entry.path, []).append(one)
        for path, some in by_entry.items():
            entry = some[0].entry
            try:
                entry.sync_volume()
            except StorageFailure as error:  # the error may be about files of other programs
                _log.warning("Could not sync the volume of %s; each new file there is synced instead: %s", path, error)
                self._sync_each(entry, some)

    def _sync_each(self, entry: LogDirectory, begun: Sequence[_Begun]) -> None:
        for one in begun:
            if entry.failure is None:
                try:
                    checkpoints.sync_prepared_metadata(self._storage.fs, one.path)
                except OSError as error:
                    self._failed(StorageFailure(one.path, error))

    def _finish(self, new: NewLogs, one: _Begun) -> Log:
        """Give the file with the topic id its name, and open the log. Raises StorageFailure, CorruptLog."""
        entry, path = one.entry, one.path
        if entry.failure is not None:
            raise entry.failure
        try:
            checkpoints.complete_partition_metadata(self._storage.fs, path)
        except OSError as error:
            raise StorageFailure(path, error) from error
        log = create_log(path, *one.key, new.topic_id, new.config, storage=self._storage, now_ms=self._now_ms)
        with self._made:  # the lock was not held until now: other threads must not wait for a disk that hangs
            if entry.failure is None:
                self._registry.logs[log.key] = log
                self._being_made.discard(log.key)
                return log
        log.abandon()
        raise entry.failure
