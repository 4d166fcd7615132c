"""Delete segments that are too old, exceed the size limit, or lie before the log start offset.

Segments are deleted whole, oldest first, and never the active one (if all records have expired, the log is rolled
first). A segment is removed from the list, then its files are renamed to `.deleted`, and unlinked after
`file.delete.delay.ms`. Readers that hold the open file are not affected.

Rules: waits for the disk: call it in a thread. Records at and after `Log.deletable_offset` are kept. After a crash
between the steps the segments are back, or the loader removes the `.deleted` files: there is never a gap.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from pylogd.broker.log.durability import seal_segments
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import sync_directory
from pylogd.broker.log.log import Log
from pylogd.broker.log.segment import DELETED_SUFFIX, Segment
from pylogd.broker.log.snapshots import remove_old_snapshots, snapshot_offsets

_log = logging.getLogger(__name__)


def retain(log: Log, now_ms: int, *, durable_only: bool = False) -> int:
    """Delete the segments that the log's settings or its start offset exclude. Return how many were deleted.

    durable_only: whether to write nothing, as on a full disk. Then the active segment and segments that are not durable
        yet are kept.
    """
    if log.at_rest and not _expired(log, log.segments, log.log_end_offset, now_ms):
        return 0  # without the locks, which a log that was never used does not have yet
    with log.maintenance:
        if log.closed:
            return 0
        with log.lock:
            segments, end = log.segments, log.log_end_offset
        reasons = _expired(log, segments, end, now_ms)
        if durable_only:
            most = log.recovery_point
            if len(log.producers):
                most = min(most, _last_snapshot(log))
            del reasons[sum(segment.base_offset <= most for segment in segments[1:]) :]
        elif len(reasons) == len(segments):
            with log.exclude_appends():
                if log.log_end_offset != end:
                    reasons.pop()  # the active segment was appended to in the meantime
                else:
                    log.roll(end, now_ms)
            seal_segments(log)  # writes the producer snapshot, which must exist before the batches are deleted
        elif reasons:
            _have_snapshot(log, segments[len(reasons)].base_offset, now_ms)
        if reasons:
            _remove(log, reasons)
        return len(reasons)


def expires_at(log: Log) -> float:
    """Return when the oldest segment of a log expires by its age, in milliseconds since 1970; infinity for never."""
    config, oldest = log.config, log.segments[0]
    if not config.deletes or config.retention_ms < 0 or not (oldest.size or len(log.segments) > 1):
        return math.inf
    return _newest_ms(oldest) + config.retention_ms + 1


def _newest_ms(segment: Segment) -> int:
    """Return the largest time stamp of a segment. If it has none, return when it was created."""
    stamp, _ = segment.largest_timestamp(allow_cold=True)
    return stamp if stamp >= 0 else segment.created_ms


def unlink_later(log: Log, paths: list[str]) -> None:
    """Have `unlink_deleted` unlink the files after `file.delete.delay.ms`."""
    due = log.storage.seconds() + log.config.file_delete_delay_ms / 1000
    log.pending_unlinks = (*log.pending_unlinks, (due, paths))


def unlink_deleted(log: Log) -> None:
    """Unlink the files whose delay has passed. Raises StorageFailure."""
    if not log.pending_unlinks:
        return
    with log.maintenance:
        now = log.storage.seconds()
        due = [paths for when, paths in log.pending_unlinks if when <= now]
        log.pending_unlinks = tuple(entry for entry in log.pending_unlinks if entry[0] > now)
        for path in [path for paths in due for path in paths]:
            try:
                log.storage.fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFailure(path, error) from error


def _expired(log: Log, segments: Sequence[Segment], end: int, now_ms: int) -> list[str]:
    """Return, for each of the oldest segments to delete, the reason. `end` is the log end offset."""
    reasons: list[str] = []
    surplus = log.size - log.config.retention_bytes
    for at, segment in enumerate(segments):
        last = at + 1 == len(segments)
        segment_end = end if last else segments[at + 1].base_offset
        if log.deletable_offset is not None and segment_end > log.deletable_offset:
            break
        reason = _reason(log, segment, segment_end, surplus, now_ms, active=last)
        if reason is None:
            break
        reasons.append(reason)
        surplus -= segment.size
    return reasons


def _reason(log: Log, segment: Segment, segment_end: int, surplus: int, now_ms: int, *, active: bool) -> str | None:
    """Return why a segment is to be deleted, None if it is kept.

    surplus: by how many bytes the log exceeds its size limit if this segment is its oldest.
    """
    config = log.config
    if segment_end <= log.log_start_offset and not active:
        return f"it is before the log start offset, {log.log_start_offset}"
    if not config.deletes or (active and not segment.size):
        return None
    if config.retention_ms >= 0:
        stamp = _newest_ms(segment)
        if now_ms - stamp > config.retention_ms:
            return f"its newest record is {now_ms - stamp} ms old, more than retention.ms, {config.retention_ms}"
    if config.retention_bytes >= 0 and surplus >= segment.size and not active:
        return f"the log exceeds retention.bytes, {config.retention_bytes}, by {surplus} bytes"
    return None


def _last_snapshot(log: Log) -> int:
    """Return the offset of the last producer snapshot on the disk; -1 if there is none."""
    return max(snapshot_offsets(log.storage.fs, log.directory), default=-1)


def _have_snapshot(log: Log, start: int, now_ms: int) -> None:
    """Make sure that a producer snapshot at `start` or after it is on the disk, if the log has producers.

    A roll makes a snapshot, which the next seal writes. If a crash comes in between, the next start restores the
    producers from the batches, and the deletion of these would leave nothing to restore them from.
    """
    if log.unwritten_snapshots:
        seal_segments(log)
    if not len(log.producers) or _last_snapshot(log) >= start:
        return
    with log.exclude_appends():
        if log.active.size:
            log.roll(log.log_end_offset, now_ms)
        else:
            with log.lock:
                log.unwritten_snapshots = ((log.log_end_offset, log.producers.to_snapshot()),)
    seal_segments(log)


def _remove(log: Log, reasons: list[str]) -> None:
    with log.lock:
        removed = log.segments[: len(reasons)]
        log.replace_segments(log.segments[len(reasons) :])
        start = log.segments[0].base_offset
        if start > log.log_start_offset:
            log.log_start_offset = start
            log.epochs.truncate_start(start)
    fs = log.storage.fs
    for segment, reason in zip(removed, reasons, strict=True):
        _log.info("Deleting segment %s: %s", segment.path, reason)
        segment.forget()
        renamed = []
        try:
            for path in segment.file_paths():
                if fs.exists(path):
                    fs.rename(path, path + DELETED_SUFFIX)
                    renamed.append(path + DELETED_SUFFIX)
        except OSError as error:
            raise StorageFailure(segment.path, error) from error
        unlink_later(log, renamed)
    try:
        sync_directory(fs, log.directory)
        remove_old_snapshots(fs, log.directory, log.segments[0].base_offset)
    except OSError as error:
        raise StorageFailure(log.directory, error) from error
