"""Putting a compacted segment in the place of those it was made from, so that a crash at any step loses nothing.

Strategy: the new segment is written to `….cleaned` files and synced. Renaming its log to `….log.swap` decides: from
then on the new segment is the true one, and what is left to do is done again, at the next start if need be, until it is
done. Before, the old ones are.

The steps, with the directory synced after each:
1. `.index.cleaned` and `.timeindex.cleaned` become `.swap`, then `.log.cleaned` does;
2. the old segments but the first are renamed to `.deleted`;
3. the indexes take their names, over those of the first old segment;
4. the log takes its name, over the first old segment's.

Rules: the last batch of the new segment ends where the last of the old ones did, which is how a start knows which they
were. Readers hold old files open, and old `Segment` objects are pinned to theirs by the caller before step 2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re

from pylogd.log.files import TEMPORARY_SUFFIX, FileSystem, SegmentFile, sync_directory
from pylogd.log.scan import BadBatch, scan
from pylogd.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)

_log = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_KINDS = (*_INDEXES, LOG_SUFFIX)  # the log last: its name is what decides
_SWAPPED_LOG = re.compile(r"^\d{20}\.log\.swap$", re.ASCII)


def commit(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Step 1: from here on the new segment, whose `.cleaned` files are written and synced, is the true one.

    A failure leaves the log's `.cleaned` file there if nothing was decided; with that gone, nobody can tell.
    """
    path = segment_path(directory, base_offset)
    try:
        for suffix in _INDEXES:
            index = segment_path(directory, base_offset, suffix)
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
    """Whether a `commit` that failed has left everything as it was."""
    return fs.exists(segment_path(directory, base_offset) + CLEANED_SUFFIX)


def put_away(fs: FileSystem, directory: str, bases: list[int]) -> list[str]:
    """Step 2: rename the old segments that start at `bases`; the paths that are to be unlinked later."""
    renamed = []
    for base in bases:
        for suffix in (LOG_SUFFIX, *_INDEXES):
            path = segment_path(directory, base, suffix)
            if fs.exists(path):
                fs.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        snapshot = segment_path(directory, base, SNAPSHOT_SUFFIX)
        if fs.exists(snapshot):
            fs.unlink(snapshot)
    sync_directory(fs, directory)
    return renamed


def take_place(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Steps 3 and 4: the new segment gets its names. May be done again after a crash in the middle of it."""
    for suffix in _KINDS:
        path = segment_path(directory, base_offset, suffix)
        if fs.exists(path + SWAP_SUFFIX):
            fs.rename(path + SWAP_SUFFIX, path)
        if suffix != INDEX_SUFFIX:
            sync_directory(fs, directory)


def discard(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove what was written of a new segment that won't be."""
    for suffix in _KINDS:
        cleaned = segment_path(directory, base_offset, suffix) + CLEANED_SUFFIX
        for path in (cleaned, cleaned + TEMPORARY_SUFFIX):
            if fs.exists(path):
                fs.unlink(path)


def finish_swaps(fs: FileSystem, directory: str) -> None:
    """At start: complete the swaps that were decided, discard those that were not."""
    names = sorted(fs.listdir(directory))
    for name in names:
        if _SWAPPED_LOG.match(name):
            _finish(fs, directory, int(name[:20]))
    for name in names:
        path = os.path.join(directory, name)
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) and fs.exists(path):
            _log.info("%s: of a compaction that was cut off; removed", path)
            fs.unlink(path)


def _finish(fs: FileSystem, directory: str, base_offset: int) -> None:
    path = segment_path(directory, base_offset)
    try:
        end = _end_of(fs, path + SWAP_SUFFIX, base_offset)
    except BadBatch as bad:
        if fs.exists(path):
            _log.error("%s%s: %s; the segments that it was made from are kept instead", path, SWAP_SUFFIX, bad)
            return
        _log.error("%s%s: %s; what it was made from is gone: all before that byte is used", path, SWAP_SUFFIX, bad)
        end = base_offset
    replaced = sorted(
        int(name[:20])
        for name in fs.listdir(directory)
        if name.endswith(LOG_SUFFIX) and name[:20].isdigit() and base_offset < int(name[:20]) < end
    )
    _log.info("%s: the compaction that was cut off is completed", path)
    put_away(fs, directory, replaced)  # the loader removes what is marked as deleted
    take_place(fs, directory, base_offset)


def _end_of(fs: FileSystem, path: str, base_offset: int) -> int:
    end = base_offset
    for _, header, _ in scan(SegmentFile(fs, path), fs.size(path), base_offset=base_offset):
        end = header.next_offset
    return end
