"""Make one log durable: sync its segments, and write their indexes, the producer snapshots and the leader epochs.

An append writes only batches, to the page cache. This module writes everything else: when a segment is sealed, when a
flush is due, and when the log is closed. The functions wait for the disk and run in a thread; their caller holds
`Log.maintenance`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pylogd.broker.log.checkpoints import prepare_leader_epochs, replace_leader_epochs, write_leader_epochs
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.errors import LogClosed, StorageFailure
from pylogd.broker.log.files import sync_directory
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.snapshots import write_snapshot
from pylogd.broker.log.storage import Storage


class DurableLog(Protocol):
    """The attributes of a `Log` that this module needs."""

    directory: str
    topic: str
    partition: int
    storage: Storage
    epochs: LeaderEpochs
    producers: Producers
    abandoned: bool
    log_end_offset: int
    recovery_point: int
    last_flush: float
    names_synced: bool
    closed_at: int
    unwritten_snapshots: Sequence[tuple[int, bytes]]

    @property
    def lock(self) -> threading.RLock: ...

    @property
    def segments(self) -> Sequence[Segment]: ...

    @property
    def active(self) -> Segment: ...

    def exclude_appends(self) -> AbstractContextManager[object]: ...


def seal_segments(log: DurableLog, *, epochs_later: bool = False) -> None:
    """Make all segments but the active one durable, and move the recovery point to the start of the active segment.

    epochs_later: whether the caller writes the leader epochs if there is no segment to seal.

    Raises StorageFailure, and LogClosed if the log was abandoned.
    """
    with log.lock:
        _check_open(log)
        sealed = [segment for segment in log.segments[:-1] if segment.file is not None]
        snapshots = list(log.unwritten_snapshots)
        base = log.active.base_offset
    fs = log.storage.fs
    try:
        if log.active.torn:
            with log.exclude_appends():
                log.active.truncate_torn()
        for segment in sealed:
            segment.persist()
        for offset, data in snapshots:
            write_snapshot(fs, log.directory, offset, data)
        if sealed or not epochs_later:
            _write_epochs(log)
        if sealed:
            sync_directory(fs, log.directory)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
    with log.lock:
        log.unwritten_snapshots = tuple(snapshot for snapshot in log.unwritten_snapshots if snapshot not in snapshots)
    _move_recovery_point(log, base)


def flush_log(log: DurableLog) -> None:
    """Make everything durable that was appended so far, and move the recovery point to its end.

    Raises StorageFailure, and LogClosed if the log was abandoned.
    """
    end = log.log_end_offset
    log.last_flush = log.storage.seconds()
    active = log.active  # if it is rolled from here on, it is sealed below
    seal_segments(log)
    if end <= log.recovery_point and log.names_synced:
        return
    active.sync()
    try:
        _sync_names(log)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
    _move_recovery_point(log, end)


def write_closing_state(log: DurableLog, *, sync: bool) -> None:
    """Flush the log, and write what lets the next start open it without a scan: indexes and a producer snapshot.

    A log of one small segment gets no indexes (see `Segment`). A log without producers gets no snapshot.

    sync: False to leave out the syncs of new data. The caller then syncs the volume, and calls `replace_epochs` and
        `volume_synced`. The indexes are never synced, since they can be rebuilt.
    """
    fs, active = log.storage.fs, log.active
    if sync:
        flush_log(log)
    else:
        seal_segments(log, epochs_later=True)
        if log.epochs.dirty:
            prepare_leader_epochs(fs, log.directory, log.epochs.entries())
    if not _says_its_end(log):
        active.persist(sync=False, indexed=active.needs_index_files())
        if len(log.producers) or len(log.segments) > 1 or not active.is_small:
            write_snapshot(fs, log.directory, log.log_end_offset, log.producers.to_snapshot(), sync=sync)


def needs_closing_state(log: DurableLog) -> bool:
    """Return whether `write_closing_state` has something to write or to sync."""
    return log.log_end_offset > log.recovery_point or not log.names_synced or not _says_its_end(log)


def replace_epochs(log: DurableLog) -> bool:
    """Rename the files of leader epochs that `write_closing_state` wrote without a sync, now that they are durable.

    Return whether there were any: then the volume has to be synced again. Raises OSError.
    """
    if not log.epochs.dirty:
        return False
    replace_leader_epochs(log.storage.fs, log.directory)
    log.epochs.saved(log.epochs.entries())
    return True


def volume_synced(log: DurableLog) -> None:
    """Note that everything written to a log is durable, since its volume was synced."""
    log.recovery_point, log.names_synced = log.log_end_offset, True


def _says_its_end(log: DurableLog) -> bool:
    """Return whether a start would find the log's end and its producers without a scan."""
    if log.active.torn:
        return False
    return log.log_end_offset == log.closed_at or (len(log.segments) == 1 and not log.active.size)


def _check_open(log: DurableLog) -> None:
    """Raise LogClosed if the log was abandoned: its directory may already have another name."""
    if log.abandoned:
        raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")


def _write_epochs(log: DurableLog) -> None:
    if log.epochs.dirty:
        with log.lock:
            entries = log.epochs.entries()
        write_leader_epochs(log.storage.fs, log.directory, entries)
        with log.lock:
            log.epochs.saved(entries)


def _move_recovery_point(log: DurableLog, offset: int) -> None:
    _check_open(log)  # if it was abandoned meanwhile, its files may have been closed before they were synced
    log.recovery_point = max(log.recovery_point, offset)


def _sync_names(log: DurableLog) -> None:
    """Make the file names in the log's directory durable, and on the first call the name of the directory itself."""
    fs = log.storage.fs
    sync_directory(fs, log.directory)
    if not log.names_synced:
        sync_directory(fs, os.path.dirname(log.directory))
        log.names_synced = True
