"""Write the checkpoints of all data directories: when, and with which offsets.

The formats are in `checkpoints`. A checkpoint is written only if its contents have changed. A lock is held from the
look-up of the offsets until they are written, so that an older state never replaces a newer one. All methods wait for
the disk: call them in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pylogd.broker.log import checkpoints
from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import LogDirectory
from pylogd.broker.log.registry import LogRegistry


class _DirectoryState:
    """The checkpoints of one data directory. One thread at a time writes them.

    lock: is held while any checkpoint but the cleaner's is written.
    cleaner_lock: is held while the cleaner's checkpoint is written.
    truncations: how many truncations there were.
    truncations_written: how many of these truncations the written checkpoints include.
    """

    __slots__ = ("cleaner_lock", "lock", "truncations", "truncations_written")

    def __init__(self) -> None:
        self.lock, self.cleaner_lock = threading.Lock(), threading.Lock()
        self.truncations = self.truncations_written = 0


class CheckpointWriter:
    """Writes checkpoints; see the module."""

    def __init__(self, registry: LogRegistry, directories: LogDirectories) -> None:
        self._registry = registry
        self._directories = directories
        self._states: dict[str, _DirectoryState] = {}
        self._states_lock = threading.Lock()

    def _state(self, entry: LogDirectory) -> _DirectoryState:
        with self._states_lock:
            return self._states.setdefault(entry.path, _DirectoryState())

    def write(self, path: str | None = None) -> None:
        """Write recovery points and log start offsets, for all data directories or for the one at `path`.

        A data directory that fails goes offline. Raises StorageFailure for other failures, such as a full disk.
        """
        failed: StorageFailure | None = None
        for entry in self._directories.entries:
            if path is None or entry.path == path:
                state = self._state(entry)
                with state.lock:
                    failed = self._write(entry, state) or failed
        if failed is not None:
            raise failed

    def write_truncated(self, log: Log) -> None:
        """Write the checkpoints after a log was truncated: the old recovery point may be after the log's new end.

        Several threads that truncate logs at the same time share one write. Call `lower_cleaned` before the truncation.
        """
        entry = self._directories.directory_of(log)
        state = self._state(entry)
        with self._states_lock:
            state.truncations += 1
            own = state.truncations
        with state.lock:
            failed = self._write(entry, state) if state.truncations_written < own else None
        if failed is not None:
            raise failed
        written = entry.checkpointed.get(checkpoints.CLEANER_OFFSETS, {})
        # A compaction has just written a higher offset.
        if log.cleaned_offset < written.get((log.topic, log.partition), 0):
            self.write_cleaned(log)

    def _write(self, entry: LogDirectory, state: _DirectoryState) -> StorageFailure | None:
        """Write the checkpoints of a directory. Return the failure if the directory stays online after it."""
        included = state.truncations
        try:
            if entry.failure is None:
                self._write_offsets(entry)
        except StorageFailure as error:
            return None if self._directories.storage_failed(error) else error
        state.truncations_written = included
        return None

    def _write_offsets(self, entry: LogDirectory) -> None:
        registry = self._registry
        logs = self._directories.logs_in(entry)
        unopened = registry.unopened()
        points = {key: point for key, point in entry.recovery_points.items() if key in unopened}
        points |= {key: min(log.recovery_point, log.epochs.unsaved) for key, log in logs}
        entry.write_offsets(checkpoints.RECOVERY_POINTS, points)
        starts = {key: start for key, start in entry.log_starts.items() if key in registry.offline}
        starts |= {key: log.log_start_offset for key, log in logs if log.log_start_offset > 0}
        entry.write_offsets(checkpoints.LOG_STARTS, starts)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int], path: str | None = None) -> None:
        """Write the high watermarks of replicated partitions; `path` is as for `write`. Raises StorageFailure."""
        logs, entries = self._registry.logs, self._directories.entries
        only = len(entries) == 1  # a single directory holds all logs
        for entry in entries:
            if path is not None and entry.path != path:
                continue
            with self._state(entry).lock:
                found = {
                    key: offset
                    for key, offset in offsets.items()
                    if (log := logs.get(key)) is not None and (only or entry.holds(log))
                }
                as_read = entry.checkpointed.get(checkpoints.HIGH_WATERMARKS) is entry.high_watermarks
                if entry.failure is None and (found or not as_read):
                    try:
                        entry.write_offsets(checkpoints.HIGH_WATERMARKS, found)
                    except StorageFailure as error:
                        if not self._directories.storage_failed(error):
                            raise

    def forget_deleted(self, key: TopicPartition, target: LogDirectory) -> None:
        """Remove entries of deleted partitions before a partition with the name `key` is created in `target`.

        After a crash the new log would otherwise get the old log's entries, and begin at the old log's start offset. If
        there is no entry of `key`, nothing is written. Raises StorageFailure.
        """
        for entry in self._directories.entries:
            if entry is not target and not entry.has_entry(key):
                continue  # do not wait for a disk that has no such entry
            state = self._state(entry)
            with state.lock, state.cleaner_lock:
                if entry.failure is None and entry.has_entry(key):
                    entry.keep_entries({*list(self._registry.logs), *list(self._registry.offline)})

    def lower_cleaned(self, log: Log, offset: int) -> None:
        """Write, before a truncation, that the log is compacted up to `offset` at most. Raises StorageFailure.

        Records that are appended after the truncation must not count as compacted. So this is written before the
        truncation, even if a later write of the checkpoints fails.
        """
        if log.cleaned_offset > offset:
            log.cleaned_offset = offset
            self.write_cleaned(log)

    def write_cleaned(self, log: Log) -> None:
        """Write how far the logs in the data directory of `log` were compacted. Raises StorageFailure."""
        entry = self._directories.directory_of(log)
        with self._state(entry).cleaner_lock:
            if entry.failure is None:
                logs = self._directories.logs_in(entry)
                offsets = {key: other.cleaned_offset for key, other in logs if other.cleaned_offset}
                entry.write_offsets(checkpoints.CLEANER_OFFSETS, offsets)
