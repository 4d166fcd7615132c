"""Find records in a segment by their time stamps: by its time index, then by batch headers, then in one batch.

Rules: without `allow_cold`, ColdRead is raised where a look-up would wait for the disk, decompress records, or walk
over many headers or records: the reactor's thread has no time for any of that.
"""

from __future__ import annotations

from collections.abc import Callable

from pylogd.base.errors import ProtocolError
from pylogd.broker.log.errors import ColdRead, CorruptLog
from pylogd.broker.log.files import SegmentFile
from pylogd.broker.log.segment import Segment
from pylogd.wire import timestamps
from pylogd.wire.records import BatchHeader

#: The most headers, and the most records of a batch, that a look-up may walk over without `allow_cold`.
_WARM_HEADERS = 1000
_WARM_RECORDS = 1000


def find_timestamp(
    segment: Segment, timestamp: int, from_offset: int, *, allow_cold: bool
) -> tuple[int, int, int] | None:
    """Return (time stamp, offset, epoch) of the first record from `from_offset` on with at least `timestamp`."""
    indexes = segment.get_indexes(allow_cold=allow_cold)
    start = indexes.offsets.lookup(max(indexes.times.lookup(timestamp), from_offset))
    file = segment.reader(allow_cold=allow_cold)
    for passed, (position, header) in enumerate(segment.headers(start, allow_cold=allow_cold)):
        if passed >= _WARM_HEADERS and not allow_cold:
            raise ColdRead(segment.path)
        if header.max_timestamp < timestamp or header.last_offset < from_offset:
            continue
        if not allow_cold and (header.compression or header.record_count > _WARM_RECORDS):
            raise ColdRead(segment.path)
        found = _search(
            segment, file, position, header, timestamps.find_timestamp, timestamp, from_offset, allow_cold=allow_cold
        )
        if found is not None:
            return *found, header.leader_epoch
    return None


def largest_timestamp_from(segment: Segment, offset: int, *, allow_cold: bool) -> int:
    """Return the largest time stamp of the records from `offset` on; -1 if there are no records."""
    if offset <= segment.base_offset:
        return segment.largest_timestamp(allow_cold=allow_cold)[0]
    if not allow_cold:
        raise ColdRead(segment.path)  # all headers from there on have to be read
    largest = -1
    file = segment.reader(allow_cold=True)
    start = segment.get_indexes(allow_cold=True).offsets.lookup(offset)
    for position, header in segment.headers(start, allow_cold=True):
        if header.base_offset >= offset:
            largest = max(largest, header.max_timestamp)
        elif header.last_offset >= offset:
            found = _search(segment, file, position, header, timestamps.largest_timestamp, offset, allow_cold=True)
            largest = -1 if found is None else found[0]
    return largest


def _search(
    segment: Segment,
    file: SegmentFile,
    position: int,
    header: BatchHeader,
    search: Callable[..., tuple[int, int] | None],
    *args: int,
    allow_cold: bool,
) -> tuple[int, int] | None:
    """Return the result of `search` in the batch at `position`. Raises CorruptLog if it can't be decoded."""
    batch = segment.read_at(file, position, header.size, allow_cold)
    try:
        return search(batch, header, *args)
    except ProtocolError as error:
        raise CorruptLog(f"{segment.path}: byte {position}: {error}") from error
