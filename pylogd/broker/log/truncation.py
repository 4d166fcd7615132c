"""Truncate a log at its end, for a replica whose leader has other records there.

Segments after the new end are unlinked, newest first. The segment that contains the new end is truncated, and synced
after the segments before it. The log adopts its new end, and the directory is synced. Then the producers' state is
restored from a snapshot and the remaining batches, or taken back by `rewind` if few batches were removed. A log that
restarts at an offset has neither snapshots nor producers.

Rules: waits for the disk: call it in a thread. Call it through `LogManager`, which updates the checkpoints: if a
recovery point were after the log's end, a later start would trust records that were not flushed.
"""

from __future__ import annotations

from pylogd.broker.log import rewind
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import sync_directory
from pylogd.broker.log.log import Log
from pylogd.broker.log.opening import open_segment
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from pylogd.broker.log.snapshots import remove_snapshots_above, restore_producers, snapshot_offsets
from pylogd.wire.records import BatchHeader


def truncate_to(log: Log, offset: int) -> int:
    """Remove the batches that contain or follow `offset`, durably; return the new log end offset."""
    with log.maintenance, log.exclude_appends():
        if offset >= log.log_end_offset:
            return log.log_end_offset
        kept = [segment for segment in log.segments if segment.base_offset <= offset]
        if not kept:
            return _restart_at(log, offset)
        segment = kept[-1]
        first = segment.locate(offset, allow_cold=True)
        position = segment.size if first is None else first.position
        removed = rewind.removed_headers(log.segments[len(kept) - 1 :], position)
        for later in reversed(log.segments[len(kept) :]):
            _unlink(log, later)
        if segment.file is None:
            open_segment(segment)
        was_active, removed_bytes = segment is log.active, segment.truncate(offset)
        if was_active:  # `replace_segments` counts the bytes of other segments
            log.removed_bytes += removed_bytes
        for earlier in kept:  # in their order: a power loss must not leave this segment without those before it
            earlier.sync()
        with log.lock:
            log.truncated_to(kept, min(offset, first.base_offset) if first is not None else offset)
        if not _take_back(log, removed):
            _make_durable(log)
        return log.log_end_offset


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Remove all records, durably. The next record gets `offset`.

    This is for a replica whose leader has already deleted the records that the replica lacks.
    """
    with log.maintenance, log.exclude_appends():
        _restart_at(log, offset)


def _restart_at(log: Log, offset: int) -> int:
    # Snapshots go first: after a crash in between they would name producers whose batches are gone.
    for found in snapshot_offsets(log.storage.fs, log.directory):
        log.storage.fs.unlink(segment_path(log.directory, found, SNAPSHOT_SUFFIX))
    for segment in reversed(log.segments):
        _unlink(log, segment)
    segment = Segment.create(log.storage, log.directory, offset, created_ms=log.now_ms())
    with log.lock:
        log.log_start_offset = offset
        log.truncated_to([segment], offset, restarted=True)
    _make_durable(log)
    return offset


def _unlink(log: Log, segment: Segment) -> None:
    segment.forget()
    for path in segment.file_paths():
        if log.storage.fs.exists(path):
            log.storage.fs.unlink(path)


def _take_back(log: Log, removed: list[BatchHeader] | None) -> bool:
    """Make a truncation durable and restore the producers to it. Return False, and do nothing, if that is not possible.

    removed: headers of all batches that were removed, None if they are many.
    """
    if not rewind.rewind(log.producers, removed, log.segments[-1], log.log_end_offset):
        return False
    try:
        sync_directory(log.storage.fs, log.directory)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
    remove_snapshots_above(log.storage.fs, log.directory, log.log_end_offset)
    return True


def _make_durable(log: Log) -> None:
    """Make the truncation durable, and restore the producers' state at the new end."""
    fs = log.storage.fs
    try:
        sync_directory(fs, log.directory)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
    # They are restored into another object: until it is complete, readers must know which transactions are open.
    producers = Producers(log.config.producer_ids_max)
    restore_producers(fs, log.directory, log.segments, log.log_end_offset, producers)
    with log.lock:
        log.producers = producers
