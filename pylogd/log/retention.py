"""What of a log is old enough to go, and its going.

Strategy: whole segments, oldest first, never the one that is written to (a log whose every record has expired rolls
first). A segment leaves the list, then its files are renamed to `.deleted`, and `file.delete.delay.ms` later they are
unlinked. Readers in flight hold the open file and notice nothing.

Rules: everything here waits for the disk and runs in a thread. Nothing at or behind `Log.deletable_offset` goes.
A crash between the steps leaves segments that come back, or `.deleted` files that the loader removes: never a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pylogd.log.errors import StorageFailure
from pylogd.log.files import sync_directory
from pylogd.log.log import Log
from pylogd.log.segment import DELETED_SUFFIX, Segment
from pylogd.log.snapshots import remove_old_snapshots

_log = logging.getLogger(__name__)


def retain(log: Log, now_ms: int) -> int:
    """Delete what the log's settings and its start offset no longer cover; how many segments went."""
    with log.maintenance:
        if log.closed:
            return 0
        with log.lock:
            segments, end = log.segments, log.log_end_offset
        reasons = _expired(log, segments, end, now_ms)
        if len(reasons) == len(segments):
            with log.lock:
                if log.log_end_offset != end:
                    reasons.pop()  # the active segment was appended to while it was judged
                else:
                    log.roll(end, now_ms)
            log.seal_held()  # the producers' snapshot has to be there before the batches go
        if reasons:
            _remove(log, reasons)
        return len(reasons)


def unlink_later(log: Log, paths: list[str]) -> None:
    """Have `unlink_deleted` unlink the files once `file.delete.delay.ms` has passed."""
    log.pending_unlinks.append((log.storage.seconds() + log.config.file_delete_delay_ms / 1000, paths))


def unlink_deleted(log: Log) -> None:
    """Unlink the files whose delay is over."""
    with log.maintenance:
        now = log.storage.seconds()
        due = [paths for when, paths in log.pending_unlinks if when <= now]
        log.pending_unlinks = [entry for entry in log.pending_unlinks if entry[0] > now]
        for path in [path for paths in due for path in paths]:
            try:
                log.storage.fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFailure(path, error) from error


def _expired(log: Log, segments: Sequence[Segment], end: int, now_ms: int) -> list[str]:
    """Why each of the oldest segments may go; as many reasons as there are such segments. `end`: the log's end."""
    reasons: list[str] = []
    surplus = log.size - log.config.retention_bytes
    for at, segment in enumerate(segments):
        last = at + 1 == len(segments)
        following = end if last else segments[at + 1].base_offset
        if log.deletable_offset is not None and following > log.deletable_offset:
            break
        reason = _reason(log, segment, following, surplus, now_ms, active=last)
        if reason is None:
            break
        reasons.append(reason)
        surplus -= segment.size
    return reasons


def _reason(log: Log, segment: Segment, following: int, surplus: int, now_ms: int, *, active: bool) -> str | None:
    config = log.config
    if following <= log.log_start_offset and not active:
        return f"it lies before the log's start, {log.log_start_offset}"
    if not config.deletes or (active and not segment.size):
        return None
    if config.retention_ms >= 0:
        stamp, _ = segment.largest_timestamp(allow_cold=True)
        if stamp < 0:
            stamp = segment.created_ms
        if now_ms - stamp > config.retention_ms:
            return f"its newest record is {now_ms - stamp} ms old, over retention.ms, {config.retention_ms}"
    if config.retention_bytes >= 0 and surplus >= segment.size and not active:
        return f"the log is {surplus} bytes over retention.bytes, {config.retention_bytes}"
    return None


def _remove(log: Log, reasons: list[str]) -> None:
    with log.lock:
        gone = log.segments[: len(reasons)]
        log.replace_segments(log.segments[len(reasons) :])
        start = log.segments[0].base_offset
        if start > log.log_start_offset:
            log.log_start_offset = start
            log.epochs.truncate_start(start)
    fs = log.storage.fs
    for segment, reason in zip(gone, reasons, strict=True):
        _log.info("%s is deleted: %s", segment.path, reason)
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
