"""Write the checkpoints of all data directories: when, and with which offsets. Their format is in `checkpoints`.

A checkpoint is written only if it says something new. A lock is held from looking up the offsets until they are
written, so that an older state never replaces a newer one. All methods wait for the disk: call them in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pylogd.log import checkpoints
from pylogd.log.checkpoints import TopicPartition
from pylogd.log.directories import LogDirectories
from pylogd.log.errors import StorageFailure
from pylogd.log.log import Log
from pylogd.log.log_directory import LogDirectory
from pylogd.log.registry import LogRegistry


class CheckpointWriter:
    """See the module."""

    def __init__(self, registry: LogRegistry, directories: LogDirectories) -> None:
        self._registry = registry
        self._directories = directories
        self._lock = threading.Lock()  # of all checkpoints but the cleaner's
        self._cleaner_lock = threading.Lock()  # of the cleaner's checkpoint
        self._count_lock = threading.Lock()  # of the count of truncations
        self._truncations = 0
        self._truncations_written = 0  # how many of them the checkpoints reflect

    def write(self) -> None:
        """Write recovery points and log start offsets.

        A data directory that fails goes offline. Raises StorageFailure for other failures, such as a full disk.
        """
        with self._lock:
            self._write_all()

    def write_truncated(self, log: Log, cleaned_before: int) -> None:
        """Write the checkpoints after a log was truncated: a recovery point after its end would be wrong.

        Several threads that truncate logs at the same time share one write.

        cleaned_before: `log.cleaned_offset` before the truncation.
        """
        with self._count_lock:
            self._truncations += 1
            own = self._truncations
        with self._lock:
            if self._truncations_written < own:
                included = self._truncations
                self._write_all()
                self._truncations_written = included
        if log.cleaned_offset < cleaned_before:
            self.write_cleaned(log)

    def _write_all(self) -> None:
        failed: StorageFailure | None = None
        for entry in self._directories.entries:
            try:
                if entry.failure is None:
                    self._write(entry)
            except StorageFailure as error:
                if not self._directories.storage_failed(error):
                    failed = error
        if failed is not None:
            raise failed

    def _write(self, entry: LogDirectory) -> None:
        registry = self._registry
        logs = [(key, log) for key, log in list(registry.logs.items()) if entry.holds(log)]
        unopened = registry.unopened()
        points = {key: point for key, point in entry.recovery_points.items() if key in unopened}
        points |= {key: log.recovery_point for key, log in logs}
        entry.write_offsets(checkpoints.RECOVERY_POINTS, points)
        starts = {key: start for key, start in entry.log_starts.items() if key in registry.offline}
        starts |= {key: log.log_start_offset for key, log in logs if log.log_start_offset > 0}
        entry.write_offsets(checkpoints.LOG_STARTS, starts)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks of replicated partitions. Raises StorageFailure as `write`."""
        with self._lock:
            logs = [(key, offset, self._registry.logs.get(key)) for key, offset in offsets.items()]
            for entry in self._directories.entries:
                found = {key: offset for key, offset, log in logs if log is not None and entry.holds(log)}
                if entry.failure is None and (found or checkpoints.HIGH_WATERMARKS in entry.checkpointed):
                    try:
                        entry.write_offsets(checkpoints.HIGH_WATERMARKS, found)
                    except StorageFailure as error:
                        if not self._directories.storage_failed(error):
                            raise

    def write_cleaned(self, log: Log) -> None:
        """Write how far the logs in the data directory of `log` were compacted. Raises StorageFailure."""
        with self._cleaner_lock:
            for entry in self._directories.entries:
                if entry.holds(log) and entry.failure is None:
                    logs = [(key, other) for key, other in list(self._registry.logs.items()) if entry.holds(other)]
                    offsets = {key: other.cleaned_offset for key, other in logs if other.cleaned_offset}
                    entry.write_offsets(checkpoints.CLEANER_OFFSETS, offsets)
