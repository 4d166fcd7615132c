"""Open the files of a log at rest, which is how each log is after a start.

A log at rest has no file open and no index in memory. So a broker with 10,000 partitions, of which few are written,
starts at once and keeps few files open. The first append, or the first read that may wait for the disk, opens the files
of a log.

Rules: waits for the disk: call it in a thread. A log at rest does not change before its files are open, so they can be
opened without the log's lock. Readers find either all of them open or none.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple, Protocol

from pylogd.broker.log.errors import LogAtRest, StorageFailure
from pylogd.broker.log.files import SegmentFile
from pylogd.broker.log.index import Indexes
from pylogd.broker.log.segment import Segment
from pylogd.wire.records import HEADER, HEADER_SIZE, BatchHeader


class RestingLog(Protocol):
    """The attributes of a `Log` that this module needs."""

    directory: str
    has_aborted: bool

    @property
    def lock(self) -> threading.RLock: ...

    @property
    def maintenance(self) -> threading.Lock: ...

    @property
    def active(self) -> Segment: ...

    @property
    def at_rest(self) -> bool: ...

    def set_limits(self) -> None: ...


class _Opened(NamedTuple):
    """The parts that a segment needs before it can be appended to.

    first_timestamp: see `Segment`.
    """

    file: SegmentFile
    indexes: Indexes
    first_timestamp: int


def open_files(log: RestingLog) -> None:
    """Open the files of a log, if it is at rest. The caller holds `Log.maintenance`, or excludes all other writers.

    Raises StorageFailure, and CorruptLog if the end of the log is damaged.
    """
    segment = log.active
    if segment.file is not None:
        return
    opened = _open(segment)
    with log.lock:
        if log.at_rest and segment is log.active:
            _append_to(segment, opened)
            log.has_aborted = log.has_aborted or segment.has_aborted
            log.set_limits()


def open_for_append(log: RestingLog, may_wait: bool) -> None:
    """Open the files of a log at rest for an append, which excludes all other writers.

    may_wait: whether this may wait for the disk; if not, it raises LogAtRest.

    Raises the errors of `open_files`.
    """
    if not may_wait:
        raise LogAtRest(log.directory)
    open_files(log)


def open_for_readers(log: RestingLog) -> None:
    """Open the files of a log at rest, so that later reads find them open; do nothing while it is being maintained."""
    if log.at_rest and log.maintenance.acquire(blocking=False):
        try:
            open_files(log)
        finally:
            log.maintenance.release()


def open_segment(segment: Segment) -> None:
    """Open a segment that becomes the active one. The caller excludes appends. Raises StorageFailure, CorruptLog."""
    _append_to(segment, _open(segment))


def _open(segment: Segment) -> _Opened:
    fs = segment.storage.fs
    indexes = segment.get_indexes(allow_cold=True)
    segment.largest_timestamp(allow_cold=True)
    try:
        file = SegmentFile(fs, segment.path, os.O_RDWR)
        fs.never_read_ahead(file.fd)
    except OSError as error:
        raise StorageFailure(segment.path, error) from error
    first_timestamp = -1
    if segment.size:
        header = BatchHeader._make(HEADER.unpack(segment.read_at(file, 0, HEADER_SIZE, True)))
        first_timestamp = header.max_timestamp
    return _Opened(file, indexes, first_timestamp)


def _append_to(segment: Segment, opened: _Opened) -> None:
    segment.storage.files.discard(segment.key)
    segment.storage.indexes.discard(segment.key)
    indexes = segment.indexes = opened.indexes
    segment.has_aborted = bool(indexes.aborted.entries)
    segment.reopened = True
    segment.bytes_since_index = segment.size - indexes.offsets.last_position()
    segment.first_timestamp = opened.first_timestamp
    segment.file = opened.file  # last: with it, the segment is in use
