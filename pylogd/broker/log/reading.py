"""Find batches and time stamps in the segments of a log, as they were at one moment.

A new `SegmentsView` is created whenever the list of segments changes. A view itself never changes, so it can be used
without a lock. The segment is found by bisecting base offsets; the position in it is found by the segment. A range that
ends because of its size limit ends with a whole batch, so that no reader is sent an incomplete one. The position of the
batch after the range is remembered by its offset, since a reader continues there, and then needs no look-up. The range
itself is remembered by its first offset, since several readers of a partition often ask for the same range, one after
the other. A record is found by its time stamp in the time index of a segment, then in batch headers, then in one batch.

Rules: a look-up that would wait for the disk, decompress records, or walk over many headers or records, raises ColdRead
unless `allow_cold`: the reactor's thread has no time for any of that. If a segment is deleted during a
look-up, the look-up raises StorageFailure; the caller knows whether retention explains that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from pylogd.base.errors import ProtocolError
from pylogd.broker.log.errors import ColdRead, CorruptLog
from pylogd.broker.log.files import FileSlice, SegmentFile
from pylogd.broker.log.segment import BatchLocation, Segment
from pylogd.broker.log.transactions import AbortedTransaction
from pylogd.wire import timestamps
from pylogd.wire.records import BatchHeader

_MAX_REMEMBERED = 128
#: A batch begins with `ZEROS` zero bytes if its base offset, a big-endian int64, is below `BELOW_ZEROS`.
ZEROS, BELOW_ZEROS = 3, 1 << 40

#: A range of bytes: its segment, position and length, and the base offset of the batch after it in the segment. This
#: offset is -1 if it is not known or if there is no such batch.
Range = tuple[Segment, int, int, int]
#: What is remembered of a slice: the size limit of its range, the offset after the range, and the slice. For compiled
#: code it also has the slice's size, the zeros after it, `send_resident` of its file system, and its position.
KeptSlice = tuple[int, int, FileSlice, int, int, Callable[[int, bytes, int, int, int], int], int]
#: The empty collections at the start, which all logs share, since most logs of a large broker are never read. They are
#: never changed.
_NO_NEXT: dict[int, tuple[int, BatchLocation]] = {}
_NO_RANGES: dict[int, tuple[int, Range]] = {}
_NO_SLICES: dict[int, KeptSlice] = {}
_base_offset = attrgetter("base_offset")
#: The most headers, and the most records of a batch, that a look-up may walk over without `allow_cold`.
_WARM_HEADERS = 1000
_WARM_RECORDS = 1000


class SegmentsView:
    """The segments of a log, oldest first, at least one. The list must not be changed."""

    __slots__ = ("_aborted", "_next", "_ranges", "segments", "slices")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        #: The indexes of the segments to search for aborted transactions, computed when first needed: those with an
        #: aborted transaction, and the last one, which may get one.
        self._aborted: Sequence[int] = ()
        self._next = _NO_NEXT  # index of the segment and batch, by the batch's base offset
        #: The size limit of each range, and the range, by the base offset of its first batch.
        self._ranges = _NO_RANGES
        #: Slices of the last segment, whose file is always open, by the base offset of their first batch.
        self.slices = _NO_SLICES

    def look_up(
        self, offset: int, bound: int, end: int, size: int, max_bytes: int, *,
        min_one: bool, allow_cold: bool, empty: bool = False,
    ) -> Range | None:  # fmt: skip
        """Return the range for `Log.read`, None if there are no bytes.

        bound: only batches that end before this offset are in the range.
        end: the log end offset.
        size: the size of the last segment at the same moment.
        min_one: whether the range has the first batch even if it is larger than `max_bytes`.
        allow_cold: whether to wait for the disk; otherwise ColdRead is raised.
        empty: whether the first batch may be one that compaction emptied. A replica needs such batches, since they
            contain their producer's last sequence.
        """
        known = self._ranges.get(offset)
        if known is not None and known[0] == max_bytes and known[1][3] <= bound:
            return known[1]
        found = self._next.get(offset) or self._find(offset, allow_cold, empty)
        if found is None:
            return None
        at, first = found
        segment = self.segments[at]
        if first.last_offset >= bound:
            return None
        length = self._end(at, bound, end, size, allow_cold) - first.position
        if length > max_bytes:
            if max_bytes < first.size and not min_one:
                return None
            return self._whole_batches(at, first, offset, max_bytes, allow_cold)
        return (segment, first.position, length, -1) if length > 0 else None

    def _find(self, offset: int, allow_cold: bool, empty: bool) -> tuple[int, BatchLocation] | None:
        """Return (index of the segment, batch) for the first batch that ends at or after `offset`.

        empty: whether a batch without records is returned too.
        """
        for at in range(max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0), len(self.segments)):
            segment = self.segments[at]
            found = segment.locate(offset, allow_cold=allow_cold)
            while found is not None:
                # librdkafka takes a response with only empty batches for a truncated one.
                if empty or not found.empty:
                    return at, found
                found = segment.locate(found.last_offset + 1, allow_cold=allow_cold)
        return None

    def _end(self, at: int, bound: int, end: int, size: int, allow_cold: bool) -> int:
        """Return the position in a segment's file where a read up to `bound` (exclusive) ends."""
        segment = self.segments[at]
        is_last = at + 1 == len(self.segments)
        if bound < (end if is_last else self.segments[at + 1].base_offset):
            excluded = segment.locate(bound, allow_cold=allow_cold)
            if excluded is not None:
                return excluded.position
        return size if is_last else segment.size

    def _whole_batches(self, at: int, first: BatchLocation, offset: int, max_bytes: int, allow_cold: bool) -> Range:
        """Return the range of the batches from `first` on that fit into `max_bytes`. It has `first` in any case."""
        segment, position = self.segments[at], first.position
        most = max(max_bytes, first.size)
        next_batch = segment.batch_at(position + most, allow_cold=allow_cold)
        if next_batch is None:
            return segment, position, most, -1
        if not next_batch.empty:
            if not len(self._next) % _MAX_REMEMBERED:  # there are none, or too many
                self._next = {}
            self._next[next_batch.base_offset] = at, next_batch
        found = segment, position, next_batch.position - position, next_batch.base_offset
        if first.base_offset == offset and most == max_bytes:
            if not len(self._ranges) % _MAX_REMEMBERED:  # there are none, or too many
                self._ranges, self.slices = {}, {}
            self._ranges[offset] = max_bytes, found
        return found

    def keep(self, offset: int, found: Range, records: FileSlice) -> None:
        """Keep the slice of a range that `look_up` found, if the range is remembered and its file is open."""
        known, segment = self._ranges.get(offset), found[0]
        if known is not None and known[1] is found and segment is self.segments[-1] and segment.cached is None:
            self.slices[offset] = (
                known[0], found[3], records, records.length, records.zeros, records.file.fs.send_resident,
                records.position,
            )  # fmt: skip

    def offset_for_timestamp(self, timestamp_ms: int, start: int, *, allow_cold: bool) -> tuple[int, int, int] | None:
        """Return (time stamp, offset, epoch) of the first record from `start` on with at least `timestamp_ms`."""
        for segment in self.segments:
            if segment.largest_timestamp(allow_cold=allow_cold)[0] >= timestamp_ms:
                found = _find_timestamp(segment, timestamp_ms, start, allow_cold=allow_cold)
                if found is not None:
                    return found
        return None

    def max_timestamp(self, start: int, *, allow_cold: bool) -> tuple[int, int, int] | None:
        """Return (time stamp, offset, leader epoch) of the first record from `start` on with the largest time stamp."""
        best: tuple[int, Segment] | None = None
        for segment in self.segments[self._containing(start) :]:
            stamp = _largest_timestamp_from(segment, start, allow_cold=allow_cold)
            if stamp >= 0 and (best is None or stamp > best[0]):
                best = stamp, segment
        return None if best is None else _find_timestamp(best[1], best[0], start, allow_cold=allow_cold)

    def aborted_in(self, offset: int, records: FileSlice, end: int, *, allow_cold: bool) -> list[AbortedTransaction]:
        """Return the aborted transactions of records, in the order of their markers; see `Log.aborted_in`.

        The result may have some that begin right after the records.
        """
        if not self._aborted:
            *sealed, _ = self.segments
            self._aborted = [*(at for at, segment in enumerate(sealed) if segment.has_aborted), len(sealed)]
        first = self._containing(offset)
        indexes = self._aborted[bisect_left(self._aborted, first) :]
        if len(indexes) == 1 and not self.segments[-1].has_aborted:
            return []
        end = min(end, self._end_of(first, records, end, allow_cold))
        found: list[AbortedTransaction] = []
        for at in indexes:
            segment = self.segments[at]
            if segment.has_aborted:
                some, complete = segment.get_indexes(allow_cold=allow_cold).aborted.overlapping(offset, end)
                found += some
                if complete:
                    break
        return found

    def _end_of(self, first: int, records: FileSlice, end: int, allow_cold: bool) -> int:
        """Return an offset after all of `records`, which are in the segment of index `first` or a later one."""
        for at in range(first, len(self.segments)):
            segment = self.segments[at]
            if segment.base_offset >= end:
                break
            if segment.reader(allow_cold=allow_cold) is records.file:
                position = records.position + records.length
                bound = segment.get_indexes(allow_cold=allow_cold).offsets.bound_of(position)
                if bound is not None:
                    return bound
                return self.segments[at + 1].base_offset if at + 1 < len(self.segments) else end
        return end

    def _containing(self, offset: int) -> int:
        """Return the index of the segment that has `offset`. If `offset` is before all segments, return 0."""
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)


def _find_timestamp(
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


def _largest_timestamp_from(segment: Segment, offset: int, *, allow_cold: bool) -> int:
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
