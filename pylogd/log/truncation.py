"""Cutting a log back at its end, for a replica whose leader has something else there.

Strategy: segments behind the cut are unlinked, youngest first, the one that holds it is cut and synced, the log is told
its new end, the directory is synced, and the producers' state is made anew from snapshots and what is left. A log that
begins anew has neither snapshots nor producers.

Rules: waits for the disk and runs in a thread. Called through `LogManager`, which keeps the checkpoint right: a
recovery point behind the log's end would have a later start trust what is not there.
"""

from __future__ import annotations

from pylogd.log.errors import StorageFailure
from pylogd.log.files import sync_directory
from pylogd.log.log import Log
from pylogd.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from pylogd.log.snapshots import restore_producers, snapshot_offsets


def truncate_to(log: Log, offset: int) -> int:
    """Drop what lies at or behind `offset`, whole batches, for good; the new end."""
    with log.maintenance, log.lock:
        if offset >= log.log_end_offset:
            return log.log_end_offset
        kept = [segment for segment in log.segments if segment.base_offset <= offset]
        if not kept:
            return _restart_at(log, offset)
        for segment in reversed(log.segments[len(kept) :]):
            _unlink(log, segment)
        segment = kept[-1]
        if segment.file is None:
            segment.open_for_append()
        first = segment.locate(offset, allow_cold=True)
        segment.truncate(offset)
        segment.sync()
        log.end_at(kept, min(offset, first.base_offset) if first is not None else offset)
        _settle(log)
        return log.log_end_offset


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Drop everything; the next append gets `offset`. For a replica whose leader no longer has what it lacks."""
    with log.maintenance, log.lock:
        _restart_at(log, offset)


def _restart_at(log: Log, offset: int) -> int:
    # First of all, or a crash in between would leave producers whose batches are gone.
    for found in snapshot_offsets(log.storage.fs, log.directory):
        log.storage.fs.unlink(segment_path(log.directory, found, SNAPSHOT_SUFFIX))
    for segment in reversed(log.segments):
        _unlink(log, segment)
    segment = Segment.create(log.storage, log.directory, offset, created_ms=log.now_ms())
    log.log_start_offset = offset
    log.end_at([segment], offset, anew=True)
    _settle(log)
    return offset


def _unlink(log: Log, segment: Segment) -> None:
    segment.forget()
    for path in segment.file_paths():
        if log.storage.fs.exists(path):
            log.storage.fs.unlink(path)


def _settle(log: Log) -> None:
    """Make the cut durable, and have the producers be as they were at it."""
    fs = log.storage.fs
    try:
        sync_directory(fs, log.directory)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
    restore_producers(fs, log.directory, log.segments, log.log_end_offset, log.producers)
