"""Truncate a log at its end, for a replica whose leader has other records there.

Segments after the new end are unlinked, newest first. The segment that contains the new end is truncated, and synced
after the segments before it. The log adopts its new end, and the directory is synced. Then the producers' state is
restored from a snapshot and the remaining batches, or taken back by `_rewind` if few batches were removed. A log that
restarts at an offset has neither snapshots nor producers.

Rewind: only producers that wrote the removed batches change. Up to five batches of each producer are known. If some of
them stay, they are the producer's new state. Otherwise its batches are searched before the new end: in the last
megabyte, then in twice as much, up to `_MOST_BYTES`. So the cost of a truncation is about proportional to what it
removes. Reading the whole active segment instead, as `snapshots.restore_producers` does, took 1.5 s for 200 MB on a
busy disk, and all that time the leader waited for this follower. `_rewind` returns False, with nothing changed, where
it can't tell: for transactions, for more than `_MOST_BYTES`, and for producers that it does not find. As after a
restart, earlier batches of a producer may then be unknown. Batches that may be sent again are known: clients have at
most five in flight, and the last five were known before some of them were removed.

Rules: waits for the disk: call it in a thread. Call it through `LogManager`, which updates the checkpoints: if a
recovery point were after the log's end, a later start would trust records that were not flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pylogd.broker.log.errors import CorruptLog, StorageFailure
from pylogd.broker.log.files import sync_directory
from pylogd.broker.log.log import Log
from pylogd.broker.log.opening import open_segment
from pylogd.broker.log.producers import Producer, Producers
from pylogd.broker.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from pylogd.broker.log.snapshots import remove_snapshots_above, restore_producers, snapshot_offsets
from pylogd.wire.records import BatchHeader

_FIRST_BYTES = 1 << 20
_MOST_BYTES = 16 << 20


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
        removed = _removed_headers(log.segments[len(kept) - 1 :], position)
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
    if not _rewind(log.producers, removed, log.segments[-1], log.log_end_offset):
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


def _removed_headers(segments: Sequence[Segment], position: int) -> list[BatchHeader] | None:
    """Return the headers of the batches that a truncation removes; None if they are too many, or damaged.

    segments: the segment that is truncated at byte `position`, then those that are removed whole.
    """
    first, *rest = segments
    if first.size - position + sum(segment.size for segment in rest) > _MOST_BYTES:
        return None
    try:
        found = [header for _, header in first.headers(position, allow_cold=True)]
        for segment in rest:
            found += [header for _, header in segment.headers(0, allow_cold=True)]
    except CorruptLog:
        return None
    return found


def _rewind(producers: Producers, removed: Iterable[BatchHeader] | None, segment: Segment, end_offset: int) -> bool:
    """Bring the producers back to `end_offset`. Return False, and change nothing, if that needs a full restoration.

    removed: the result of `_removed_headers` before the truncation.
    segment: the last segment, after the truncation.
    """
    if removed is None:
        return False
    first: dict[int, BatchHeader] = {}  # the first removed batch of each producer
    for header in removed:
        if header.producer_id >= 0:
            if header.is_control or header.is_transactional:
                return False
            first.setdefault(header.producer_id, header)
    states: dict[int, Producer | None] = {}
    missing = set()
    for producer_id, header in first.items():
        producer = producers.by_id.get(producer_id)
        if producer is None:
            continue
        if producer.transaction_first_offset >= 0 or producer.coordinator_epoch >= 0:
            return False
        kept = producer.before(end_offset)
        if kept is None and (header.producer_epoch or header.base_sequence):
            missing.add(producer_id)
        else:
            states[producer_id] = kept  # None for a new producer: its first batch was removed
    if missing:
        found = _look_back(segment, missing)
        if found is None:
            return False
        states |= found
    for producer_id, state in states.items():
        if state is None:
            del producers.by_id[producer_id]
        else:
            producers.by_id[producer_id] = state
    return True


def _look_back(segment: Segment, wanted: set[int]) -> dict[int, Producer] | None:
    """Return the states of producers by their last batches in a segment, or None if a producer has no batch there."""
    size = _FIRST_BYTES
    while size <= _MOST_BYTES:
        at = segment.batch_at(max(segment.size - size, 0), allow_cold=True)
        found = Producers()
        for _, header in segment.headers(0 if at is None else at.position, allow_cold=True):
            if header.producer_id in wanted:
                if header.is_control or header.is_transactional:
                    return None
                found.note(header)
        if len(found) == len(wanted):
            return found.by_id
        if size >= segment.size:
            break
        size *= 2
    return None
