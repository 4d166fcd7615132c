"""Replace segments by a compacted one through renames, so that a crash at any point loses nothing.

The new segment is written to `….cleaned` files, which are synced. Renaming its log to `….log.swap` decides: before the
rename the old segments are valid. After it the new segment is valid, and the next start completes the remaining steps
if need be.

Steps, with a sync of the directory after each:
1. `.index.cleaned`, `.timeindex.cleaned` and, if there is one, `.txnindex.cleaned` are renamed to `.swap`, then
   `.log.cleaned` is.
2. The old segments but the first are renamed to `.deleted`.
3. The new indexes take their final names, replacing those of the first old segment.
4. The new log takes its final name, replacing that of the first old segment.

Rules: the last batch of the new segment ends where the last old one did; from this a start knows which segments were
replaced. Readers keep the old files open: the caller pins the old `Segment` objects to them before step 2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection

from pylogd.broker.log.files import TEMPORARY_SUFFIX, FileSystem, SegmentFile, sync_directory
from pylogd.broker.log.scan import BadBatch, scan
from pylogd.broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)

_log = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_SUFFIXES = (*_INDEXES, LOG_SUFFIX)  # the log comes last, since its name decides
_SWAPPED_LOG = re.compile(r"^\d{20}\.log\.swap$", re.ASCII)


def commit(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Do step 1: make the new segment the valid one. Its `.cleaned` files are written and synced.

    Raises OSError. If the log's `.cleaned` file then still exists, the old segments are still valid (`is_undecided`).
    If it is gone, the outcome is unknown until the next start.
    """
    path = segment_path(directory, base_offset)
    try:
        for suffix in _INDEXES:
            index = segment_path(directory, base_offset, suffix)
            if suffix != TRANSACTION_INDEX_SUFFIX or fs.exists(index + CLEANED_SUFFIX):
                fs.rename(index + CLEANED_SUFFIX, index + SWAP_SUFFIX)
        sync_directory(fs, directory)
        fs.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    except OSError:
        for suffix in _INDEXES:
            with contextlib.suppress(OSError):
                fs.unlink(segment_path(directory, base_offset, suffix) + SWAP_SUFFIX)
        raise
    sync_directory(fs, directory)


def is_undecided(fs: FileSystem, directory: str, base_offset: int) -> bool:
    """Return whether a failed `commit` left the old segments valid."""
    return fs.exists(segment_path(directory, base_offset) + CLEANED_SUFFIX)


def rename_replaced(fs: FileSystem, directory: str, base_offsets: list[int]) -> list[str]:
    """Do step 2: rename the old segments at `base_offsets`. Return the paths to unlink later."""
    renamed = []
    for base_offset in base_offsets:
        for suffix in (LOG_SUFFIX, *_INDEXES):
            path = segment_path(directory, base_offset, suffix)
            if fs.exists(path):
                fs.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        snapshot = segment_path(directory, base_offset, SNAPSHOT_SUFFIX)
        if fs.exists(snapshot):
            fs.unlink(snapshot)
    sync_directory(fs, directory)
    return renamed


def give_final_names(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Do steps 3 and 4. This may be repeated after a crash between the renames."""
    for suffix in _SUFFIXES:
        path = segment_path(directory, base_offset, suffix)
        if fs.exists(path + SWAP_SUFFIX):
            fs.rename(path + SWAP_SUFFIX, path)
        if suffix in (TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX):
            sync_directory(fs, directory)


def discard(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the `.cleaned` files of a new segment that is not needed."""
    for suffix in _SUFFIXES:
        cleaned = segment_path(directory, base_offset, suffix) + CLEANED_SUFFIX
        for path in (cleaned, cleaned + TEMPORARY_SUFFIX):
            if fs.exists(path):
                fs.unlink(path)


def finish_swaps(fs: FileSystem, directory: str) -> Collection[str]:
    """Complete the replacements in a partition's directory that were decided before a crash, and undo the others.

    Returns the names of the files that the directory has afterwards.
    """
    names = sorted(fs.listdir(directory))
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return names
    for name in names:
        if _SWAPPED_LOG.match(name):
            _finish_swap(fs, directory, int(name[:20]))
    for name in names:
        path = os.path.join(directory, name)
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) and fs.exists(path):
            _log.info("Removing %s, which an interrupted compaction left behind", path)
            fs.unlink(path)
    return fs.listdir(directory)


def _finish_swap(fs: FileSystem, directory: str, base_offset: int) -> None:
    path = segment_path(directory, base_offset)
    try:
        end = _end_offset(fs, path + SWAP_SUFFIX, base_offset)
    except BadBatch as bad:
        if fs.exists(path):
            _log.error("%s%s is damaged: %s. The segments that it should replace are kept", path, SWAP_SUFFIX, bad)
            return
        _log.error(
            "%s%s is damaged: %s. The segments that it replaces are gone: everything before that byte is used",
            path, SWAP_SUFFIX, bad,
        )  # fmt: skip
        end = base_offset
    replaced = sorted(
        int(name[:20])
        for name in fs.listdir(directory)
        if name.endswith(LOG_SUFFIX) and name[:20].isdigit() and base_offset < int(name[:20]) < end
    )
    _log.info("%s: completing an interrupted compaction", path)
    rename_replaced(fs, directory, replaced)  # the loader removes the files marked as deleted
    give_final_names(fs, directory, base_offset)


def _end_offset(fs: FileSystem, path: str, base_offset: int) -> int:
    """Return the offset after the last batch of a segment file."""
    end = base_offset
    for _, header, _ in scan(SegmentFile(fs, path), fs.size(path), base_offset=base_offset):
        end = header.next_offset
    return end
