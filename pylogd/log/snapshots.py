"""Producer snapshots as files: written, found, and caught up with the batches behind them.

Rules: a snapshot that can't be read is passed over for an older one with a warning: the scan from there gives the same
state, only slower. With none at all, the scan starts with the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence

from pylogd.log.files import FileSystem, read_file, write_atomically
from pylogd.log.producers import Producers, SnapshotCorrupt
from pylogd.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path

_log = logging.getLogger(__name__)


def write_snapshot(fs: FileSystem, directory: str, offset: int, data: bytes) -> None:
    """Write the state of all producers before `offset`."""
    write_atomically(fs, segment_path(directory, offset, SNAPSHOT_SUFFIX), data)


def snapshot_offsets(fs: FileSystem, directory: str) -> list[int]:
    """The offsets of the snapshots there are, ascending."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in fs.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def remove_snapshots_above(fs: FileSystem, directory: str, offset: int) -> None:
    """Remove snapshots of offsets that the log no longer reaches."""
    for found in snapshot_offsets(fs, directory):
        if found > offset:
            fs.unlink(segment_path(directory, found, SNAPSHOT_SUFFIX))


def remove_old_snapshots(fs: FileSystem, directory: str, start: int) -> None:
    """Remove what a log whose first segment starts with `start` no longer needs: all but the last one up to there."""
    for found in [offset for offset in snapshot_offsets(fs, directory) if offset <= start][:-1]:
        fs.unlink(segment_path(directory, found, SNAPSHOT_SUFFIX))


def restore_producers(
    fs: FileSystem,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    producers: Producers,
    without: Collection[int] = (),
) -> None:
    """Make `producers` what it was when the log ended at `end_offset`: the last good snapshot and what follows it.

    `without` has the base offsets of segments that are known to have no batch of a producer with an id.
    """
    remove_snapshots_above(fs, directory, end_offset)
    producers.clear()
    start = 0
    for offset in reversed(snapshot_offsets(fs, directory)):
        path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
        try:
            producers.restore(read_file(fs, path))
        except SnapshotCorrupt as error:
            _log.warning("%s is passed over: %s", os.path.basename(path), error)
            fs.unlink(path)
            continue
        start = offset
        break
    if start < end_offset:
        _replay(segments, start, end_offset, producers, without)


def _replay(
    segments: Sequence[Segment], start: int, end_offset: int, producers: Producers, without: Collection[int]
) -> None:
    for at, segment in enumerate(segments):
        if segment.base_offset in without or (at + 1 < len(segments) and segments[at + 1].base_offset <= start):
            continue
        for _, header in segment.headers(0, allow_cold=True):
            if start <= header.base_offset < end_offset:
                producers.note(header)
