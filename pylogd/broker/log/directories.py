"""All data directories of a broker: which are in use, which have failed or are full, and who owns them.

A data directory whose disk fails goes offline without affecting the others: its logs are closed without flushing and
listed as offline, nothing more is written to it, and the next start recovers its logs. A full disk does not take a
directory offline; a failed sync always does (`StorageFailure.is_fatal`).

Methods wait for the disk unless they say otherwise: call them in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.errors import StorageError, StorageFailure, UnknownLogDirectory
from pylogd.broker.log.files import FileSystem, sync_directory
from pylogd.broker.log.loader import FoundLog
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import LogDirectory, claim, failed_directory, open_directory
from pylogd.broker.log.registry import LogRegistry, OfflineLog

_log = logging.getLogger(__name__)


class LogDirectories:
    """The data directories of a broker; see the module. The arguments are those of `LogManager`."""

    def __init__(
        self,
        paths: Sequence[str],
        registry: LogRegistry,
        *,
        fs: FileSystem,
        node_id: int,
        cluster_id: str | None,
        boot_id: str | None,
    ) -> None:
        self.entries: list[LogDirectory] = []
        self.on_failed: Callable[[str, list[TopicPartition]], object] | None = None
        self.on_full: Callable[[], object] | None = None
        #: The contents of the checkpoints when the directories were opened.
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._paths = [os.path.abspath(path) for path in paths]
        self._registry = registry
        self._fs = fs
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._boot_id = boot_id

    # Opening -------------------------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Lock and open every directory. A directory whose disk fails goes offline, unless it is the only one.

        Raises LogDirLocked, InconsistentMetadata, and StorageFailure if the only directory fails.
        """
        for path in self._paths:
            self.entries.append(self._open(path))

    def _open(self, path: str) -> LogDirectory:
        try:
            entry = open_directory(self._fs, path, self._node_id, self._cluster_id, self._boot_id)
        except OSError as error:
            failure = StorageFailure(error.filename or path, error)
            if len(self._paths) == 1:
                raise failure from error
            _log.critical("Data directory %s is offline with all of its partitions: %s", path, failure)
            return failed_directory(self._fs, path, failure)
        self._add_checkpoints(entry)
        return entry

    def _add_checkpoints(self, entry: LogDirectory) -> None:
        self.cleaned_offsets |= entry.cleaned_offsets
        self.high_watermarks |= entry.high_watermarks

    def forget_read(self) -> None:
        """Forget what the checkpoints said about logs that are now open, except for the high watermarks."""
        self.cleaned_offsets = {}
        for entry in self.entries:
            entry.forget_read(self._registry.offline)

    def find_logs(self, entry: LogDirectory) -> list[FoundLog]:
        """List the logs in a directory. The list is empty if the directory is offline or fails now."""
        if entry.failure is not None:
            return []
        try:
            return entry.find_logs()
        except OSError as error:
            self.storage_failed(StorageFailure(error.filename or entry.path, error))
            return []

    def sync_names(self) -> None:
        """After an unclean stop, make the names of the partitions durable before their contents count as flushed."""
        for entry in self.entries:
            if not entry.clean and entry.failure is None:
                try:
                    sync_directory(self._fs, entry.path)
                except OSError as error:
                    self.storage_failed(StorageFailure(entry.path, error))

    def reopen(self, path: str) -> LogDirectory | None:
        """Reopen a directory that is offline. Return it, or None if it was in use.

        A directory that is in use but full counts as having free space again. The logs that were offline because of the
        directory are no longer listed; the caller has to open them. Raises UnknownLogDirectory, StorageFailure if the
        directory still fails, and InconsistentMetadata as `LogDirectory.reopen`.
        """
        path = os.path.abspath(path)
        failed = next((entry for entry in self.entries if entry.path == path), None)
        if failed is None:
            raise UnknownLogDirectory(f"{path} is not a data directory of this broker")
        if failed.failure is None:
            self._set_full(failed, False)
            return None
        try:
            entry = failed.reopen(self._boot_id)
        except OSError as error:
            raise StorageFailure(error.filename or path, error) from error
        registry = self._registry
        with registry.lock:
            for key in [key for key, log in registry.offline.items() if log.directories == [path]]:
                del registry.offline[key]
            self.entries[self.entries.index(failed)] = entry
        self._add_checkpoints(entry)
        return entry

    def close(self) -> None:
        """Release the locks of all directories."""
        for entry in self.entries:
            entry.unlock()
        self.entries = []

    # Failing -------------------------------------------------------------------------------------------------------

    @property
    def online(self) -> list[LogDirectory]:
        """The directories that are not offline."""
        return [entry for entry in self.entries if entry.failure is None]

    def storage_failed(self, error: StorageError) -> bool:
        """Handle an error of storage: take its data directory offline, if the error calls for it.

        Returns whether the directory is offline now. May be called in any thread that holds no log's lock.
        """
        if not isinstance(error, StorageFailure):
            return False
        entry = next((entry for entry in self.entries if f"{error.path}/".startswith(f"{entry.path}/")), None)
        if entry is None:
            return False
        if not error.is_fatal:
            if error.is_full:
                self._set_full(entry, True)
            return False
        registry = self._registry
        with registry.lock:
            if entry.failure is not None:
                return True
            entry.failure = kept = error.without_traceback()
            lost = [(key, log) for key, log in registry.logs.items() if entry.holds(log)]
            for key, _ in lost:
                del registry.logs[key]
                registry.offline[key] = OfflineLog(kept, [entry.path])
        _log.critical(
            "Data directory %s is offline with %d partitions. When the disk is repaired, bring it back with "
            "`pylogd cluster reopen` or a restart: %s",
            entry.path, len(lost), error,
        )  # fmt: skip
        for _, log in lost:
            log.abandon()
        if self.on_failed is not None:
            self.on_failed(entry.path, [key for key, _ in lost])
        return True

    def _set_full(self, entry: LogDirectory, full: bool) -> None:
        with self._registry.lock:
            if entry.full == full:
                return
            entry.full = full
        if full:
            _log.error("The volume of %s is full: where possible, other brokers take over its leaders", entry.path)
        else:
            _log.info("The volume of %s has free space again", entry.path)
        if self.on_full is not None:
            self.on_full()

    def check(self, write: bool, path: str | None = None) -> None:
        """Find directories that are gone, can't be written to, or have free space again.

        path: the path of the only directory to check; None for all.
        write: whether to try to write to the directories.
        """
        for entry in self.entries:
            if entry.failure is not None or path not in (None, entry.path):
                continue
            try:
                entry.probe(write and not entry.full)
                if entry.full and entry.has_free_space():
                    self._set_full(entry, False)
            except OSError as error:
                self.storage_failed(StorageFailure(error.filename or entry.path, error))

    # Looking up (never waits for the disk) -------------------------------------------------------------------------

    def directory_of(self, log: Log) -> LogDirectory:
        """Return the directory that has the log."""
        entries = self.entries
        return entries[0] if len(entries) == 1 else next(entry for entry in entries if entry.holds(log))

    def logs_in(self, entry: LogDirectory) -> list[tuple[TopicPartition, Log]]:
        """Return the open logs in a directory, with their keys."""
        logs = self._registry.open_items()
        return logs if len(self.entries) == 1 else [(key, log) for key, log in logs if entry.holds(log)]

    def at(self, path: str) -> LogDirectory:
        """Return the directory at a path."""
        return next(entry for entry in self.entries if entry.path == path)

    def logs_on_full_volumes(self) -> list[TopicPartition]:
        """Return the partitions whose logs are on full volumes."""
        full = {entry.path for entry in self.entries if entry.full and entry.failure is None}
        if not full:
            return []
        return [key for key, log in self._registry.open_items() if os.path.dirname(log.directory) in full]

    # Owners --------------------------------------------------------------------------------------------------------

    def claim(self, cluster_id: str) -> None:
        """Write the cluster id to the directories that have none. Raises InconsistentMetadata for another one."""
        self._cluster_id = cluster_id
        for entry in self.online:
            entry.properties = claim(self._fs, entry.path, self._node_id, cluster_id)

    def claim_for_this_boot(self) -> None:
        """Write to all directories that they are in use under this boot id. Then none is suspect any more."""
        for entry in self.online:
            entry.properties = claim(self._fs, entry.path, self._node_id, self._cluster_id, self._boot_id)
            entry.suspect = False
