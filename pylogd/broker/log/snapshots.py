"""The files of producer snapshots: write, find and remove them, and restore the state of the producers.

A scan that restores producers also finds the aborted transactions, where a transaction index has to be rebuilt.

Rules: a snapshot with invalid contents is removed with a warning, and an older one is used. The scan of the batches
after the older one restores the same state, only more slowly. Without any snapshot the scan starts at the beginning of
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from pylogd.broker.log.config import NO_LIMIT
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import FileSystem, read_file, write_atomically, write_file
from pylogd.broker.log.index import TransactionIndex
from pylogd.broker.log.index_files import write_transaction_index
from pylogd.broker.log.producers import Producers, SnapshotCorrupt
from pylogd.broker.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from pylogd.broker.log.transactions import AbortedTransaction
from pylogd.wire.records import CONTROL

_log = logging.getLogger(__name__)


def write_snapshot(fs: FileSystem, directory: str, offset: int, data: bytes, *, sync: bool = True) -> None:
    """Write the state of all producers before `offset`. Raises OSError.

    sync: False if the caller syncs the volume. A file that a crash leaves incomplete until then is found invalid and
        removed.
    """
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    if sync:
        write_atomically(fs, path, data)
    else:
        write_file(fs, path, data, sync=False)


def snapshot_offsets(fs: FileSystem, directory: str) -> list[int]:
    """Return the offsets of the snapshots in a partition's directory, ascending."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in fs.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def remove_snapshots_above(fs: FileSystem, directory: str, offset: int, offsets: Sequence[int] | None = None) -> None:
    """Remove the snapshots at offsets above `offset`, for a log that ends there.

    offsets: the offsets of all snapshots, if they are known.
    """
    for found in snapshot_offsets(fs, directory) if offsets is None else offsets:
        if found > offset:
            fs.unlink(segment_path(directory, found, SNAPSHOT_SUFFIX))


def remove_old_snapshots(fs: FileSystem, directory: str, start: int) -> None:
    """Remove all snapshots at or before `start`, the base offset of the first segment, except the last of these."""
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
    """Restore the state of the producers at `end_offset`, from the last valid snapshot and the batches after it.

    without: the base offsets of segments that are known to have no idempotent batches.

    Raises StorageFailure, CorruptLog.
    """
    offsets = snapshot_offsets(fs, directory)
    remove_snapshots_above(fs, directory, end_offset, offsets)
    producers.clear()
    start = _restore_last(fs, directory, offsets, end_offset, producers) if end_offset else 0
    if start < end_offset:
        wanted = [
            segment
            for at, segment in enumerate(segments)
            if segment.base_offset not in without and (at + 1 == len(segments) or segments[at + 1].base_offset > start)
        ]
        for segment in wanted:
            _replay(segment, start, end_offset, producers)


def rebuild_transaction_indexes(
    fs: FileSystem, directory: str, segments: Sequence[Segment], bases: Collection[int]
) -> None:
    """Rewrite the transaction indexes of the segments with these base offsets, from the batches of the log.

    A transaction may have begun in an earlier segment, so the producers before the first of them are restored too.
    Raises StorageFailure, CorruptLog.
    """
    producers = Producers()
    start = _restore_last(fs, directory, snapshot_offsets(fs, directory), min(bases), producers)
    for at, segment in enumerate(segments):
        if segment.base_offset > max(bases):
            break
        if at + 1 < len(segments) and segments[at + 1].base_offset <= start:
            continue
        aborted = _replay(segment, start, NO_LIMIT, producers)
        if segment.base_offset in bases:
            _replace_aborted(segment, TransactionIndex(aborted))


def _replace_aborted(segment: Segment, index: TransactionIndex) -> None:
    """Replace the transaction index of a segment that takes no more appends, and write it. Raises StorageFailure."""
    storage, path = segment.storage, segment.file_paths()[-1]
    try:
        write_transaction_index(storage.fs, path, index, sync=True)
    except OSError as error:
        raise StorageFailure(path, error) from error
    segment.has_aborted = bool(index.entries)
    storage.indexes.discard(segment.key)


def _restore_last(fs: FileSystem, directory: str, offsets: Sequence[int], most: int, producers: Producers) -> int:
    """Restore producers, which are empty, from the last valid snapshot at `most` or before. Return its offset, or 0.

    offsets: the offsets of all snapshots, ascending.
    """
    for offset in reversed(offsets):
        if offset > most:
            continue
        path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
        try:
            producers.restore(read_file(fs, path))
        except SnapshotCorrupt as error:
            _log.warning("Removing the invalid producer snapshot %s: %s", path, error)
            fs.unlink(path)
            continue
        return offset
    return 0


def _replay(segment: Segment, start: int, end_offset: int, producers: Producers) -> list[AbortedTransaction]:
    """Update the producers with a segment's batches from `start` on. Return the transactions that these abort."""
    found = []
    file = segment.reader(allow_cold=True)
    for position, header in segment.headers(0, allow_cold=True):
        if start <= header.base_offset < end_offset:
            batch = segment.read_at(file, position, header.size, True) if header.attributes & CONTROL else b""
            aborted = producers.note(header, batch)
            if aborted is not None:
                found.append(aborted)
    return found
