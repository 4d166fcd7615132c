"""The regular maintenance of all logs: flushing, retention, removal of deleted files, checkpoints.

Strategy: a round looks at each log, but maintains only those that have changed since, or whose oldest segment expires
now. When nothing is left to do for a log, its state is remembered. Comparing this state takes a fraction of a
microsecond, maintaining a log 24.

Everything here waits for the disk: call it in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pylogd.broker.log.checkpoint_writer import CheckpointWriter
from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.config import NO_LIMIT, LogConfig
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.errors import StorageError, StorageFailure
from pylogd.broker.log.files import FileSystem, remove_tree
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import LogDirectory
from pylogd.broker.log.registry import LogRegistry
from pylogd.broker.log.retention import expires_at, retain, unlink_deleted
from pylogd.broker.log.segment import Segment

_log = logging.getLogger(__name__)


class _Settled(NamedTuple):
    """The state of a log for which nothing is left to do before `due_ms`, by the wall clock, unless a field changes."""

    due_ms: float
    log_end_offset: int
    log_start_offset: int
    deletable_offset: int | None
    config: LogConfig
    segments: Sequence[Segment]

    def holds(self, log: Log, now_ms: int) -> bool:
        """Return whether there is still nothing to do for a log."""
        return (
            now_ms < self.due_ms
            and log.log_end_offset == self.log_end_offset
            and log.segments is self.segments
            and log.log_start_offset == self.log_start_offset
            and log.deletable_offset == self.deletable_offset
            and log.config is self.config
            and not log.pending_unlinks
            and not log.active.torn
        )


class LogMaintenance:
    """Maintains the logs of a broker; see the module.

    now_ms: the wall clock.
    seconds: a monotonic clock.
    checkpoint_ms: the time between two checkpoints.
    """

    def __init__(
        self,
        registry: LogRegistry,
        directories: LogDirectories,
        checkpoints: CheckpointWriter,
        fs: FileSystem,
        *,
        now_ms: Callable[[], int],
        seconds: Callable[[], float],
        checkpoint_ms: int,
    ) -> None:
        self._registry = registry
        self._directories = directories
        self._checkpoints = checkpoints
        self._fs = fs
        self._now_ms = now_ms
        self._seconds = seconds
        self._checkpoint_seconds = checkpoint_ms / 1000
        self._next_checkpoint: dict[str | None, float] = {}  # the time of the next checkpoint, by the `path` of `tick`

    def tick(self, path: str | None = None) -> list[TopicPartition]:
        """Do what is due. Return the partitions whose log start offset has moved.

        path: the only data directory to maintain; None for all of them. Callers always use None or always single paths,
            since the times of the checkpoints are kept by path.
        """
        now_ms, now = self._now_ms(), self._seconds()
        moved = []
        for log in self._registry.open_logs():
            if _is_settled(log, now_ms) or (path is not None and os.path.dirname(log.directory) != path):
                continue
            start = log.log_start_offset
            log.settled = self._maintain(log, now_ms, now)
            if log.log_start_offset != start:
                moved.append(log.key)
        for entry in self._directories.entries:
            if path is None or entry.path == path:
                self._remove_deleted(entry, now)
        if now >= self._next_checkpoint.get(path, 0.0):
            self._next_checkpoint[path] = now + self._checkpoint_seconds
            try:
                self._checkpoints.write(path)
            except StorageError as error:
                _log.error("Could not write the checkpoints, will try again: %s", error)
        return moved

    def _maintain(self, log: Log, now_ms: int, now: float) -> _Settled | None:
        """Do what is due for one log. Return its state if nothing is left to do."""
        end = log.log_end_offset
        try:
            _maintain(log, now_ms, now)
            return _settle(log, end)
        except StorageError as error:
            if not self._directories.storage_failed(error) and not log.closed:
                _log.error("Maintenance of %s-%d failed and will be tried again: %s", *log.key, error)
            return None

    def _remove_deleted(self, entry: LogDirectory, now: float) -> None:
        """Remove the directories of deleted partitions whose delay has passed."""
        due = [path for when, path in entry.pending_removals if when <= now]
        entry.pending_removals = [pending for pending in entry.pending_removals if pending[0] > now]
        for path in due:
            try:
                remove_tree(self._fs, path)
            except OSError as error:
                if not self._directories.storage_failed(StorageFailure(path, error)):
                    _log.error("Could not remove %s; the next start removes it: %s", path, error)


def _is_settled(log: Log, now_ms: int) -> bool:
    """Return whether nothing is to be done for a log: it was never written, or has not changed since the last look."""
    settled = log.settled
    if settled is None:
        return not log.log_end_offset and not log.pending_unlinks and not log.closed
    return isinstance(settled, _Settled) and settled.holds(log, now_ms)


def _maintain(log: Log, now_ms: int, now: float) -> None:
    """Do what is due for one log. `now_ms` is the wall clock, `now` the monotonic one, in seconds."""
    config = log.config
    try:
        if (
            log.log_end_offset - log.recovery_point >= config.flush_messages
            or (now - log.last_flush) * 1000 >= config.flush_ms
        ):
            log.flush()
        # Otherwise nothing was written since the log was opened, so there is nothing to seal.
        elif not log.at_rest or log.epochs.dirty:
            log.seal()
    except StorageFailure as failure:
        if failure.is_full:  # nothing can be written, but durable segments may be deleted to make room
            retain(log, now_ms, durable_only=True)
            unlink_deleted(log)
        raise
    retain(log, now_ms)
    unlink_deleted(log)
    if len(log.producers):
        with log.lock:
            log.producers.expire(now_ms - config.producer_id_expiration_ms)


def _settle(log: Log, end: int) -> _Settled | None:
    """Return the state of a log that was just maintained; None if something will be due.

    end: the log end offset before the maintenance.
    """
    config = log.config
    flushed = log.recovery_point >= end or config.flush_ms >= NO_LIMIT
    if not flushed or len(log.producers) or log.closed:
        return None
    return _Settled(expires_at(log), end, log.log_start_offset, log.deletable_offset, config, log.segments)
